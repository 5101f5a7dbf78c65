"""`python -m tests.campaign PART --seed N --times M`: one line of JSON of what a part of the campaign found.

`--keep` adds it to docs/campaign.json, and makes docs/campaign.md of all that is there. `python -m tests.campaign sum`
adds up what is kept, `sum FILE...` other lines.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.campaign import damage, full, kills, page, power
from tests.campaign.line import Line, added

PARTS = {"kills": kills.run, "power": power.run, "full": full.run, "damage": damage.run}
TIMES = {"kills": 30, "power": 20, "full": 12, "damage": 500}  # of the short form


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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(_: str) -> None:
    """Nothing."""


def _summed(files: list[Path]) -> Line:
    return added(text for file in files or [page.KEPT] for text in file.read_text().splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "sum"])
    parser.add_argument("files", nargs="*", type=Path, help="of lines, to add up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=0, help="faults; some tens of each by default")
    parser.add_argument("--keep", action="store_true", help="the line goes into docs/campaign.json and its page")
    parser.add_argument("--quiet", action="store_true")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is ended, too
    if asked.part == "sum":
        line = _summed(asked.files)
    else:
        line = play(asked.part, asked.seed, asked.times or TIMES[asked.part], quiet=asked.quiet)
    if asked.keep:
        page.keep(line)
    print(line.text(), flush=True)
    return 0 if line.is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
