"""The studies this product grew from, repeated: their figures beside ours, a page for each in docs/study.

    python -m benchmarks.studies [infer] [training] [clustering] [--short] [--only GLOB] [--again GLOB] [--loaded CORES]
        [--minutes M] [--list] [--page] [--to docs/study]

Each point that was measured has a line in NAME.jsonl, and is not measured again: what was interrupted goes on where it
stopped. `--short` is the same in seconds, with other points; its page shows that all of it works, and no figure.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import psutil

from benchmarks.measure import CANNOT, CORES, machine
from benchmarks.studies import clustering, infer, pages, training
from benchmarks.studies.points import Kept, Line, Point, Study
from muster.jobs.common.errors import MusterError
from muster.jobs.training.data.named_sets import NotFetched

STUDIES = {study.name: study for study in (infer.STUDY, training.STUDY, clustering.STUDY)}
INTERRUPTED = 130
DOCS = Path(__file__).parents[2] / "docs" / "study"


def others() -> float:
    """Cores that are used, where nothing of ours runs."""
    return round(psutil.cpu_percent(interval=1.0) / 100 * CORES, 2)


def measured(study: Study, point: Point, scratch: Path, kept: Kept) -> Line | None:
    """None where it cannot be here, which was said."""
    print(f"{study.name}: {point.name}", flush=True)
    before, began = others(), time.monotonic()
    try:
        figures = study.measure(point, scratch, kept.lines)
    except (NotFetched, MusterError) as error:
        print(f"  not measured: {error}", flush=True)
        return None
    except SystemExit as end:
        if end.code != CANNOT:  # who gives up has said why
            print(f"  not measured: {end.code}", flush=True)
        return None
    seconds = round(time.monotonic() - began, 1)
    line = Line(
        point.name, point.settings, figures, str(datetime.date.today()), machine(), seconds, max(before, others())
    )
    print(f"  {seconds:.0f} s: {_told(line)}", flush=True)
    return line


def _told(line: Line) -> str:
    brief = {name: value for name, value in line.figures.items() if name == "rates" or not isinstance(value, list)}
    return ", ".join(f"{name} {value}" for name, value in brief.items())


def run(study: Study, points: Sequence[Point], given: argparse.Namespace) -> bool:
    """What is due, in order, and the page; whether nothing of that cannot be here."""
    kept, ends, could = Kept(given.to / f"{study.name}.jsonl"), time.monotonic() + 60 * given.minutes, True
    try:
        with tempfile.TemporaryDirectory(prefix="muster-study-") as scratch:
            for point in points if not given.page else []:
                if time.monotonic() < ends and is_due(point, kept, given):
                    line = measured(study, point, Path(scratch), kept)
                    could = could and line is not None
                    if line is not None:
                        kept.keep(line)
    finally:
        print(pages.write(given.to, study, points, kept.of(points)), flush=True)
    return could


def is_due(point: Point, kept: Kept, given: argparse.Namespace) -> bool:
    """Asked for, and not measured, or to be measured once more."""
    line = kept.of([point]).get(point.name)
    again = given.again or line is None or line.others > given.loaded
    return bool(again) and fnmatch(point.name, given.again or given.only)


def show(study: Study, points: Sequence[Point], folder: Path) -> bool:
    """What there is to measure, and how long it took."""
    lines = Kept(folder / f"{study.name}.jsonl").of(points)
    for point in points:
        took = f"{lines[point.name].seconds:.0f} s" if point.name in lines else "not measured"
        print(f"{study.name}  {point.name}  {took}")
    return True


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.studies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("names", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}; all where none is given")
    options.add_argument("--short", action="store_true", help="other points, in seconds; wants --to")
    options.add_argument("--only", default="*", metavar="GLOB", help="these points alone")
    options.add_argument("--again", metavar="GLOB", help="these alone, measured or not")
    options.add_argument(
        "--loaded", type=float, default=float("inf"), metavar="CORES", help="those too during which others had more"
    )
    options.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    options.add_argument("--list", action="store_true", help="the points, and how long each took; measure nothing")
    options.add_argument("--page", action="store_true", help="write the page alone")
    options.add_argument("--to", type=Path, help="the folder of lines, pages and pictures")
    given = options.parse_args()
    if unknown := [name for name in given.names if name not in STUDIES]:
        options.error(f"there is no study {unknown[0]!r}")
    if given.short and given.to is None:
        options.error("--short wants --to FOLDER: its figures are none of docs/study's")
    given.to = given.to or DOCS
    try:
        ended = []
        for study in [STUDIES[name] for name in given.names or STUDIES]:
            points = study.points(given.short)
            ended.append(show(study, points, given.to) if given.list else run(study, points, given))
    except MusterError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped: the same command goes on with the next point", file=sys.stderr)
        return INTERRUPTED
    return 0 if all(ended) else CANNOT


if __name__ == "__main__":
    sys.exit(main())
