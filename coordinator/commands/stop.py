"""`coordinator stop`: ask the daemon to go, and see it gone."""

from __future__ import annotations

import time
from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Stop
from muster.coordinator.commands.options import farm_option, json_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import LinkError, NoDaemonError

STOP_SECONDS = 60.0
POLL_SECONDS = 0.05


@click.command(epilog=example("coordinator stop"))
@farm_option
@json_option
def command(root: Path | None, as_json: bool) -> None:
    """Stop the coordinator of a farm.

    Nothing is lost: agents go on computing, and jobs go on when it is started again. `coordinator drain` or
    `agent leave` end an agent, `coordinator cancel` a job.
    """
    found = roots.existing(root)
    ask_daemon.ask(found, Stop(), Done)
    _await_end(found)
    say_done(f"{found.path} is not served any more", as_json, root=str(found.path))


def _await_end(found: Root) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            ask_daemon.connect(found).close()
        except NoDaemonError:
            if roots.is_free(found):
                return
        time.sleep(POLL_SECONDS)
    raise LinkError(f"the coordinator is still there after {STOP_SECONDS:.0f} s", f"see {found.log}")
