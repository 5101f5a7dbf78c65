"""Which runners were started from a folder, and putting down what is left of them. Kills only what carries their token.

A runner leads a process group of its own, and its environment has a token that all its descendants inherit. So whatever
the user's code started is found, even with another group, or after the leader's death.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

TOKEN = "MUSTER_RUNNER"  # the environment variable
FROZEN = "frozen"  # a file in a scratch folder whose runners are stopped on purpose
DEATH_SECONDS = 5.0
LOOK_SECONDS = 0.005
_CLOCK_SECONDS = 2.0  # start times are of the wall clock, which may be set between two looks
_ROUNDS = 5


class Record(msgspec.Struct, frozen=True):
    """A runner as its file says it."""

    pid: int
    started: float  # psutil's create_time
    pgid: int
    token: str


def record(scratch: Path, pid: int, token: str) -> Path:
    """Write down that `pid` runs from here, so that a sweep finds it should we be killed. The file."""
    try:
        started = psutil.Process(pid).create_time()
    except psutil.Error:  # dead already
        started = 0.0
    path = scratch / f"runner-{pid}.json"
    path.write_bytes(msgspec.json.encode(Record(pid, started, pid, token)))
    return path


def sweep(folder: Path) -> int:
    """Kill every recorded runner still alive, with all it started; how many. For a folder whose worker is dead.

    Looks in `folder` and in the folders right below it.
    """
    paths = [*folder.glob("runner-*.json"), *folder.glob("*/runner-*.json")]
    records = [found for path in paths if (found := _read(path)) is not None]
    leaders = {found.token: leader for found in records if (leader := _living(found)) is not None}
    for leader in leaders.values():
        kill_group(leader.pid)
    marked = kill_marked({found.token for found in records}) if records else set()
    _await_death(leaders.values())
    for path in paths:
        path.unlink(missing_ok=True)
    return len(marked | leaders.keys())


def freeze(folder: Path, *, again: bool = False) -> None:
    """Stop every runner that was started from `folder` where it is; `again`: what began since, at little cost."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FROZEN).touch()
    _signal_all(folder, signal.SIGSTOP, thorough=not again)


def thaw(folder: Path) -> None:
    """Let them go on."""
    (folder / FROZEN).unlink(missing_ok=True)
    _signal_all(folder, signal.SIGCONT, thorough=True)


def _signal_all(folder: Path, number: signal.Signals, *, thorough: bool) -> None:
    """To the groups of all living runners; thorough: to what left those, too."""
    records = [found for path in folder.glob("runner-*.json") if (found := _read(path)) is not None]
    living = [found for found in records if _living(found) is not None]
    tokens = {found.token for found in living}
    for found in living:
        _signal_group(found.pgid, number)
    for process in psutil.process_iter() if tokens and thorough else ():
        if _token_of(process) in tokens:
            with suppress(psutil.Error):
                process.send_signal(number)


def _signal_group(pgid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(pgid, number)


def kill_group(pgid: int) -> None:
    """SIGKILL to a whole group, should there be one."""
    _signal_group(pgid, signal.SIGKILL)


def kill_marked(tokens: Collection[str]) -> set[str]:
    """SIGKILL to every process that carries one of the tokens, until there is none; the tokens that were found."""
    found: set[str] = set()
    for _ in range(_ROUNDS):  # what is being killed may be forking
        strays = {process: token for process in psutil.process_iter() if (token := _token_of(process)) in tokens}
        if not strays:
            break
        for process in strays:
            _kill(process)
        _await_death(strays)
        found |= {token for token in strays.values() if token}
    return found


def _read(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):  # torn by its writer's death
        return None


def _living(found: Record) -> psutil.Process | None:
    """The recorded process, if it is alive and no other that got its number since."""
    try:
        process = psutil.Process(found.pid)
        same = abs(process.create_time() - found.started) < _CLOCK_SECONDS and os.getpgid(found.pid) == found.pgid
    except (psutil.Error, OSError):
        return None
    return process if same and not _is_dead(process) else None


def _is_dead(process: psutil.Process) -> bool:
    """A zombie is dead, whenever its parent may come to see to it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _await_death(processes: Iterable[psutil.Process]) -> None:
    until = time.monotonic() + DEATH_SECONDS
    for process in processes:
        while not _is_dead(process) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)


def _token_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(TOKEN)
    except (psutil.Error, OSError):  # gone, a zombie, or another user's
        return None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        pass
