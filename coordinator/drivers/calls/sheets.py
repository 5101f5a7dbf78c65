"""What batches of calls read beside their payloads: files that the client sent, by digest, and what is laid out of them
for machines to fetch once. Knows nothing of what is in them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import xxhash

from muster.coordinator.drivers.driver import Drive
from muster.jobs.common.errors import ProtocolError

SPARE = 4  # sheets that no batch reads now, kept laid out: the next batch often reads the same
DIGEST_CHARS = 32


class CallSheets:
    """Files below the job's `rounds`: all gone with its driver."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive
        self._made: dict[tuple[str, ...], str] = {}  # blobs → the sheet that is them, the one used longest ago first
        self._readers: Counter[str] = Counter()  # sheet → batches

    def path(self, digest: str) -> Path:
        return self._drive.place.rounds / f"{digest}.blob"

    @property
    def blobs(self) -> list[str]:
        return [path.stem for path in self._drive.place.rounds.glob("*.blob") if len(path.stem) == DIGEST_CHARS]

    def keep(self, digest: str, pieces: Iterable[bytes]) -> None:
        """Write a file whole, or not at all."""
        path, found = self.path(digest), xxhash.xxh3_128()
        tmp = path.with_suffix(".tmp")
        try:
            with tmp.open("wb") as file:
                for piece in pieces:
                    found.update(piece)
                    file.write(piece)
            if found.hexdigest() != digest:
                raise ProtocolError("what came is not what its digest says: it was changed while it was sent")
            tmp.rename(path)
        finally:
            tmp.unlink(missing_ok=True)

    def forget(self, digests: Iterable[str]) -> None:
        for digest in digests:
            self.path(digest).unlink(missing_ok=True)

    def lay_out(self, blobs: tuple[str, ...]) -> str:
        """The sheet for a batch that reads these; "" for one that reads none. It stays until `done`."""
        if not blobs:
            return ""
        sheet = self._made.pop(blobs, None) or self._laid(blobs)
        self._made[blobs] = sheet
        self._readers[sheet] += 1
        return sheet

    def _laid(self, blobs: tuple[str, ...]) -> str:
        try:
            if len(blobs) > 1:
                return self._drive.lay_out(b"".join([self.path(digest).read_bytes() for digest in blobs]))
            sheet = self._drive.place.sheet(blobs[0])
            sheet.unlink(missing_ok=True)
            os.link(self.path(blobs[0]), sheet)
            return blobs[0]
        except FileNotFoundError:
            raise ProtocolError("a batch reads what did not come") from None

    def done(self, sheet: str) -> None:
        """A batch less reads it."""
        self._readers[sheet] -= 1
        idle = [one for one in self._made.items() if not self._readers[one[1]]]
        for blobs, old in idle[: max(0, len(idle) - SPARE)]:
            del self._made[blobs], self._readers[old]
            self._drive.take_away(old)
