"""What the kernel lets this process have of the machine's memory, and how many processes it killed for want of it.

Reads the process's own groups, of version 1 and 2, and its own limits. Decides nothing.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from muster.jobs.common.units import format_size

LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")  # beyond `high` the group is slowed down to a crawl
KILLS = ("memory.events", "memory.oom_control")
UNLIMITED = 1 << 62
ROOT = Path("/")
LOOK_SECONDS = 1.0  # between two looks at what is counted


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes that this process and its like may take: the least of all groups it is in, up to the top, and of its own
    address space. None where nothing is limited."""
    limits = [limit for folder in _groups(root) for name in LIMITS if (limit := _number(folder / name)) is not None]
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min([*limits, *([own] if own != resource.RLIM_INFINITY else [])], default=None)


def oom_kills(root: Path = ROOT) -> int:
    """How many processes of this group, or of the nearest that counts them, the out-of-memory killer took so far."""
    for folder in _groups(root):
        for name in KILLS:
            with suppress(OSError, ValueError):
                words = dict(line.split(" ", 1) for line in (folder / name).read_text().splitlines())
                if "oom_kill" in words:
                    return int(words["oom_kill"])
    return 0


class OomKills:
    """Tells whether a process that died was one of those that the out-of-memory killer took."""

    def __init__(self, root: Path = ROOT, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._looked = -math.inf
        self.look()

    def look(self) -> None:
        """While nothing is dead: whom the killer took until now is somebody else's.

        Looks again after a second only, as a look takes as long as two empty shards.
        """
        if self._clock() >= self._looked + LOOK_SECONDS:
            self._looked, self._before = self._clock(), oom_kills(self._root)

    def said(self, nbytes: int) -> str:
        """What took a process that was killed, and had `nbytes` when it was last looked at, if the killer took anything
        since the last look; "" if it did not."""
        before, self._before = self._before, oom_kills(self._root)
        if self._before <= before:
            return ""
        limit = memory_limit(self._root)
        had = f"at {format_size(nbytes)} or more" if nbytes else "before its size was seen"
        confined = f"; its group may take {format_size(limit)}" if limit else ""
        return f"the kernel's out-of-memory killer took the process {had}{confined}"


def _number(file: Path) -> int | None:
    """In a file; None for "max", and for what version 1 has in its place."""
    with suppress(OSError, ValueError):
        number = int(file.read_text())
        return number if number < UNLIMITED else None
    return None


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the groups that count memory, from this process's own up to the highest that is mounted."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(errors="surrogateescape").splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" or "memory" in controllers.split(","):
                for mounted, point in _mounts(root, "cgroup2" if number == "0" else "cgroup"):
                    yield from _up(point, _below(path, mounted))


def _mounts(root: Path, kind: str) -> Iterator[tuple[str, Path]]:
    """What of the hierarchy is mounted, and where. A container may have a part of it, or see it under another root."""
    with suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            left, _, right = line.partition(" - ")
            words, (found, _, options) = left.split(), right.split(maxsplit=2)
            if found == kind and (kind == "cgroup2" or "memory" in options.split(",")):
                yield words[3], root / words[4].lstrip("/")


def _below(path: str, mounted: str) -> PurePosixPath:
    """The group's path below the mount point; the point itself where the group is not below what is mounted."""
    with suppress(ValueError):
        return PurePosixPath(path).relative_to(mounted)
    return PurePosixPath(".")


def _up(point: Path, below: PurePosixPath) -> Iterator[Path]:
    if ".." not in below.parts:
        yield from (point / one for one in (below, *below.parents))
