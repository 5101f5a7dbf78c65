"""How searches go or went, side by side, from their journals. Draws nothing itself: its files are tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log10, nan
from pathlib import Path

from muster.jobs.common.units import counted, format_duration, format_size
from muster.jobs.contract.kind import KindReport
from muster.jobs.contract.pictures import Curves, Parallel, Picture, TextTable
from muster.jobs.tuning.journal import recalled
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.summary import (
    SearchSummary,
    config_text,
    curves_csv,
    number_text,
    summarised,
    trials_csv,
    trials_of,
)
from muster.jobs.tuning.trials import Trial

CURVES_SHOWN = 12  # of one search
LINES_SHOWN = 200
ROWS_SHOWN = 20
AXES_SHOWN = 8
WORST = 20  # one in so many trials, the worst, has no line
HEADER = (
    "trials",
    "best",
    "metric",
    "test",
    "iterations",
    "of fifo",
    "time",
    "to target",
    "configuration",
)


def side_by_side(checkpoints: Mapping[str, Path]) -> KindReport:
    searches = {job: recalled(folder) for job, folder in checkpoints.items()}
    found = [summarised(search) for search in searches.values()]
    rows = [_row(one) for one in found]
    return KindReport(
        HEADER,
        "rrrrrrrr.",
        rows,
        found,
        below=[line for job, one in zip(searches, found, strict=True) for line in _account(job, one)],
        draw=lambda folder: _written(folder, searches),
        pictures=pictures(searches),
        curves=lambda: [trials_of(search) for search in searches.values()],
    )


def pictures(searches: Mapping[str, Search]) -> list[Picture]:
    """The best so far over time, of all; of each its trials, their curves, and what their parameters were."""
    best = [(job, _best_so_far(search)) for job, search in searches.items()]
    metric = next(iter(searches.values())).params.metric
    found: list[Picture] = [Curves("Best so far", "seconds of the search", metric, best, steps=True)]
    for job, search in searches.items():
        ranked = [trial for trial in search.table.ranked() if trial.curve]
        curves = [(f"trial {trial.number}", _curve(trial, search.params.metric)) for trial in ranked[:CURVES_SHOWN]]
        found += [
            Curves(f"{job}: its {len(curves)} best trials", "iteration", search.params.metric, curves),
            _parallel(job, search, ranked),
            _table(job, search, ranked),
        ]
    return found


def _curve(trial: Trial, metric: str) -> list[tuple[float, float]]:
    return [(float(i), metrics[metric]) for i, metrics in enumerate(trial.curve, 1) if metric in metrics]


def _best_so_far(search: Search) -> list[tuple[float, float]]:
    """Each value that was better than all before it, on whichever machine, when it was there."""
    metric, better = search.params.metric, search.params.better
    told = [
        (at, metrics[metric])
        for trial in search.table.trials.values()
        for at, metrics in zip(trial.times, trial.curve, strict=True)
        if isfinite(metrics.get(metric, nan))
    ]
    points: list[tuple[float, float]] = []
    for at, value in sorted(told):
        if not points or better(value) > better(points[-1][1]):
            points.append((at, value))
    return [*points, (search.elapsed, points[-1][1])] if points else []


def _parallel(job: str, search: Search, ranked: Sequence[Trial]) -> Parallel:
    """Of trials with a score, but for the worst twentieth, so that no outlier pushes all others together."""
    metric, smaller = search.params.metric, search.params.smaller
    scored = [trial for trial in ranked if isfinite(trial.curve[-1].get(metric, nan))]
    kept = scored[: max(1, len(scored) - len(scored) // WORST)][:LINES_SHOWN] if scored else []
    configs = [search.config(trial.number) for trial in kept]
    scores = [trial.curve[-1][metric] for trial in kept]
    names = list(dict.fromkeys(name for config in configs for name in config))[:AXES_SHOWN]
    axes = [_axis(name, [config.get(name) for config in configs]) for name in names]
    places, low, high = zip(*[(one.places, one.low, one.high) for one in axes], strict=True) if axes else ((), (), ())
    score = _axis(metric, list(scores))
    lines = [
        ([*(column[i] for column in places), score.places[i]], _goodness(scores, i, smaller)) for i in range(len(kept))
    ]
    ends = [*zip(names, low, high, strict=True), (metric, score.low, score.high)]
    return Parallel(f"{job}: parameters of {len(kept)} trials", ends if kept else [], lines)


def _goodness(scores: Sequence[float], i: int, smaller: bool) -> float:
    better = sum((other > scores[i]) if smaller else (other < scores[i]) for other in scores)
    return better / max(1, len(scores) - 1)


@dataclass(frozen=True)
class _Axis:
    """Where each trial's value stands, from 0 to 1, and what stands at the ends."""

    places: list[float | None]
    low: str
    high: str


