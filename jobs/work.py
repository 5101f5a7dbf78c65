"""Running shards: a `Workbench` opens a job's kind once, runs batches of shards and writes each batch's part.

Used by a pool's worker, by `coordinator try`, and by the tests' serial run. Knows nothing of Ray, links or leases.
"""

from __future__ import annotations

import msgspec

from jobs.model import Layer, Window, Work


class Item(msgspec.Struct, frozen=True):
    """One shard to run."""

    number: int
    boot: int
    attempt: int
    window: Window | None  # None for a made shard
    payload: bytes = b""


class Batch(msgspec.Struct, frozen=True):
    """Shards of one layer to run in one call, and where their part goes. Items are in order of their numbers."""

    farm: str
    agent: str
    job: str
    layer: Layer
    work: Work
    items: tuple[Item, ...]
    tmp: str  # path of the part while it is written
    done: str  # path it is renamed to: the local commit
    mark: str  # path of this slot's mark file, see `jobs.mark`
    scratch: str  # folder for the kind's own files
    code: str | None  # folder the user's files were unpacked in
    python: str | None  # interpreter for the user's code


class Mishap(msgspec.Struct, frozen=True):
    """A shard of a batch that gave no result. `lost` tells a loss from a failure."""

    number: int
    lost: bool
    code: str
    message: str
    evidence: str
    seconds: float
    peak: int


class Outcome(msgspec.Struct, frozen=True):
    """What became of a batch. Items in neither `numbers` nor `mishaps` were not reached and may run again as they are."""

    numbers: tuple[int, ...]  # in the part at `Batch.done`; empty: there is no part
    rows: int
    nbytes: int  # of the part's file
    in_bytes: int
    seconds: float
    peak: int
    mishaps: tuple[Mishap, ...]
    changed: bool = False  # the source is not what was planned: results of the shard at hand were discarded
    full: str = ""  # the disk or quota was full: what the system said
