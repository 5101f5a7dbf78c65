"""A torch module's steps, in a runner of its own: ours by name, or the user's. Torch is never imported here."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from muster.jobs.contract.kind import ShardFailure
from muster.jobs.training.params import Facts, TrainParams
from muster.jobs.training.steps.models import cut_up
from muster.jobs.training.steps.trainer import Trainer
from muster.jobs.user_code import runner
from muster.jobs.user_code.sandbox import Sandbox

Array = np.ndarray[Any, Any]

SETTINGS = ("optimizer", "momentum", "nesterov", "beta2", "weight_decay", "seed", "deterministic")


@dataclass(frozen=True)
class TrainerPlace:
    """Where a runner may live, and what it needs there."""

    data: Path  # the job's packed data, see `muster.jobs.training.data.dataset`
    scratch: Path
    python: str | None = None  # None: the interpreter we run in
    code: Path | None = None  # folder of the user's files
    entry: str | None = None  # work.py:factory
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    check_code: Callable[[], None] = lambda: None  # called before each start of a runner


class TrainerTold(msgspec.Struct, frozen=True):
    """What a call answers beside its vector."""

    loss: float | None = 0.0  # None: it is no finite number
    right: int = 0
    stepped: int = 0
    names: list[tuple[str, list[int]]] = []


class TorchTrainer(Trainer):
    """Asks one runner, which keeps the module and the data open."""

    def __init__(self, params: TrainParams, facts: Facts, place: TrainerPlace, threads: int) -> None:
        self._timeout = place.timeout
        self._sandbox = Sandbox(
            python=place.python or sys.executable,
            folder=Path(runner.__file__).parent,
            entry="torch_training.py:answer",
            scratch=place.scratch,
            env=place.env,
            threads=threads,
            args=settings_of(params, facts, place),
            check=place.check_code,
        )
        try:
            told, self._start = self._ask({"what": "start"})
        except BaseException:
            self._sandbox.close()
            raise
        self.names = told.names  # of the vector's pieces, with their shapes
        self.stepped, self.buffers = told.stepped, len(self._start) - told.stepped

    def start(self, seed: int) -> Array:
        """The seed is the job's, with which the module was made."""
        return self._start

    def run(self, weights: Array, rows: Array, steps: int, rate: float, seed: int) -> tuple[Array, float]:
        told, values = self._ask({"what": "run", "steps": steps, "rate": rate, "seed": seed}, rows, weights)
        if len(values) != self.dim:
            raise ShardFailure("output", f"the module gave {len(values)} numbers for {self.dim} weights")
        return values, _loss_of(told)

    def judge(self, weights: Array) -> tuple[int, float]:
        told, _ = self._ask({"what": "judge"}, None, weights)
        return told.right, _loss_of(told)

    def attempt(self, rows: Array) -> None:
        """A step and a look at the test set with a few rows: a ShardFailure where the module does not fit them."""
        self._ask({"what": "try"}, rows, self._start)

    def arrays(self, weights: Array) -> dict[str, Array]:
        return cut_up(weights, self.names)

    def close(self) -> None:
        self._sandbox.close()

    def _ask(
        self, asked: dict[str, Any], rows: Array | None = None, weights: Array | None = None
    ) -> tuple[TrainerTold, Array]:
        numbers = np.zeros(0, "<i8") if rows is None else rows.astype("<i8", copy=False)
        head = msgspec.json.encode({**asked, "rows": len(numbers)})
        flat = np.zeros(0, "<f4") if weights is None else np.ascontiguousarray(weights, "<f4")
        raw = b"".join([len(head).to_bytes(8, "little"), head, numbers.tobytes(), flat.tobytes()])
        found = self._sandbox.call(0, 0, np.frombuffer(raw, np.uint8)[None], self._timeout)
        self.peak = self._sandbox.peak
        try:
            told = msgspec.json.decode(found["told"].tobytes(), type=TrainerTold)
            return told, found["values"].astype(np.float32, copy=False)[0]
        except (msgspec.MsgspecError, KeyError, IndexError) as error:
            raise ShardFailure("output", f"the module's process gave no valid answer: {error}") from None


def _loss_of(told: TrainerTold) -> float:
    return math.nan if told.loss is None else told.loss


def settings_of(params: TrainParams, facts: Facts, place: TrainerPlace) -> dict[str, Any]:
    """What `muster.jobs.user_code.runner.torch_training` is told once."""
    return {name: getattr(params, name) for name in SETTINGS} | {
        "model": params.model,
        "code": place.entry if params.model == "code" else None,
        "folder": str(place.code) if place.code is not None else None,
        "args": params.args,
        "data": str(place.data),
        "shape": list(facts.row),
        "classes": facts.classes,
    }
