"""What a job file says about a search: typed, each value and their fit checked. Loads no data and no numpy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from muster.jobs.common.errors import JobFileError
from muster.jobs.common.units import counted
from muster.jobs.common.validation import nearest, one_line
from muster.jobs.training.params import DATA_FORMS, DataSpec, Facts, check_data
from muster.jobs.tuning.searchers import TRIALS_MOST, Configurations, Searcher
from muster.jobs.tuning.space import Space

Count = Annotated[int, Meta(ge=1, le=1 << 31)]
Span = Annotated[float, Meta(gt=0, le=1e9)]
Mode = Literal["max", "min"]

ITERATIONS = 100  # of a trial, where `stop` does not say
LESS_IS_BETTER = re.compile(r"(^|_)(loss|error|mae|mse|rmse)(_|$)")  # names of metrics
FIRST_SHARE = 27  # the first rung has one of so many of all iterations, or rows where a rung is a share of them
MODEL_METRICS = ("train_accuracy", "train_loss", "accuracy", "loss")
THREADS = "threads"  # of a network's trial, at most its cpus
PARAMETERS = {one: (own, "lr", "momentum", "batch", THREADS) for one, own in (("mlp", "hidden"), ("conv1", "filters"))}
SCORES = ("accuracy", "train_accuracy")  # of a classifier: on rows held out, on those it saw
ERRORS = ("r2", "mse", "train_r2", "train_mse")  # of a regressor, alike
SAME = ("space", "metric", "mode", "trial", "valid", "searcher", "first", "seed", "facts")  # of one extended
MEASURED = ("iterations", "seconds", "plateau")  # what `stop` names beside metrics
_AIM = re.compile(r"(<=|>=)\s*(\S+)")


class EstimatorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scikit-learn classifier or regressor; the space has its arguments."""

    estimator: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*\.[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
    refits: bool | None = None  # fitted anew at each rung, on a share of the rows; None: unless it has partial_fit


class Enqueued(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a trial is to have. What it leaves open is drawn."""

    trial: Annotated[int, Meta(ge=0, lt=TRIALS_MOST)]
    config: dict[str, Any]


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the whole search. What is under way when seconds or iterations are spent is dropped."""

    seconds: Span | None = None
    iterations: Count | None = None
    trials: Count | None = None  # beside those that people add; whose turn it is then goes on to its end


class Plateau(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No better by more than `delta` for so many iterations."""

    iterations: Count = 10
    delta: Annotated[float, Meta(ge=0)] = 0.0


class TuneParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`None` is resolved at submit: results depend on the plan alone."""

    RESOLVED: ClassVar[tuple[str, ...]] = ("facts",)  # nobody writes it

    space: Annotated[dict[str, Any], Meta(min_length=1)]
    metric: Annotated[str, Meta(min_length=1, max_length=100)]  # of those that a trial reports
    mode: Mode | None = None  # None: min for a loss or an error, by its name
    trial: Literal["mlp", "conv1", "torch", "code"] | EstimatorSpec | None = None  # None: the job's code
    data: str | DataSpec | None = None
    valid: Annotated[float, Meta(gt=0, lt=1)] = 0.1  # the share of the training rows that trials are judged by
    trials: Annotated[int, Meta(ge=1, le=TRIALS_MOST)] | None = None  # of each point of a grid, where there is one
    searcher: Searcher = "random"
    first: list[dict[str, Any]] = []  # configurations that are tried before all others
    enqueued: list[Enqueued] = []  # what later trials are to have
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    scheduler: Literal["fifo", "halving", "asha"] = "fifo"
    eta: Annotated[int, Meta(ge=2, le=64)] = 3  # one of so many is promoted
    grace: Count | None = None  # iterations before the first rung; None: a 27th of all
    stop: dict[str, Any] = {}  # of one trial
    goal: Literal["all", "first"] = "all"
    budget: Budget = Budget()
    segment: Span = 20.0  # seconds after which a trial's state is kept, at the next iteration
    extends: Annotated[str, Meta(min_length=1, max_length=256)] | None = None  # a search that this one goes on from
    facts: Facts | None = None  # filled in at submit

    @property
    def smaller(self) -> bool:
        """Whether less of the metric is better."""
        return self.mode == "min" if self.mode else LESS_IS_BETTER.search(self.metric) is not None

    def better(self, value: float) -> float:
        """The value turned so that more is better."""
        return -value if self.smaller else value

    @property
    def is_ours(self) -> bool:
        """Whether the trials' metrics are known beforehand: those of a function of the user's are not."""
        return self.trial not in ("code", None)

    @property
    def regresses(self) -> bool:
        """Whether it finds numbers, and no classes. The metric says so: classifiers and regressors share none."""
        return isinstance(self.trial, EstimatorSpec) and self.metric in ERRORS

    @property
    def refits(self) -> bool:
        """Whether a trial learns all at once, so that an iteration is a rung, and a rung a share of the rows."""
        return isinstance(self.trial, EstimatorSpec) and bool(self.trial.refits)

    @property
    def usual_iterations(self) -> int:
        """Of a trial, where `stop` does not say."""
        if not self.refits:
            return ITERATIONS
        return 1 if self.scheduler == "fifo" else 1 + math.floor(math.log(FIRST_SHARE) / math.log(self.eta) + 1e-9)

    @property
    def trials_most(self) -> int:
        """How many are tried at most, beside those that people add."""
        count = self.configurations.count
        return min(count, self.budget.trials or count)

    @property
    def configurations(self) -> Configurations:
        later = {one.trial: one.config for one in self.enqueued}
        return Configurations(Space(self.space), self.searcher, self.seed, self.trials, self.first, later)


@dataclass(frozen=True)
class Aim:
    """A value of a metric that ends a trial."""

    metric: str
    smaller: bool  # whether less is better
    value: float

    def is_reached(self, metrics: Mapping[str, float]) -> bool:
        value = metrics.get(self.metric, math.nan)
        return value <= self.value if self.smaller else value >= self.value


@dataclass(frozen=True)
class Stop:
    """When one trial ends: whichever comes first."""

    iterations: int
    seconds: float | None
    plateau: Plateau | None
    aims: tuple[Aim, ...]


def stop_of(params: TuneParams) -> Stop:
    """`stop`, typed; a JobFileError that names the field."""
    given = params.stop
    aims = [_aim(name, said, params) for name, said in given.items() if name not in MEASURED]
    return Stop(
        iterations=_measured(given.get("iterations", params.usual_iterations), Count, "iterations"),
        seconds=_measured(given.get("seconds"), Span | None, "seconds"),
        plateau=_measured(given.get("plateau"), Plateau | None, "plateau"),
        aims=tuple(aims),
    )


def _measured(value: Any, wanted: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise JobFileError(f"params.stop.{name}: {error}") from None


def _aim(name: str, said: Any, params: TuneParams) -> Aim:
    """A number, or one with its direction: "<=0.05"."""
    where, smaller = f"params.stop.{one_line(name[:80])}", LESS_IS_BETTER.search(name) is not None
    if name == params.metric:
        smaller = params.smaller
    if isinstance(said, str) and (found := _AIM.fullmatch(said)):
        smaller, said = found[1] == "<=", _number(found[2])
    if not isinstance(said, (int, float)) or isinstance(said, bool) or not math.isfinite(said):
        raise JobFileError(f'{where}: expected a number, or "<=0.05"')
    return Aim(name, smaller, float(said))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check(params: TuneParams) -> None:
    """Refuse, with a JobFileError that names the field, values that cannot go together."""
    _check_measured(params)
    configurations, stop = params.configurations, stop_of(params)
    if params.goal == "first" and not stop.aims:
        raise JobFileError("params.goal: `first` to reach what?", f"stop: {{{params.metric}: 0.99}}")
    if params.grace is not None and params.grace > stop.iterations:
        wrong = f"params.grace: {params.grace} iterations before the first rung, but a trial has {stop.iterations}"
        raise JobFileError(wrong, "give a smaller one")
    if isinstance(params.trial, EstimatorSpec):
        _check_names("params.metric", (params.metric,), (*SCORES, *ERRORS), "trials report")
        _check_metrics(params, stop, ERRORS if params.regresses else SCORES)
    elif params.is_ours:
        if known := PARAMETERS.get(str(params.trial)):
            _check_names("params.space", params.space, known, f"{params.trial} takes")
        _check_metrics(params, stop, MODEL_METRICS)
    if params.is_ours and params.data is None:
        raise JobFileError("params.data: missing: what is the model to learn?", DATA_FORMS)
    if params.data is not None:
        check_data(params.data)
    configurations.config(0)


def unlike(before: TuneParams, params: TuneParams) -> str:
    """Why the one cannot go on from the other; "" where it can."""
    for name in SAME:
        if getattr(before, name) != getattr(params, name):
            return f"params.{name} is not that of {params.extends}"
    had, has = before.trials_most, params.trials_most
    return f"params.trials: {has:,} trials, and {params.extends} has {had:,}" if has < had else ""


def _check_measured(params: TuneParams) -> None:
    """A slip in the name of what is measured beside metrics is no aim at a metric of that name."""
    for name, said in params.stop.items():
        near = None if name in (*MEASURED, params.metric) or isinstance(said, str) else nearest(name, MEASURED)
        if near:
            where = f"params.stop: there is no `{one_line(name[:80])}`"
            raise JobFileError(where, f'did you mean `{near}`? For a metric of that name write {name[:80]}: ">=1"')


def check_threads(params: TuneParams, cpus: int) -> None:
    """Refuse a network with more threads than the cpus that its trials have."""
    domain = next((one for one in Space(params.space).domains if one.name == THREADS), None)
    if params.trial not in PARAMETERS or domain is None:
        return
    given = [config[THREADS] for config in params.configurations.given.values() if THREADS in config]
    for value in (*(domain.values or (domain.low, domain.high)), *given):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= cpus:
            wrong = f"params.space.{THREADS}: {one_line(repr(value)[:80])}, and a trial has {counted(cpus, 'cpu')}"
            raise JobFileError(wrong, "whole numbers from 1 on; `resources: {cpus: 4}` gives each trial more")


def _check_metrics(params: TuneParams, stop: Stop, known: tuple[str, ...]) -> None:
    _check_names("params.metric", (params.metric,), known, "trials report")
    _check_names("params.stop", [aim.metric for aim in stop.aims], known, "trials report")


def _check_names(where: str, names: Any, known: tuple[str, ...], told: str) -> None:
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean `{near}`?" if near else f"{told}: {', '.join(known)}"
            raise JobFileError(f"{where}: there is no `{one_line(name[:80])}` here", hint)
