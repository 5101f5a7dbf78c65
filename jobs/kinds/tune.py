"""The kind `tune`: hyper-parameter search. A shard is a trial from one iteration to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from muster.jobs.contract.kind import Bench, JobPlace, Kind, KindForecast, KindReport, Prepared, Runner, Shape, Site
from muster.jobs.contract.plan import Output
from muster.jobs.tuning.params import EstimatorSpec, TuneParams, stop_of

if TYPE_CHECKING:
    from collections.abc import Mapping

TRIAL = "trial"  # what is counted of a search


class Tune(Kind[TuneParams]):
    """No shard is stored; the driver keeps what came of each, and the checkpoints that are wanted."""

    name = "tune"
    kernel = 2
    Params = TuneParams
    driven = True
    goes_on_by = "extends"
    sourceless = True
    may_have_code = True
    model_is = "data"

    def prepare(self, params: TuneParams, site: Site) -> Prepared[TuneParams]:
        from muster.jobs.tuning.plan_trials import prepare

        return prepare(params, site)

    def rounds(self, params: TuneParams) -> Literal["", "whole", "each"]:
        return "each"

    def forecast(self, params: TuneParams, entry: str | None) -> KindForecast:
        stop, found = stop_of(params), params.configurations
        trial = params.trial.estimator if isinstance(params.trial, EstimatorSpec) else entry or params.trial
        count = params.trials_most
        most, grid = count * stop.iterations, f"{found.points:,} points of a grid, " if found.points > 1 else ""
        facts = params.facts
        data = (f"data     {facts.rows:,} rows, {facts.test_rows:,} to test on",) if facts is not None else ()
        aims = "".join(f", {aim.metric} {'<=' if aim.smaller else '>='} {aim.value:g}" for aim in stop.aims)
        return KindForecast(
            count,
            TRIAL,
            head=f"{trial}, {len(params.space)} parameters",
            lines=(
                *data,
                f"trials   {count:,}: {grid}{params.searcher} with {params.scheduler}",
                f"each     at most {stop.iterations:,} iterations{aims}; {most:,} in all",
                f"best     {params.metric}, {'least' if params.smaller else 'most'}",
            ),
            numbers={"trials": count, "iterations": most, "scheduler": params.scheduler, "metric": params.metric},
        )

    def report(self, places: Mapping[str, JobPlace], target: float | None) -> KindReport:
        from muster.jobs.tuning.report import side_by_side

        return side_by_side({job: place.checkpoints for job, place in places.items()})

    def declare(self, params: TuneParams, shape: Shape | None) -> tuple[Output, ...]:
        from muster.jobs.tuning.trial_runner import STATE, TOLD

        return (Output(STATE, "ragged", "|u1"), Output(TOLD, "ragged", "|u1"))

    def open(self, bench: Bench) -> Runner:
        from muster.jobs.tuning.trial_runner import TrialRunner

        return TrialRunner(bench.params, bench)
