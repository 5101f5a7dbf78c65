"""A job's printed.log: what its code printed, a JSON line a shard. The daemon appends, commands read; no decisions."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from muster.jobs.contract.text_limits import LOG_BYTES

log = logging.getLogger("muster.daemon")


class Saying(msgspec.Struct, frozen=True):
    """What one run of a shard printed; or, with `left_out`, of how many shards that was not kept."""

    when: float
    agent: str
    layer: str = ""  # its name
    number: int = 0
    boot: int = 0
    attempt: int = 0
    text: str = ""
    left_out: int = 0

    @property
    def run(self) -> tuple[str, int, int, int]:
        """Said twice where a link broke."""
        return self.layer, self.number, self.boot, self.attempt


_decode = msgspec.json.Decoder(Saying).decode


def append(path: Path, sayings: Iterable[Saying]) -> None:
    """What was printed must never stop the daemon: a full disk costs the text."""
    raw = b"".join(msgspec.json.encode(saying) + b"\n" for saying in sayings)
    try:
        if path.exists() and path.stat().st_size + len(raw) > LOG_BYTES:
            return
        with open(path, "ab", opener=_private) as file:
            file.write(raw)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)


def read(path: Path, start: int = 0) -> Iterator[tuple[int, Saying]]:
    """Each whole line from byte `start` on, and where the next one begins."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            start += len(line)
            try:
                yield start, _decode(line)
            except msgspec.DecodeError:  # half of one, by a full disk
                continue


def is_full(path: Path) -> bool:
    """Whether so much was printed that later lines may be missing."""
    return path.exists() and path.stat().st_size > LOG_BYTES - (1 << 20)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
