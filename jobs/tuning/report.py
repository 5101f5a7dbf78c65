"""How searches go or went, side by side, from their journals. Draws nothing yet: its files are tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.jobs.common.units import format_duration, format_size
from muster.jobs.contract.kind import KindReport
from muster.jobs.tuning.journal import recalled
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.summary import (
    SearchSummary,
    config_text,
    curves_csv,
    number_text,
    summarised,
    trials_csv,
)

HEADER = (
    "trials",
    "best",
    "metric",
    "test",
    "iterations",
    "of fifo",
    "time",
    "to target",
    "kept",
    "configuration",
    "ratio",
)


def side_by_side(checkpoints: Mapping[str, Path]) -> KindReport:
    searches = {job: recalled(folder) for job, folder in checkpoints.items()}
    found = [summarised(search) for search in searches.values()]
    rows = [_row(one) for one in found]
    return KindReport(HEADER, "rrrrrrrrr.r", rows, found, lambda folder: _written(folder, searches))


def _row(one: SearchSummary) -> tuple[str, ...]:
    best, test = one.best, one.test
    share = f"{one.iterations / one.fifo_iterations:.0%}" if one.fifo_iterations else ""
    return (
        f"{one.tried:,}/{one.trials:,}",
        str(best.trial) if best else "-",
        number_text(best.metrics[one.metric] or 0.0) if best else "-",
        number_text(next(iter(test.values()))) if test else "-",
        f"{one.iterations:,}",
        share,
        format_duration(one.seconds),
        format_duration(one.seconds_to_target) if one.seconds_to_target is not None else "-",
        format_size(one.checkpoint_bytes),
        config_text(best.config, list(best.config)) if best else "-",
        f"{one.tuning_ratio:.2f}" if one.tuning_ratio is not None else "-",
    )


def _written(folder: Path, searches: Mapping[str, Search]) -> Sequence[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for job, search in searches.items():
        for name, text in (("trials", trials_csv(search)), ("curves", curves_csv(search))):
            files.append(folder / f"{job}-{name}.csv")
            files[-1].write_text(text)
    return files
