"""What merged results say of how a job went: distributions of an output, rows a second, slowest items. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from muster.jobs.common.errors import MusterError
from muster.jobs.common.units import format_duration
from muster.jobs.contract.pictures import Histogram, TextTable
from muster.jobs.parts.manifest import MANIFEST
from muster.jobs.results.open_result import MergedLayer, open_result

Array = np.ndarray[Any, Any]
Take = Callable[[MergedLayer], Array]  # what of a layer is looked at, a number a row or a shard

BINS = 40
BLOCK = 1 << 20  # values looked at at a time
SHOWN = 10


def layers(result: Path) -> Iterator[tuple[str, MergedLayer]]:
    """Those that are merged, by name. One that cannot be read is left out: `coordinator verify` tells of it."""
    for manifest in sorted(result.rglob(MANIFEST)):
        try:
            yield str(manifest.parent.relative_to(result)), open_result(manifest.parent)
        except (MusterError, OSError, ValueError):
            continue


def blocks(result: Path, take: Take) -> Iterator[Array]:
    """All finite values, some at a time, in the order of layers and rows."""
    for _, layer in layers(result):
        values = take(layer)
        for start in range(0, len(values), BLOCK):
            block = np.asarray(values[start : start + BLOCK], np.float64)
            yield block[np.isfinite(block)]


def output(name: str) -> Take:
    """The rows of one output; nothing of a layer that has none."""

    def taken(layer: MergedLayer) -> Array:
        found = layer.outputs.get(name)
        return found if isinstance(found, np.ndarray) and found.ndim == 1 else np.empty(0)

    return taken


def rows_per_second(layer: MergedLayer) -> Array:
    """Of each shard, where its seconds are known."""
    table = layer.shards
    if table.dtype.names is None:
        return np.empty(0)
    timed = table["seconds"] > 0
    found: Array = table["rows"][timed] / table["seconds"][timed]
    return found


def distribution(title: str, x: str, results: Mapping[str, Path], take: Take, log: bool = False) -> Histogram:
    """Of each job, in bins that all share."""
    ends = [_ends(result, take, log) for result in results.values()]
    low, high = min((low for low, _ in ends), default=np.inf), max((high for _, high in ends), default=-np.inf)
    if not low <= high:
        return Histogram(title, x, [], log)
    if low == high:
        low, high = (low / 1.1, high * 1.1) if log else (low - 0.5, high + 0.5)
    edges = np.geomspace(low, high, BINS + 1) if log else np.linspace(low, high, BINS + 1)
    series = []
    for job, result in results.items():
        counts = np.zeros(BINS, np.int64)
        for block in blocks(result, take):
            counts += np.histogram(block, edges)[0]
        bars = [(float(edges[i]), float(edges[i + 1]), int(count)) for i, count in enumerate(counts) if count]
        series.append((job, bars))
    return Histogram(title, x, series, log)


def _ends(result: Path, take: Take, log: bool) -> tuple[float, float]:
    low, high = np.inf, -np.inf
    for block in blocks(result, take):
        kept = block[block > 0] if log else block
        if len(kept):
            low, high = min(low, float(kept.min())), max(high, float(kept.max()))
    return low, high


def total(result: Path, take: Take) -> tuple[float, int]:
    """The sum of all values, in float64 and always in the same order, and how many they are."""
    found, count = 0.0, 0
    for block in blocks(result, take):
        found, count = found + float(block.sum()), count + len(block)
    return found, count


def slowest(results: Mapping[str, Path]) -> TextTable:
    """The shards that took longest, of all jobs."""
    found: list[tuple[float, tuple[str, ...]]] = []
    for job, result in results.items():
        for name, layer in layers(result):
            table = layer.shards
            if table.dtype.names is None:
                continue
            for at in np.argsort(-table["seconds"], kind="stable")[:SHOWN]:
                row = table[at]
                took = float(row["seconds"])
                shown = f"{job}/{name}/{int(row['shard'])}", f"{int(row['rows']):,}", str(row["agent"])
                found.append((took, (*shown, format_duration(took))))
    rows = [cells for _, cells in sorted(found, key=lambda one: -one[0])[:SHOWN]]
    return TextTable("Slowest", ("shard", "rows", "machine", "took"), ".r.r", rows)
