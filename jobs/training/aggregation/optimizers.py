"""How a flat vector takes a step: sgd and adamw, in place and without temporaries. Knows no round and no machine."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from muster.jobs.training.params import TrainParams

Array = np.ndarray[Any, Any]

FIRST_MOMENT = 0.9  # adamw's, where `momentum` is not given
EPSILON = np.float32(1e-8)


class Optimizer(ABC):
    """Its state is arrays as long as the parameters, and a count of steps."""

    def __init__(self, dim: int, names: tuple[str, ...]) -> None:
        self.taken = 0
        self.state: dict[str, Array] = {name: np.zeros(dim, np.float32) for name in names}
        self._scratch = np.empty(dim, np.float32)

    def reset(self) -> None:
        self.taken = 0
        for array in self.state.values():
            array[:] = 0

    @abstractmethod
    def step(self, weights: Array, gradient: Array, rate: float) -> None:
        """`weights` after a step along the mean `gradient`, which may be overwritten."""


class Sgd(Optimizer):
    """As torch has it: m = momentum * m + g, and weights -= rate * m, or rate * (g + momentum * m) with Nesterov."""

    def __init__(self, dim: int, momentum: float, nesterov: bool, decay: float) -> None:
        super().__init__(dim, ("momentum",) if momentum else ())
        self._momentum = np.float32(momentum)
        self._nesterov = nesterov
        self._decay = np.float32(decay)

    def step(self, weights: Array, gradient: Array, rate: float) -> None:
        scratch, along = self._scratch, gradient
        if self._decay:
            np.multiply(weights, self._decay, out=scratch)
            gradient += scratch
        if self._momentum:
            along = self.state["momentum"]
            along *= self._momentum
            along += gradient
            if self._nesterov:
                np.multiply(along, self._momentum, out=scratch)
                scratch += gradient
                along = scratch
        np.multiply(along, np.float32(rate), out=scratch)
        weights -= scratch
        self.taken += 1


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    def __init__(self, dim: int, beta1: float, beta2: float, decay: float) -> None:
        super().__init__(dim, ("first", "second"))
        self._betas = beta1, beta2
        self._decay = decay

    def step(self, weights: Array, gradient: Array, rate: float) -> None:
        self.taken += 1
        (beta1, beta2), scratch = self._betas, self._scratch
        first, second = self.state["first"], self.state["second"]
        if self._decay:
            weights *= np.float32(1 - rate * self._decay)
        first *= np.float32(beta1)
        np.multiply(gradient, np.float32(1 - beta1), out=scratch)
        first += scratch
        second *= np.float32(beta2)
        np.multiply(gradient, gradient, out=scratch)
        scratch *= np.float32(1 - beta2)
        second += scratch
        np.sqrt(second, out=scratch)
        scratch *= np.float32(1 / math.sqrt(1 - beta2**self.taken))
        scratch += EPSILON
        np.divide(first, scratch, out=scratch)
        scratch *= np.float32(rate / (1 - beta1**self.taken))
        weights -= scratch


def named(params: TrainParams, dim: int) -> Optimizer:
    """The job's own: of each shard where it takes several steps, of the driver where it takes one."""
    if params.optimizer == "adamw":
        return AdamW(dim, params.momentum or FIRST_MOMENT, params.beta2, params.weight_decay)
    return Sgd(dim, params.momentum, params.nesterov, params.weight_decay)


def outer(params: TrainParams, dim: int) -> Optimizer:
    """The driver's."""
    if params.steps == 1:
        return named(params, dim)
    return Sgd(dim, params.outer_momentum, bool(params.outer_momentum), 0.0)


def rate_at(params: TrainParams, round_: int) -> float:
    """The learning rate of a round."""
    if round_ < params.warmup:
        return params.lr * (round_ + 1) / params.warmup
    if params.schedule == "constant":
        return params.lr
    done = (round_ - params.warmup) / max(params.rounds - params.warmup, 1)
    left = 1 - done if params.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return params.lr * max(left, 1e-4)
