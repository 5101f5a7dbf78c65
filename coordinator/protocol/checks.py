"""Whether what the coordinator says can be true: its names, numbers and order. No I/O; knows what was told, not held.

A coordinator is trusted with what is computed here. It is not trusted to be the program we think it is: nothing it says
may become a path outside of the spool, a loop without end or a crash.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePosixPath

from muster.coordinator.protocol.control import Bye, Grant, Hello, LayerInfo, Leave, News, Rejected, Sync, Welcome
from muster.coordinator.protocol.values import Message
from muster.jobs.common.errors import ProtocolError
from muster.jobs.common.names import is_digest, is_job, is_layer, is_plain
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import BF16, CUT, ArraySource, ItemsSource, Layer, Work

GRANT_LIMIT = 1 << 22  # shards in one grant; the coordinator's are some seconds of work
CPUS_LIMIT = 4096
SECONDS_LIMIT = 1e10


class AnswerChecks:
    """One control channel's."""

    def __init__(self) -> None:
        self._counts: dict[str, int | None] = {}  # shards of each layer told; None: made ones, whose number grows

    def check(self, asked: Hello | Sync | Leave, answer: Message) -> None:
        """A ProtocolError if this cannot be the answer to what was asked."""
        match asked, answer:
            case (_, Rejected() | Bye()) | (Hello(), Welcome()):
                return
            case Sync(), News():
                self._news(answer)
            case _:
                raise ProtocolError(f"{_named(answer)} is no answer to {_named(asked)}")

    def _news(self, news: News) -> None:
        for info in news.layers:
            wrong = wrong_with(info)
            if wrong:
                raise ProtocolError(f"the coordinator tells of a layer that cannot be: {wrong}"[:500])
            self._counts[info.layer.digest] = None if info.layer.made else info.layer.count
        for grant in news.grants:
            self._grant(grant)

    def _grant(self, grant: Grant) -> None:
        """Work of a layer never told of is not checked further: it is not taken."""
        if not is_job(grant.job):
            raise ProtocolError(f"a grant of job {grant.job!r:.80}")
        count = self._counts.get(grant.layer)
        made = count is None and grant.layer in self._counts
        try:
            numbers = RangeSet.checked(grant.numbers, 1 << 53 if count is None else count)
        except ValueError as error:
            raise ProtocolError(f"a grant that cannot be: {error}") from None
        if len(numbers) > GRANT_LIMIT or (made and len(numbers) > len(grant.payloads)):
            raise ProtocolError(f"a grant of {len(numbers)} shards with {len(grant.payloads)} payloads")
        try:
            named = [RangeSet.checked(those, 1 << 53) for those in grant.sheets.values()]
        except ValueError as error:
            raise ProtocolError(f"sheets of a grant that cannot be: {error}") from None
        if any(those - numbers for those in named):
            raise ProtocolError("sheets of shards that are not granted")


def wrong_with(info: LayerInfo) -> str:
    """What cannot be in what is told of a layer; "" where all can."""
    layer, work = info.layer, info.work
    if not is_job(info.job):
        return f"job {info.job!r:.80}"
    if not is_digest(layer.digest) or not is_layer(layer.name):
        return f"layer {layer.name!r:.80} {layer.digest!r:.80}"
    if any(not is_plain(output.name) for output in layer.outputs or ()):
        return "the name of an output"
    return _wrong_cut(layer) or _wrong_work(work)


def _wrong_cut(layer: Layer) -> str:
    sizes = (layer.rows, layer.count, layer.in_bytes, layer.out_bytes)
    if layer.shard_rows < 1 or min(sizes) < 0:
        return f"its cut into {layer.count} shards of {layer.shard_rows} rows"
    source = layer.source
    if isinstance(source, ItemsSource):
        return _wrong_cuts(layer, source)
    if not isinstance(source, ArraySource):
        return ""
    if source.offset < 0 or min(source.shape, default=-1) < 0 or source.shape[0] != layer.rows:
        return f"its source of shape {source.shape!r:.80}"
    if source.stored not in ("", BF16):
        return f"values stored as {source.stored!r:.80}"
    if layer.count != -(-layer.rows // layer.shard_rows) or layer.in_bytes % layer.shard_rows:
        return f"{layer.count} shards of {layer.shard_rows} rows and {layer.in_bytes} bytes"
    return ""


def _wrong_cuts(layer: Layer, source: ItemsSource) -> str:
    """Every cut behind the one before it, from the first item to the last."""
    cuts = list(CUT.iter_unpack(source.cuts)) if len(source.cuts) % CUT.size == 0 else []
    if (
        len(cuts) != layer.count + 1
        or cuts[0] != (0, 0, 0)
        or cuts[-1][0] != layer.rows
        or not is_digest(source.digest)
    ):
        return f"{len(cuts)} cuts for {layer.count} shards of {layer.rows} items"
    for one, after in pairwise(cuts):
        listed, nbytes = after[1] - one[1], after[2] - one[2]
        if not (0 < after[0] - one[0] <= layer.shard_rows and 0 < listed <= nbytes <= layer.in_bytes):
            return f"a shard of {after[0] - one[0]} items, {listed} and {nbytes} bytes"
    return ""


def _wrong_work(work: Work) -> str:
    if not is_plain(work.kind) or (work.code is not None and not is_digest(work.code)):
        return f"kind {work.kind!r:.80}, code {work.code!r:.80}"
    if work.model is not None and (not is_digest(work.model.digest) or work.model.nbytes < 0):
        return f"model {work.model.digest!r:.80} of {work.model.nbytes} bytes"
    if work.entry is not None and not _is_entry(work.entry):
        return f"entry {work.entry!r:.80}"
    if not 1 <= work.cpus <= CPUS_LIMIT or (work.memory is not None and work.memory < 0):
        return f"{work.cpus} cpus, {work.memory} bytes of memory"
    if work.timeout is not None and not 0 < work.timeout <= SECONDS_LIMIT:
        return f"a timeout of {work.timeout} s"
    return ""


def _is_entry(entry: str) -> bool:
    """A function in a file of the user's code, and of no other file."""
    file, _, function = entry.partition(":")
    path = PurePosixPath(file)
    good = bool(file) and entry.isprintable() and function.isidentifier()
    return good and not path.is_absolute() and ".." not in path.parts


def _named(message: Message) -> str:
    return f"a {type(message).__name__.lower()}"
