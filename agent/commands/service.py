"""`agent service`: an agent of this machine as a unit of its user's systemd, so that it comes back by itself."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click
import msgspec

from muster.agent.commands.options import agent_options
from muster.agent.commands.status import state_of
from muster.agent.host.memory import of_unit
from muster.agent.spool import owner as owners
from muster.agent.spool import register
from muster.agent.spool.register import Registered
from muster.jobs.common import launch, units, user_units
from muster.jobs.common.cli import example
from muster.jobs.common.errors import LinkError, NotFoundError, RefusedError
from muster.jobs.common.json_documents import json_text
from muster.jobs.common.user_units import UserUnit

POLL_SECONDS = 0.1


@click.command(epilog=example("agent join server.lab --cpus 4", "agent service install", "agent service show"))
@click.argument("action", type=click.Choice(["install", "remove", "show"]))
@agent_options
def command(action: str, name: str | None, spool: Path | None, as_json: bool) -> int:
    """Let systemd keep an agent at work: it starts it with this machine, and again when it fails.

    `install` takes the agent that joined last, with all options of that join; join once before, and let it leave.
    `remove` lets the agent finish and leave, and takes the unit away. No root is needed. If memory runs out, users'
    code is ended before the agent.
    """
    if action == "install":
        joined = _last_join(name, spool)
        unit = unit_of(joined.name)
        _install(unit, joined)
        said = f"{joined.name} works; {unit.facts()}"
    else:
        unit = unit_of(owners.name_and_folder(name, spool)[0])
        unit.require()
        said = str(unit.facts())
        if action == "remove":
            unit.remove()
            said = f"{unit.name}: removed; the agent has left"
    facts = msgspec.to_builtins(unit.facts()) if unit.path.exists() else None
    click.echo(json_text({"unit": facts, "said": said}) if as_json else said)
    return 0


def unit_of(name: str) -> UserUnit:
    """As `deploy` calls it too."""
    return UserUnit(f"muster-{name}.service")


def _last_join(name: str | None, spool: Path | None) -> Registered:
    folder = spool.absolute() if spool else None
    for entry in register.entries():
        if name in (None, entry.name) and folder in (None, Path(entry.spool)):
            return entry
    who = f"agent {name}" if name else "an agent"
    raise NotFoundError(f"no join of {who} is remembered here", "`agent join WHERE` once, let it leave, then this")


def _install(unit: UserUnit, joined: Registered) -> None:
    folder = Path(joined.spool)
    command = [sys.executable, "-m", "muster.agent", "join", *_named(joined)]
    at_start = f"cd {shlex.quote(joined.cwd)} && {shlex.join(command)} --detach"
    user_units.require_manager(f"`crontab -e`, and the line `@reboot {at_start}`")
    if not unit.is_active() and any(register.running(folder)):
        hint = f"`agent leave --name {joined.name}`, then this"
        raise RefusedError(f"agent {joined.name} runs already, and not by systemd", hint)
    memory = _memory(joined.args)
    unit.install(
        user_units.text(
            "muster agent service install", f"Muster agent {joined.name}", command, joined.cwd,
            user_units.kept_variables(), of_unit(memory) if memory else None,
        )
    )  # fmt: skip
    _await(unit, joined.name, folder)


def _named(joined: Registered) -> list[str]:
    """The words of its join: what went by default then, the machine's name, may be another some day."""
    given = {word.partition("=")[0] for word in joined.args}
    name = [] if "--name" in given else ["--name", joined.name]
    default = owners.name_and_folder(joined.name, None)[1] == Path(joined.spool)
    return [*name, *([] if "--spool" in given or default else ["--spool", joined.spool]), *joined.args]


def _memory(args: list[str]) -> int | None:
    """What it was told to lend."""
    for word, following in zip(args, [*args[1:], ""], strict=True):
        option, _, value = word.partition("=")
        if option == "--memory":
            return units.parse_size(value or following)
    return None


def _await(unit: UserUnit, name: str, folder: Path) -> None:
    """Until it works, as of `agent join --detach`."""
    deadline = time.monotonic() + launch.START_SECONDS
    why = "it did not start"
    while time.monotonic() < deadline:
        state, now = state_of(folder), unit.facts()
        if state is not None and state.pid == now.pid and now.pid:
            if state.linked and state.ready:
                return
            why = state.why_idle or "it is starting"
        time.sleep(POLL_SECONDS)
    again = f"`journalctl --user -u {unit.name}` says more; systemd starts it again whenever it ends"
    raise LinkError(f"{name} has not begun to work within {launch.START_SECONDS:.0f} s: {why}", again)
