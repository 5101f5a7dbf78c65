"""`python -m tests.simulator`: thousands of worlds, one line of JSON; or one of them again, told event by event."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.simulator.tell import tell
from tests.simulator.world import Verdict, World

SHOWN = 10  # seeds of broken worlds


def judge(seed: int) -> Verdict | str:
    """What came of one world: in a line where something is broken."""
    try:
        return World(seed).run()
    except Exception as error:  # whatever it is, it is a bug, and its seed shows it again
        return f"{type(error).__name__}: {str(error)[:300]}"


def _prepare() -> None:
    """Worlds are small and live for milliseconds: what is imported need not be looked through for garbage again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def run(seeds: Sequence[int], processes: int, first: bool = False) -> dict[str, Any]:
    """All of them, or as far as the `first` that is broken; the figures, and the seeds of those that are broken."""
    begun = time.monotonic()
    total: dict[str, Any] = {"schedules": len(seeds), "events": 0, "committed": 0, "ran": 0}
    faults: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    broken: dict[int, str] = {}
    with multiprocessing.Pool(processes, _prepare) as pool:
        for seed, verdict in zip(seeds, pool.imap(judge, seeds, chunksize=4 if first else 20), strict=True):
            if isinstance(verdict, str):
                broken[seed] = verdict
                if first:
                    break
                continue
            for figure in ("events", "committed", "ran"):
                total[figure] += getattr(verdict, figure)
            faults.update(verdict.faults)
            ends.update(verdict.jobs)
    seconds = time.monotonic() - begun
    total |= {"seconds": round(seconds, 1), "schedules_per_second": round(len(seeds) / seconds, 1)}
    return total | {"faults": dict(faults), "jobs": dict(ends), "broken": broken}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first world; the others follow")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--first", action="store_true", help="end with the first world that is broken")
    parser.add_argument("--tell", action="store_true", help="the world of --seed alone, event by event")
    asked = parser.parse_args()
    if asked.tell:
        return tell(asked.seed)
    figures = run(range(asked.seed, asked.seed + asked.schedules), asked.processes, asked.first)
    broken: dict[int, str] = figures["broken"]
    for seed, why in list(broken.items())[:SHOWN]:
        print(f"seed {seed}: {why}\n    again: python -m tests.simulator --seed {seed} --tell", file=sys.stderr)
    figures["broken"] = len(broken)
    print(json.dumps(figures))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
