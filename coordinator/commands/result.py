"""`coordinator result`: where the merged arrays are, or a copy of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from muster.coordinator.commands.farm_meant import handed_over, reached
from muster.coordinator.commands.options import job_argument, json_option, place_options, say, say_json
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import JobFolder
from muster.coordinator.result_downloads.file_server import layers_of
from muster.coordinator.result_downloads.partial import PartialResult
from muster.coordinator.result_downloads.partial import make as make_partial
from muster.jobs.common.cli import example
from muster.jobs.common.durable import fsync_folder, naming_space, publish, sync_tree
from muster.jobs.common.errors import IncompleteError, RefusedError, UsageError
from muster.jobs.common.locations import Host
from muster.jobs.common.units import counted
from muster.jobs.parts.manifest import MANIFEST, folders_of_files

NAMES_SHOWN = 5


@click.command(
    epilog=example(
        "coordinator result weights",
        "coordinator result weights --to /data/out",
        "coordinator result sweep --as csv > sweep.csv",
        "coordinator result weights --partial",
    )
)
@job_argument
@click.option("--to", "target", type=click.Path(path_type=Path), metavar="DIR", help="Copy the merged layers to DIR.")
@click.option(
    "--as",
    "form",
    type=click.Choice(["npz", "csv", "parquet"]),
    help="Make a file of each layer that is complete, DIR/LAYER.csv.",
)
@click.option("--partial", is_flag=True, help="Merge layers that lack shards too, with holes, into a folder apart.")
@place_options
@json_option
def command(
    job: str, target: Path | None, form: str | None, partial: bool, place: Host | Path | None, as_json: bool
) -> int:
    """Print the folder with the merged arrays, which are LAYER/OUTPUT.npy below it.

    This works while the job runs, for the layers that are complete, and without a coordinator.
    A copy that was interrupted goes on if the command is typed again.

    With --as, each layer is one file for other programs: all of its arrays (npz), or a table of its rows (csv,
    parquet), with the columns of the items before those of the outputs. Without --to the csv of a single layer is
    printed. A --to that ends in .npz, .csv or .parquet is the file of a single layer.

    With --partial, what is committed by now of all other layers is merged as well, into `partial` in the job's folder
    or into DIR, in place of what an earlier call put there. Rows that are missing have NaN, or 0 in integers; ok.npy
    and the manifest say which these are. Merged layers are there as well, as hard links, or as copies in DIR.

    Of a farm elsewhere the folder is one there; with --to the layers are fetched from it.
    """
    if partial and form:
        raise UsageError("--as is of layers that are complete", "leave --partial or --as out")
    if isinstance(place, Host):
        return handed_over(place) if target is None else _fetched(place, job, target, form, partial, as_json)
    found = roots.existing(place)
    name = roots.resolve_job(found, job)
    if partial:
        _say_partial(make_partial(found, name, target, _copy_layer if target else None), as_json)
        return 0
    folder = found.job(name)
    merged, missing = layers_of(folder)
    if not merged:
        raise nothing_merged(name, folder)
    if form:
        _export(found.farm, name, folder.result, form, target, merged, as_json)
        _note(merged, missing)
        return 0
    if target:
        copy(folder.result, target, merged)
    _say_merged(name, found.farm, target or folder.result, merged, missing, as_json)
    return 0


def _say_merged(job: str, farm: str, folder: Path, merged: list[str], missing: list[str], as_json: bool) -> None:
    if as_json:
        say_json({"job": job, "farm": farm, "path": str(folder.absolute()), "layers": merged, "missing": missing})
        return
    say(str(folder.absolute()))
    _note(merged, missing)


def _note(merged: list[str], missing: list[str]) -> None:
    if missing:
        click.echo(f"note: {unfinished(merged, missing)}", err=True)


def _export(
    farm: str, job: str, result: Path, form: str, target: Path | None, layers: list[str], as_json: bool
) -> None:
    from muster.jobs.results.export import export, print_csv

    if target is None:
        if form != "csv" or len(layers) != 1 or as_json:
            hint = "name a folder by `--to DIR`; what is printed is the csv of one layer alone"
            raise UsageError(f"--as {form}: where to?", hint)
        left_out = {layers[0]: print_csv(result / layers[0], sys.stdout)}
    else:
        _check_elsewhere(result, target)
        made = dict(zip(layers, export(result, layers, form, target), strict=True))
        paths = {layer: str(one.path.absolute()) for layer, one in made.items()}
        left_out = {layer: one.left_out for layer, one in made.items()}
        if as_json:
            say_json({"job": job, "farm": farm, "files": paths, "left_out": left_out})
        else:
            say("\n".join(paths.values()))
    for layer, names in left_out.items():
        if names:
            click.echo(f"note: {layer}: {_listed(names)} cannot be in such a file and is left out", err=True)


def _fetched(host: Host, job: str, target: Path, form: str | None, partial: bool, as_json: bool) -> int:
    """From a farm elsewhere into a folder here; the exit code."""
    from muster.coordinator.client.backends.remote import RemoteBackend

    place = RemoteBackend(reached(host), target)
    name = place.status(job).jobs[0].id
    merged, missing = place.partial(name) if partial else place.layers(name)
    if not merged:
        raise IncompleteError(f"no layer of {name} is merged yet", f"`coordinator status {name}` says how far it is")
    try:
        if form is None:
            place.fetch(name, merged, target, sys.stderr.isatty(), partial)
            _say_merged(name, place.farm, target, merged, missing, as_json)
            return 0
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".layers-", dir=target) as layers:
            place.fetch(name, merged, Path(layers), sys.stderr.isatty(), partial)
            _export(place.farm, name, Path(layers), form, target, merged, as_json)
    except OSError as error:
        raise _not_written(error, target) from None
    _note(merged, missing)
    return 0


def _say_partial(made: PartialResult, as_json: bool) -> None:
    if as_json:
        say_json(made)
        return
    say(made.path)
    for part in made.parts[:NAMES_SHOWN]:
        shards = f"{part.missing_shards:,} of {counted(part.shards + part.missing_shards, 'shard')}"
        click.echo(f"note: {part.layer} lacks {shards}, {part.missing_rows:,} of its {part.rows:,} rows", err=True)
    if len(made.parts) > NAMES_SHOWN:
        click.echo(f"note: so do {len(made.parts) - NAMES_SHOWN:,} more layers; --json has all", err=True)
    if made.missing:
        click.echo(f"note: nothing is there of {_listed(made.missing)}", err=True)
    for problem in made.damaged:
        click.echo(f"note: a bundle is damaged and left out: {problem}", err=True)


def nothing_merged(job: str, folder: JobFolder) -> IncompleteError:
    """A job with a driver may have checkpoints by then."""
    if folder.checkpoints.is_dir():
        return IncompleteError(f"{job} has no result yet", f"its checkpoints are in {folder.checkpoints}")
    hint = f"`coordinator status {job}` says how far it is; `coordinator result {job} --partial` has what there is"
    return IncompleteError(f"no layer of {job} is merged yet", hint)


def unfinished(merged: list[str], missing: list[str]) -> str:
    """One line on a job that has only some of its layers."""
    return f"{len(merged):,} of {counted(len(merged) + len(missing), 'layer')} merged; not yet: {_listed(missing)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")


def copy(result: Path, target: Path, layers: list[str]) -> None:
    """Each layer's files, its manifest last, so that a copy shows the same promise as the original."""
    _check_elsewhere(result, target)
    try:
        for layer in layers:
            with naming_space(target):
                _copy_layer(result / layer, target / layer)
    except OSError as error:
        raise _not_written(error, target) from None


def _not_written(error: OSError, target: Path) -> RefusedError:
    why = f"the result cannot be copied: {error.filename or target}: {error.strerror}"
    return RefusedError(why, "name a folder you may write to")


def _check_elsewhere(result: Path, target: Path) -> None:
    if target.absolute().is_relative_to(result):
        raise RefusedError(f"{target} is inside the result itself", "name a folder elsewhere")


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
