"""Shards, parts and bundles made by hand, for tests of how results are written and merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import xxhash

from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.kind import Ragged, Result
from muster.jobs.contract.plan import ArraySource, Layer, Output, Stamp
from muster.jobs.parts.part_file import Index, Layout, PartEntry, PartWriter, encode_index, read_index, tail_of
from muster.jobs.results.bundle import Bundle, HeldPart
from muster.jobs.results.outputs import settle

DIGEST = "0123456789abcdef" * 2
ALL_FORMS = (
    Output("total", "sum", "<f4", (2,), scale=1e6),
    Output("means", "rows", "<f4", (3,)),
    Output("words", "ragged", "<i2"),
    Output("hits", "sum", "<i4"),
    Output("pairs", "ragged", "<f8", (2,)),
    Output("flag", "rows", "|b1"),
)


def layer_of(rows: int, shard_rows: int, outputs: tuple[Output, ...] | None = ALL_FORMS) -> Layer:
    """A layer whose input nobody reads."""
    source = ArraySource("/nowhere.npy", 0, "<f4", (rows, 2), Stamp(0, 0, 0, 0))
    count = -(-rows // shard_rows)
    return Layer("a/b.c", DIGEST, source, rows, shard_rows, count, 8 * shard_rows, 0, outputs)


def result_of(number: int, rows: int) -> Result:
    """What a shard of ALL_FORMS computed: the same each time, and different for each number."""
    rng = np.random.default_rng(number)
    short, long_ = rng.integers(0, 4, rows), rng.integers(0, 3, rows)
    return {
        "total": rng.normal(size=2).astype("f4"),
        "means": rng.normal(size=(rows, 3)).astype("f4"),
        "words": Ragged(short, rng.integers(-9, 9, short.sum()).astype("i2")),
        "hits": np.array(rng.integers(-9, 9), "i4"),
        "pairs": Ragged(long_, rng.normal(size=(long_.sum(), 2))),
        "flag": rng.integers(0, 2, rows).astype(bool),
    }


def write_part(path: Path, layer: Layer, results: Iterable[tuple[int, Result]], fingerprint: str = "fp") -> HeldPart:
    """A part with these shards, in order of their numbers."""
    entries = []
    outputs = layer.outputs
    writer = PartWriter(path)
    for number, result in results:
        outputs, segments = settle(result, outputs, layer.rows_of(number))
        writer.add(segments)
        entries.append(_entry(number, layer, segments, Layout(outputs)))
    writer.finish(Index("farm", layer.digest, outputs or (), fingerprint, tuple(entries)))
    index = read_index(path)
    return HeldPart(path, index, RangeSet.of(entry.number for entry in index.entries))


def _entry(number: int, layer: Layer, segments: Sequence[memoryview], layout: Layout) -> PartEntry:
    kept, sums = b"".join(segments[: layout.kept_segments]), b"".join(segments[layout.kept_segments :])
    return PartEntry(
        number=number,
        rows=layer.rows_of(number),
        boot=1,
        attempt=number,
        agent=f"agent-{number % 3}",
        started=1000.5 + number,
        seconds=0.25,
        in_bytes=8 * layer.rows_of(number),
        in_digest=xxhash.xxh3_128_digest(bytes([number % 256])),
        peak=number << 20,
        sizes=tuple(segment.nbytes for segment in segments),
        digest=xxhash.xxh3_128_digest(kept),
        sum_digest=xxhash.xxh3_128_digest(sums) if layout.sums else b"",
    )


def store(bundle: Bundle, path: Path) -> Path:
    """A bundle as the coordinator keeps it."""
    with path.open("wb") as file:
        bundle.write_body(file.write)
        assert file.tell() == bundle.nbytes
        file.write(tail_of(encode_index(bundle.index)))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
