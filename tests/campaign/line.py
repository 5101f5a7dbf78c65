"""What a part of the campaign found, as one line of JSON; lines add up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

BROKEN = ("lost", "twice", "wrong", "wedged", "leaked")


@dataclass
class Line:
    """`wrong` is what nobody noticed: a fault that was found out is no mistake."""

    part: str
    seeds: list[int | str]
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)  # of damage: by what
    ages: dict[str, list[int]] = field(default_factory=dict)  # kind → how old those were that were struck: strikes.AGES
    compared: int = 0  # results, with what they have to be
    lost: int = 0  # acknowledged, and gone
    twice: int = 0  # committed
    wrong: int = 0
    wedged: int = 0  # jobs that never ended
    leaked: int = 0  # processes, folders and listeners that are left
    told: list[str] = field(default_factory=list)  # of whatever is broken, a line each

    def broke(self, what: str, why: str) -> None:
        setattr(self, what, getattr(self, what) + 1)
        self.told.append(f"{what}: {why}"[:500])

    @property
    def is_whole(self) -> bool:
        return not any(getattr(self, name) for name in BROKEN)

    def text(self) -> str:
        return json.dumps({**vars(self), "seconds": round(self.seconds, 1)})


def read(text: str) -> Line:
    """The line that was written as this text."""
    said = json.loads(text)
    return Line(**{**said, "faults": Counter(said["faults"]), "found": Counter(said["found"])})


def added(texts: Iterable[str]) -> Line:
    """One line for all of these."""
    total = Line("all", [])
    for one in map(read, filter(str.strip, texts)):
        total.seeds.extend(f"{one.part}:{seed}" for seed in one.seeds)
        total.faults.update(one.faults)
        total.found.update(one.found)
        for name in ("seconds", "compared", *BROKEN):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        total.told += one.told
        for kind, counts in one.ages.items():
            total.ages[kind] = [a + b for a, b in zip(total.ages.get(kind, [0] * len(counts)), counts, strict=True)]
    return total
