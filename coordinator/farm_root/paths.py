"""The root folder: where it is, what lies where in it, whether it may be used. Reads and writes nothing of any job."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from muster.jobs.common import filesystems
from muster.jobs.common.durable import fsync_folder, is_full, write_all, write_durably
from muster.jobs.common.errors import (
    MusterError,
    NoDaemonError,
    NotFoundError,
    RefusedError,
    SpaceError,
    UsageError,
)
from muster.jobs.common.launch import python
from muster.jobs.common.locations import expand
from muster.jobs.common.names import LAST_JOB, is_job, split_job_id
from muster.jobs.common.validation import nearest
from muster.jobs.contract.plan import ITEMS_LIST
from muster.jobs.sources.items import SUFFIX as ITEMS_SUFFIX

FORMAT = 1  # of everything below a root; another number is another layout
SOCKET_PATH_LIMIT = 103  # bytes; Linux takes 107, macOS 103
ROOM_BYTES, ROOM_FILES = 1 << 20, 16  # that have to be free for a daemon to start
ROOM_HINT = f"make room there for {ROOM_BYTES >> 20} MiB and {ROOM_FILES} files; `df` and `df -i` tell what is missing"


@dataclass(frozen=True)
class Root:
    """The paths of one farm."""

    path: Path

    @property
    def farm_file(self) -> Path:
        return self.path / "farm.json"

    @property
    def socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def store(self) -> Path:
        return self.path / "state.sqlite"

    @property
    def figures(self) -> Path:
        """What was measured of jobs; nothing hangs on it."""
        return self.path / "figures.sqlite"

    @property
    def page_secret(self) -> Path:
        """What the running `coordinator page` asks of its readers, for programs that scrape it."""
        return self.path / "page.secret"

    @property
    def log(self) -> Path:
        return self.path / "daemon.log"

    @property
    def start_log(self) -> Path:
        """What a detached daemon said before its own log was open."""
        return self.path / "start.log"

    @property
    def launcher(self) -> Path:
        return self.path / "connect"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def uploads(self) -> Path:
        """Arrays that clients sent, by digest."""
        return self.path / "uploads"

    @property
    def people(self) -> Path:
        """Which of them each second person sent."""
        return self.path / "people"

    @property
    def locked_out(self) -> Path:
        """A file of each agent's name that may not join, whatever way it has."""
        return self.path / "locked-out"

    @property
    def tried(self) -> Path:
        """What `coordinator try` measured."""
        return self.path / "tried"

    @property
    def command(self) -> Path:
        """A launcher for any command, for who comes over ssh."""
        return self.path / "coordinator"

    def pack(self, digest: str) -> Path:
        return self.code / f"{digest}.pack"

    def model(self, digest: str) -> Path:
        return self.code / f"{digest}.model"

    def items(self, digest: str) -> Path:
        """A list of items: a link to that of a job, which agents know by its digest alone."""
        return self.code / f"{digest}.{ITEMS_SUFFIX}"

    def job(self, job: str) -> JobFolder:
        return JobFolder(self.jobs / job)

    @property
    def farm(self) -> str:
        """The farm's uuid, made with the root."""
        return _read_farm(self.farm_file).uuid

    @property
    def boot(self) -> int:
        """The number of the last start of a daemon, which the store counts; 0 where no version has noted it here."""
        return _read_farm(self.farm_file).boot

    def note_boot(self, boot: int) -> None:
        """Once it is in the store: a store that knows less than this is not the one that this root had."""
        said = msgspec.structs.replace(_read_farm(self.farm_file), boot=boot)
        write_durably(self.farm_file, _encode_farm(said), mode=0o600)


class Farm(msgspec.Struct, frozen=True):
    """What farm.json says."""

    uuid: str
    format: int
    boot: int = 0


