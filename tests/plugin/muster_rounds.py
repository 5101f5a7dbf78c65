"""A kind for tests, in a package of its own: rounds of shards that read one sheet, made of the last one's sums.

Its driver calls them turns, which is what it counts. It keeps a checkpoint every few of them, and kills itself where a
file in $MUSTER_CHAIN_DEATHS says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from muster_chain import perhaps_die

from muster.coordinator.api.status import Progress
from muster.coordinator.drivers.driver import Drive, run
from muster.jobs.common.durable import make_folder, write_durably
from muster.jobs.common.ranges import RangeSet
from muster.jobs.kinds import (
    Bench,
    JobPlace,
    Kind,
    KindForecast,
    KindReport,
    Output,
    Result,
    Runner,
    RunnerLost,
    Shape,
    Shard,
)

WIDTH = 1000
MASK = 0x3FFF


class RoundsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rounds: Annotated[int, Meta(ge=1)] = 20
    workers: Annotated[int, Meta(ge=1)] = 6
    checkpoint: Annotated[int, Meta(ge=1)] = 5


class Kept(msgspec.Struct, frozen=True):
    kept: int


class Rounds(Kind[RoundsParams]):
    name = "rounds"
    kernel = 1
    Params = RoundsParams
    driven = True

    def rounds(self, params: RoundsParams) -> Literal["", "whole", "each"]:
        return "whole"

    def forecast(self, params: RoundsParams, entry: str | None) -> KindForecast:
        lines = (f"values   {WIDTH:,}",)
        return KindForecast(params.rounds, "turn", f"{params.workers} workers", lines, {"values": WIDTH})

    def report(self, places: Mapping[str, JobPlace], target: float | None) -> KindReport:
        """How many values each job has kept, in whatever turns."""
        kept = [Kept(len(list(place.checkpoints.iterdir()))) for place in places.values()]
        return KindReport(("kept",), "r", [(str(one.kept),) for one in kept], kept)

    def declare(self, params: RoundsParams, shape: Shape | None) -> tuple[Output, ...]:
        return (Output("sum", "sum", "<i4", (WIDTH,), narrow=True), Output("count", "rows", "<i8"))

    def open(self, bench: Bench) -> Runner:
        return RoundsRunner()


class RoundsRunner(Runner):
    def run(self, shard: Shard) -> Result:
        assert shard.sheet is not None
        try:
            values = np.fromfile(shard.sheet, "<i4")
        except FileNotFoundError:
            raise RunnerLost("its sheet is gone") from None
        return {"sum": part_of(values, int(shard.payload)), "count": np.array([1], "<i8")}


def part_of(values: np.ndarray, v: int) -> np.ndarray:
    """What virtual worker `v` makes of a round's values."""
    return (values * (v + 3) + v) & MASK


def serially(params: RoundsParams) -> bytes:
    values = np.arange(WIDTH, dtype="<i4")
    for _ in range(params.rounds):
        values = after(sum((part_of(values, v) for v in range(params.workers)), np.zeros(WIDTH, "<i4")))
    return values.tobytes()


def after(total: np.ndarray) -> np.ndarray:
    """The next round's values."""
    return ((total * 5 + 1) & MASK).astype("<i4")


def drive() -> int:
    return run(_drive)


def _drive(job: Drive) -> None:
    params = msgspec.convert(job.state.params, RoundsParams)
    done = job.cursor
    make_folder(job.place.checkpoints)
    perhaps_die(job, "opened")
    values = np.arange(WIDTH, dtype="<i4") if not done else np.fromfile(job.place.checkpoints / f"turn-{done}", "<i4")
    while done < params.rounds and not job.over:
        values = after(_one_round(job, params, values, done))
        done += 1
        perhaps_die(job, f"summed-{done}")
        if done % params.checkpoint == 0 and done < params.rounds:
            write_durably(job.place.checkpoints / f"turn-{done}", values.tobytes())
            job.advance(done, durable=True, progress=so_far(params, done, values))
    write_durably(job.place.result / "values", values.tobytes())
    assert job.advance(done, finish=True, progress=so_far(params, done, values))


def so_far(params: RoundsParams, done: int, values: np.ndarray) -> Progress:
    first = int(values[0])
    facts, lines = [f"first {first}"], [f"first     is {first} now"]
    return Progress(done, params.rounds, "turn", facts=facts, lines=lines, numbers={"first": first})


def _one_round(job: Drive, params: RoundsParams, values: np.ndarray, done: int) -> np.ndarray:
    sheet, wanted = job.lay_out(values.data), RangeSet([(job.next, job.next + params.workers)])
    create = [(number, str(v).encode()) for v, number in enumerate(wanted)]
    assert job.advance(job.cursor, create, durable=False, sheet=sheet, progress=so_far(params, done, values))
    total = np.zeros(WIDTH, "<i4")
    while wanted:
        job.wait()
        for landed in job.take():
            numbers = RangeSet.of(entry.number for entry in landed.index.entries)
            assert not numbers - wanted, "what nobody waits for"
            wanted.remove(numbers)
            total += np.frombuffer(landed.sums()[0], "<i4")
        assert not job.over, "it ended"
    job.take_away(sheet)
    return total
