"""`coordinator service`: the coordinator as a unit of its user's systemd, so that it comes back by itself."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click
import msgspec

from muster.coordinator.commands.options import json_option, root_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common import launch, units, user_units
from muster.jobs.common.cli import example
from muster.jobs.common.errors import LinkError, RefusedError, UsageError
from muster.jobs.common.user_units import UserUnit

POLL_SECONDS = 0.1


@click.command(epilog=example("coordinator service install", "coordinator service show"))
@click.argument("action", type=click.Choice(["install", "remove", "show"]))
@root_option
@click.option("--memory", metavar="SIZE", default=None, help="Memory for it and its helpers at most; default no limit.")
@json_option
def command(action: str, root: Path | None, memory: str | None, as_json: bool) -> int:
    """Let systemd keep a farm's coordinator at work: it starts it with this machine, and again when it fails.

    `install` makes the farm's root where there is none. `remove` stops the coordinator and takes the unit away; the
    root and its jobs stay. No root is needed, in the other sense of the word.
    """
    if memory is not None and action != "install":
        raise UsageError("--memory is for install", "`coordinator service install --memory SIZE` changes it")
    found = roots.prepare(roots.find(root).path) if action == "install" else roots.existing(root)
    unit = unit_of(found)
    if action == "install":
        _install(unit, found, memory)
        said = f"serving {found.path}; {unit.facts()}"
    else:
        unit.require()
        said = str(unit.facts())
        if action == "remove":
            unit.remove()
            said = f"{unit.name}: removed; {found.path} is not served any more"
    facts = msgspec.to_builtins(unit.facts()) if unit.path.exists() else None
    say_done(said, as_json, root=str(found.path), unit=facts)
    return 0


def unit_of(root: Root) -> UserUnit:
    """A dot is in no agent's name, and so in no agent's unit."""
    return UserUnit(f"muster.coordinator-{root.farm[:8]}.service")


def _install(unit: UserUnit, root: Root, memory: str | None) -> None:
    command = [sys.executable, "-m", "muster.coordinator", "serve", "--root", str(root.path)]
    user_units.require_manager(f"`crontab -e`, and the line `@reboot {shlex.join(command)} --detach`")
    if not unit.is_active() and not roots.is_free(root):
        raise RefusedError(f"{root.path} is served already, and not by systemd", "`coordinator stop`, then this")
    try:
        limit = units.parse_size(memory) if memory else None
    except ValueError as error:
        raise UsageError(f"--memory: {error}", "such as 4GiB") from None
    told = user_units.text(
        "muster coordinator service install", f"Muster coordinator of {root.path}", [*command, "--quiet"], "/",
        user_units.kept_variables(), limit,
    )  # fmt: skip
    unit.install(told)
    deadline = time.monotonic() + launch.START_SECONDS
    while time.monotonic() < deadline:
        if ask_daemon.answers(root):
            return
        time.sleep(POLL_SECONDS)
    hint = f"see {root.log} and `journalctl --user -u {unit.name}`"
    raise LinkError(f"the coordinator did not answer within {launch.START_SECONDS:.0f} s", hint)
