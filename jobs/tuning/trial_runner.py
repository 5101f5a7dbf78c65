"""A worker's side of a search: trains one trial from its checkpoint on, in a process of its own. Ranks nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from muster.jobs.contract.kind import Bench, Ragged, Result, Runner, RunnerLost, Shard, ShardFailure
from muster.jobs.tuning.params import TuneParams, stop_of
from muster.jobs.tuning.stopping import BEGUN, Judge, Standing, Why
from muster.jobs.tuning.trials import Metrics, Segment
from muster.jobs.user_code import runner
from muster.jobs.user_code.sandbox import CannotStart, Sandbox

TOLD, STATE = "told", "state"
STATE_MOST = 1 << 30  # bytes of a checkpoint
MISSING_SHOWN = 10


class TrialOrder(msgspec.Struct, frozen=True, array_like=True):
    """What a shard is to do."""

    trial: int
    start: int
    to: int
    config: dict[str, Any]
    state: str = ""  # digest of the checkpoint on its sheet; "" where it starts from nothing
    standing: Standing = BEGUN  # after the iterations before
    spent: float = 0.0  # seconds that those took
    limit: float = 0.0  # seconds after which it ends, at an iteration
    score: bool = False  # the test rows are to be scored, nothing is trained


class TrialSaid(msgspec.Struct):
    """A runner's answer to one call."""

    metrics: dict[str, str] = {}  # numbers as texts, since JSON has none for what is not finite
    missing: bool = False
    over: bool = False
    failed: str | None = None

    @property
    def numbers(self) -> Metrics:
        return {name: float(text) for name, text in self.metrics.items()}


class TrialFailed(Exception):
    """The trial's own fault; another try would not help."""


