"""Whose a spool is: its lock, the process that has it, and where spools and the register go."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from pathlib import Path

import msgspec

from muster.jobs.common import filesystems
from muster.jobs.common.durable import read_json, write_private
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.locations import expand
from muster.jobs.common.names import check_name
from muster.jobs.common.processes import ProcessId, identify

RECORD = "pid.json"
DEFAULT_HOME = Path("~/.local/state")


class Owner(ProcessId, frozen=True):
    """The process that has a spool."""

    name: str
    where: str


def lock(folder: Path) -> int:
    """The lock of a spool, as an open file that holds it; a RefusedError where another process has it."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        other = owner_of(folder)
        who = f"agent {other.name} (process {other.pid})" if other else "another agent"
        hint = "`agent leave` ends it; or join under another `--name`"
        raise RefusedError(f"{who} uses the spool {folder}", hint) from None
    return fd


def sign(folder: Path, name: str, where: str) -> None:
    """Say that we have the spool, which we locked."""
    us = identify()
    write_private(folder / RECORD, msgspec.json.encode(Owner(us.pid, us.started, name, where)))


def owner_of(path: Path) -> Owner | None:
    """Who last took the spool at `path`; None if nobody, or it left in good order."""
    return read_json(path / RECORD, Owner)


def name_and_folder(name: str | None, spool: Path | None) -> tuple[str, Path]:
    """What an agent of this machine is called and where its spool is, by default or as told."""
    name = check_name(name or host(), "agent")
    return name, expand(spool or base() / name).absolute()


def base() -> Path:
    """Where spools go by default: on this machine's own disk, keyed by host: homes may be shared."""
    return _on_own_disk(_home())


def register() -> Path:
    """Where this user's agents on this machine are known, whatever XDG_STATE_HOME one of them was started with; no
    agent's name has a dot."""
    return _on_own_disk(DEFAULT_HOME.expanduser()).with_name(f"{host()}.agents")


def cpu_shares() -> Path:
    """Where they say what they lend of it."""
    return register().with_name(f"{host()}.cpus")


def _on_own_disk(home: Path) -> Path:
    if not filesystems.network_file_system(home):
        return home / "muster" / host()
    places = [Path("/var/tmp"), Path(os.environ.get("TMPDIR") or "/tmp"), Path("/tmp")]
    local = [place for place in places if not filesystems.network_file_system(place)]
    return (local or places)[0] / f"muster-{os.getuid()}" / host()


def network_home() -> str:
    """The network file system that spools would be on if they were in the home, "" if it is a local one."""
    return filesystems.network_file_system(_home())


def _home() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or DEFAULT_HOME.expanduser())


def host() -> str:
    """This machine's name, made safe for a path and a name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:64] or "host"


def is_anothers(path: Path) -> bool:
    """Whether another user owns it, or a folder of ours above it: whoever owns that may put another in its place."""
    ours = [path, *(parent for parent in path.parents if parent.name == f"muster-{os.getuid()}")]
    return any(folder.exists() and folder.stat().st_uid != os.getuid() for folder in ours)
