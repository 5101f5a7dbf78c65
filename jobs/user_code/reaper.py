"""Which runners were started from a folder, and putting down what is left of them. Kills only what carries their token.

A runner leads a process group of its own, and its environment has a token that all its descendants inherit. So whatever
the user's code started is found, even with another group, or after the leader's death.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from muster.jobs.common.durable import read_json
from muster.jobs.common.processes import ProcessId, await_end, identify, signal_group

TOKEN = "MUSTER_RUNNER"  # the environment variable
FROZEN = "frozen"  # a file in a scratch folder whose runners are stopped on purpose
DEATH_SECONDS = 5.0
_ROUNDS = 5


class RunnerRecord(ProcessId, frozen=True):
    """A runner as its file says it."""

    pgid: int
    token: str


def record(scratch: Path, pid: int, token: str) -> Path:
    """Write down that `pid` runs from here, so that a sweep finds it should we be killed. The file."""
    try:
        started = identify(pid).started
    except psutil.Error:  # dead already
        started = 0.0
    path = scratch / f"runner-{pid}.json"
    path.write_bytes(msgspec.json.encode(RunnerRecord(pid, started, pid, token)))
    return path


def sweep(folder: Path) -> int:
    """Kill every recorded runner still alive, with all it started; how many. For a folder whose worker is dead.

    Looks in `folder` and in the folders right below it.
    """
    paths = [*folder.glob("runner-*.json"), *folder.glob("*/runner-*.json")]
    records = [found for path in paths if (found := read_json(path, RunnerRecord)) is not None]
    leaders = {found.token: leader for found in records if (leader := _living(found)) is not None}
    for leader in leaders.values():
        kill_group(leader.pid)
    marked = kill_marked({found.token for found in records}) if records else set()
    await_end(leaders.values(), DEATH_SECONDS)
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
    records = [found for path in folder.glob("runner-*.json") if (found := read_json(path, RunnerRecord)) is not None]
    living = [found for found in records if _living(found) is not None]
    tokens = {found.token for found in living}
    for found in living:
        signal_group(found.pgid, number)
    for process in psutil.process_iter() if tokens and thorough else ():
        if _token_of(process) in tokens:
            with suppress(psutil.Error):
                process.send_signal(number)


def kill_group(pgid: int) -> None:
    """SIGKILL to a whole group, should there be one."""
    signal_group(pgid, signal.SIGKILL)


def kill_marked(tokens: Collection[str]) -> set[str]:
    """SIGKILL to every process that carries one of the tokens, until there is none; the tokens that were found."""
    found: set[str] = set()
    for _ in range(_ROUNDS):  # what is being killed may be forking
        strays = {process: token for process in psutil.process_iter() if (token := _token_of(process)) in tokens}
        if not strays:
            break
        for process in strays:
            with suppress(psutil.Error):
                process.kill()
        await_end(strays, DEATH_SECONDS)
        found |= {token for token in strays.values() if token}
    return found


def _living(found: RunnerRecord) -> psutil.Process | None:
    """The recorded process, if it is alive and no other that got its number since."""
    process = found.process()
    with suppress(OSError):
        if process is not None and os.getpgid(found.pid) == found.pgid:
            return process
    return None


def _token_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(TOKEN)
    except (psutil.Error, OSError):  # gone, a zombie, or another user's
        return None
