"""Merged layers put below `result/` and taken away again, the manifest last and first. Merges nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from muster.jobs.common.durable import fsync_folder, make_folder
from muster.jobs.parts.manifest import MANIFEST, folders_of_files


def publish(folder: Path, target: Path) -> None:
    """Rename a merged layer into place. A reader that finds the manifest finds everything it names."""
    make_folder(target)
    (target / MANIFEST).unlink(missing_ok=True)
    fsync_folder(target)
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    for path in files:
        if path.is_dir() and (target / path.name).is_dir():  # of a publication that was cut short
            (target / path.name).rename(folder / f".{path.name}")
        path.rename(target / path.name)
    (folder / MANIFEST).rename(target / MANIFEST)
    fsync_folder(target)


def withdraw(target: Path) -> None:
    """Take a layer's result away, the manifest first. Folders of other layers below it stay."""
    if not target.is_dir():
        return
    (target / MANIFEST).unlink(missing_ok=True)
    fsync_folder(target)
    for folder in folders_of_files(target):
        shutil.rmtree(folder)
    for path in target.iterdir():
        if path.is_file():
            path.unlink(missing_ok=True)
