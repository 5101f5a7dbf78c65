"""What there is of a job that lacks shards, merged into a folder of its own. Only reads the store, the bundles and the
result; asks the daemon where the bundles are, or the store where none serves.

Order, each step safe to die after: links to the bundles in a locked folder of ROOT/tmp, so that a merge meanwhile takes
none of them away → each layer merged, durable, in a locked folder on the target's file system → the target's name and
that folder's exchanged → what the target was before deleted. Folders of the dead are swept: of ROOT/tmp by the daemon,
beside a target by the next who comes for it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from muster.coordinator.farm_root import ask_daemon, plans
from muster.coordinator.farm_root.paths import JobFolder, Root
from muster.coordinator.farm_root.submission_folders import locked_folder, sweep
from muster.coordinator.result_downloads.file_server import layers_of
from muster.jobs.common.durable import naming_space, replace_folder, sync_tree, write_durably
from muster.jobs.common.errors import IncompleteError, LinkError, NoDaemonError, RefusedError, SpaceError
from muster.jobs.common.units import shortage
from muster.jobs.contract.plan import ItemsSource, Layer, Plan
from muster.jobs.parts.manifest import MANIFEST, Partial, link_files, read_manifest

if TYPE_CHECKING:
    from muster.jobs.results.bundle_index import DamagedBundle, Survey

MARK = ".partial.json"  # in a folder that we made, and that may be replaced
TRIES = 10  # to find all bundles in their place, while they are merged or taken back

Take = Callable[[Path, Path], object]  # a merged layer's folder, and where it is to be had


class LayerPart(msgspec.Struct, frozen=True):
    """What there is of a layer that is not merged."""

    layer: str
    shards: int
    missing_shards: int
    rows: int
    missing_rows: int


class PartialResult(msgspec.Struct, frozen=True):
    """What `result --partial --json` prints, and the mark of the folder."""

    job: str
    farm: str
    path: str
    layers: list[str]  # that are in the folder, merged ones as they are
    missing: list[str]  # of which no shard is committed
    parts: list[LayerPart]  # of the layers that are not merged
    damaged: list[str]  # bundles that were left out, and why


@dataclass(frozen=True)
class _Found:
    """Where everything is: the layers that are merged, and the bundles of the others."""

    merged: tuple[str, ...]
    bundles: dict[str, list[Path]]  # by layer


def make(root: Root, job: str, target: Path | None = None, take: Take | None = None) -> PartialResult:
    """Merge what there is into `partial/` of the job, or `target`, in place of what this made there before. `take`: how
    the result of a merged layer gets there, by default as hard links."""
    folder = root.job(job)
    plan = plans.load(folder)
    _refuse_rounds(job, folder, plan)
    final = target.absolute() if target else folder.partial
    _refuse_others(root, folder, final)
    try:
        with _workplace(root, final if target else None) as (links, made), naming_space(final):
            found = _found(folder, plan, links)
            answer = _Maker(root, job, plan, made, take or _link).made(found, str(final))
            write_durably(made / MARK, msgspec.json.encode(answer))
            sync_tree(made)
            replace_folder(made, final)
    except OSError as error:
        why = f"a partial result cannot be made: {error.filename or final}: {error.strerror}"
        raise RefusedError(why, "name a folder you may write to" if target else "see what ails the root") from None
    return answer


def _refuse_rounds(job: str, folder: JobFolder, plan: Plan) -> None:
    if any(layer.delivery.in_rounds for layer in plan.layers):
        hint = f"`coordinator report {job}` says how it went so far; its checkpoints are in {folder.checkpoints}"
        raise RefusedError(f"{job} has no rows to be had in part: a {plan.work.kind} computes in rounds", hint)


def _refuse_others(root: Root, folder: JobFolder, final: Path) -> None:
    """A folder that is somebody's is not replaced."""
    if final != folder.partial and final.resolve().is_relative_to(root.path.resolve()):
        raise RefusedError(f"{final} is inside the farm's root", "name a folder elsewhere")
    try:
        names = [path.name for path in final.iterdir()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise RefusedError(f"{final}: {error.strerror}", "name a folder that is not there yet") from None
    if names and MARK not in names:
        raise RefusedError(f"{final} has something else in it", "name a folder that is not there yet, or an empty one")


@contextmanager
def _workplace(root: Root, target: Path | None) -> Iterator[tuple[Path, Path]]:
    """A folder for links to bundles, and one on the target's file system in which the result is made."""
    with locked_folder(root.tmp) as links:
        try:
            if target is None:
                (links / "made").mkdir()
                yield links, links / "made"
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            prefix = f".{target.name}.part-"
            with locked_folder(target.parent, prefix) as beside:
                try:
                    sweep(target.parent, beside, prefix=prefix)
                    (beside / "made").mkdir()
                    yield links, beside / "made"
                finally:
                    shutil.rmtree(beside, ignore_errors=True)
        finally:
            shutil.rmtree(links, ignore_errors=True)


def _link(there: Path, here: Path) -> None:
    """A merged layer, its manifest last."""
    here.mkdir(parents=True, exist_ok=True)
    link_files(read_manifest(there), there, here)
    os.link(there / MANIFEST, here / MANIFEST)


# --- what there is ------------------------------------------------------------------------------------------


def _found(folder: JobFolder, plan: Plan, links: Path) -> _Found:
    """The bundles as links of our own. One that is gone was merged meanwhile, or taken back, and all is asked anew; one
    that is gone although it counts still, the second time, is lost."""
    lost: set[str] = set()
    for _ in range(TRIES):
        merged, _missing = layers_of(folder, plan)
        counted = {name: files for name, files in plans.bundles(folder, plan).items() if name not in set(merged)}
        gone = {file for files in counted.values() for file in files if not _linked(folder.bundles / file, links)}
        if gone <= lost:
            bundles = {name: [links / file for file in files] for name, files in counted.items() if files}
            return _Found(tuple(merged), bundles)
        lost = gone
    raise RefusedError(f"bundles of {folder.path.name} come and go", "ask again in a moment")


def _linked(bundle: Path, links: Path) -> bool:
    try:
        os.link(bundle, links / bundle.name)
    except FileExistsError:
        return True
    except FileNotFoundError:
        return False
    return True


# --- merging it ---------------------------------------------------------------------------------------------


class _Maker:
    """Puts one partial result together."""

    def __init__(self, root: Root, job: str, plan: Plan, made: Path, take: Take) -> None:
        self._root, self._job, self._plan, self._made, self._take = root, job, plan, made, take
        self._damaged: list[str] = []

    def made(self, found: _Found, path: str) -> PartialResult:
        from muster.jobs.results.merge import bytes_of

        surveys = {layer.name: self._survey(layer, found.bundles.get(layer.name, [])) for layer in self._plan.layers}
        there = {name: survey for name, survey in surveys.items() if survey.present}
        self._check_room(sum(map(bytes_of, there.values())) + self._copied(found.merged))
        parts = []
        for layer in self._plan.layers:  # by name, so that a layer below another one comes later
            if layer.name in found.merged:
                self._take_merged(layer.name)
            elif layer.name in there:
                parts += self._merge(layer, found.bundles[layer.name], there[layer.name])
        names = [layer.name for layer in self._plan.layers]
        here = {*found.merged, *(part.layer for part in parts)}
        if not here:
            why = "; ".join(self._damaged) or f"`coordinator status {self._job}` says how far it is"
            raise IncompleteError(f"nothing of {self._job} is committed that can be read", why)
        return PartialResult(
            job=self._job,
            farm=self._root.farm,
            path=path,
            layers=[name for name in names if name in here],
            missing=[name for name in names if name not in here],
            parts=parts,
            damaged=self._damaged,
        )

    def _survey(self, layer: Layer, bundles: list[Path]) -> Survey:
        """Of the bundles that can be read; the others go from `bundles`, and their shards are missing."""
        from muster.jobs.results.merge import DamagedBundle, survey_partly

        while True:
            try:
                return survey_partly(self._counted(layer, bundles), bundles)
            except DamagedBundle as error:
                self._leave_out(layer, bundles, error)

    def _counted(self, layer: Layer, bundles: Sequence[Path]) -> Layer:
        """A made layer has grown since it was planned: up to its last shard that is committed."""
        from muster.jobs.results.merge import last_shard

        return msgspec.structs.replace(layer, count=last_shard(bundles) + 1) if layer.made else layer

    def _leave_out(self, layer: Layer, bundles: list[Path], error: DamagedBundle) -> None:
        bundles.remove(error.path)
        self._damaged.append(f"{layer.name}: {error.message}")

    def _merge(self, layer: Layer, bundles: list[Path], survey: Survey) -> list[LayerPart]:
        """The layer, unless nothing of it can be read."""
        from muster.jobs.results.merge import DamagedBundle, merge_partly

        items = self._root.job(self._job).items if isinstance(layer.source, ItemsSource) else None
        folder = self._made / layer.name
        while survey.present:
            folder.mkdir(parents=True)
            try:
                return [_said_of(merge_partly(survey, folder, job=self._job, items=items))]
            except DamagedBundle as error:  # its index was well, and its bytes are not
                self._leave_out(layer, bundles, error)
                shutil.rmtree(folder)
                survey = self._survey(layer, bundles)
        return []

    def _take_merged(self, name: str) -> None:
        try:
            self._take(self._root.job(self._job).result / name, self._made / name)
        except (FileNotFoundError, IncompleteError):
            raise RefusedError(f"layer {name} was taken back meanwhile", "ask again") from None

    def _copied(self, merged: Sequence[str]) -> int:
        """Bytes of merged layers that are to be had as copies."""
        if self._take is _link:
            return 0
        return sum(read_manifest(self._root.job(self._job).result / name).nbytes for name in merged)

    def _check_room(self, wanted: int) -> None:
        """Before anything is written; what is promised to jobs is theirs."""
        room = shutil.disk_usage(self._made).free
        if self._made.stat().st_dev == self._root.path.stat().st_dev:
            with suppress(NoDaemonError, LinkError):
                room = min(room, ask_daemon.room(self._root))
        if wanted > room:
            raise SpaceError(shortage(f"what there is of {self._job}", wanted, room, f"in {self._made.parent.parent}"))


def _said_of(merged: Partial) -> LayerPart:
    gone = sum(stop - start for start, stop in merged.missing_rows)
    return LayerPart(merged.layer, merged.shards, merged.missing_shards, merged.rows, gone)
