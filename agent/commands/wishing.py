"""What pause, resume and set have in common: a wish for an agent of this machine, and waiting until it goes by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from muster.agent.commands.status import state_of, the_one
from muster.agent.display import State
from muster.agent.host import user_limits
from muster.agent.host.user_limits import Courtesy
from muster.jobs.common.errors import LinkError

ANSWER_SECONDS = 15.0  # a pool that is starting takes the agent's attention
POLL_SECONDS = 0.05

_Command = TypeVar("_Command", bound=Callable[..., Any])


def agent_options(command: _Command) -> _Command:
    """Which agent is meant, where several run."""
    command = click.option("--spool", type=click.Path(path_type=Path), default=None, help="Which agent, by its spool.")(
        command
    )
    return click.option("--name", default=None, help="Which agent, where several run.")(command)


def wish(spool: Path | None, name: str | None, change: Callable[[Courtesy], Courtesy]) -> State:
    """Change what is wished of the agent; how it is once it goes by it."""
    folder, owner = the_one(spool, name)
    stamp = user_limits.write(folder, change(user_limits.read(folder)))
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        state = state_of(folder)
        if state is not None and state.pid == owner.pid and state.wishes == stamp:
            return state
        time.sleep(POLL_SECONDS)
    raise LinkError(f"agent {owner.name} does not answer", "it will as soon as it looks; `agent status` shows it")
