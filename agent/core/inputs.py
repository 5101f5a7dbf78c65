"""Inputs in the spool: which are whole, which are coming, which may go. No I/O, no clock.

A name says which run of bytes of which file it is, so that a later job over the same source finds them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from muster.agent.core.actions import Copy, Pull
from muster.jobs.contract.plan import ItemsWindow, Window

_encoder = msgspec.msgpack.Encoder()


def name_of(farm: str, window: Window | ItemsWindow) -> str:
    """32 hex digits: of the farm, as two servers may have the same path."""
    if isinstance(window, ItemsWindow):
        return blake2b(_encoder.encode((farm, window.source, window.offset, window.nbytes)), digest_size=16).hexdigest()
    identity = (farm, window.path, window.stamp, window.offset, window.nbytes)
    return blake2b(_encoder.encode(identity), digest_size=16).hexdigest()


class Inputs:
    """Each name is in at most one of the three. All of them take their full size of the disk."""

    def __init__(self, found: Iterable[Copy] = ()) -> None:
        self.whole = {copy.name: copy for copy in found}  # the one used longest ago first
        self.coming: dict[str, Pull] = {}
        self.halves: dict[str, int] = {}  # cut off half way, to be gone on with → bytes of the whole
        self.nbytes = sum(copy.nbytes for copy in self.whole.values())
        self.seconds: dict[str, float] = {}  # what pulling it took, until somebody reports that

    def start(self, pull: Pull) -> int:
        """It is being pulled from now on. Returns the bytes that it takes of the disk and did not before."""
        known = self.halves.pop(pull.name, 0)
        self.coming[pull.name] = pull
        self.nbytes += pull.nbytes - known
        return pull.nbytes - known

    def came(self, name: str, digest: bytes, seconds: float) -> None:
        pull = self.coming.pop(name)
        self.whole[name] = Copy(name, pull.nbytes, digest)
        self.seconds[name] = seconds

    def cut(self, name: str) -> None:
        """The rest of it is still to come."""
        self.halves[name] = self.coming.pop(name).nbytes

    def use(self, names: Iterable[str]) -> float:
        """These are read now. Returns the seconds it took to pull them, once."""
        seconds = 0.0
        for name in names:
            self.whole[name] = self.whole.pop(name)
            seconds += self.seconds.pop(name, 0.0)
        return seconds

    def forget(self, name: str) -> int:
        """Its file is gone, or about to go. Returns the bytes that gives back."""
        self.seconds.pop(name, None)
        nbytes = self.halves.pop(name, 0)
        if name in self.whole:
            nbytes = self.whole.pop(name).nbytes
        elif name in self.coming:
            nbytes = self.coming.pop(name).nbytes
        self.nbytes -= nbytes
        return nbytes

    def spare(self, kept: set[str]) -> Iterator[tuple[str, bytes | None]]:
        """Name and digest of those that may go, the least useful first; each may be forgotten before the next."""
        for name in list(self.halves):
            yield name, None
        for name in [name for name in self.whole if name not in kept]:
            yield name, self.whole[name].digest

    def bytes_of(self, names: Iterable[str]) -> int:
        """What those of these that are whole take."""
        return sum(self.whole[name].nbytes for name in names if name in self.whole)

    @property
    def coming_bytes(self) -> int:
        return sum(pull.nbytes for pull in self.coming.values())
