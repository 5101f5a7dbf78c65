"""`coordinator drop`: give up a machine that will not come back."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, DropAgent
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.options import farm_option, json_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.names import check_name


@click.command(epilog=example("coordinator drop lab3"))
@click.argument("agent", metavar="AGENT", shell_complete=complete_names.agent)
@click.option("--force", is_flag=True, help="End its session although it is connected.")
@farm_option
@json_option
def command(agent: str, force: bool, root: Path | None, as_json: bool) -> None:
    """Give up a machine that will not come back.

    Its session ends at once, and all that it had of jobs, finished or not, is computed elsewhere. If it does come back,
    it joins anew, and what it has finished counts where nobody was sooner. `coordinator drain` lets one that is there
    finish, `coordinator kick` takes one shard from it.
    """
    found = roots.existing(root)
    name = check_name(agent, "agent")
    say_done(ask_daemon.ask(found, DropAgent(name, force), Done).said, as_json, agent=name)
