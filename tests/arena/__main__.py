"""`python -m tests.arena`: every system through every fault, a line of JSON for each round.

    python -m tests.arena [--only SYSTEM]... [--fault FAULT]... [--seed N] [--times 3] [--keep]

With --keep the lines are kept in docs/arena.json, in the place of those of the same system, fault and seed, and the
tables of docs/arena.md are written from all that are kept there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.arena.line import Line
from tests.arena.page import page
from tests.arena.rounds import FAULTS, play
from tests.arena.systems import SYSTEMS, System

ITEMS = 200
DOCS = Path(__file__).parents[2] / "docs"
PAGE, KEPT = DOCS / "arena.md", DOCS / "arena.json"
ORDER = {(system.name, fault): at for at, (fault, system) in enumerate((f, s) for f in FAULTS for s in SYSTEMS)}


def kept() -> list[Line]:
    return [Line.parse(one) for one in KEPT.read_text().splitlines()] if KEPT.exists() else []


def keep(line: Line) -> None:
    """It, with all that were kept but the one in whose place it comes; and the page."""
    place = (line.system, line.fault, line.seed)
    others = [one for one in kept() if (one.system, one.fault, one.seed) != place]
    lines = sorted([*others, line], key=lambda one: (ORDER[one.system, one.fault], one.seed))
    KEPT.write_text("".join(one.text() + "\n" for one in lines))
    PAGE.write_text(page(PAGE.read_text(), lines))


def play_one(system: type[System], fault: str, seed: int, items: int, *, is_kept: bool) -> None:
    """Play a round and print it. One that did not come to its fault is no round of that fault, and is not kept."""
    try:
        line = play(system, fault, seed, items)
    except AssertionError as error:
        print(f"{system.name}, {fault}, seed {seed}: {error}", file=sys.stderr, flush=True)
        return
    print(line.text(), flush=True)
    if is_kept:
        keep(line)


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m tests.arena", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", action="append", choices=[one.name for one in SYSTEMS], metavar="SYSTEM")
    options.add_argument("--fault", action="append", choices=list(FAULTS))
    options.add_argument("--seed", type=int, default=1, help="of the first round")
    options.add_argument("--times", type=int, default=3, help="rounds of each, with a seed each")
    options.add_argument("--items", type=int, default=ITEMS)
    options.add_argument("--keep", action="store_true")
    given = options.parse_args()
    for seed in range(given.seed, given.seed + given.times):
        for fault in given.fault or FAULTS:
            for system in SYSTEMS:
                if not given.only or system.name in given.only:
                    play_one(system, fault, seed, given.items, is_kept=given.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
