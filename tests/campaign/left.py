"""What a farm has left on its disks once everybody has gone in good order. Deletes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.campaign.line import Line
from tests.support.farm import FarmHarness

OF_SLOTS = re.compile(r"slot-\d+(\.json|\.mark)?")  # a slot's folder is there and empty


def count_left(farm: FarmHarness, line: Line) -> None:
    """Each file and folder that is there for nobody. Call it once the daemon has stopped and agents have left."""
    for path in sorted(left(farm)):
        line.broke("leaked", f"{path.relative_to(path.parents[1])} is left")


def left(farm: FarmHarness) -> Iterator[Path]:
    root = farm.root
    yield from farm.temp.glob("*") if farm.temp.exists() else ()
    yield from root.tmp.glob("*")
    yield from (root.path / "uploads").glob("*.part")
    states = {job.id: job for job in farm.stored().values()}
    for job in states.values():
        yield from root.job(job.id).rounds.glob("*")
        if job.state == "complete":
            yield from root.job(job.id).bundles.glob("*")
    complete = {layer.digest for job in states.values() if job.state == "complete" for layer in job.layers}
    wanted = {layer.digest for job in states.values() if job.state != "complete" for layer in job.layers}
    for name in farm.real:
        spool = farm.folder / "spools" / name
        yield from (spool / "tmp").glob("*")
        yield from (path for path in (spool / "run").rglob("*") if not _is_of_a_slot(path, spool / "run"))
        yield from (path for path in (spool / "done").glob("*/*") if path.name in complete - wanted)


def _is_of_a_slot(path: Path, run: Path) -> bool:
    return path.parent == run and OF_SLOTS.fullmatch(path.name) is not None
