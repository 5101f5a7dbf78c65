"""What a workbench is given and gives back: a batch of shards, and what became of it. Values alone; opens nothing."""

from __future__ import annotations

import msgspec

from muster.jobs.contract.failure_codes import is_loss
from muster.jobs.contract.plan import ItemsWindow, Layer, Window, Work


class Item(msgspec.Struct, frozen=True):
    """One shard to run."""

    number: int
    boot: int
    attempt: int
    window: Window | ItemsWindow | None  # None for a made shard
    payload: bytes = b""
    sheet: str | None = None  # path of what its round laid out


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
    mark: str  # path of this slot's mark file, see `muster.jobs.workbench.slot_marker`
    scratch: str  # folder for the kind's own files
    code: str | None  # folder the user's files were unpacked in
    python: str | None  # interpreter for the user's code
    model: str | None = None  # this machine's copy of the job's model
    pack: str | None = None  # what `code` was unpacked from; None: it is not looked at again
    rest: str = ""  # of the fingerprint, as `muster.jobs.contract.requirements.rest_of` gives it
    gpus: tuple[str, ...] | None = None  # those the slot has for it; None: this machine has none to lend
    sheets: str = ""  # folder for what its shards make that later ones may read; "" where nothing is kept
    keeps: int = 0  # bytes of it at most, for each shard


class Mishap(msgspec.Struct, frozen=True):
    """A shard of a batch that gave no result, with its code of `muster.jobs.contract.failure_codes`."""

    number: int
    code: str
    message: str
    evidence: str
    seconds: float
    peak: int

    @property
    def lost(self) -> bool:
        """Whether it was lost, and did not fail."""
        return is_loss(self.code)


class Outcome(msgspec.Struct, frozen=True):
    """What became of a batch. Items in neither `numbers` nor `mishaps` were not reached and may run again."""

    numbers: tuple[int, ...]  # in the part at `Batch.done`; empty: there is no part
    rows: int
    nbytes: int  # of the part's file
    in_bytes: int
    seconds: float
    peak: int
    mishaps: tuple[Mishap, ...]
    changed: bool = False  # the source is not what was planned: results of the shard at hand were discarded
    change: str = ""  # which file it was, where it changed
    full: str = ""  # the disk or quota was full: what the system said
    printed: tuple[tuple[int, str], ...] = ()  # number → what the user's code printed, where it did, cut to size
    unprinted: int = 0  # of how many more shards that is left out: it was too much
    sheets: tuple[tuple[str, int], ...] = ()  # digest and bytes of what was kept for later shards
