"""What the daemon and the processes it starts say to each other. Values only."""

from __future__ import annotations

import msgspec

from muster.jobs.contract.plan import Layer


class MergeOrder(msgspec.Struct, frozen=True):
    """Merge these bundles into `folder`."""

    job: str
    layer: Layer
    bundles: list[str]
    folder: str
    items: str = ""  # the layer's list, where it has one
    since: float = 0.0  # when the job was made, as the clock on the wall has it


class MergeReply(msgspec.Struct, frozen=True):
    """What came of an order: merged where all else is empty."""

    nbytes: int = 0
    damaged: str = ""  # the bundle that failed its digest
    missing: list[tuple[int, int]] = []
    full: bool = False
    hopeless: bool = False  # it would fail again and again: what the shards gave does not merge
    message: str = ""
    evidence: str = ""  # the traceback of what nobody foresaw
    manifest: str = ""  # the digest of what was merged's
