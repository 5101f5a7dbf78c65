"""Shards of a job chosen by chance, planned to be run again, and compared with its result. Submits and runs nothing."""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any

import msgspec

from muster.coordinator.farm_root.paths import JobFolder, Root
from muster.coordinator.submission.submit import ItemsAt, Planned
from muster.jobs.common.errors import DamagedError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.common.names import NAME_LIMIT, split_job_id
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Layer, Plan
from muster.jobs.results.open_result import MergedLayer, open_result
from muster.jobs.user_code.code_pack import opened

MISSED = 0.05  # how often chance alone hides as many shards that differ as the bound says
ROUNDING = 1e-12  # of products of fractions


@dataclass(frozen=True)
class Sample:
    """Of each layer that has any, the numbers of the shards to be run again."""

    numbers: dict[str, RangeSet]
    population: int  # shards they were chosen from

    @property
    def count(self) -> int:
        return sum(map(len, self.numbers.values()))


class Run(msgspec.Struct, frozen=True):
    """Who computed a shard, and what came out."""

    agent: str
    fingerprint: str  # of the kernels
    digest: str  # of its outputs


class Pair(msgspec.Struct, frozen=True):
    """A shard's two runs."""

    layer: str
    number: int
    then: Run
    now: Run
    same_input: bool

    @property
    def is_equal(self) -> bool:
        return self.then.digest == self.now.digest


def choose(folder: JobFolder, layers: Sequence[Layer], count: int, seed: int) -> Sample:
    """So many shards of these merged layers, all of them where there are no more."""
    ends = list(accumulate(len(layer.numbers) for layer in layers))
    population = ends[-1]
    chosen = sorted(Random(seed).sample(range(population), min(count, population)))
    numbers, first = {}, 0
    for layer, end in zip(layers, ends, strict=True):
        mine = [place - first for place in chosen[bisect_left(chosen, first) : bisect_left(chosen, end)]]
        if mine:
            numbers[layer.name] = RangeSet.of(_merged(folder, layer).shards["shard"][mine].tolist())
        first = end
    return Sample(numbers, population)


def _merged(folder: JobFolder, layer: Layer) -> MergedLayer:
    found = open_result(folder.result / layer.name)
    if found.manifest.digest != layer.digest:
        raise DamagedError(f"{folder.result / layer.name}: of another plan than the job's")
    return found


def planned(root: Root, job: str, plan: Plan, sample: Sample, machine: str, salt: int) -> Planned:
    """A job of the chosen shards alone, with their numbers. Its layers have digests of their own by `salt`: nothing
    that is there already is taken for them."""
    folder, items = root.job(job), ItemsAt()
    layers = tuple(
        msgspec.structs.replace(
            layer, digest=of_bytes(f"{layer.digest} {salt}".encode()), only=tuple(sample.numbers[layer.name].pairs())
        )
        for layer in plan.layers
        if layer.name in sample.numbers
    )
    name, number = split_job_id(job)
    tail = f"-{number}-check"
    again = msgspec.structs.replace(
        plan, name=name[: NAME_LIMIT - len(tail)] + tail, layers=layers, machine=machine, notify="", after=()
    )
    if folder.items.exists():
        shutil.copyfile(folder.items, items.path)
    code = opened(root.pack(plan.work.code).read_bytes()) if plan.work.code else None
    model = root.model(plan.work.model.digest) if plan.work.model else None
    return Planned(again, folder.job_file.read_bytes(), code, folder.path, items, model)


def compared(old: JobFolder, new: JobFolder, layers: Sequence[Layer]) -> Iterator[Pair]:
    """Each shard of `layers` in both results. Reads what each result says of its shards, and no array."""
    import numpy as np

    for layer in layers:
        then, now = open_result(old.result / layer.name), open_result(new.result / layer.name)
        places = np.searchsorted(then.shards["shard"], now.shards["shard"])
        for place, line in zip(places.tolist(), now.shards, strict=True):
            before = then.shards[place]
            same = before["in_digest"].tobytes() == line["in_digest"].tobytes()
            yield Pair(layer.name, int(line["shard"]), _run(then, before), _run(now, line), same)


def _run(layer: MergedLayer, line: Any) -> Run:
    fingerprint = layer.manifest.fingerprints[line["fingerprint"]]
    return Run(str(line["agent"]), fingerprint, line["out_digest"].tobytes().hex())


def bound(count: int, population: int) -> float:
    """With 95% confidence less than this share of `population` shards differs, where none of `count` chosen ones does:
    the least share that so many would show in 95 of 100 cases. 0 where all were compared."""
    if count >= population:
        return 0.0
    hidden, differing = 1.0, 0
    while hidden > MISSED + ROUNDING:  # so likely are `differing` ones all among those that were not chosen
        hidden *= max(population - count - differing, 0) / (population - differing)
        differing += 1
    return differing / population
