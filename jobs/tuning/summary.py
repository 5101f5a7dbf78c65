"""What a search came to, or has so far: its best, its tables, how much its scheduler saved. Values and text; no I/O."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import median
from typing import Any

import msgspec

from muster.jobs.tuning.params import Enqueued, stop_of
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.space import Config
from muster.jobs.tuning.stopping import Why
from muster.jobs.tuning.trials import Metrics, Trial

TRIALS_TABLE, CURVES_TABLE, BEST_FILE, TRIALS_FILE = "trials.csv", "curves.csv", "best.json", "trials.json"
VALUE_DIGITS = 4  # of a configuration in a line


class TrialSummary(msgspec.Struct, frozen=True):
    """One trial, for programs."""

    number: int
    state: str
    config: Config
    iterations: int
    metrics: dict[str, float | None]  # of the last iteration; None for what is not finite
    curve: list[dict[str, float | None]]  # of each iteration; left out of the best in a search's summary
    seconds: float
    machine: str  # where it ran last
    message: str  # of its failure
    evidence: str = ""  # of that: the traceback, and what was printed last


class SearchSummary(msgspec.Struct, frozen=True):
    """For programs. Ratios and times are None where there is nothing to tell them by."""

    metric: str
    smaller: bool  # whether less of it is better
    space: dict[str, Any]
    enqueued: list[Enqueued]
    scheduler: str
    trials: int
    tried: int
    failed: int
    diverged: int
    reached: int
    ended: str  # why the search ended before all was done; "" where it did not
    outcome: str  # what is to be said of its end: that, and that nobody reached the target; "" for nothing
    best: TrialSummary | None
    test: Metrics | None  # of the best, on rows that nothing else saw
    seconds: float  # of the search
    seconds_to_target: float | None  # until the first reached it
    iterations: int
    fifo_iterations: int  # at most, had each trial that the scheduler held back gone on to its end
    core_seconds: float  # within trials
    checkpoint_bytes: int  # that were made
    moved_bytes: int  # of those that another machine than their maker went on from
    iterations_to_target: tuple[int, float, int] | None  # min, median, max
    tuning_ratio: float | None  # max over min of those


class SearchReport(msgspec.Struct, frozen=True):
    """A search as it stands."""

    summary: SearchSummary
    trials: list[TrialSummary]  # the best first


def reported(search: Search) -> SearchReport:
    return SearchReport(summarised(search), trials_of(search))


def summarised(search: Search) -> SearchSummary:
    table, best = search.table, search.table.best
    reached = sorted(trial.iterations for trial in table.reached)
    first = min((trial.reached_at for trial in table.reached if trial.reached_at is not None), default=None)
    return SearchSummary(
        metric=search.params.metric,
        smaller=search.params.smaller,
        space=search.params.space,
        enqueued=search.params.enqueued,
        scheduler=search.params.scheduler,
        trials=table.count,
        tried=table.begun,
        failed=table.failed,
        diverged=sum(trial.why == "diverged" for trial in table.trials.values()),
        reached=len(reached),
        ended=search.ending(search.elapsed),
        outcome=search.outcome(search.elapsed),
        best=msgspec.structs.replace(_told(search, best), curve=[]) if best is not None else None,
        test=search.score,
        seconds=search.elapsed,
        seconds_to_target=first,
        iterations=table.iterations,
        fifo_iterations=table.iterations + _held_back(search),
        core_seconds=search.cpus * sum(sum(trial.seconds) for trial in table.trials.values()),
        checkpoint_bytes=table.state_bytes,
        moved_bytes=table.moved_bytes,
        iterations_to_target=(reached[0], median(reached), reached[-1]) if reached else None,
        tuning_ratio=reached[-1] / reached[0] if reached else None,
    )


def _held_back(search: Search) -> int:
    """Iterations that trials had left which wait at a rung. What ended did so by itself, and would have with fifo."""
    most = stop_of(search.params).iterations
    held = search.table.open.values() if search.params.scheduler != "fifo" else ()
    return sum(most - trial.iterations for trial in held if trial.begun)


def _finite(metrics: Metrics) -> dict[str, float | None]:
    return {name: value if isfinite(value) else None for name, value in metrics.items()}


def trials_of(search: Search) -> list[TrialSummary]:
    """The best first."""
    return [_told(search, trial) for trial in search.table.ranked()]


def _told(search: Search, trial: Trial) -> TrialSummary:
    curve = [_finite(metrics) for metrics in trial.curve]
    return TrialSummary(
        number=trial.number,
        state=state_of(trial),
        config=search.config(trial.number),
        iterations=trial.iterations,
        metrics=curve[-1] if curve else {},
        curve=curve,
        seconds=sum(trial.seconds),
        machine=trial.machine,
        message=trial.message,
        evidence=trial.evidence,
    )


def trials_csv(search: Search) -> str:
    """The best first. Nothing in it tells of time or machines."""
    ranked = search.table.ranked()
    configs = [search.config(trial.number) for trial in ranked]
    params = list(dict.fromkeys(name for config in configs for name in config))
    names = _metrics(ranked)
    last = [trial.curve[-1] if trial.curve else {} for trial in ranked]
    rows = (
        (
            trial.number,
            state_of(trial),
            trial.iterations,
            *(_cell(metrics.get(name)) for name in names),
            *(_cell(config.get(name)) for name in params),
            trial.message,
        )
        for trial, metrics, config in zip(ranked, last, configs, strict=True)
    )
    return _csv(("trial", "state", "iterations", *names, *params, "message"), rows)


def curves_csv(search: Search) -> str:
    """Every iteration of every trial. Nothing in it tells of time or machines."""
    trials = [search.table.trials[number] for number in sorted(search.table.trials)]
    names = _metrics(trials)
    rows = (
        (trial.number, iteration, *(_cell(metrics.get(name)) for name in names))
        for trial in trials
        for iteration, metrics in enumerate(trial.curve, 1)
    )
    return _csv(("trial", "iteration", *names), rows)


def state_of(trial: Trial) -> str:
    """In a word: why it ended, or that it has not."""
    words: dict[Why, str] = {"": "paused" if trial.begun else "waiting", "iterations": "done"}
    return words.get(trial.why, trial.why)


def config_text(config: Config, names: Sequence[str]) -> str:
    """Those parameters, in a line."""
    return ", ".join(f"{name} {_short(config[name])}" for name in names if name in config)


def number_text(value: float) -> str:
    return f"{value:.{VALUE_DIGITS}g}"


def _metrics(trials: Iterable[Trial]) -> list[str]:
    return sorted({name for trial in trials for metrics in trial.curve for name in metrics})


def _short(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _csv(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
