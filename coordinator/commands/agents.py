"""`coordinator agents`: the machines of the farm."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask, render
from coordinator import root as roots
from coordinator.admin import Agents, AgentsAsk
from coordinator.commands.options import json_option, root_option, say, say_json
from jobs.group import example


@click.command(epilog=example("coordinator agents"))
@root_option
@json_option
def command(root: Path | None, as_json: bool) -> None:
    """List the machines: their state, their work, what they cannot run and why."""
    found = roots.existing(root)
    answer = ask.ask(found, AgentsAsk(), Agents)
    if as_json:
        say_json(answer)
    elif answer.agents:
        say(render.agents_table(answer.agents, answer.now))
    else:
        say(render.no_machines(found.path))
