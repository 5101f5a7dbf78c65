"""A search of a farm, from Python: wait for it, have its best, its trials and their table. Keeps no state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from muster.coordinator.api.status import JobStatus
from muster.coordinator.client.job import Job
from muster.jobs.common.errors import IncompleteError, NotFoundError, UsageError
from muster.jobs.tuning.params import Enqueued
from muster.jobs.tuning.space import Space
from muster.jobs.tuning.summary import BEST_FILE, TRIALS_FILE, SearchSummary, TrialSummary

LAYER = "made"
STREAM_SECONDS = 0.5  # between looks


class Study:
    """A search, as `Farm.tune` gives it. Whatever tells of its results waits until the search is over."""

    def __init__(self, job: Job, again: Callable[..., Study] | None = None) -> None:
        self.job = job
        self._again = again  # with other parameters
        self._queue: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"<Study {self.job.id}>"

    def wait(self, progress: bool = True, timeout: float | None = None) -> JobStatus:
        """Wait until the search is over, whether by its end, its goal or its budget; `timeout` as in `Job.wait`."""
        return self.job.wait(progress, timeout)

    def stop(self) -> None:
        """End the search, as a spent budget would: what runs is dropped, and the best of what there is the result."""
        self.job.end_search()

    def enqueue(self, config: Mapping[str, Any], id: str | None = None) -> None:
        """Have the search try this configuration before those that have not begun; of a search that is over, `extend`
        does so. Parameters that it does not name are drawn. Sent again under the same `id`, it is tried once."""
        if self.job.status().is_over:
            Space(self.summary.space).check_within(config, self.job.id)
            self._queue.append(dict(config))
        else:
            self.job.enqueue(config, id or uuid4().hex)

    def extend(self, **changes: Any) -> Study:
        """Go on from this search once it is over, with more `trials`, another `stop` or `budget`, and with what was
        enqueued: a new search."""
        if self._again is None:
            raise UsageError(f"{self.job.id} was not begun here", "submit it again with `extends` in its params")
        self.wait(progress=False)
        if self._queue:
            queued = [Enqueued(number, config) for number, config in enumerate(self._queue, self.summary.trials)]
            changes["enqueued"] = msgspec.to_builtins([*self.summary.enqueued, *queued])
        return self._again(extends=self.job.id, **changes)

    def stream(self) -> Iterator[tuple[int, int, dict[str, float | None]]]:
        """Yield (trial, iteration, metrics) as they are committed, those of the past first, until the search ends."""
        seen: dict[int, int] = {}
        while True:
            is_over = self.job.status().is_over
            for trial in self._trials_now():
                for metrics in trial.curve[seen.get(trial.number, 0) :]:
                    seen[trial.number] = seen.get(trial.number, 0) + 1
                    yield trial.number, seen[trial.number], metrics
            if is_over:
                return
            time.sleep(STREAM_SECONDS)

    def optuna(self) -> Any:
        """An Optuna study in memory with the trials that there are now, for its plots, importances and dashboard."""
        from muster.jobs.tuning.optuna_study import study_of

        found = self.job.search()
        summary, trials = found.summary, sorted(found.trials, key=lambda trial: trial.number)
        known = [(one.config, one.state, [_number(at.get(summary.metric)) for at in one.curve]) for one in trials]
        return study_of(self.job.id, Space(summary.space), summary.smaller, known)

    def _trials_now(self) -> list[TrialSummary]:
        try:
            return self.job.search().trials
        except NotFoundError:  # it has not begun
            return []

    @property
    def progress(self) -> dict[str, float | None]:
        """How far the search is now: `best`, `best_trial`, `iterations`, `reached`, `failed`, `seconds`."""
        told = self.job.status().progress
        return dict(told.numbers) if told is not None else {}

    @cached_property
    def summary(self) -> SearchSummary:
        """All that best.json says."""
        return msgspec.json.decode((self._folder / BEST_FILE).read_bytes(), type=SearchSummary)

    @cached_property
    def trials(self) -> list[TrialSummary]:
        """The trials, best first. Each has `number`, `state`, `config`, `iterations`, `metrics`, `curve`, `seconds`,
        `machine`."""
        return msgspec.json.decode((self._folder / TRIALS_FILE).read_bytes(), type=list[TrialSummary])

    @property
    def best(self) -> TrialSummary:
        if self.summary.best is None:
            raise IncompleteError(f"{self.job.id}: no trial came to a finite {self.summary.metric}", "see its trials")
        return self.trials[0]

    @property
    def model(self) -> Path | None:
        """The file of the best trial: a network's weights, an estimator, or the state of your function."""
        return next((path for path in sorted(self._folder.glob("best.*")) if path.name != BEST_FILE), None)

    def table(self) -> dict[str, list[Any]]:
        """The trials as columns of equal length, best trial first, with None where a trial has no such value."""
        metrics = dict.fromkeys(name for one in self.trials for name in one.metrics)
        params = dict.fromkeys(name for one in self.trials for name in one.config)
        columns = {name: [getattr(one, name) for one in self.trials] for name in ("number", "state", "iterations")}
        columns |= {name: [one.metrics.get(name) for one in self.trials] for name in metrics}
        return columns | {name: [one.config.get(name) for one in self.trials] for name in params}

    @cached_property
    def _folder(self) -> Path:
        return self.job.result(progress=False).folder / LAYER


def _number(value: float | None) -> float:
    """None stands for what is not finite."""
    return float("nan") if value is None else value
