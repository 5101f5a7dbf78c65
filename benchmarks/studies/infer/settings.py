"""What the study of batched inference asks: runs, gains of a second machine, and a sweep. Measures nothing.

A machine is a core of this one; the server has the first one's, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

import msgspec

from benchmarks.studies.points import Point

Link = Literal["folder", "link", "copy"]

SIZES = (100_000, 1_000_000)
SWEEP_BATCHES = (1, 10, 100, 1000)
SWEEP_WORKERS = {1: (1, 2, 5, 10), 2: (2, 4, 10)}  # by machines, of all together
FEW_ROWS = 600


class Setting(msgspec.Struct, frozen=True):
    """One run of one side."""

    side: Literal["ours", "ray"] = "ours"
    rows: int = SIZES[0]
    machines: int = 1
    workers: int = 1  # of all machines together
    batch: int = 0  # rows of a call; 0: ours alone, what it takes by itself
    cores: int = 1  # of a machine
    link: Link = "folder"  # of the second machine
    runs: int = 5
    one_row: bool = True  # whether the latency of a single row is measured, too

    def of(self, **other: Any) -> Setting:
        return msgspec.structs.replace(self, **other)


OURS = {
    "one": Setting(batch=1),
    "ten": Setting(workers=10, batch=10),
    "two": Setting(machines=2, workers=10, batch=10, link="link"),
    "own": Setting(),
    "own two": Setting(machines=2, workers=2, link="link"),
    "own whole": Setting(workers=2, cores=2),
}
RAY = {
    "one": Setting("ray", batch=1),
    "ten": Setting("ray", workers=10, batch=10),
}
PAIRS = (("ten", "two"), ("own", "own two"))  # the same settings, on one machine and on two
OTHER_LINKS: tuple[tuple[str, Link], ...] = (("two", "copy"), ("own two", "copy"), ("own two", "folder"))


def points(short: bool) -> list[Point]:
    if short:
        two = {name: OURS[name].of(workers=2, runs=2) for name in PAIRS[0]}
        every = {f"ours/{FEW_ROWS}/{name}": one for name, one in two.items()}
        every |= {f"gain/{FEW_ROWS}/two/copy": two["two"].of(link="copy", runs=1)}
        every |= {f"ray/{FEW_ROWS}/ten": RAY["ten"].of(workers=1, runs=2), **_swept(1, (2,), (10,))}
        return [_point(name, one.of(rows=FEW_ROWS)) for name, one in every.items()]
    every = {f"ours/{rows}/{name}": one.of(rows=rows) for rows in SIZES for name, one in OURS.items()}
    every |= {f"ray/{SIZES[0]}/{name}": one for name, one in RAY.items()}
    for rows, (name, link) in product(SIZES, OTHER_LINKS):
        every[f"gain/{rows}/{name}/{link}"] = OURS[name].of(rows=rows, link=link)
    for machines, workers in SWEEP_WORKERS.items():
        every |= _swept(machines, workers, SWEEP_BATCHES)
    return [_point(name, one) for name, one in every.items()]


def _swept(machines: int, workers: Sequence[int], batches: Sequence[int]) -> dict[str, Setting]:
    one = Setting(machines=machines, link="link" if machines > 1 else "folder", runs=1, one_row=False)
    return {
        f"sweep/{machines}x{count}x{batch}": one.of(workers=count, batch=batch)
        for count, batch in product(workers, batches)
    }


def _point(name: str, setting: Setting) -> Point:
    return Point(name, msgspec.to_builtins(setting))
