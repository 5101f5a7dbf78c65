"""What merged results say of how a job went: distributions of an output, rows a second, slowest items. Reads only."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from muster.jobs.common.errors import MusterError
from muster.jobs.common.units import format_duration
from muster.jobs.contract.pictures import Histogram, TextTable
from muster.jobs.parts.manifest import ITEM_COLUMNS, MANIFEST
from muster.jobs.results.open_result import MergedLayer, open_result

Array = np.ndarray[Any, Any]
Take = Callable[[MergedLayer], Array]  # what of a layer is looked at, a number a row or a shard

BINS = 40
BLOCK = 1 << 20  # values looked at at a time
SHOWN = 10
ITEM_CHARS = 60


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


def distribution(
    title: str, x: str, results: Mapping[str, Path], take: Take, log: bool = False, whole: bool = False
) -> Histogram:
    """Of each job, in bins that all share; `whole` numbers, where they are few, in one each."""
    ends = [_ends(result, take, log) for result in results.values()]
    low, high = min((low for low, _ in ends), default=np.inf), max((high for _, high in ends), default=-np.inf)
    if not low <= high:
        return Histogram(title, x, [], log)
    bins = BINS
    if whole and high - low < BINS:
        low, high, bins = low - 0.5, high + 0.5, round(high - low) + 1
    elif low == high:
        low, high = (low / 1.1, high * 1.1) if log else (low - 0.5, high + 0.5)
    edges = np.geomspace(low, high, bins + 1) if log else np.linspace(low, high, bins + 1)
    series = []
    for job, result in results.items():
        counts = np.zeros(bins, np.int64)
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
    """The shards that took longest, of all jobs, with their items where they have some."""
    found: list[tuple[float, tuple[str, ...]]] = []
    for job, result in results.items():
        for name, layer in layers(result):
            table = layer.shards
            if table.dtype.names is None:
                continue
            ends = np.cumsum(table["rows"])
            longest = [int(at) for at in np.argsort(-table["seconds"], kind="stable")[:SHOWN]]
            edges = {at: (int(ends[at] - table["rows"][at]), int(ends[at]) - 1) for at in longest}
            items = _items(result / name, layer, {row for pair in edges.values() for row in pair})
            for at, (first, last) in edges.items():
                row, took = table[at], float(table["seconds"][at])
                named = " … ".join(dict.fromkeys(items[one] for one in (first, last) if one in items))
                shown = f"{job}/{name}/{int(row['shard'])}", named, f"{int(row['rows']):,}", str(row["agent"])
                found.append((took, (*shown, format_duration(took))))
    return _longest(("shard", "items", "rows", "machine", "took"), "..r.r", found)


def slowest_items(results: Mapping[str, Path], seconds: Take) -> TextTable:
    """The rows that took longest, of all jobs, each with its item. `seconds`: of each row."""
    found: list[tuple[float, tuple[str, ...]]] = []
    for job, result in results.items():
        for name, layer in layers(result):
            took, table = seconds(layer), layer.shards
            longest = [int(row) for row in np.argsort(-took, kind="stable")[:SHOWN]]
            items, ends = _items(result / name, layer, longest), np.cumsum(table["rows"])
            for row in longest:
                shard = table[int(np.searchsorted(ends, row, side="right"))]
                shown = items.get(row, f"row {row:,}"), f"{job}/{name}/{int(shard['shard'])}", str(shard["agent"])
                found.append((float(took[row]), (*shown, format_duration(float(took[row])))))
    return _longest(("item", "shard", "machine", "took"), "...r", found)


def _longest(header: tuple[str, ...], right: str, found: list[tuple[float, tuple[str, ...]]]) -> TextTable:
    """A table of those, without columns that are empty in all rows."""
    rows = [cells for _, cells in sorted(found, key=lambda one: -one[0])[:SHOWN]]
    kept = [i for i in range(len(header)) if not rows or any(cells[i] for cells in rows)]
    return TextTable(
        "Slowest", tuple(header[i] for i in kept), "".join(right[i] for i in kept),
        [tuple(cells[i] for i in kept) for cells in rows],
    )  # fmt: skip


def _items(folder: Path, layer: MergedLayer, rows: Collection[int]) -> dict[int, str]:
    """What these rows are of, where the source is a list: a file's name, or the line of a table."""
    if layer.manifest.items is None or not rows:
        return {}
    with suppress(OSError), (folder / layer.manifest.items.file).open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        columns = 1 if next(lines, []) == list(ITEM_COLUMNS) else None  # beside its name a file has its size
        named = ((i, ", ".join(line[:columns])) for i, line in zip(range(max(rows) + 1), lines, strict=False))
        return {i: text if len(text) <= ITEM_CHARS else f"…{text[1 - ITEM_CHARS :]}" for i, text in named if i in rows}
    return {}  # its job is being removed
