"""`coordinator rebuild`: a new store of what lies in the root, where the old one is lost. Reads every byte of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.coordinator.commands.options import json_option, root_option, say, say_json
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import JobFolder, Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import DamagedError, MusterError, RefusedError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.common.units import counted

if TYPE_CHECKING:
    from muster.coordinator.daemon.store.rebuilt_rows import FoundBundle, FoundJob, FoundResult, JobRows, StoreRows
    from muster.jobs.contract.plan import Layer, Output, Plan
    from muster.jobs.parts.manifest import Product

ASIDE = "aside"  # below a job's folder: what does not count, under the path that it had there
_BUNDLE = re.compile(r"([0-9]{1,15})-([0-9]{1,15})\.part")
LOST = (
    "lost with the old store: failures and what was given up (what was written of them is in jobs/JOB/failures.log),"
    " which jobs were cancelled, changed priorities and settings, and the numbers of jobs that were removed"
)


@dataclass
class Found:
    """What lies in a root."""

    jobs: list[FoundJob] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    boots: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    aside: list[tuple[Path, Path]] = field(default_factory=list)  # manifests, and where to


@click.command(epilog=example("coordinator rebuild", "coordinator serve --detach", "coordinator resume weights"))
@click.option("--anyway", is_flag=True, help="Do it even if the store is sound.")
@root_option
@json_option
def command(root: Path | None, anyway: bool, as_json: bool) -> None:
    """Make a new store from what lies in the root, if the old one is lost.

    Merged layers and committed bundles count again, after every byte of them was compared. Jobs that were not complete
    come back paused. The old store is kept beside the new one; damaged files are named and set aside.
    """
    from muster.coordinator.daemon.store.opening import is_sound
    from muster.coordinator.daemon.store.rebuilding import replace_store
    from muster.coordinator.daemon.store.rebuilt_rows import rows_of

    place = roots.existing(root)
    with roots.held(place):
        if not anyway and is_sound(place):
            hint = "`coordinator serve` serves it; --anyway makes a new one all the same, which knows less"
            raise RefusedError(f"{place.store} is not lost", hint)
        found = find(place)
        rows = rows_of(found.jobs, found.folders, found.boots)
        kept = replace_store(place, rows, [*found.aside, *_without_rows(place, rows)])
    if as_json:
        jobs = [{"job": job.found.id, "state": job.state} for job in rows.jobs]
        say_json({"jobs": jobs, "problems": found.problems, "lost": LOST, "old_store": kept and str(kept)})
    else:
        say(page(found, rows, kept))


def find(root: Root) -> Found:
    """Every job, with what is whole of it; what is not is named."""
    from muster.coordinator.daemon.store.opening import job_folders

    found = Found(folders=job_folders(root))
    found.boots = [root.boot, *(int(path.name) for path in root.tmp.iterdir() if path.name.isdecimal())]
    farm = root.farm
    for job in found.folders:
        folder = root.job(job)
        try:
            plan, digest = plans.read(folder, None)
            _check_names(folder, plan)
        except (MusterError, OSError) as error:
            why = error.message if isinstance(error, MusterError) else f"{folder.plan}: {error.strerror}"
            found.problems.append(f"{job} has no row in the new store, its plan cannot be used: {why}")
            continue
        if not _is_as_digested(plan):
            found.problems.append(f"{job}: its plan is damaged, or an older version's: look at it before you resume it")
        found.jobs.append(_job(found, folder, plan, digest, farm))
    return found


def _check_names(folder: JobFolder, plan: Plan) -> None:
    """Nothing holds the plan to a digest any more, and its layers' names become paths."""
    from muster.jobs.common.names import is_digest, is_layer

    if not all(is_layer(layer.name) and is_digest(layer.digest) for layer in plan.layers):
        raise plans.damaged(folder, "it has layers that cannot be")


def _is_as_digested(plan: Plan) -> bool:
    """Whether what the layers' results depend on has the digests that they go by; of made ones nobody can tell."""
    from muster.jobs.contract.plan import MadeSource
    from muster.jobs.job_file.digest import layer_digest

    return all(
        isinstance(one.source, MadeSource)
        or layer_digest(plan.work_of(one), one.name, one.source, one.shard_rows, one.only) == one.digest
        for one in plan.layers
    )


def _job(found: Found, folder: JobFolder, plan: Plan, digest: str, farm: str) -> FoundJob:
    from muster.coordinator.daemon.store.rebuilt_rows import FoundJob

    created = folder.plan.stat().st_mtime
    results = {layer.digest: one for layer in plan.layers if (one := _result(found, folder, layer))}
    bundles = tuple(_bundles(found, folder, farm))
    return FoundJob(folder.path.name, plan, digest, created, bundles, results)


