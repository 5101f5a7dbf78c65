"""`python -m tests.simulator`: thousands of worlds, one line of JSON; or one of them again, told event by event."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.campaign import page
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


def _processor_seconds() -> float:
    """Of the processes that ran worlds, once they have ended: what others do on this machine hardly moves it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(seeds: Sequence[int], processes: int, first: bool = False) -> dict[str, Any]:
    """All of them, or as far as the `first` that is broken; the figures, and the seeds of those that are broken."""
    begun, used = time.monotonic(), _processor_seconds()
    total: dict[str, Any] = {"seed": seeds[0], "schedules": len(seeds), "processes": processes}
    total |= {"events": 0, "committed": 0, "ran": 0}
    faults: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    broken: dict[int, str] = {}
    with multiprocessing.Pool(processes, _prepare) as pool:
        for seed, verdict in zip(seeds, pool.imap(judge, seeds, chunksize=4 if first else 20), strict=True):
            if isinstance(verdict, str):
                broken[seed] = verdict
                if first:
                    pool.terminate()
                    break
                continue
            for figure in ("events", "committed", "ran"):
                total[figure] += getattr(verdict, figure)
            faults.update(verdict.faults)
            ends.update(verdict.jobs)
        pool.close()
        pool.join()
    seconds, used = time.monotonic() - begun, _processor_seconds() - used
    total |= {"seconds": round(seconds, 1), "schedules_per_second": round(len(seeds) / seconds, 1)}
    total |= {"processor_milliseconds_each": round(1000 * used / len(seeds), 1)}
    return total | {"faults": dict(faults), "jobs": dict(ends), "broken": broken}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first world; the others follow")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--first", action="store_true", help="end with the first world that is broken")
    parser.add_argument("--tell", action="store_true", help="the world of --seed alone, event by event")
    parser.add_argument("--keep", action="store_true", help="the figures go into docs/simulator.json and campaign.md")
    asked = parser.parse_args()
    if asked.tell:
        return tell(asked.seed)
    figures = run(range(asked.seed, asked.seed + asked.schedules), asked.processes, asked.first)
    broken: dict[int, str] = figures["broken"]
    for seed, why in list(broken.items())[:SHOWN]:
        print(f"seed {seed}: {why}\n    again: python -m tests.simulator --seed {seed} --tell", file=sys.stderr)
    figures["broken"] = len(broken)
    print(json.dumps(figures))
    if asked.keep:
        page.keep_simulated(figures)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
