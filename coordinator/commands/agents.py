"""`coordinator agents`: the machines of the farm."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import AgentsAsk
from muster.coordinator.api.status import Agents
from muster.coordinator.commands.options import json_option, root_option, say, say_json
from muster.coordinator.display import agents
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator agents"))
@root_option
@json_option
def command(root: Path | None, as_json: bool) -> None:
    """List the machines: their state, their work, what they cannot run and why."""
    found = roots.existing(root)
    answer = ask_daemon.ask(found, AgentsAsk(), Agents)
    if as_json:
        say_json(answer)
    elif answer.agents:
        say(agents.agents_table(answer.agents, answer.now))
    else:
        say(agents.no_machines(found.path))
