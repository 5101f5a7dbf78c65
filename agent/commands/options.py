"""Options that commands share, and what WHERE names. Connects to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from muster.agent.commands.status import state_of
from muster.agent.display import DisplayState
from muster.agent.host import lending
from muster.agent.host.lending import Courtesy
from muster.agent.spool import register
from muster.jobs.common.errors import LinkError, UsageError
from muster.jobs.common.json_documents import json_text
from muster.jobs.common.locations import Folder, Host, parse

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SSH = (
    click.option(
        "--ssh",
        type=click.Choice(["auto", "paramiko", "openssh"]),
        default="auto",
        help="What connects: paramiko, built in, or the system's ssh, which can do more; auto asks ~/.ssh/config.",
    ),
    click.option(
        "--accept-new-host-key", is_flag=True, help="Trust a host that is not known yet; a changed key is refused."
    ),
    click.option("--command", "program", default=None, help="The coordinator program there, if it is not on the PATH."),
    click.option("--port", type=click.IntRange(1, 65535), default=None, help="Port of sshd there."),
    click.option(
        "--ssh-config",
        type=click.Path(path_type=Path, resolve_path=True),
        default=None,
        help="File to use in place of ~/.ssh/config, as with `ssh -F`.",
    ),
)
ray_token_option = click.option(
    "--ray-token",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=None,
    help="A file with that cluster's token.",
)
ANSWER_SECONDS = 15.0  # on a busy machine
POLL_SECONDS = 0.05


def ssh_options(command: _Command) -> _Command:
    """How to reach a host."""
    for option in reversed(_SSH):
        command = option(command)
    return command


def check_ray_options(ray: str | None, ray_token: Path | None) -> None:
    """A UsageError for a token without the cluster that it is of."""
    if ray is None and ray_token is not None:
        raise UsageError("--ray-token is of a cluster that --ray names", "name it with --ray HOST:PORT")


def place_of(where: str, port: int | None) -> Folder | Host:
    """What WHERE and --port name together."""
    found = parse(where)
    if isinstance(found, Folder):
        return found
    if port and found.port not in (None, port):
        raise UsageError(f"{where} and --port {port} name two ports", "leave one of them out")
    return replace(found, port=port or found.port)


def is_typed(option: str) -> bool:
    """Whether this command's option is on the command line, and not the environment's or a default."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def agent_options(command: _Command) -> _Command:
    """Which agent is meant, where several run."""
    command = click.option(
        "--spool", type=click.Path(path_type=Path), default=None, help="Spool of the agent that is meant."
    )(command)
    named = click.option("--name", default=None, help="Name of the agent, if several run.", shell_complete=_names)
    command = named(command)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def _names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Of agents that joined from here, for a shell that completes the word."""
    return [name for name in sorted({one.name for one in register.entries()}) if name.startswith(begun)]


def say_done(state: DisplayState, said: str, as_json: bool) -> None:
    """What was changed of an agent, in a line, or as JSON with how it is now."""
    click.echo(json_text({"agent": msgspec.to_builtins(state), "said": said}) if as_json else said)


def wish(spool: Path | None, name: str | None, change: Callable[[Courtesy], Courtesy]) -> DisplayState:
    """Change what is wished of the agent; how it is once it goes by it."""
    folder, owner = register.the_one(spool, name)
    stamp = lending.write(folder, change(lending.read(folder)))
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        state = state_of(folder)
        if state is not None and state.pid == owner.pid and state.wishes == stamp:
            return state
        time.sleep(POLL_SECONDS)
    raise LinkError(
        f"agent {owner.name} does not answer", "it does so as soon as it can; `agent status` shows whether it did"
    )