@dataclass(frozen=True)
class JobFolder:
    """The paths of one job."""

    path: Path

    @property
    def job_file(self) -> Path:
        return self.path / "job.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.msgpack"

    @property
    def items(self) -> Path:
        """The list of the items, of a job that has some."""
        return self.path / ITEMS_LIST

    @cached_property
    def bundles(self) -> Path:
        return self.path / "bundles"

    @cached_property
    def rounds(self) -> Path:
        """What rounds need while they last: sheets, and bundles that the driver has not taken. Never synced."""
        return self.path / "rounds"

    @property
    def calls(self) -> Path:
        """The socket at which the driver of a session waits for its client."""
        return self.path / "calls.sock"

    @property
    def checkpoints(self) -> Path:
        """Where a driver keeps what another one goes on from."""
        return self.path / "checkpoints"

    def sheet(self, digest: str) -> Path:
        return self.rounds / f"{digest}.sheet"

    def patch(self, digest: str) -> Path:
        """What makes that sheet of the one before."""
        return self.rounds / f"{digest}.patch"

    @property
    def result(self) -> Path:
        return self.path / "result"

    @property
    def partial(self) -> Path:
        """What there was of the result when somebody asked, where shards were missing: not for `verify`."""
        return self.path / "partial"

    @property
    def failures(self) -> Path:
        return self.path / "failures.log"

    @property
    def printed(self) -> Path:
        return self.path / "printed.log"


def default_root() -> Path:
    """$MUSTER_ROOT, else ~/.muster."""
    named = os.environ.get("MUSTER_ROOT")
    return Path(named) if named else Path.home() / ".muster"


def find(path: Path | None) -> Root:
    """The root a command means: `path`, else the default. It need not exist."""
    return Root(expand(path or default_root()).absolute())


def existing(path: Path | None) -> Root:
    """The same where it must exist already."""
    root = find(path)
    if not root.farm_file.is_file():
        raise NoDaemonError(f"{root.path} is not a farm's root", f"make it with `coordinator serve --root {root.path}`")
    check_safe(root.path)
    return root


def prepare(path: Path) -> Root:
    """The root at `path`, made where it is missing: private, on local disk, and ours."""
    root = find(path)
    try:
        root.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_safe(root.path)
        if not root.farm_file.exists():
            _refuse_foreign(root)
            write_durably(root.farm_file, _encode_farm(Farm(uuid.uuid4().hex, FORMAT)), mode=0o600)
        for folder in (root.tmp, root.jobs, root.code, root.uploads):
            folder.mkdir(mode=0o700, exist_ok=True)
        fsync_folder(root.path)
        fsync_folder(root.path.parent)
        assert root.farm
        _write_script(root.launcher, command("connect", root.path))
        here = f"export MUSTER_ROOT={shlex.quote(str(root.path))}"
        _write_script(root.command, python("muster.coordinator.cli"), f"{here}\n")
        _take_room(root.tmp)
    except OSError as error:
        raise _unusable(root.path, error) from None
    except SpaceError as error:
        raise SpaceError(error.message, ROOM_HINT) from None
    return root