class TrialRunner(Runner):
    """A trial that fails is a result, with its evidence: the search goes on."""

    def __init__(self, params: TuneParams, bench: Bench) -> None:
        self._params, self._timeout = params, bench.timeout
        aims = dict.fromkeys((aim.metric for aim in stop_of(params).aims), "params.stop")
        self._wanted = {**aims, params.metric: "params.metric"}  # metrics, and who wants them
        self._left = ""  # what the trial that the runner saved last goes by
        self._sandbox = Sandbox(
            python=bench.python or sys.executable,
            folder=Path(runner.__file__).parent,
            entry="trial.py:answer",
            scratch=bench.scratch,
            env=bench.env,
            threads=bench.cpus,
            args=settings_of(params, bench),
            check=bench.check_code,
        )

    def run(self, shard: Shard) -> Result:
        order = msgspec.msgpack.decode(shard.payload, type=TrialOrder)
        state = b""
        self.made = {}
        try:
            segment, state = self._trained(order, shard.sheet)
        except CannotStart:
            raise
        except ShardFailure as failure:
            segment = _failed(order, failure.message, failure.evidence, code=failure.code)
        except TrialFailed as failure:
            segment = _failed(order, str(failure), final=True)
        finally:
            self.peak, self.printed = self._sandbox.peak, self._sandbox.printed
        if segment.state and not segment.why:  # a trial that is over is not gone on with
            self.made = {segment.state: state}
        return {TOLD: _bytes(msgspec.msgpack.encode(segment)), STATE: _bytes(state)}

    def close(self) -> None:
        self._sandbox.close()

    def _trained(self, order: TrialOrder, sheet: Path | None) -> tuple[Segment, bytes]:
        begun = time.monotonic()
        self._begin(order, sheet)
        if order.score:
            return Segment(order.trial, order.start, order.to, score=self._ask("score").numbers), b""
        judge, curve, seconds = Judge(self._params, order.standing), list[Metrics](), list[float]()
        why: Why = ""
        while not why and order.start + len(curve) < order.to:
            if curve and time.monotonic() - begun >= order.limit:
                break
            since = time.monotonic()
            said = self._ask("step")
            if said.over:
                why = "iterations"  # the user's generator has no more
                break
            curve.append(self._checked(said))
            seconds.append(time.monotonic() - since)
            why = judge.after(order.start + len(curve), curve[-1], order.spent + sum(seconds))
        if not (curve or order.start):
            raise TrialFailed("it ended before its first iteration")
        state = self._saved() if why != "diverged" else b""
        digest = xxhash.xxh3_128_hexdigest(state) if state else ""
        self._left = _name(order.trial, digest) if state else ""
        return Segment(
            order.trial, order.start, order.to, curve, seconds, why, state=digest, state_bytes=len(state)
        ), state

    def _begin(self, order: TrialOrder, sheet: Path | None) -> None:
        """Where its state is in the runner's memory, nothing is read."""
        name = _name(order.trial, order.state) if order.state else ""
        asked: dict[str, Any] = {"config": order.config, "trial": order.trial, "start": order.start, "name": name}
        left, self._left = self._left, ""
        if not self._ask("begin", b"", **asked, left=left).missing:
            return
        try:
            state = sheet.read_bytes() if sheet is not None else b""
        except OSError as error:
            raise RunnerLost(f"the trial's checkpoint is not here: {error}") from None
        if xxhash.xxh3_128_hexdigest(state) != order.state:
            raise RunnerLost("the trial's checkpoint is not the one that was laid out")
        self._ask("begin", state, **asked, left="")

    def _checked(self, said: TrialSaid) -> Metrics:
        if said.failed is not None:
            raise TrialFailed(said.failed[:1000])
        for metric, wanted_by in self._wanted.items():
            if metric not in said.metrics:
                there = ", ".join(sorted(said.metrics)[:MISSING_SHOWN])
                raise TrialFailed(f"it reports {there}, and no `{metric}` ({wanted_by})")
        return said.numbers

    def _saved(self) -> bytes:
        found: bytes = self._call("save", b"")["values"].tobytes()[:-1]
        if len(found) > STATE_MOST:
            raise TrialFailed(f"a state of {len(found):,} bytes, at most {STATE_MOST:,} can be kept")
        return found

    def _ask(self, what: str, raw: bytes = b"", **asked: Any) -> TrialSaid:
        try:
            return msgspec.json.decode(self._call(what, raw, **asked)["told"].tobytes(), type=TrialSaid)
        except (msgspec.MsgspecError, KeyError, ValueError) as error:
            raise ShardFailure("output", f"the trial's process gave no valid answer: {error}") from None

    def _call(self, what: str, raw: bytes, **asked: Any) -> dict[str, Any]:
        head = msgspec.json.encode({"what": what, **asked})
        row = np.frombuffer(b"".join([len(head).to_bytes(8, "little"), head, raw]), np.uint8)[None]
        return self._sandbox.call(0, 0, row, self._timeout)


def _name(trial: int, digest: str) -> str:
    """Of a live trial. Others may have an equal state, but not its configuration."""
    return f"{trial} {digest}"


def _failed(order: TrialOrder, message: str, evidence: str = "", **more: Any) -> Segment:
    return Segment(order.trial, order.start, order.to, why="failed", message=message, evidence=evidence, **more)


def _bytes(raw: bytes) -> Ragged:
    return Ragged(np.array([len(raw)], "<i8"), np.frombuffer(raw, np.uint8))


def settings_of(params: TuneParams, bench: Bench) -> dict[str, Any]:
    """What `muster.jobs.user_code.runner.trial` is told once."""
    return {
        "trial": msgspec.to_builtins(params.trial),
        "code": bench.entry,
        "folder": str(bench.code) if bench.code is not None else None,
        "data": str(bench.model) if bench.model is not None else None,
        "classes": params.facts.classes if params.facts is not None else 0,
        "regresses": params.regresses,
        "valid": params.valid,
        "eta": params.eta,
        "iterations": stop_of(params).iterations,
        "seed": params.seed,
    }
