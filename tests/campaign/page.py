"""The lines of the campaign's long runs, docs/campaign.json, what the simulator said last, docs/simulator.json, and the
page that is made of both, docs/campaign.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.campaign.line import BROKEN, Line, added, read
from tests.campaign.strikes import AGES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, KEPT, SIMULATED = DOCS / "campaign.md", DOCS / "campaign.json", DOCS / "simulator.json"
WHAT = {
    "kills": "processes killed or stopped beneath jobs of every kind",
    "ssh": "the same with agents over ssh, and links cut",
    "power": "cuts of the power of the root's disk",
    "full": "disks without bytes or inodes",
    "damage": "bits flipped",
}
LESS: dict[str, tuple[Callable[[Line], object], str]] = {  # part → which lines saw all that the page says; the others
    "kills": (lambda line: line.ages, "took a busy farm for one that was not up: they struck what starts, as a rule"),
    "power": (lambda line: line.found, "looked at layers once all was over, and not after each cut"),
}
HEAD = """# The campaign

Faults by the hundred against real farms. `make campaign PART=kills SEED=7 TIMES=200` plays one part and ends with one
line of JSON; `make campaign PART=all MINUTES=60` plays all of them by turns, each time with seeds that no line has yet.
`KEEP=1` keeps the lines in campaign.json, of which this page is made. A short form of each part is among the tests.

- **kills**: the daemon, agents, Ray's gcs, raylet, helpers and workers, runners, drivers, the merge helper, who tells
  of a job's end, `connect`s and whatever else an agent started are killed, by turns, two at once too; agents are
  stopped beyond their lease. Bursts of it are a fifth of a second to two minutes apart, so that some are struck while
  they start and others after minutes. Meanwhile jobs of all kinds run, every third of a source that was submitted
  before, some after others, beside one whose push and one whose merge fail for good; and a client has sessions of calls
  open, one after the other. Every job must end, each complete one with what a serial run gives, with each shard once
  and with word of it to its user; each answer of a call must be right and come once. No process, temporary file, folder
  of a round or listener may be left. A job that was given up since its driver or a shard was killed five times in a row
  is tried again.
- **ssh**: the same where agents come through a real sshd. Its sessions are killed; links are reset, stalled beyond the
  lease, late, and open at one end alone.
- **power**: the root is on an ext4 that is shut down without a flush, checked by fsck, mounted and served again. What
  was submitted or acknowledged must be there, once, and each layer that has a manifest be what a serial run gives.
- **full**: below the root or the spool no byte or no inode is left, while a job runs and at a start. Somebody must say
  so, and the job go on by itself once there is room; what is started must end with exit code 8 and say where to make
  room.
- **damage**: a bit is flipped in a plan, code, a manifest, a part, a bundle, an input, a result or the store. What
  reads it must say so, or nothing come of it. Some of it is done beneath a farm that is started on it: twelve bits at
  a time, of whatever its root and its agent's spool have.

`lost`: acknowledged and gone, or a job that was given up. `twice`: committed or delivered. `wrong`: other bytes than
they have to be, or a fault that nobody noticed. `wedged`: a job that never ends. `leaked`: processes, files and
listeners left.
"""


def keep(line: Line) -> None:
    with KEPT.open("a") as file:
        file.write(line.text() + "\n")
    write()


def keep_simulated(figures: Mapping[str, Any]) -> None:
    """In the place of what was kept before: the product has changed since."""
    SIMULATED.write_text(json.dumps(figures) + "\n")
    write()


def write() -> None:
    PAGE.write_text(made(KEPT.read_text(), SIMULATED.read_text()))


def seeds_kept(part: str) -> set[int]:
    """Those that a line of this part has."""
    lines = map(read, filter(None, KEPT.read_text().splitlines() if KEPT.exists() else ()))
    return {int(seed) for line in lines if line.part == part for seed in line.seeds}


def made(text: str, simulated: str) -> str:
    """The page of these lines, and of what the simulator said."""
    lines = [read(one) for one in text.splitlines() if one]
    by_part = {part: [one for one in lines if one.part == part] for part in WHAT}
    parts = {part: added(one.text() for one in by_part[part]) for part in WHAT}
    rows = [_row(part, total) for part, total in parts.items() if total.seeds]
    table = [f"| part | runs | minutes | faults | compared | {' | '.join(BROKEN)} |", f"|{'---|' * (5 + len(BROKEN))}"]
    counts = [
        f"\n## {part}: {WHAT[part]}\n\n{_less(part, by_part[part])}{_counts(total)}"
        for part, total in parts.items()
        if total.seeds
    ]
    return "\n".join([HEAD, *table, *rows, *counts, _simulated(json.loads(simulated))]) + "\n"


def _less(part: str, lines: Sequence[Line]) -> str:
    """How many of them are of a time when less was seen, and what was not."""
    saw_all, lack = LESS.get(part, (bool, ""))
    older = sum(not saw_all(line) for line in lines)
    return f"{older} of these runs are older than the rest of this page, and {lack}.\n\n" if older else ""


def _simulated(figures: Mapping[str, Any]) -> str:
    last = figures["seed"] + figures["schedules"] - 1
    faults, jobs = (_listed(Counter(figures[name])) for name in ("faults", "jobs"))
    used_seconds = figures["schedules"] * figures["processor_milliseconds_each"] / 1000
    share = used_seconds / (figures["seconds"] * figures["processes"])
    return f"""
## The simulator

Worlds of the real scheduler and the real cores of agents, in which time, links, disks, workers and people are made of a
seed. Both ends check their state after every event, and no world may break a promise. `make simulate KEEP=1` plays it
and writes this.

{figures["schedules"]:,} worlds, seeds {figures["seed"]:,} to {last:,}: {figures["broken"]:,} broke a promise.
{figures["seconds"]:,.0f} s with {figures["processes"]} processes; {figures["schedules_per_second"]:.0f} worlds a
second, {figures["processor_milliseconds_each"]} ms of a processor each. They had {share:.0%} of as many
processors: what else ran had the rest.

{figures["events"]:,} events; {figures["ran"]:,} shards run and {figures["committed"]:,} committed. Jobs: {jobs}.

Faults: {faults}."""


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.most_common())


def _row(part: str, total: Line) -> str:
    numbers = [len(total.seeds), round(total.seconds / 60), sum(total.faults.values()), total.compared]
    cells = [part, *(f"{number:,}" for number in [*numbers, *(getattr(total, name) for name in BROKEN)])]
    return f"| {' | '.join(cells)} |"


def _counts(total: Line) -> str:
    found = "".join(f"\n- {count:,} × {name}" for name, count in sorted(total.found.items()))
    return "\n".join([f"{_listed(total.faults)}.", *_ages(total), *([found] if found else [])])


def _ages(total: Line) -> list[str]:
    """How long those lived that were struck."""
    if not total.ages:
        return []
    younger = [f"under {limit:.0f} s" for limit in AGES]
    head = ["", f"| who was struck | {' | '.join(younger)} | later |", f"|{'---|' * (2 + len(AGES))}"]
    return [*head, *(f"| {kind} | {' | '.join(f'{n:,}' for n in total.ages[kind])} |" for kind in sorted(total.ages))]
