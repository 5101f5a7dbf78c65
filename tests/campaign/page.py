"""The lines of the campaign's long runs, docs/campaign.json, and the page that is made of them, docs/campaign.md."""

from __future__ import annotations

from pathlib import Path

from tests.campaign.line import BROKEN, Line, added, read

DOCS = Path(__file__).parents[2] / "docs"
PAGE, KEPT = DOCS / "campaign.md", DOCS / "campaign.json"
WHAT = {
    "kills": "processes killed or stopped beneath jobs of every kind",
    "power": "cuts of the power of the root's disk",
    "full": "disks without bytes or inodes",
    "damage": "bits flipped",
}
HEAD = """# The campaign

Faults by the hundred against real farms. `make campaign PART=kills SEED=7 TIMES=200` plays one part and ends with one
line of JSON; `KEEP=1` keeps it in campaign.json, of which this page is made. A short form of each part is among the
tests.

- **kills**: the daemon, agents, Ray's gcs, raylet, helpers and workers, runners, drivers, the merge helper, who tells
  of a job's end, `connect`s and whatever else an agent started are killed, two at once too, and while they start;
  agents are stopped beyond their lease. Meanwhile jobs of all kinds run, every third of a source that was submitted
  before, beside one whose push and one whose merge fail for good. Every job must end, each complete one with what a
  serial run gives and with word of it to its user, and no process, temporary file or listener may be left. A job that
  was given up since its driver or a shard was killed five times in a row is tried again.
- **power**: the root is on an ext4 that is shut down without a flush, checked by fsck, mounted and served again. What
  was submitted or acknowledged must be there, once, and each layer that has a manifest be what a serial run gives.
- **full**: below the root or the spool no byte or no inode is left, while a job runs and at a start. Somebody must say
  so, and the job go on by itself once there is room; what is started must end with exit code 8 and say where to make
  room.
- **damage**: a bit is flipped in a plan, code, a manifest, a part, a bundle, an input, a result or the store. What
  reads it must say so, or nothing come of it.

`lost`: acknowledged and gone, or a job that was given up. `twice`: committed. `wrong`: other bytes than they have to
be, or a fault that nobody noticed. `wedged`: a job that never ends. `leaked`: processes, files and listeners left.
"""


def keep(line: Line) -> None:
    with KEPT.open("a") as file:
        file.write(line.text() + "\n")
    PAGE.write_text(made(KEPT.read_text()))


def made(text: str) -> str:
    """The page of these lines."""
    lines = [read(one) for one in text.splitlines() if one]
    parts = {part: added([one.text() for one in lines if one.part == part]) for part in WHAT}
    rows = [_row(part, total) for part, total in parts.items() if total.seeds]
    table = [f"| part | runs | minutes | faults | compared | {' | '.join(BROKEN)} |", f"|{'---|' * (5 + len(BROKEN))}"]
    counts = [f"\n## {part}: {WHAT[part]}\n\n{_counts(total)}" for part, total in parts.items() if total.seeds]
    return "\n".join([HEAD, *table, *rows, *counts]) + "\n"


def _row(part: str, total: Line) -> str:
    numbers = [len(total.seeds), round(total.seconds / 60), sum(total.faults.values()), total.compared]
    cells = [part, *(f"{number:,}" for number in [*numbers, *(getattr(total, name) for name in BROKEN)])]
    return f"| {' | '.join(cells)} |"


def _counts(total: Line) -> str:
    faults = ", ".join(f"{count:,} {name}" for name, count in total.faults.most_common())
    found = "".join(f"\n- {count:,} × {name}" for name, count in sorted(total.found.items()))
    return f"{faults}.\n{found}" if found else f"{faults}."
