"""A kind for tests, in a package of its own: shards are made one at a time, each from the result of the one before.

Its driver kills itself where a file in $MUSTER_CHAIN_DEATHS says so, once for each file.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from muster.coordinator.drivers.driver import Drive, run
from muster.jobs.kinds import Bench, Kind, Output, Result, Runner, Shape, Shard

DEATHS = "MUSTER_CHAIN_DEATHS"


class ChainParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    length: Annotated[int, Meta(ge=1)] = 6
    seed: int = 1
    broken_at: int | None = None  # a link at which the driver has a bug, until a file in $MUSTER_CHAIN_DEATHS mends it


class Chain(Kind[ChainParams]):
    name = "chain"
    kernel = 1
    Params = ChainParams
    driven = True

    def declare(self, params: ChainParams, shape: Shape | None) -> tuple[Output, ...]:
        return (Output("value", "rows", "<i8"),)

    def open(self, bench: Bench) -> Runner:
        return ChainRunner()


class ChainRunner(Runner):
    def run(self, shard: Shard) -> Result:
        return {"value": np.array([following(shard.number, int(shard.payload))], "<i8")}


def following(number: int, value: int) -> int:
    """What shard `number` makes of the value before it."""
    return (value * 6364136223846793005 + number) % (1 << 62)


def drive() -> int:
    return run(_drive)


def _drive(job: Drive) -> None:
    params = msgspec.convert(job.state.params, ChainParams)
    values = {-1: params.seed}
    perhaps_die(job, "opened")
    while not job.over and job.cursor < params.length:
        for landed in job.take():
            for entry, [raw] in landed.shards():
                values[entry.number] = int.from_bytes(raw, "little")
        number = job.cursor
        if number == params.broken_at and not (Path(os.environ[DEATHS]) / "mended").exists():
            raise RuntimeError(f"no way to make link {number}")
        perhaps_die(job, f"read-{number}")
        if number - 1 not in values:
            job.wait()
            continue
        perhaps_die(job, f"before-{number}")
        job.advance(number + 1, [(number, str(values[number - 1]).encode())], finish=number + 1 == params.length)
        perhaps_die(job, f"after-{number}")


def perhaps_die(job: Drive, moment: str) -> None:
    wish = Path(os.environ.get(DEATHS, os.devnull)) / f"{job.job}-{moment}"
    if wish.exists():
        wish.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
