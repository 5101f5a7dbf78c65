"""What looking costs: the live page open on a thousand agents at work on a million shards, and closed, in turn.

    python -m benchmarks.page [--agents 1000] [--shards 2000000] [--seconds 20] [--pairs 15] [--rate 2000]
        [--view farm|job] [--no-peer]

Agents are simulated as in benchmarks/scale.py, at a steady rate, so that what the daemon does beside the page is the
same all the time. `coordinator page` runs throughout; a plain reader of the view's stream is there in every second
window, and which window of a pair is the first changes from pair to pair.

`ours`: of the processor time that the daemon and its helpers take while somebody looks, what they took without, in
percent: the median of the pairs; `peer`: all of it; `ratio`: 1 less the share of their processor time that looking
costs. `parts`: its 90% interval; the same as a share of a core; seconds of processor time that the daemon counted
for a question; the page's own process, its memory; bytes a second after the first view; the first view's seconds and
bytes; seconds from one word to the next; the daemon without a reader. `--no-peer`: one pair.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.measure import add_no_peer, machine, report, tree_seconds
from benchmarks.scale import Crowd, Field, crowd_of
from benchmarks.served import TIMING
from benchmarks.verdict import Pair, judge
from muster.coordinator.api.requests import Look, Looked
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.page.seen import COUNTS, Printed
from muster.coordinator.page.views import view_of
from tests.support.farm import FarmHarness, running
from tests.support.page import PageReader, page_of

SETTLE_SECONDS = 5.0
ASKED = 9  # times, each question, to see what it takes
WHOLE = {True: {"machines", "jobs"}, False: {"job", "measured", "layers"}}  # blocks of the farm's view, of a job's


@dataclass(frozen=True)
class ReaderWindow:
    """At one window with a reader."""

    first_seconds: float
    first_bytes: int
    bytes_per_second: float
    words: int  # that the stream said


def look(page: PageReader, path: str, seconds: float) -> ReaderWindow:
    """Read the view's stream for so long."""
    began = time.monotonic()
    with closing(page.stream(path)) as stream:
        while not WHOLE[path == "/"] <= set(stream.order):
            stream.read()
        first, first_bytes = time.monotonic() - began, sum(stream.sizes)
        words = len(stream.sizes)
        while time.monotonic() < began + seconds:
            stream.read()
        rate = (sum(stream.sizes) - first_bytes) / (time.monotonic() - began - first)
        return ReaderWindow(first, first_bytes, rate, len(stream.sizes) - words)


def page_process(page: PageReader) -> psutil.Process:
    found = (one.pid for one in psutil.net_connections("tcp") if one.laddr.port == page.port and one.status == "LISTEN")
    return psutil.Process(next(pid for pid in found if pid))


@dataclass(frozen=True)
class SpentWindow:
    """What was spent in one, in processor seconds a second."""

    daemon: float
    page: float


async def window(daemon: int, page: int, seconds: float, reader: Callable[[], None] | None) -> SpentWindow:
    """`reader`: what reads meanwhile, and takes so many seconds; None for nobody."""
    before, began = (tree_seconds(daemon), tree_seconds(page)), time.monotonic()
    await (asyncio.sleep(seconds) if reader is None else asyncio.to_thread(reader))
    passed = time.monotonic() - began
    return SpentWindow((tree_seconds(daemon) - before[0]) / passed, (tree_seconds(page) - before[1]) / passed)


async def measure(farm: FarmHarness, given: argparse.Namespace) -> None:
    assert farm.daemon is not None
    daemon, pairs, looks = farm.daemon.pid, list[tuple[SpentWindow, SpentWindow]](), list[ReaderWindow]()
    async with crowd_of(farm.root, given.agents) as crowd:
        crowd.pace.rate = given.rate
        job = await asyncio.to_thread(Field(farm).submit, given.shards)
        path = {"farm": "/", "job": f"/job/{job}"}[given.view]
        working = asyncio.create_task(at_work(crowd))
        with page_of(farm) as page:
            process = page_process(page)
            await asyncio.sleep(SETTLE_SECONDS)
            for number in range(1 if given.no_peer else given.pairs):
                found = {}
                for is_open in (number % 2 == 1, number % 2 == 0):
                    reader = (lambda: looks.append(look(page, path, given.seconds))) if is_open else None
                    found[is_open] = await window(daemon, process.pid, given.seconds, reader)
                pairs.append((found[False], found[True]))
                closed, opened = pairs[-1]
                said = f"daemon {closed.daemon:.2%} closed, {opened.daemon:.2%} open, page {opened.page:.2%}"
                print(f"  pair {number + 1}: {said}, {looks[-1]}", flush=True)
            resident = process.memory_info().rss
        took = await asyncio.to_thread(answers, farm, path)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    verdict = judge([Pair(closed.daemon, opened.daemon) for closed, opened in pairs], less_is_better=True)
    interval = verdict.interval and [round(end, 4) for end in verdict.interval]
    parts = {
        "90% interval": interval,
        "% of a core": round(100 * statistics.median(opened.daemon - closed.daemon for closed, opened in pairs), 3),
        "ms an answer": {name: round(1000 * seconds, 2) for name, seconds in took.items()},
        "page % of a core": round(100 * statistics.median(opened.page for _, opened in pairs), 2),
        "page MB": round(resident / 1e6),
        "bytes/s": round(statistics.median(one.bytes_per_second for one in looks)),
        "first view s": round(statistics.median(one.first_seconds for one in looks), 2),
        "first view bytes": round(statistics.median(one.first_bytes for one in looks)),
        "s between words": round(given.seconds / max(1.0, statistics.median(one.words for one in looks)), 1),
        "daemon % of a core": round(100 * statistics.median(closed.daemon for closed, _ in pairs), 2),
    }
    report(100 * verdict.median, None if given.no_peer else 100.0, parts)


def answers(farm: FarmHarness, path: str) -> dict[str, float]:
    """Seconds of processor time that the daemon counts for an answer to each question of the view, the median."""
    view = view_of(path)
    assert view is not None
    found = dict[str, float]()
    with ask_daemon.line(farm.root) as line:
        for question in view.questions():
            if not isinstance(question, Printed):
                told = [line.ask(Look(question), Looked).took for _ in range(ASKED)]
                name = type(question).__name__ + (" counts" if question == COUNTS else "")
                found[name] = statistics.median(told)
    return found


async def at_work(crowd: Crowd) -> None:
    async def never() -> bool:
        return False

    await crowd.until(never)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--agents", type=int, default=1000)
    options.add_argument("--shards", type=int, default=2_000_000, help="enough for all windows at this rate")
    options.add_argument("--view", choices=("farm", "job"), default="farm")
    options.add_argument("--rate", type=float, default=2000.0, help="shards a second")
    options.add_argument("--seconds", type=float, default=20.0, help="of a window")
    options.add_argument("--pairs", type=int, default=15, help="of windows")
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
