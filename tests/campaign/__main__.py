"""`python -m tests.campaign PART --seed N --times M`: one line of JSON of what a part of the campaign found.

`python -m tests.campaign all --minutes M` plays the parts by turns, a line for each time, until so many minutes are
over. `--keep` adds lines to docs/campaign.json, and makes docs/campaign.md of all that is there. `python -m
tests.campaign sum` adds up what is kept, `sum FILE...` other lines.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.campaign import damage, full, kills, page, power
from tests.campaign.line import Line, added

PARTS = {"kills": kills.run, "ssh": kills.run_over_ssh, "power": power.run, "full": full.run, "damage": damage.run}
TIMES = {"kills": 60, "ssh": 40, "power": 25, "full": 8, "damage": 800}  # of one run, some minutes each
TURNS = ("kills", "power", "ssh", "damage", "kills", "full")  # of `all`


def play(part: str, seed: int, times: int, *, quiet: bool = True) -> Line:
    """One part; its line, whatever came of it."""
    line = Line(part, [seed])
    folder = Path(tempfile.mkdtemp(prefix="muster-campaign-"))
    begun = time.monotonic()
    try:
        PARTS[part](folder, seed, times, line, _silent if quiet else _say)
    except Exception as error:
        line.broke("wedged", f"the part ended in its midst: {traceback.format_exception(error)[-2:]}")
    finally:
        line.seconds = time.monotonic() - begun
        shutil.rmtree(folder, ignore_errors=True)
    return line


def play_for(minutes: float, first: int | None, *, quiet: bool) -> Iterator[Line]:
    """Part after part, none begun once the time is over; with the seeds from `first` on, or those no kept line has."""
    until_then = time.monotonic() + 60.0 * minutes
    played: dict[str, set[int]] = {part: page.seeds_kept(part) for part in PARTS}
    for part in itertools.cycle(TURNS):
        if time.monotonic() >= until_then:
            return
        seed = next(seed for seed in itertools.count(first or 1) if seed not in played[part])
        played[part].add(seed)
        yield play(part, seed, TIMES[part], quiet=quiet)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(_: str) -> None:
    """Nothing."""


def _summed(files: list[Path]) -> Line:
    return added(text for file in files or [page.KEPT] for text in file.read_text().splitlines())


def _lines(asked: argparse.Namespace) -> Iterator[Line]:
    if asked.part == "sum":
        yield _summed(asked.files)
    elif asked.part == "all":
        yield from play_for(asked.minutes, asked.seed, quiet=asked.quiet)
    else:
        yield play(asked.part, asked.seed or 1, asked.times or TIMES[asked.part], quiet=asked.quiet)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*PARTS, "all", "sum"])
    parser.add_argument("files", nargs="*", type=Path, help="of lines, to add up")
    parser.add_argument("--seed", type=int, help="of the first run; of `all` those that no kept line has, by default")
    parser.add_argument("--times", type=int, default=0, help="faults; some minutes' worth by default")
    parser.add_argument("--minutes", type=float, default=60.0, help="of `all`")
    parser.add_argument("--keep", action="store_true", help="each line goes into docs/campaign.json and its page")
    parser.add_argument("--quiet", action="store_true")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is ended, too
    is_whole = True
    for line in _lines(asked):
        print(line.text(), flush=True)
        is_whole = is_whole and line.is_whole
        if asked.keep and asked.part != "sum":
            page.keep(line)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
