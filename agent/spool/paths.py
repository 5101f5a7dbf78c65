"""The spool, the agent's folder on local disk: what lies where, and what an earlier process left.

lock, uuid, pid.json, state.json, agent.log
done/FARM/LAYER/*.part   finished work; outlives any process
in/                      inputs that were pulled, by what they are and their digest; halves go at start
tmp/                     parts being written; emptied at start
run/                     per slot: the mark, what it is at, scratch folders; the pool's record
run/sheets/              what rounds laid out on the server
code/DIGEST/             the user's files, unpacked; made to hold them and nothing else at each start of a runner
code/DIGEST.pack         what they are unpacked from, where it was pulled
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import suppress
from errno import EACCES, ENOTDIR
from pathlib import Path

import msgspec

from muster.agent.core.actions import Copy
from muster.agent.core.events import Attempt, FoundPart
from muster.agent.spool.owner import RECORD, is_anothers, lock, sign
from muster.coordinator.protocol.control import Loss
from muster.jobs.common.durable import is_full, make_folder, naming_space, read_json, write_private
from muster.jobs.common.errors import DamagedError, RefusedError
from muster.jobs.common.names import is_digest
from muster.jobs.common.ranges import RangeSet
from muster.jobs.parts.part_file import Index, check_body, read_index
from muster.jobs.workbench import slot_marker as mark

FOLDERS = ("done", "in", "tmp", "run", "code")
_INPUT = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}", re.ASCII)

log = logging.getLogger("muster.spool")


class At(msgspec.Struct, frozen=True):
    """What a slot is at: its mark names the shard, this the rest."""

    farm: str
    job: str
    layer: str


class Spool:
    """A folder that is ours alone, from `take` until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uuid = ""
        self._lock = -1

    @property
    def log(self) -> Path:
        return self.path / "agent.log"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def done(self) -> Path:
        return self.path / "done"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    def part(self, name: str) -> Path:
        """`name` is FARM/LAYER/FILE."""
        return self.done / name

    def part_tmp(self, name: str) -> Path:
        return self.tmp / name.rpartition("/")[2]

    @property
    def inputs(self) -> Path:
        return self.path / "in"

    def input(self, name: str, digest: bytes) -> Path:
        """One that came whole."""
        return self.inputs / f"{name}-{digest.hex()}"

    def half(self, name: str) -> Path:
        """One that is coming, or was cut off half way."""
        return self.inputs / f"{name}.half"

    @property
    def sheets(self) -> Path:
        return self.run / "sheets"

    def sheet(self, layer: str, digest: str) -> Path:
        """What a round laid out, one copy for all slots."""
        return self.sheets / layer / f"{digest}.sheet"

    def mark(self, slot: int) -> Path:
        return self.run / f"slot-{slot}.mark"

    def scratch(self, slot: int) -> Path:
        return self.run / f"slot-{slot}"

    def code(self, digest: str) -> Path:
        return self.path / "code" / digest

    def pack(self, digest: str) -> Path:
        """Of the user's files, where it was pulled."""
        return self.path / "code" / f"{digest}.pack"

    def keep_pack(self, digest: str, raw: bytes) -> None:
        write_private(self.pack(digest), raw)

    # --- taking it ---

    def take(self, name: str, where: str) -> None:
        """Make it ours; a RefusedError where another process has it."""
        with naming_space(self.path, "make room there, or name a folder on another disk with --spool"):
            self.make()
            self._lock = lock(self.path)
            self.uuid = self._read_uuid()
            sign(self.path, name, where)
            write_private(self.log, b"") if not self.log.exists() else self.log.chmod(0o600)

    def release(self) -> None:
        """At a good end: nothing says that we are here, and what killed runners left in their scratch folders goes."""
        self.clear()
        for name in (RECORD, "state.json"):
            (self.path / name).unlink(missing_ok=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def make(self) -> None:
        """The folder and those in it; a RefusedError where it cannot be ours."""
        check_usable(self.path)
        try:
            make_folder(self.path, 0o700)
            if is_anothers(self.path):  # made by another meanwhile
                check_usable(self.path)
            info = self.path.stat()
            if stat.S_IMODE(info.st_mode) & 0o077:
                self.path.chmod(0o700)
            for name in FOLDERS:
                (self.path / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            if is_full(error):
                raise
            raise _unusable(self.path, error) from None

    def _read_uuid(self) -> str:
        file = self.path / "uuid"
        with suppress(FileNotFoundError):
            text = file.read_text(errors="replace").strip()
            if re.fullmatch(r"[0-9a-f]{32}", text):
                return text
        write_private(file, uuid.uuid4().hex.encode())
        return file.read_text()

    # --- what an earlier process left ---

    def parts(self) -> Iterator[tuple[FoundPart, Index]]:
        """Every sound part, oldest first; a damaged one is deleted, and said so in the log."""
        files = [path for path in self.done.glob("*/*/*") if path.is_file()]
        for path in sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name)):
            try:
                yield self._read_part(path)
            except DamagedError as error:
                log.warning("deleted a damaged part: %s", error.message)
                path.unlink(missing_ok=True)

    def input_bytes(self) -> int:
        """What inputs that were pulled take."""
        return sum(file.stat().st_size for file in self.inputs.iterdir())

    def part_bytes(self) -> int:
        """What finished work takes now."""
        return sum(path.stat().st_size for path in self.done.glob("*/*/*"))

    def _read_part(self, path: Path) -> tuple[FoundPart, Index]:
        farm, layer, name = path.relative_to(self.done).parts
        index = read_index(path)
        if (index.farm, index.layer) != (farm, layer) or index.summed:
            raise DamagedError(f"{path.name} lies where it does not belong")
        check_body(path, index)
        attempts = _by_attempt(index)
        return FoundPart(f"{farm}/{layer}/{name}", farm, layer, path.stat().st_size, attempts), index

    def losses(self) -> list[Loss]:
        """What was running when an earlier process was killed."""
        found = []
        for file in self.run.glob("slot-*.json"):
            marked, at = mark.read(file.with_suffix(".mark")), _read_at(file)
            if marked and marked.running and at:
                numbers = [(marked.number, marked.number + 1)]
                why = "the agent was killed while it ran"
                found.append(Loss(at.job, at.layer, marked.boot, marked.attempt, numbers, True, why))
        return found

    def copies(self) -> list[Copy]:
        """Inputs an earlier process pulled, the oldest first; what is no input, or half of one, is deleted.

        Whether their bytes are still the same shows when they are read."""
        found = []
        for file in self.inputs.iterdir():
            if _INPUT.fullmatch(file.name) and not file.is_symlink() and file.is_file():
                name, _, digest = file.name.partition("-")
                info = file.stat()
                found.append((info.st_mtime_ns, Copy(name, info.st_size, bytes.fromhex(digest))))
            else:
                _remove(file)
        return [copy for _, copy in sorted(found, key=lambda one: one[0])]

    def codes(self) -> list[str]:
        """Packs of code that are here. Whether they are still what was pulled shows when they are unpacked."""
        return [file.stem for file in (self.path / "code").glob("*.pack") if is_digest(file.stem)]

    def clear(self) -> None:
        """Forget what a process was at. After its losses were read, and once nothing of its pool is left."""
        for folder in (self.tmp, self.run):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        self._drop_empty()

    def _drop_empty(self) -> None:
        """Folders of layers of which all was pushed: each takes an inode. While none of ours may be putting a part into
        one."""
        for folder in (*self.done.glob("*/*"), *self.done.glob("*")):
            with suppress(OSError):
                folder.rmdir()

    def write_state(self, raw: bytes) -> None:
        """For whoever asks how we are."""
        write_private(self.state, raw)

    def set_at(self, slot: int, at: At) -> None:
        """Say what a slot is at, before it is."""
        write_private(self.run / f"slot-{slot}.json", msgspec.json.encode(at))


