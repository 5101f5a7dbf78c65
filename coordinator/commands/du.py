"""`coordinator du`: what takes the root's space."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import click

from muster.coordinator.api.requests import Usage
from muster.coordinator.api.status import Used
from muster.coordinator.commands.options import farm_option, json_option, say, say_json
from muster.coordinator.display import tables
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import NoDaemonError
from muster.jobs.common.units import format_size


class JobSize(NamedTuple):
    """Bytes of one job: bundles wait for their merge, the result is for the user."""

    job: str
    bundles: int
    result: int
    other: int


@click.command(epilog=example("coordinator du"))
@farm_option
@json_option
def command(root: Path | None, as_json: bool) -> None:
    """Show what takes the root's space: bundles to be merged, results, uploads, the rest."""
    found = roots.existing(root)
    sizes = [size_of(found, folder.name) for folder in sorted(found.jobs.iterdir()) if folder.is_dir()]
    uploads, figures = size_below(found.uploads), size_of_file(found.figures)
    other = size_below(found.path) - uploads - figures - sum(size.bundles + size.result + size.other for size in sizes)
    used = _used(found)
    if as_json:
        said = [size._asdict() for size in sizes]
        others = {"uploads": uploads, "figures": figures, "other": other}
        say_json({"jobs": said, **others, "free": used.free, "reserved": used.reserved})
        return
    say(page(sizes, uploads, figures, other, used))


def size_of(root: Root, job: str) -> JobSize:
    folder = root.job(job)
    bundles, result = size_below(folder.bundles), size_below(folder.result)
    return JobSize(job, bundles, result, size_below(folder.path) - bundles - result)


def size_below(folder: Path) -> int:
    """Bytes of all files below; what vanishes meanwhile counts nothing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(where, name).lstat().st_size
            except OSError:
                continue
    return total


def _used(root: Root) -> Used:
    """The daemon's word on what it has promised; without one nothing is."""
    try:
        return ask_daemon.ask(root, Usage(), Used)
    except NoDaemonError:
        return Used(shutil.disk_usage(root.path).free, 0)


def size_of_file(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def page(sizes: list[JobSize], uploads: int, figures: int, other: int, used: Used) -> str:
    rows = [(tables.short(size.job), *map(format_size, size[1:])) for size in sizes]
    lines = [tables.table(("JOB", "BUNDLES", "RESULT", "OTHER"), rows, " rrr")] if rows else ["no jobs"]
    what = f"uploads {format_size(uploads)}, measurements {format_size(figures)}, beside these {format_size(other)}"
    lines += ["", f"{what}, free {format_size(used.free)}"]
    lines[-1] += f", of that reserved {format_size(used.reserved)}" if used.reserved else ""
    return "\n".join(lines)
