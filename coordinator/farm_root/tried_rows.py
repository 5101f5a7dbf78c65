"""What `coordinator try` measured of a job's rows: ROOT/tried/DIGEST.json. A hint for later cuts, and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.durable import read_json, write_private
from muster.jobs.common.units import DURATION_LIMIT

KEPT = 1000  # the newest


class TriedRows(msgspec.Struct, frozen=True):
    """Seconds of one row in one slot."""

    seconds: Annotated[float, Meta(gt=0, le=DURATION_LIMIT)]


def keep(root: Root, digest: str, tried: TriedRows) -> bool:
    """Whether it is kept now: there may be no farm here, or one of another user."""
    if not root.farm_file.is_file():
        return False
    try:
        root.tried.mkdir(mode=0o700, exist_ok=True)
        write_private(_file(root, digest), msgspec.json.encode(tried))
        for old in sorted(root.tried.iterdir(), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            old.unlink()
    except OSError:
        return False
    return True


def found(root: Root, digest: str) -> TriedRows | None:
    return read_json(_file(root, digest), TriedRows)


def _file(root: Root, digest: str) -> Path:
    return root.tried / f"{digest}.json"