def _take_room(folder: Path) -> None:
    """For a moment, what a start writes: a database that finds no room ends a daemon in the midst of it."""
    with ExitStack() as files:
        for _ in range(ROOM_FILES):
            file = files.enter_context(tempfile.TemporaryFile(dir=folder))
            write_all(file.fileno(), bytes(ROOM_BYTES // ROOM_FILES))


def command(name: str, root: Path) -> list[str]:
    """How a `coordinator` command is started for a root."""
    return python("muster.coordinator.cli", name, "--root", str(root))


def check_safe(path: Path) -> None:
    """Refuse a root of another user, one that others may write to, and one on a network file system, where SQLite and
    locks fail."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unusable(path, error) from None
    if not stat.S_ISDIR(found.st_mode):
        raise RefusedError(f"the root {path} is not a folder", "name a folder with --root or MUSTER_ROOT")
    private = f"chmod 700 {shlex.quote(str(path))}"
    if found.st_uid != os.geteuid():
        own = f"ask as that user, or make it yours: `chown -R {os.geteuid()} {shlex.quote(str(path))} && {private}`"
        raise RefusedError(f"the root {path} belongs to another user, {found.st_uid}", own)
    if others := found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everyone" if others & stat.S_IWOTH else "its group"
        raise RefusedError(f"the root {path} is writable by {who}", f"make it private: `{private}`")
    if kind := filesystems.network_file_system(path):
        raise RefusedError(
            f"the root {path} is on a network file system ({kind})",
            "put it on a local disk of the server, with --root or MUSTER_ROOT",
        )


class HeldRoot:
    """A root that no other process of ours may change. The lock is on the folder itself, which no `rm` takes away, and
    as versions before this one have it on a file in it; both die with their holder."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._fds: list[int] = []
        try:
            self._fds.append(os.open(root.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            self._fds.append(os.open(root.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            for fd in self._fds:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            hint = "`coordinator stop` ends that one, `coordinator status` asks it"
            raise RefusedError(f"{root.path} is served already", hint) from None

    @property
    def is_in_place(self) -> bool:
        """Whether the root's path still leads to it."""
        try:
            return os.path.samestat(self._root.path.stat(), os.fstat(self._fds[0]))
        except OSError:
            return False

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


@contextmanager
def held(root: Root) -> Iterator[HeldRoot]:
    """One daemon a root, and nobody who writes into it beside the daemon; refused while another process holds it."""
    opened = HeldRoot(root)
    try:
        yield opened
    finally:
        opened.close()


def is_free(root: Root) -> bool:
    """Whether no daemon holds the root: it keeps it to its very end, beyond its socket's."""
    try:
        with held(root):
            return True
    except RefusedError:
        return False


def resolve_job(root: Root, text: str) -> str:
    """The full id of a job: `weights.2` as it is, `weights` as its latest, `last` as the latest of all."""
    name, number = split_job_id(text)
    known = [entry.name for entry in _listed(root.jobs)]
    if text == LAST_JOB:
        return _last(root, known)
    if number is None:
        number = max((_number_of(entry, name) for entry in known), default=0)
    job = f"{name}.{number}"
    if not number or not root.job(job).path.is_dir():
        near = nearest(text, [*known, *(entry.rpartition(".")[0] for entry in known)])
        raise NotFoundError(f"there is no job {text!r} in {root.path}", f"did you mean {near}?" if near else None)
    return job


def _last(root: Root, known: list[str]) -> str:
    """By when its plan was written."""
    written: dict[str, int] = {}
    for job in filter(is_job, known):
        with suppress(OSError):
            written[job] = root.job(job).plan.stat().st_mtime_ns
    if not written:
        raise NotFoundError(f"there is no job in {root.path}", "`coordinator submit job.yaml` starts one")
    return max(written, key=lambda job: written[job])


def _number_of(entry: str, name: str) -> int:
    head, _, tail = entry.rpartition(".")
    return int(tail) if head == name and tail.isdecimal() else 0


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


@contextmanager
def address(path: Path) -> Iterator[str]:
    """What to bind or connect an AF_UNIX socket at `path` to: the system allows about 100 bytes, a root more."""
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise UsageError(f"the root's path is too long for a socket: {path}", "use a shorter --root")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _read_farm(file: Path) -> Farm:
    try:
        farm = msgspec.json.decode(file.read_bytes(), type=Farm)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise RefusedError(f"{file} cannot be read: {error}", "restore it, or start a new root") from None
    if farm.format != FORMAT:
        why = f"{file.parent} has layout {farm.format}, not {FORMAT}"
        raise RefusedError(why, "run the version of muster that made it")
    return farm


def _encode_farm(farm: Farm) -> bytes:
    return msgspec.json.encode(farm) + b"\n"


def _refuse_foreign(root: Root) -> None:
    """A folder that is full of something else is not made a root by a slip of the keyboard."""
    if any(root.path.iterdir()):
        raise RefusedError(f"{root.path} is full of something else", "name a new or an empty folder with --root")


def _write_script(file: Path, words: list[str], first: str = "") -> None:
    """A program of our user's that runs `words` with its own arguments."""
    write_durably(file, f'#!/bin/sh\n{first}exec {shlex.join(words)} "$@"\n'.encode(), mode=0o700)


def _unusable(path: Path, error: OSError) -> MusterError:
    if is_full(error):
        return SpaceError(f"{path}: {error.strerror}", ROOM_HINT)
    why = f"the root {path} cannot be used: {error.strerror or error}"
    return RefusedError(why, "name another with --root or MUSTER_ROOT")