def check_usable(path: Path) -> None:
    """A RefusedError where no spool can be at `path`. Makes nothing: who joins and who only asks hear the same."""
    try:
        there = nearest(path)
        if is_anothers(path):
            raise RefusedError(f"the spool {path} belongs to another user", "name another with --spool")
        for folder in (there, *(path / name for name in FOLDERS if there == path and (path / name).exists())):
            if not folder.is_dir():
                raise NotADirectoryError(ENOTDIR, f"{folder} is no folder")
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(EACCES, f"{folder} cannot be written")
    except OSError as error:
        raise _unusable(path, error) from None


def nearest(path: Path) -> Path:
    """What is there of it: itself, or the first above it."""
    for one in (path, *path.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            one.stat()
            return one
    return Path("/")


def _unusable(path: Path, error: OSError) -> RefusedError:
    return RefusedError(f"the spool {path} cannot be used: {error.strerror or error}", "name another with --spool")


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _by_attempt(index: Index) -> dict[Attempt, RangeSet]:
    grouped: dict[Attempt, RangeSet] = {}
    for entry in index.entries:
        grouped.setdefault((entry.boot, entry.attempt), RangeSet()).add(entry.number, entry.number + 1)
    return grouped


def _read_at(file: Path) -> At | None:
    at = read_json(file, At)
    return at if at and is_digest(at.layer) else None
