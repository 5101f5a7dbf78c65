"""A farm of this machine alone, for as long as somebody wants it: a coordinator and an agent, children of whoever asks.
Jobs and results stay in the root."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from muster.coordinator.api.requests import AgentsAsk, Done, StatusAsk, Stop
from muster.coordinator.api.status import Agents, Status
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common import launch
from muster.jobs.common.errors import LinkError, MusterError, NoDaemonError

POOL = ("--pool", "processes")  # a run has begun and is often over before Ray is there
POLL_SECONDS = 0.05
LEAVE_SECONDS = 5.0  # for the agent to hand in what is finished
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def local_farm(path: Path | None) -> Iterator[Root]:
    """The root, served, with a machine: by what is there already, or else by what is started here and ended after.
    Whoever interrupts the ending has it at once: a farm that is killed loses nothing."""
    root = roots.prepare(roots.find(path).path)
    children: list[subprocess.Popen[bytes]] = []

    def hurry(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.kill()

    with ExitStack() as closing:
        for number in ENDING:  # of who asks: it ends its children first
            closing.callback(signal.signal, number, signal.signal(number, _interrupt))
        try:
            if not is_served(root):
                daemon = _start([*roots.command("serve", root.path), "--quiet"], root.start_log)
                children.append(daemon)
                closing.callback(_stop, root, daemon)
                _await("the coordinator", daemon, root.start_log, lambda: is_served(root))
            if not _has_machine(root):
                words = root.path / "agent.log"
                name = f"local-{hashlib.blake2b(bytes(root.path), digest_size=3).hexdigest()}"
                agent = _start(launch.python("muster.agent.cli", "join", str(root.path), "--name", name, *POOL), words)
                children.append(agent)
                closing.callback(_leave, agent)
                _await("the agent", agent, words, lambda: _has_machine(root))
            yield root
        finally:
            for number in ENDING:
                signal.signal(number, hurry)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def is_served(root: Root) -> bool:
    try:
        ask_daemon.ask(root, StatusAsk(), Status)
    except (NoDaemonError, LinkError):
        return False
    return True


def _has_machine(root: Root) -> bool:
    return any(agent.state == "live" for agent in ask_daemon.ask(root, AgentsAsk(), Agents).agents)


def _start(command: list[str], words: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C at a terminal is ours alone."""
    with words.open("wb") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def _await(what: str, process: subprocess.Popen[bytes], words: Path, is_up: Callable[[], bool]) -> None:
    deadline = time.monotonic() + launch.START_SECONDS
    while not is_up():
        if process.poll() is not None or time.monotonic() > deadline:
            raise MusterError(f"{what} did not start", f"see {words}")
        time.sleep(POLL_SECONDS)


def _leave(agent: subprocess.Popen[bytes]) -> None:
    """In good order; at once where that takes long, as it does while commands run."""
    for _ in range(2):
        agent.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(LEAVE_SECONDS)
            return
    agent.kill()
    agent.wait()


def _stop(root: Root, daemon: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(MusterError):
        ask_daemon.ask(root, Stop(), Done)
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(LEAVE_SECONDS)
        return
    daemon.kill()
    daemon.wait()