def _axis(name: str, values: Sequence[object]) -> _Axis:
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) == sum(one is not None for one in values):
        low, high = min(numbers, default=0.0), max(numbers, default=0.0)
        log = low > 0 and high > 100 * low
        ends = (log10(low), log10(high)) if log else (low, high)
        span = (ends[1] - ends[0]) or 1.0
        found = [None if one is None else ((log10(one) if log else one) - ends[0]) / span for one in values]  # type: ignore[arg-type, operator]
        return _Axis(found, number_text(low), number_text(high))
    kinds = list(dict.fromkeys(str(one) for one in values if one is not None))
    where = {kind: i / max(1, len(kinds) - 1) for i, kind in enumerate(kinds)}
    return _Axis([None if one is None else where[str(one)] for one in values], kinds[0], kinds[-1])


def _table(job: str, search: Search, ranked: Sequence[Trial]) -> TextTable:
    """The best trials, with their configurations."""
    metric, rows = search.params.metric, []
    for trial in ranked[:ROWS_SHOWN]:
        config = search.config(trial.number)
        score = trial.curve[-1].get(metric, nan)
        rows.append((str(trial.number), number_text(score), str(trial.iterations), config_text(config, list(config))))
    return TextTable(f"{job}: its best trials", ("trial", metric, "iterations", "configuration"), "rrr.", rows)


def _row(one: SearchSummary) -> tuple[str, ...]:
    best, test = one.best, one.test
    share = f"{one.iterations / one.fifo_iterations:.0%}" if one.fifo_iterations else "-"
    return (
        f"{one.tried:,}/{one.trials:,}",
        str(best.number) if best else "-",
        number_text(best.metrics[one.metric] or 0.0) if best else "-",
        number_text(test.get(one.metric.removeprefix("train_"), next(iter(test.values())))) if test else "-",
        f"{one.iterations:,}",
        share,
        format_duration(one.seconds),
        format_duration(one.seconds_to_target) if one.seconds_to_target is not None else "-",
        config_text(best.config, list(best.config)) if best else "-",
    )


def _account(job: str, one: SearchSummary) -> list[str]:
    """What it took; and at last the ratio, which grows with the number of trials."""
    moved = f"{format_size(one.checkpoint_bytes)} of checkpoints, {format_size(one.moved_bytes)} of them moved"
    lines = [f"{job}: {one.iterations:,} iterations in {format_duration(one.core_seconds)} of processors; {moved}"]
    lines += [f"{job}: ended: {one.outcome}"] if one.outcome else []
    if one.failed:
        lines.append(f"{job}: {counted(one.failed, 'trial')} failed; `coordinator logs {job}` has the evidence")
    if one.iterations_to_target is not None:
        least, middle, most = one.iterations_to_target
        lines.append(
            f"{job}: {one.reached:,} trials at the target after {least:,} to {most:,} iterations, median {middle:g};"
            f" tuning ratio {one.tuning_ratio:.2f}"
        )
    return lines


def _written(folder: Path, searches: Mapping[str, Search]) -> Sequence[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for job, search in searches.items():
        for name, text in (("trials", trials_csv(search)), ("curves", curves_csv(search))):
            files.append(folder / f"{job}-{name}.csv")
            files[-1].write_text(text)
    return files
