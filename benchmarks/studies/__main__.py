"""The studies this product grew from, repeated: their figures beside ours, a page for each in docs/study.

    python -m benchmarks.studies [infer] [training] [clustering] [tune] [--short] [--only GLOB] [--again GLOB]
        [--loaded] [--minutes M] [--list] [--page] [--to docs/study]

Each point that was measured has a line in NAME.jsonl, and is not measured again: what was interrupted goes on where it
stopped. Measured again is what other programs disturbed, what failed, and what was reckoned from figures that have
changed since. `--short` is the same in little time, with other points; its page shows that it works, and no figure.

Exit codes: 0 all that was asked for is measured, 1 some of it could not be, 2 it cannot be asked for, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.studies import clustering, infer, training, tune
from benchmarks.studies.points import QUIET_CORES, Kept, Point, Study
from benchmarks.studies.session import TREE, Session
from muster.jobs.common.errors import MusterError

STUDIES = {study.name: study for study in (infer.STUDY, training.STUDY, clustering.STUDY, tune.STUDY)}
INTERRUPTED = 130
DOCS = TREE / "docs" / "study"


def show(study: Study, points: Sequence[Point], folder: Path) -> bool:
    """What there is to measure, and how long it took."""
    kept = Kept(folder / f"{study.name}.jsonl")
    lines, failed = kept.of(points), kept.failed(points)
    for point in points:
        line = lines.get(point.name)
        disturbed = ", while others had the cores" if line is not None and line.is_disturbed else ""
        told = f"{line.seconds:.0f} s{disturbed}" if line is not None else failed.get(point.name, "not measured")
        print(f"{study.name}  {point.name}  {told}")
    return True


def main(words: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.studies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("names", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}; all where none is given")
    options.add_argument("--short", action="store_true", help="other points, in seconds; wants --to")
    options.add_argument("--only", default="*", metavar="GLOB", help="these points alone")
    options.add_argument("--again", metavar="GLOB", help="these alone, measured or not")
    options.add_argument(
        "--loaded", action="store_true", help=f"keep what was measured while others had more than {QUIET_CORES} cores"
    )
    options.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many, in all")
    options.add_argument("--list", action="store_true", help="the points, and how long each took; measure nothing")
    options.add_argument("--page", action="store_true", help="write the pages alone")
    options.add_argument("--to", type=Path, help="the folder of lines, pages and pictures")
    given = options.parse_args(words)
    if unknown := [name for name in given.names if name not in STUDIES]:
        options.error(f"there is no study {unknown[0]!r}")
    if given.short and (given.to is None or given.to.resolve() == DOCS):
        options.error("--short wants --to FOLDER: its figures are none of docs/study's")
    studies = {STUDIES[name]: STUDIES[name].points(given.short) for name in given.names or STUDIES}
    wanted = given.again or given.only
    if not any(fnmatch(point.name, wanted) for points in studies.values() for point in points):
        options.error(f"no point is called {wanted!r}; --list has them all")
    given.to = given.to or DOCS
    ends = time.monotonic() + 60 * given.minutes
    try:
        ended = [
            show(study, points, given.to) if given.list else Session(study, points, given, ends).run()
            for study, points in studies.items()
        ]
    except MusterError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped: the same command goes on with the next point", file=sys.stderr)
        return INTERRUPTED
    return 0 if all(ended) else 1


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # in the background of a script, SIGINT would be ignored
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
