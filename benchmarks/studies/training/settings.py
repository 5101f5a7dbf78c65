"""What the study of a parameter server asks: which curves, and what they are replayed by. Measures nothing.

There each worker's gradient moved the weights by the learning rate. Ours averages, so that its rate is theirs times
the workers: the same steps. `real`: so many real agents. `replayed`: see `benchmarks.studies.training.replay`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from benchmarks import reach
from benchmarks.measure import CORES
from benchmarks.studies.points import Point
from muster.jobs.training.data import dataset

Mode = Literal["sync", "async"]
Scaling = Literal["weak", "strong"]
MODES: tuple[Mode, ...] = ("sync", "async")

COUNTS = (1, 2, 5, 10, 15, 20)
ROWS = 100  # of a worker's batch, in weak scaling
STRONG = {"workers": 60, "microbatch": 10}  # whatever number of machines shares them
THEIR_RATE = 1e-4  # of each worker's gradient
RATE, MOST_RATE = 0.05, 0.2  # one that makes sense: of each worker's gradient, and at most of all
ALONE_RATE = 0.1  # with which one worker alone does best
STRONG_RATE = 0.1
SEED = 5  # of the first weights: with some all three filters give zeros, and nothing is learned
TARGET = 0.40
ROUNDS, EVERY = 2000, 25
FEW, LONGER = 2, 2  # so few machines see so few rows that they take so many times the rounds to the target
MOST_SECONDS = 1200.0  # of a curve
LINK = "1gbit"
ALONE = "course/alone"  # one machine at its own best rate

GOAL = 0.975  # of fewer bytes, on MNIST
FEWER = {
    "h1-32bits": reach.SYNC,
    "h8-8bits": {**reach.LOCAL, "bits": 8, "local_steps": 8, "microbatch": 1024, "lr": 0.3, "outer_momentum": 0.5},
    "h100-8bits": {**reach.NEAR, "bits": 8},
    "h200-8bits": {**reach.NEAR, "bits": 8, "local_steps": 200},
}
RESNET = {"workers": 2, "microbatch": 32, "rounds": 40, "eval_every": 10, "lr": 0.02, "momentum": 0.9}
RESNET_ROWS, RESNET_TEST_ROWS = 2000, 200


class Setting(msgspec.Struct, frozen=True):
    """One curve, or what one is replayed by."""

    mode: Mode = "sync"
    scaling: Scaling = "weak"
    machines: int = 1
    rate: float = RATE
    link: bool = False  # whether the server and each machine have one of 1 Gbit/s
    rounds: int = ROUNDS
    every: int = EVERY  # rounds, evaluations
    data: str = "cifar10"
    target: float = TARGET
    most_seconds: float = MOST_SECONDS
    checkpoint_rounds: int = 1 << 30  # there is a checkpoint every ten seconds, too

    def of(self, **other: Any) -> Setting:
        return msgspec.structs.replace(self, **other)


CURVES = (  # each to be had with 1 to 20 machines
    *(Setting(mode, link=link) for link in (False, True) for mode in MODES),
    *(Setting(mode, "strong", rate=STRONG_RATE) for mode in MODES),
    Setting("sync", "strong", rate=STRONG_RATE, link=True),
    *(Setting(mode, rate=THEIR_RATE) for mode in MODES),
)
_SMALL = Setting(rounds=40, every=10, data=dataset.DIGITS, target=0.12)
SHORT = (
    *(
        _SMALL.of(machines=count, link=link, scaling=scaling, rate=rate)
        for scaling, rate in (("weak", 0.2), ("strong", 0.5))
        for link in (False, True)
        for count in (1, 5)
    ),
    _SMALL.of(machines=5, mode="async"),
    _SMALL.of(machines=5, rate=THEIR_RATE),
)


def points(short: bool) -> list[Point]:
    if short:
        few = {"target": 0.5, "seeds": 1, "data": dataset.DIGITS, **FEWER["h100-8bits"], "local_steps": 4}
        small = {**RESNET, "microbatch": 2, "rounds": 2, "eval_every": 2, "zoom": 4, "rows": 64, "test_rows": 16}
        more = {"bytes/h100-8bits": few, "resnet18/1": {"machines": 1, "data": dataset.DIGITS, **small}}
        return [*_points(SHORT, SHORT[:1]), *(Point(name, settings) for name, settings in more.items())]
    counts = [count for count in COUNTS if count <= CORES]
    found = _points(
        [curve.of(machines=count) for curve in CURVES for count in COUNTS],
        [curve.of(machines=count) for curve in CURVES for count in counts],
    )
    found += [
        Point(f"bytes/{way}", {"target": GOAL, "seeds": 3, "data": "mnist", **params}) for way, params in FEWER.items()
    ]
    found.append(Point(ALONE, msgspec.to_builtins(Setting(rate=ALONE_RATE)), timed=False))
    some = {"data": "cifar10", "rows": RESNET_ROWS, "test_rows": RESNET_TEST_ROWS, "zoom": 1, **RESNET}
    return found + [Point(f"resnet18/{count}", {"machines": count, **some}) for count in counts]


def _points(replayed: Sequence[Setting], real: Sequence[Setting]) -> list[Point]:
    """The course of replayed rounds, what replays go by, real machines, and the replays."""
    found = [_point("course", one, timed=False) for one in replayed if one.mode == "sync"]
    found += [_point(what, one) for what in ("costs", "server") for one in replayed]
    found += [_point("real", one) for one in real]
    found += [_point("replayed", one, by=tuple(name_of(what, one) for what in bases(one))) for one in replayed]
    return list({point.name: point for point in found}.values())


def bases(setting: Setting) -> tuple[str, ...]:
    """What it is replayed by. In rounds the weights do not depend on when contributions come."""
    return ("course", "costs", "server") if setting.mode == "sync" else ("costs", "server")


def _point(what: str, setting: Setting, by: tuple[str, ...] = (), timed: bool = True) -> Point:
    return Point(name_of(what, setting), msgspec.to_builtins(_asked(what, setting)), by, timed and not by)


def _asked(what: str, setting: Setting) -> Setting:
    """Without what does not matter to it, so that several curves share it."""
    rate = RATE if setting.scaling == "weak" else setting.rate
    match what:
        case "course":
            shared = setting.of(link=False, target=TARGET)
            return shared.of(machines=1) if setting.scaling == "strong" else shared
        case "costs":
            return setting.of(machines=1, rate=rate)
        case "server":
            return setting.of(scaling="weak", rate=RATE, link=False)
    return setting


def name_of(what: str, setting: Setting) -> str:
    asked = _asked(what, setting)
    words = [what, asked.mode] if what == "server" else [what, asked.scaling, asked.mode]
    words += [] if what == "costs" else [str(asked.machines)]
    words += ["1e-4"] if asked.rate == THEIR_RATE else []
    return "/".join([*words, *(["link"] if asked.link else [])])


def params_of(setting: Setting) -> dict[str, Any]:
    """As a job file has them."""
    way: dict[str, Any] = {"mode": setting.mode, "lr": setting.rate, **STRONG}
    if setting.scaling == "weak":  # as there: nobody waits, and each gradient moves the weights by the whole rate
        way |= {"workers": setting.machines, "microbatch": ROWS, "lr": min(setting.rate * setting.machines, MOST_RATE)}
        way |= {"staleness": "none", "damped": False} if setting.mode == "async" else {}
    longer = setting.scaling == "weak" and setting.machines <= FEW and setting.rate != THEIR_RATE
    data = setting.data if setting.data == dataset.DIGITS else {"name": setting.data}
    kept = {"seed": SEED, "rounds": setting.rounds * (LONGER if longer else 1), "eval_every": setting.every}
    return {"data": data, "model": "conv1", "filters": 3, **way, **kept, "checkpoint_rounds": setting.checkpoint_rounds}
