"""`coordinator result`: where the merged arrays are, or a copy of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from muster.coordinator.commands.options import job_argument, json_option, root_option, say, say_json
from muster.coordinator.display import tables
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import JobFolder
from muster.coordinator.result_downloads.file_server import layers_of
from muster.jobs.common.cli import example
from muster.jobs.common.durable import fsync_folder, naming_space, publish, sync_tree
from muster.jobs.common.errors import IncompleteError, RefusedError
from muster.jobs.parts.manifest import MANIFEST, folders_of_files

NAMES_SHOWN = 5


@click.command(epilog=example("coordinator result weights", "coordinator result weights --to /data/out"))
@job_argument
@click.option("--to", "target", type=click.Path(path_type=Path), metavar="DIR", help="Copy the merged layers to DIR.")
@root_option
@json_option
def command(job: str, target: Path | None, root: Path | None, as_json: bool) -> None:
    """Print the folder with the merged arrays, LAYER/OUTPUT.npy below it.

    Works while the job runs, for the layers that are complete, and without a coordinator.
    Copying again goes on where it was interrupted.
    """
    found = roots.existing(root)
    name = roots.resolve_job(found, job)
    folder = found.job(name)
    merged, missing = layers_of(folder)
    if not merged:
        raise nothing_merged(name, folder)
    if target:
        copy(folder.result, target, merged)
    where = (target or folder.result).absolute()
    if as_json:
        say_json({"job": name, "farm": found.farm, "path": str(where), "layers": merged, "missing": missing})
        return
    say(str(where))
    if missing:
        click.echo(f"note: {unfinished(merged, missing)}", err=True)


def nothing_merged(job: str, folder: JobFolder) -> IncompleteError:
    """A job with a driver may have checkpoints by then."""
    if folder.checkpoints.is_dir():
        return IncompleteError(f"{job} has no result yet", f"its checkpoints are in {folder.checkpoints}")
    return IncompleteError(f"no layer of {job} is merged yet", f"`coordinator status {job}` says how far it is")


def unfinished(merged: list[str], missing: list[str]) -> str:
    """One line on a job that has only some of its layers."""
    shown = ", ".join(missing[:NAMES_SHOWN]) + (", …" if len(missing) > NAMES_SHOWN else "")
    return f"{len(merged):,} of {tables.counted(len(merged) + len(missing), 'layer')} merged; not yet: {shown}"


def copy(result: Path, target: Path, layers: list[str]) -> None:
    """Each layer's files, its manifest last, so that a copy shows the same promise as the original."""
    if target.absolute().is_relative_to(result):
        raise RefusedError(f"{target} is inside the result itself", "name a folder elsewhere")
    try:
        for layer in layers:
            with naming_space(target):
                _copy_layer(result / layer, target / layer)
    except OSError as error:
        why = f"the result cannot be copied: {error.filename or target}: {error.strerror}"
        raise RefusedError(why, "name a folder you may write to") from None


def _copy_layer(source: Path, target: Path) -> None:
    manifest = (source / MANIFEST).read_bytes()
    seal = target / MANIFEST
    if seal.is_file() and seal.read_bytes() == manifest:
        return
    target.mkdir(parents=True, exist_ok=True)
    seal.unlink(missing_ok=True)
    for folder in folders_of_files(source):
        _copy_folder(folder, target / folder.name)
    for file in sorted(source.iterdir(), key=lambda file: file.name == MANIFEST):
        if file.is_file():
            _copy_file(file, target / file.name)
    fsync_folder(target)


def _copy_folder(source: Path, target: Path) -> None:
    """A folder of written files, whole or not at all."""
    tmp = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    shutil.copytree(source, tmp, copy_function=shutil.copyfile)
    sync_tree(tmp)
    shutil.rmtree(target, ignore_errors=True)
    tmp.rename(target)


def _copy_file(source: Path, target: Path) -> None:
    tmp = target.with_name(f".{target.name}.tmp")
    shutil.copyfile(source, tmp)
    publish(tmp, target)
