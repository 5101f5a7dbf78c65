"""What there is to do: layers, what becomes of their shards, and jobs over them, some of them over the same layers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from muster.coordinator.protocol.control import LayerInfo
from muster.jobs.contract.plan import ArraySource, Layer, MadeSource, Stamp, Work
from tests.property.scheduler_model import KIND, DiskJob, DiskLayer

MIB = 1 << 20
CODE = "c" * 32
CHANGED_SHARE = 0.02  # of layers, whose source is not what was planned
POISON_SHARE = 0.08  # of layers that have a shard that fails, or kills what runs it, wherever it runs


@dataclass(frozen=True)
class Nature:
    """What a layer is, and what becomes of its shards."""

    digest: str
    count: int
    seconds: float  # of compute a shard
    out_bytes: int
    rounds: bool = False
    made: bool = False
    changed: bool = False
    poison: frozenset[int] = frozenset()  # fail wherever they run
    deadly: frozenset[int] = frozenset()  # kill their worker wherever they run
    agony: float = 0.0  # seconds that those take longer than others: an idle machine may get a copy meanwhile
    fatal: frozenset[int] = frozenset()  # kill the whole agent wherever they run
    odd: frozenset[int] = frozenset()  # have outputs that the layer's others do not have
    unlucky: float = 0.0  # share of runs that fail

    def info(self, job: str) -> LayerInfo:
        source = MadeSource("whole" if self.rounds else "") if self.made else self._array()
        rows = 0 if self.made else self.count
        layer = Layer(
            self.digest, self.digest, source, rows, 1, self.count, 0 if self.made else 8, self.out_bytes, None
        )
        return LayerInfo(job, layer, Work(KIND, 1, {}, CODE, None, None, 1, None, None))

    def _array(self) -> ArraySource:
        return ArraySource(self.digest, 0, "u1", (self.count, 8), Stamp(1, 1, 1, 1))


class Jobs:
    """Makes jobs, from a seed. Every other one has a layer that some job had before."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._made = 0
        self.natures: dict[str, Nature] = {}

    def next(self) -> DiskJob:
        random = self._random
        self._made += 1
        if random.random() < 0.12:
            natures = [self._driven()]
        else:
            natures = [self._array() for _ in range(random.choice([1, 1, 1, 2, 3]))]
        layers = {one.digest: self._layer(one) for one in natures}
        return DiskJob(
            f"j.{self._made}", 1, 1, random.choice([1, 2, 3]), random.choice([1, 3, 100]), layers,
            random.choice([1, 1, 3]), same_kernels=random.random() < 0.2,
        )  # fmt: skip

    def proof(self, machine: str) -> DiskJob:
        """One that nothing but this machine may run, of a layer that nobody saw before."""
        self._made += 1
        nature = self._keep(Nature(f"proof of {machine}", 2, 0.01, 1000))
        return DiskJob(f"j.{self._made}", 1, 1, 1, 1, {nature.digest: self._layer(nature)}, machine=machine)

    def _layer(self, nature: Nature) -> DiskLayer:
        count = 0 if nature.made else nature.count
        in_bytes = 0 if nature.made else 8
        return DiskLayer(nature.digest, count, nature.made, nature.out_bytes, in_bytes, rounds=nature.rounds)

    def _array(self) -> Nature:
        random = self._random
        known = [one for one in self.natures.values() if not one.made]
        if known and random.random() < 0.5:
            return random.choice(known)
        count = random.choice([1, 2, 3, 5, 8, 20])
        odd = frozenset(random.sample(range(count), 1)) if random.random() < POISON_SHARE else frozenset[int]()
        bad: dict[str, Any] = {random.choice(["poison", "poison", "deadly", "deadly", "fatal", "odd"]): odd}
        return self._keep(
            Nature(
                f"layer{len(self.natures)}", count, random.choice([0.01, 0.1, 1.0]), random.choice([1000, MIB]),
                changed=random.random() < CHANGED_SHARE, unlucky=random.choice([0.0, 0.0, 0.0, 0.05]),
                agony=random.choice([0.0, 9.0]), **bad,
            )
        )  # fmt: skip

    def _driven(self) -> Nature:
        random = self._random
        rounds = random.random() < 0.7
        name = f"{'rounds' if rounds else 'made'}{len(self.natures)}"
        return self._keep(Nature(name, 0, random.choice([0.01, 0.1]), 1000, rounds, made=True))

    def _keep(self, nature: Nature) -> Nature:
        self.natures[nature.digest] = nature
        return nature
