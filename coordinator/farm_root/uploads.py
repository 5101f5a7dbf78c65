"""Arrays that clients send: ROOT/uploads/DIGEST.npy, each once, `DIGEST.part` while it is on its way. Plans nothing.

A file is never touched again once it is whole, since its stamp is part of what a source is. One that no job needs goes
with the `rm` of the last job that did, or a day after it came.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from muster.coordinator.farm_root.paths import Root
from muster.jobs.common import hashing
from muster.jobs.common.durable import naming_space, publish, write_all
from muster.jobs.common.errors import DamagedError, LinkError, RefusedError, SourceError, SpaceError, UsageError
from muster.jobs.common.names import is_digest
from muster.jobs.common.units import format_size
from muster.jobs.contract.plan import ArraySource, Plan

WHOLE, PARTIAL = ".npy", ".part"
CHUNK = 1 << 20
BYTES_LIMIT = 1 << 50  # of one upload
KEPT_SECONDS = 86_400.0

Read = Callable[[int], bytes]


class Upload(msgspec.Struct, frozen=True):
    """What is there of an array."""

    digest: str  # xxh3_128 of the whole file, in hex
    bytes: int
    complete: bool


def path_of(root: Root, digest: str) -> Path:
    """Where the whole file is, or will be."""
    if not is_digest(digest):
        raise UsageError(f"{digest[:80]!r} is not a digest", "it has 32 hexadecimal digits")
    return root.uploads / f"{digest}{WHOLE}"


def listed(root: Root) -> list[Upload]:
    """Whole and partial ones, by digest; where there are both, the whole one."""
    found = {}
    for path in sorted(_files(root), key=lambda path: path.suffix == WHOLE):
        size = _size(path)
        if size is not None:
            found[path.stem] = Upload(path.stem, size, path.suffix == WHOLE)
    return [found[digest] for digest in sorted(found)]


# --- receiving --------------------------------------------------------------------------------------------


def check_room(nbytes: int, room: int) -> None:
    """A SpaceError unless `nbytes` more fit beside what is promised to jobs."""
    if nbytes > room:
        raise SpaceError(
            f"an upload of {format_size(nbytes)} into a root with room for {format_size(room)}",
            "`coordinator du` shows what takes it; `coordinator rm` deletes a job",
        )


def receive(root: Root, digest: str, nbytes: int, start: int, read: Read, apart: Path | None = None) -> Upload:
    """Take bytes `start` and on of a file of `nbytes` in; what came is kept even if the rest does not.

    Two may send the same array at once: the second waits for the first. `apart`: the folder of somebody who has to send
    all of it, whatever others sent of it.
    """
    final = path_of(root, digest)
    if not 0 < nbytes <= BYTES_LIMIT:
        raise UsageError(f"an upload of {nbytes} bytes", f"1 to {BYTES_LIMIT} bytes can be one")
    root.uploads.mkdir(mode=0o700, exist_ok=True)
    part = (apart or root.uploads) / f"{digest}{PARTIAL}"
    part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with naming_space(part), _owned(part) as fd:
        if apart is not None or not final.exists():
            _append(fd, part, nbytes, start, read)
            if hashing.of_file(fd) != digest:
                part.unlink()
                raise DamagedError(f"what came is not {digest}", "send the array again, and do not change it meanwhile")
            if not final.exists():  # one that is there is never touched
                publish(part, final)
        part.unlink(missing_ok=True)
    return Upload(digest, final.stat().st_size, True)


@contextmanager
def _owned(part: Path) -> Iterator[int]:
    """The partial file, open and ours alone."""
    while True:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not _is_at(fd, part):  # whoever had it has finished, or given it up
                continue
            yield fd
            return
        finally:
            os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _append(fd: int, part: Path, nbytes: int, start: int, read: Read) -> None:
    there = os.fstat(fd).st_size
    if start != there:
        raise RefusedError(f"{part.stem} goes on at byte {there}, not at {start}", "ask how much is there, then go on")
    os.lseek(fd, 0, os.SEEK_END)
    while there < nbytes:
        piece = read(min(CHUNK, nbytes - there))
        if not piece:
            raise LinkError(f"the array ended after {there} of {nbytes} bytes", "send the rest")
        write_all(fd, piece)
        there += len(piece)


# --- who needs them ---------------------------------------------------------------------------------------


def needed_by(root: Root, plan: Plan) -> set[str]:
    """Digests of the uploads a plan reads."""
    folder = os.path.realpath(root.uploads)
    sources = [Path(layer.source.path) for layer in plan.layers if isinstance(layer.source, ArraySource)]
    return {path.stem for path in sources if str(path.parent) == folder}


def check_there(root: Root, digests: Collection[str]) -> None:
    """A SourceError that names one which is not."""
    for digest in digests:
        if not path_of(root, digest).exists():
            raise SourceError(f"the uploaded array {digest} is not here", "send it, then submit again")


def discard(root: Root, digests: Collection[str], folder: Path) -> None:
    """Move these into `folder`, which is about to be deleted."""
    for digest in digests:
        try:
            path_of(root, digest).rename(folder / f"{digest}{WHOLE}")
        except FileNotFoundError:
            continue


def sweep(root: Root, needed: Collection[str]) -> None:
    """Delete what no job needs and came longer than a day ago: its client went away before it submitted."""
    begun = [path for path in root.people.glob(f"*/*{PARTIAL}") if is_digest(path.stem)]
    for path in [*(path for path in _files(root) if path.stem not in needed), *begun]:
        if _age(path) > KEPT_SECONDS:
            path.unlink(missing_ok=True)


def _files(root: Root) -> list[Path]:
    try:
        entries = list(root.uploads.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in entries if path.suffix in (WHOLE, PARTIAL) and is_digest(path.stem)]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
