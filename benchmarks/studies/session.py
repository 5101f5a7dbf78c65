"""One study at work: what is due is measured in order, each point's line is kept, and the page is made of them.

What is timed has this process and the machine to itself; what is not is computed on all cores at once.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import msgspec
import psutil

from benchmarks.measure import CORES, Cannot, machine
from benchmarks.studies import pages
from benchmarks.studies.points import QUIET_CORES, Figures, Kept, Line, Point, Study, basis, in_order, waves
from muster.jobs.common.errors import MusterError
from muster.jobs.common.printable import joined
from muster.jobs.training.data.named_sets import NotFetched

TREE = Path(__file__).parents[2]
WHY_CHARS = 300  # of what went wrong
OTHERS_SAMPLES = 3  # of a second: what of ours has just ended may still be at it


class Others:
    """The cores that other programs use while something is timed: the more of before and after."""

    def __init__(self) -> None:
        self._before = _used()

    def meanwhile(self) -> float:
        before, self._before = self._before, _used()
        return max(before, self._before)


def _used() -> float:
    least = float("inf")
    for _ in range(OTHERS_SAMPLES):
        least = min(least, round(psutil.cpu_percent(interval=1.0) / 100 * (psutil.cpu_count() or 1), 2))
        if least <= QUIET_CORES:
            break
    return least


@cache
def tree() -> str:
    """The name of what is committed, which no rebase changes, with a + where something that is measured is not as
    committed; "" where git does not know."""
    git, head = ["git", "-C", str(TREE)], "HEAD^{tree}"
    try:
        found = subprocess.run([*git, "rev-parse", "--short", head], capture_output=True, text=True, check=False)
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", ":!docs"], capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return "" if found.returncode else found.stdout.strip() + ("+" if same.returncode else "")


def measured(study: Study, point: Point, scratch: Path, lines: Mapping[str, Line]) -> Line:
    """Its line, whatever happens: one point that breaks ends no study."""
    print(f"{study.name}: {point.name}", flush=True)
    began, figures, failed = time.monotonic(), Figures(), ""
    try:
        figures = study.measure(point, scratch, {name: lines[name] for name in point.by})
    except Cannot as end:
        failed = end.why
    except MusterError as error:
        failed = f"{error.message}; {error.hint}"
    except (NotFetched, SystemExit) as error:
        failed = str(error)
    except Exception as error:
        traceback.print_exc()
        failed = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    seconds, day = round(time.monotonic() - began, 1), str(datetime.date.today())
    line = Line(point.name, point.settings, figures, day, machine(), seconds, 0.0, tree(), basis(point, lines) or "")
    print(f"  {point.name}, {seconds:.0f} s: {failed or _told(figures)}", flush=True)
    return msgspec.structs.replace(line, failed=joined(failed)[:WHY_CHARS])


def _told(figures: Figures) -> str:
    brief = {name: value for name, value in figures.items() if name == "rates" or not isinstance(value, list)}
    return ", ".join(f"{name} {value}" for name, value in brief.items())


def at_once(
    study: Study, wave: Sequence[Point], scratch: Path, lines: Mapping[str, Line], ends: float
) -> Generator[Line, None, None]:
    """Each in a process of its own, as many as there are cores, as they are done; none is begun after the end."""
    count, spawned = min(CORES, len(wave)), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawned, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            done = [pool.submit(_begun, study, point, scratch, lines, ends) for point in wave]
            yield from filter(None, (one.result() for one in as_completed(done)))
        except BrokenProcessPool:
            hint = "the same command goes on with what is not measured"
            raise MusterError("a process that measured was killed", hint) from None
        except BaseException:  # Ctrl-C, mostly: nobody waits for what is under way
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _begun(study: Study, point: Point, scratch: Path, lines: Mapping[str, Line], ends: float) -> Line | None:
    return measured(study, point, scratch, lines) if time.monotonic() < ends else None


class Session:
    """One study at work."""

    def __init__(self, study: Study, points: Sequence[Point], given: argparse.Namespace, ends: float) -> None:
        self._study, self._points, self._given, self._ends = study, points, given, ends
        self._kept = Kept(given.to / f"{study.name}.jsonl")
        self._others: Others | None = None
        self._could = True

    def run(self) -> bool:
        """What is due, in order, and the page; whether all of it could be measured."""
        try:
            with tempfile.TemporaryDirectory(prefix="muster-study-") as scratch:
                for wave in waves(in_order(self._points, self._kept)) if not self._given.page else []:
                    self._measure(wave, Path(scratch))
        finally:
            lines, failed = self._kept.of(self._points), self._kept.failed(self._points)
            print(pages.write(self._given.to, self._study, self._points, lines, failed), flush=True)
        return self._could

    def _measure(self, wave: Sequence[Point], scratch: Path) -> None:
        lines = self._kept.of(self._points)
        due = [point for point in wave if is_due(point, lines.get(point.name), self._given)]
        if time.monotonic() >= self._ends:
            return
        for point in due:
            if missing := [name for name in point.by if name not in lines]:
                print(f"{self._study.name}: {point.name} waits for {', '.join(missing)}", flush=True)
                self._could = False
        ready = [point for point in due if basis(point, lines) is not None]
        if not ready:
            return
        if not wave[0].timed:
            with closing(at_once(self._study, ready, scratch, lines, self._ends)) as found:
                for line in found:
                    self._take(line, lines)
        else:
            self._others = self._others or (None if self._given.short else Others())
            line = measured(self._study, ready[0], scratch, lines)
            others = self._others.meanwhile() if self._others else 0.0
            self._take(msgspec.structs.replace(line, others=others), lines)

    def _take(self, line: Line, lines: Mapping[str, Line]) -> None:
        """A failure takes the place of no figures."""
        self._could = self._could and not line.failed
        if not line.failed or line.name not in lines:
            self._kept.keep(line)


def is_due(point: Point, line: Line | None, given: argparse.Namespace) -> bool:
    """Asked for, and not measured, or to be measured once more."""
    again = given.again or line is None or (line.is_disturbed and not given.loaded)
    return bool(again) and fnmatch(point.name, given.again or given.only)
