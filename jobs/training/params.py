"""What a job file says about training: typed, each value and their fit checked. Computes nothing and loads no numpy."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from muster.jobs.common.errors import JobFileError

PathText = Annotated[str, Meta(min_length=1, max_length=4096)]
Rate = Annotated[float, Meta(gt=0, le=1000)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=1, le=1 << 31)]

LIMITS = {bits: (1 << bits - 1) - 1 for bits in (8, 16, 32)}  # the largest number of that many bits
LEAST_LEVELS = 2  # on either side of zero, for one virtual worker: fewer carry nothing but signs
DATA_FORMS = "data: digits, data: {name: mnist}, or data: {x: rows.npy, y: labels.npy}"
TORCH_MODELS = ("resnet18", "vgg16", "code")


class DataSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows and labels as .npy or idx files (.gz too), relative to the job file; or a data set that has a name."""

    x: PathText | None = None
    y: PathText | None = None
    test_x: PathText | None = None
    test_y: PathText | None = None
    test: Annotated[float, Meta(gt=0, lt=1)] = 0.2  # the share held out, where no test files are given
    classes: Annotated[int, Meta(ge=2, le=1 << 16)] | None = None  # labels are below it; None: as many as there are
    # Unset where they are not said: plans and checkpoints of an older version do not have them.
    name: Annotated[str, Meta(min_length=1, max_length=100)] | UnsetType = UNSET  # in place of files
    rows: Annotated[int, Meta(ge=2, le=1 << 31)] | UnsetType = UNSET  # to train on, the first ones; else all


class Facts(msgspec.Struct, frozen=True):
    """What a model has to know of the data. Found at submit and stored in the plan."""

    rows: int
    test_rows: int
    row: tuple[int, ...]  # one row's shape
    classes: int
    stepped: int = 0  # parameters of a torch module, which only its own process can count
    buffers: int = 0


class TrainParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`auto` and None are resolved at submit: results depend on the plan alone."""

    RESOLVED: ClassVar[tuple[str, ...]] = ("facts",)  # nobody writes it

    data: str | DataSpec = "digits"
    model: Literal["mlp", "conv1", "resnet18", "vgg16", "code"] = "mlp"
    layers: tuple[Annotated[int, Meta(ge=1, le=1 << 20)], ...] = (448, 160)  # of an mlp, between its ends
    filters: Annotated[int, Meta(ge=1, le=4096)] = 16  # of conv1
    args: dict[str, Any] = {}  # of the user's factory

    mode: Literal["sync", "local", "async"] = "sync"
    workers: Annotated[int, Meta(ge=1, le=4096)] = 12  # virtual ones, however many machines there are
    microbatch: Annotated[int, Meta(ge=1, le=1 << 20)] = 64  # rows a step, of one virtual worker
    rounds: Count = 1000
    local_steps: Literal["auto"] | Annotated[int, Meta(ge=1, le=1 << 20)] | None = None  # None: 1, or auto in `local`
    bits: Literal[8, 16, 32] = 32
    staleness: Literal["none"] | Annotated[int, Meta(ge=0, le=1000)] = 2  # in rounds' worth of pushes; of `async`
    damped: bool | UnsetType = UNSET  # of `async`: whether a stale contribution counts less; unset: it does

    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Rate = 0.1
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: Annotated[int, Meta(ge=0, le=1 << 31)] = 0  # rounds
    momentum: Decay = 0.0
    nesterov: bool = False
    beta2: Decay = 0.999  # of adamw, whose first is `momentum` or 0.9
    weight_decay: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    outer_lr: Rate = 1.0  # on the mean of what local steps changed
    outer_momentum: Decay = 0.0  # Nesterov's

    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    deterministic: bool = False
    target: Annotated[float, Meta(gt=0, le=1)] | None = None  # accuracy on the test set that ends the job
    eval_every: Count = 50  # rounds
    checkpoint_rounds: Count = 50
    facts: Facts | None = None  # filled in at submit

    @property
    def steps(self) -> int:
        """Local steps of a shard, once nothing is left to be found out."""
        assert isinstance(self.local_steps, int), "resolved"
        return self.local_steps

    @property
    def limit(self) -> int:
        """The largest number one virtual worker may send, so that all of them fit into as many bits."""
        return LIMITS[self.bits] // self.workers

    @property
    def stalest(self) -> float:
        """How stale a contribution may be; infinite where nothing bounds it."""
        return math.inf if self.staleness == "none" else self.staleness

    @property
    def samples(self) -> int:
        """Rows behind one contribution."""
        return self.microbatch * self.steps


def check(params: TrainParams) -> None:
    """Refuse, with a JobFileError that names the field, values that cannot go together."""
    _check_steps(params)
    _check_bits(params)
    _check_optimizer(params)
    check_data(params.data)
    if params.target is not None and params.eval_every > params.rounds:
        wrong = (
            f"params.eval_every: {params.eval_every} rounds, but the job has {params.rounds}: the target is never seen"
        )
        raise JobFileError(wrong, "evaluate more often")


def check_data(data: str | DataSpec) -> None:
    """Files or a name, and of files all that belong together."""
    if isinstance(data, str):
        return
    if data.name is not UNSET:
        if data != DataSpec(name=data.name, rows=data.rows):
            raise JobFileError("params.data: a name and files", "give one of them; beside a name only `rows` counts")
        return
    if data.x is None or data.y is None:
        raise JobFileError(f"params.data.{'y' if data.x else 'x'}: missing", DATA_FORMS)
    if (data.test_x is None) != (data.test_y is None):
        missing = "test_x" if data.test_x is None else "test_y"
        raise JobFileError(f"params.data.{missing}: missing: a test set has rows and labels")


def settled(params: TrainParams) -> TrainParams:
    """With what `None` means filled in; `auto` stays."""
    if params.local_steps is not None:
        return params
    return msgspec.structs.replace(params, local_steps="auto" if params.mode == "local" else 1)


def _check_steps(params: TrainParams) -> None:
    steps = params.local_steps
    if params.mode == "sync" and steps not in (None, 1):
        raise JobFileError(f"params.local_steps: sync takes one step a round, got {steps}", "write `mode: local`")
    if params.mode == "async" and steps == "auto":
        raise JobFileError("params.local_steps: async has no rounds to fit steps to", "give a number")
    for name, asked in (("damped", params.damped is not UNSET), ("staleness", params.staleness == "none")):
        if asked and params.mode != "async":  # a bound holds there, too
            wrong = f"params.{name}: nothing is stale in {params.mode}"
            raise JobFileError(wrong, "leave it out, or write `mode: async`")
    if params.warmup >= params.rounds > 1:
        wrong = f"params.warmup: {params.warmup} of {params.rounds} rounds leaves nothing to train"
        raise JobFileError(wrong, "give fewer rounds to `warmup`")


def _check_bits(params: TrainParams) -> None:
    if params.limit >= LEAST_LEVELS:
        return
    wrong = f"params.bits: {params.bits} bits have no room for the sum of {params.workers} workers"
    most = LIMITS[params.bits] // LEAST_LEVELS
    raise JobFileError(wrong, f"take more bits, or at most {most} workers")


def _check_optimizer(params: TrainParams) -> None:
    if not all(math.isfinite(value) for value in (params.lr, params.outer_lr, params.weight_decay)):
        raise JobFileError("params.lr: expected a finite number")
    if params.nesterov and (params.optimizer != "sgd" or not params.momentum):
        raise JobFileError("params.nesterov: only sgd with `momentum` has it", "momentum: 0.9")
    if params.mode == "async" and params.optimizer == "adamw" and params.local_steps in (None, 1):
        wrong = "params.optimizer: async has no server state, and adamw is nothing without"
        raise JobFileError(wrong, "take sgd, or `local_steps` of 2 and more")
    if params.mode == "async" and (params.outer_momentum or (params.momentum and params.local_steps in (None, 1))):
        name = "outer_momentum" if params.outer_momentum else "momentum"
        raise JobFileError(f"params.{name}: async has no momentum in the server", "leave it out")
