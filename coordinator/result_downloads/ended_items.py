"""What became of each item of a `command` job that keeps its prints, as its shards are committed. Prints nothing."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import TypeVar

import xxhash

from muster.coordinator.farm_root.paths import Root
from muster.coordinator.result_downloads import shard_stream
from muster.coordinator.result_downloads.shard_stream import Cursor, Pieces, Record
from muster.coordinator.runs.lines import Ended
from muster.jobs.common.errors import DamagedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.parts.manifest import SHARDS

T = TypeVar("T", int, float)


class EndedItems:
    """Those of one job, each once. After an interruption `follow` goes on behind the last one it gave."""

    def __init__(self, root: Root, job: str) -> None:
        self._root, self._job = root, job
        self._cursor = Cursor()
        self._seen = RangeSet()  # shards
        self._merged: dict[int, tuple[str, float]] | None = None

    def follow(self, wait: float) -> Iterator[Ended | None]:
        """Until the job ends; None for each `wait` seconds without any."""
        for news, pieces in shard_stream.read(self._root, self._job, self._cursor, wait):
            if not isinstance(news, Record):
                yield None
                continue
            if news.number not in self._seen:
                yield from self._items(news, pieces)
                self._seen.add(news.number, news.number + 1)
            self._cursor = news.cursor

    def _items(self, record: Record, pieces: Pieces) -> Iterator[Ended]:
        values = _outputs(record, b"".join(pieces))
        agent, started = (record.agent, record.started) if record.agent else self._told(record.number)
        exits, seconds = _ints("i", values["exit"]), _swapped(array("f", values["seconds"]))
        written, ends = values.get("ok"), [0, 0]
        lengths = [_ints("q", values[f"{name} lengths"]) for name in ("stdout", "stderr")]
        for k in range(record.rows):
            said = []
            for which, name in enumerate(("stdout", "stderr")):
                start, ends[which] = ends[which], ends[which] + lengths[which][k]
                said.append(values[name][start : ends[which]])
            ok = exits[k] == 0 and (written is None or bool(written[k]))
            yield Ended(record.first_row + k, agent, started, seconds[k], exits[k], ok, *said)
            started += seconds[k]

    def _told(self, number: int) -> tuple[str, float]:
        """Who computed a shard that was merged already, and when."""
        if self._merged is None:
            import numpy as np

            table = np.load(self._root.job(self._job).result / "items" / SHARDS, allow_pickle=False)
            self._merged = {
                int(shard): (str(agent), float(started))
                for shard, agent, started in zip(table["shard"], table["agent"], table["started"], strict=True)
            }
        return self._merged.get(number, ("", 0.0))


def _outputs(record: Record, raw: bytes) -> dict[str, bytes]:
    """The bytes of each segment, by the output's name."""
    if record.digest and xxhash.xxh3_128_digest(raw) != record.digest:
        raise DamagedError(f"shard {record.layer}/{record.number} came otherwise than it was committed")
    found, at, sizes = {}, 0, iter(record.sizes)
    for output in record.outputs:
        for name in [f"{output.name} lengths", output.name] if output.form == "ragged" else [output.name]:
            size = next(sizes)
            found[name] = raw[at : at + size]
            at += size
    return found


def _ints(code: str, raw: bytes) -> array[int]:
    return _swapped(array(code, raw))


def _swapped(found: array[T]) -> array[T]:
    """As results are stored, so here."""
    if sys.byteorder == "big":
        found.byteswap()
    return found