def _result(found: Found, folder: JobFolder, layer: Layer) -> FoundResult | None:
    """A merged layer that is whole. Of any other the manifest is set aside: the layer is computed again."""
    from muster.coordinator.daemon.store.rebuilt_rows import FoundResult
    from muster.jobs.parts.manifest import MANIFEST, read_manifest
    from muster.jobs.results.open_result import verify_layer

    place = folder.result / layer.name
    file = place / MANIFEST
    if not file.exists():
        return None
    if problems := verify_layer(place, folder.path.name, layer):
        found.problems.append(f"{folder.path.name}/{layer.name} is computed again: {problems[0]}")
        found.aside.append((file, _aside(folder, file)))
        return None
    manifest = read_manifest(place)
    outputs = layer.outputs if layer.outputs is not None else tuple(map(_output, manifest.outputs))
    return FoundResult(of_bytes(file.read_bytes()), outputs, manifest.fingerprints, file.stat().st_mtime)


def _output(product: Product) -> Output:
    """What a layer that declared none must have had. No such output is a sum."""
    from muster.jobs.contract.plan import Output
    from muster.jobs.parts.part_file import BYTES

    if product.form == "files":
        return Output(product.name, "files", BYTES)
    last = product.files[-1]
    return Output(product.name, product.form, last.dtype, last.shape[0 if product.form == "sum" else 1 :])


def _bundles(found: Found, folder: JobFolder, farm: str) -> Iterator[FoundBundle]:
    from muster.coordinator.daemon.store.rebuilt_rows import FoundBundle
    from muster.jobs.common.ranges import RangeSet
    from muster.jobs.parts.part_file import check_body, read_index

    found.boots += [order[0] for place in (folder.bundles, folder.rounds) for _, order in _named(place)]
    for path, order in _named(folder.bundles):
        try:
            index = read_index(path)
            check_body(path, index)
            if index.farm != farm:
                raise DamagedError(f"{path.name}: of another farm")
        except (DamagedError, OSError) as error:
            found.problems.append(f"{folder.path.name}: a bundle is damaged, its shards run again: {error}")
            continue
        yield FoundBundle(
            file=path.name,
            order=order,
            layer=index.layer,
            numbers=RangeSet.of(entry.number for entry in index.entries),
            outputs=index.outputs,
            fingerprint=index.fingerprint,
            agents=frozenset(entry.agent for entry in index.entries),
            boots=frozenset(entry.boot for entry in index.entries),
            nbytes=path.stat().st_size,
            body=index.body_bytes,
            at=path.stat().st_mtime,
        )


def _named(folder: Path) -> list[tuple[Path, tuple[int, int]]]:
    """Bundles by the start of the daemon and the number in it, the lowest first."""
    matched = [(path, _BUNDLE.fullmatch(path.name)) for path in _entries(folder)]
    return sorted(
        ((path, (int(match[1]), int(match[2]))) for path, match in matched if match), key=lambda named: named[1]
    )


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _without_rows(root: Root, rows: StoreRows) -> Iterator[tuple[Path, Path]]:
    """Whatever lies among the bundles and has no row: the next start would delete it."""
    for job in rows.jobs:
        folder = root.job(job.found.id)
        counted = {bundle.file for layer in job.layers for bundle in layer.bundles}
        for path in _entries(folder.bundles):
            if path.name not in counted:
                yield path, _aside(folder, path)


def _aside(folder: JobFolder, path: Path) -> Path:
    return folder.path / ASIDE / path.relative_to(folder.path)


def page(found: Found, rows: StoreRows, kept: Path | None) -> str:
    """What came of it, for people."""
    lines = [*found.problems, *(line for job in rows.jobs for line in _told(job))]
    lines.append(LOST)
    if kept is not None:
        lines.append(f"the old store is {kept}")
    paused = [job.found.id for job in rows.jobs if job.state == "paused"]
    lines.append(f"a new store with {counted(len(rows.jobs), 'job')}, {len(paused)} of them paused")
    if paused:
        lines.append(
            f"start the coordinator, then `coordinator resume JOB` for each that is to go on: {' '.join(paused)}"
        )
    return "\n".join(lines)


def _told(rows: JobRows) -> Iterator[str]:
    merged = sum(layer.state == "merged" for layer in rows.layers)
    shards = sum(len(layer.committed) for layer in rows.layers)
    yield (
        f"{rows.found.id}: {rows.state}, {merged} of {counted(len(rows.layers), 'layer')} merged,"
        f" {counted(shards, 'shard')} of others committed"
    )
    yield from (f"{rows.found.id}: {file} is set aside: {why}" for file, why in rows.left_out.items())
    if rows.found.plan.driven and rows.state != "complete":
        rounds = rows.layers[0].layer.delivery.in_rounds
        yield f"{rows.found.id}: goes on from its last checkpoint" if rounds else f"{rows.found.id}: begins anew"
