"""What looking costs: the live page open on a thousand agents at work on a million shards, and closed, in turn.

    python -m benchmarks.page [--agents 1000] [--shards 1000000] [--seconds 20] [--runs 5] [--rate 2000] [--no-peer]

Agents are simulated as in benchmarks/scale.py, at a steady rate, so that what the daemon does beside the page is the
same all the time. `coordinator page` runs throughout; a plain reader of the farm's stream is there in every second
window.

`ours`: how much of a core's time looking leaves, in percent: 100 less what the daemon and its helpers take more in a
window with a reader than in the one before, the median of the pairs; `peer`: all of it; `ratio`: 1 less the share that
looking costs. `parts`: the page's own process, its memory; bytes a second after the first view; the first view's
seconds and bytes; seconds from one word of the farm to the next; the daemon without a reader. `--no-peer`: one pair.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.measure import add_no_peer, machine, report, tree_seconds
from benchmarks.scale import Crowd, Field, crowd_of
from benchmarks.served import TIMING
from tests.support.farm import FarmHarness, running
from tests.support.page import PageReader, page_of

SETTLE_SECONDS = 5.0


@dataclass(frozen=True)
class Looked:
    """At one window with a reader."""

    first_seconds: float
    first_bytes: int
    bytes_per_second: float
    words: int  # that the stream said


def look(page: PageReader, seconds: float) -> Looked:
    """Read the farm's stream for so long."""
    began = time.monotonic()
    with closing(page.stream("/")) as stream:
        while "machines" not in stream.order:
            stream.read()
        first, first_bytes = time.monotonic() - began, sum(stream.sizes)
        words = len(stream.sizes)
        while time.monotonic() < began + seconds:
            stream.read()
        rate = (sum(stream.sizes) - first_bytes) / (time.monotonic() - began - first)
        return Looked(first, first_bytes, rate, len(stream.sizes) - words)


def page_process(page: PageReader) -> psutil.Process:
    found = (one.pid for one in psutil.net_connections("tcp") if one.laddr.port == page.port and one.status == "LISTEN")
    return psutil.Process(next(pid for pid in found if pid))


async def measure(farm: FarmHarness, given: argparse.Namespace) -> None:
    assert farm.daemon is not None
    daemon, costs, idle, own, looks = farm.daemon.pid, list[float](), list[float](), list[float](), list[Looked]()
    async with crowd_of(farm.root, given.agents) as crowd:
        crowd.pace.rate = given.rate
        await asyncio.to_thread(Field(farm).submit, given.shards)
        working = asyncio.create_task(at_work(crowd))
        with page_of(farm) as page:
            process = page_process(page)
            await asyncio.sleep(SETTLE_SECONDS)
            for _ in range(1 if given.no_peer else given.runs):
                spent, began = tree_seconds(daemon), time.monotonic()
                await asyncio.sleep(given.seconds)
                closed = (tree_seconds(daemon) - spent) / (time.monotonic() - began)
                spent, page_spent, began = tree_seconds(daemon), tree_seconds(process.pid), time.monotonic()
                looks.append(await asyncio.to_thread(look, page, given.seconds))
                seconds = time.monotonic() - began
                opened = (tree_seconds(daemon) - spent) / seconds
                own.append((tree_seconds(process.pid) - page_spent) / seconds)
                costs.append(opened - closed)
                idle.append(closed)
                print(f"  daemon {closed:.2%} closed, {opened:.2%} open, page {own[-1]:.2%}, {looks[-1]}", flush=True)
            resident = process.memory_info().rss
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    parts = {
        "page % of a core": round(100 * statistics.median(own), 2),
        "page MB": round(resident / 1e6),
        "bytes/s": round(statistics.median(one.bytes_per_second for one in looks)),
        "first view s": round(statistics.median(one.first_seconds for one in looks), 2),
        "first view bytes": round(statistics.median(one.first_bytes for one in looks)),
        "s between words": round(given.seconds / max(1.0, statistics.median(one.words for one in looks)), 1),
        "daemon % of a core": round(100 * statistics.median(idle), 2),
    }
    report(100 * (1 - statistics.median(costs)), None if given.no_peer else 100.0, parts)


async def at_work(crowd: Crowd) -> None:
    async def never() -> bool:
        return False

    await crowd.until(never)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--agents", type=int, default=1000)
    options.add_argument("--shards", type=int, default=1_000_000, help="enough for all windows at this rate")
    options.add_argument("--rate", type=float, default=2000.0, help="shards a second")
    options.add_argument("--seconds", type=float, default=20.0, help="of a window")
    options.add_argument("--runs", type=int, default=5, help="pairs of windows")
    add_no_peer(options)
    given = options.parse_args()
    print(machine(), flush=True)
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
    try:
        with running(folder / "farm", **TIMING) as farm:
            asyncio.run(measure(farm, given))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
