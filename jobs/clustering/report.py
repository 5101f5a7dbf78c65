"""What clusterings came to: inertia and iterations of the rows that are merged. Draws nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from muster.jobs.contract.kind import JobPlace, KindReport
from muster.jobs.results import reported

HEADER = ("rows", "inertia", "a row", "iterations a row")


class Clustered(msgspec.Struct, frozen=True):
    """Of the rows of merged layers that have an answer."""

    job: str
    rows: int
    inertia: float | None
    inertia_per_row: float | None
    iterations_per_row: float | None


def side_by_side(places: Mapping[str, JobPlace]) -> KindReport:
    results = {job: place.result for job, place in places.items()}
    found = [_clustered(job, result) for job, result in results.items()]
    rows = [_cells(one) for one in found]
    inertia = reported.distribution(
        "Inertia of a row", "inertia, on a logarithmic axis", results, reported.output("inertia"), log=True
    )
    counts = reported.output("iterations")
    iterations = reported.distribution("Iterations of a row", "iterations", results, counts, whole=True)
    return KindReport(HEADER, "rrrr", rows, found, pictures=(inertia, iterations))


def _clustered(job: str, result: Path) -> Clustered:
    inertia, rows = reported.total(result, reported.output("inertia"))
    iterations, _ = reported.total(result, reported.output("iterations"))
    if not rows:
        return Clustered(job, 0, None, None, None)
    return Clustered(job, rows, inertia, inertia / rows, iterations / rows)


def _cells(one: Clustered) -> tuple[str, ...]:
    shown = (one.inertia, one.inertia_per_row, one.iterations_per_row)
    return (f"{one.rows:,}", *(f"{value:.4g}" if value is not None else "-" for value in shown))
