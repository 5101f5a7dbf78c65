"""What jobs of `infer`, `map` and `command` came to, from their merged results. Draws nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from muster.jobs.contract.kind import JobPlace, KindReport
from muster.jobs.contract.pictures import Bars, Picture
from muster.jobs.inference.params import NAN_ROWS
from muster.jobs.results import reported

HEADER = ("rows", "ok", "failed", "with NaN")
EXIT, OK = "exit", "ok"  # outputs: of a command its exit code, of an item whether it has a result


class RowsTold(msgspec.Struct, frozen=True):
    """Of merged layers. Without `on_item_error: record` every row is ok, as the job would not be there else."""

    job: str
    rows: int
    ok: int
    failed: int
    nan_rows: int | None  # of `infer` alone
    exits: dict[str, int]  # of `command`: exit code → items


def of_batches(places: Mapping[str, JobPlace]) -> KindReport:
    """Of `infer`: how fast its batches were."""
    results = {job: place.result for job, place in places.items()}
    rates = reported.distribution(
        "Rows a second, by batch", "rows a second, on a logarithmic axis", results, reported.rows_per_second, log=True
    )
    return _report(results, (rates, reported.slowest(results)))


def of_items(places: Mapping[str, JobPlace], seconds: str = "") -> KindReport:
    """Of `map` and `command`: how items ended, and which took longest. `seconds`: the output that has those of each."""
    results = {job: place.result for job, place in places.items()}
    slowest = reported.slowest_items(results, reported.output(seconds)) if seconds else reported.slowest(results)
    report = _report(results, (slowest,))
    exits = [(f"{one.job} exit {code}", float(count)) for one in _told(report) for code, count in one.exits.items()]
    pictures: tuple[Picture, ...] = (Bars("Exit codes", "items", exits),) if exits else ()
    return KindReport(report.header, report.right, report.rows, report.values, pictures=(*pictures, *report.pictures))


def _told(report: KindReport) -> list[RowsTold]:
    return [one for one in report.values if isinstance(one, RowsTold)]


def _report(results: Mapping[str, Path], pictures: tuple[Picture, ...]) -> KindReport:
    found = [_counted(job, result) for job, result in results.items()]
    rows = [
        (f"{one.rows:,}", f"{one.ok:,}", f"{one.failed:,}", "-" if one.nan_rows is None else f"{one.nan_rows:,}")
        for one in found
    ]
    return KindReport(HEADER, "rrrr", rows, found, pictures=pictures)


def _counted(job: str, result: Path) -> RowsTold:
    rows = failed = 0
    nan_rows: int | None = None
    exits: dict[str, int] = {}
    for _, layer in reported.layers(result):
        rows += layer.manifest.rows
        ok = layer.outputs.get(OK)
        if isinstance(ok, np.ndarray):
            failed += int(len(ok) - np.count_nonzero(ok))
        if isinstance(count := layer.outputs.get(NAN_ROWS), np.ndarray):
            nan_rows = (nan_rows or 0) + int(np.sum(count))
        if isinstance(codes := layer.outputs.get(EXIT), np.ndarray):
            for code, number in zip(*np.unique(codes, return_counts=True), strict=True):
                exits[str(int(code))] = exits.get(str(int(code)), 0) + int(number)
    return RowsTold(job, rows, rows - failed, failed, nan_rows, exits)
