"""`agent leave`: end an agent of this machine, in good order or at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from muster.agent.commands.options import agent_options
from muster.agent.spool import owner as owners
from muster.agent.spool import register
from muster.jobs.common.cli import example
from muster.jobs.common.errors import IncompleteError, RefusedError
from muster.jobs.common.json_documents import json_text
from muster.jobs.common.processes import await_end

POLL_SECONDS = 0.1
NOW_SECONDS = 30.0  # for an agent told to stop at once


@click.command(epilog=example("agent leave", "agent leave --name desk --now"))
@agent_options
@click.option("--now", is_flag=True, help="Stop at once; what is finished is kept, and handed in after the next join.")
def command(name: str | None, spool: Path | None, now: bool, as_json: bool) -> int:
    """End an agent of this machine.

    The agent finishes what runs, pushes what is finished and hands back the rest. This command waits for that;
    `coordinator drain` does the same from the server. `agent pause` keeps the machine in the farm.
    """
    folder, owner = register.the_one(spool, name)
    _signal(owner, signal.SIGTERM)
    if now:
        _wait(owner, POLL_SECONDS)
        _signal(owner, signal.SIGTERM)
        if not _wait(owner, NOW_SECONDS):
            raise RefusedError(f"agent {owner.name} (process {owner.pid}) does not stop", f"`kill -9 {owner.pid}`")
        if as_json:
            click.echo(json_text({"agent": owner.name, "said": f"{owner.name} stopped"}))
        return 0
    _wait(owner, float("inf"))
    if owners.owner_of(folder) == owner:  # it says so itself when it leaves in good order
        raise IncompleteError(f"agent {owner.name} left with work it could not push", f"its log is {folder}/agent.log")
    said = f"{owner.name} left"
    click.echo(json_text({"agent": owner.name, "said": said}) if as_json else said)
    return 0


def _signal(owner: owners.Owner, number: signal.Signals) -> None:
    if owner.process() is not None:
        os.kill(owner.pid, number)


def _wait(owner: owners.Owner, seconds: float) -> bool:
    """Whether it ended in time."""
    return await_end(filter(None, [owner.process()]), seconds, POLL_SECONDS)
