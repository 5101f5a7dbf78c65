"""A farm's earlier jobs, by which a new one is cut: layers that are the same, and what rows took. Only reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import JobStatus, Status
from muster.coordinator.farm_root import ask_daemon, plans, tried_rows
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.errors import MusterError
from muster.jobs.contract.kind import EarlierJob, JobPlace
from muster.jobs.contract.plan import ArraySource, ItemsSource, Layer, Plan, Work, decode_plan
from muster.jobs.contract.shard_size import RowCost
from muster.jobs.contract.states import STANDING
from muster.jobs.job_file.cut_layers import Precedents, SameLayer
from muster.jobs.job_file.digest import cost_digest, layer_digest
from muster.jobs.parts.manifest import read_manifest

PLANS = 200  # of the newest jobs, that are looked at
PLANS_BYTES = 64 << 20  # of them together
TABLES = 8  # of merged layers that are looked at for what rows took
UNWANTED = ("cancelled", "damaged")  # states of jobs whose layers count only where they are merged


class _Earlier(NamedTuple):
    job: str
    plan: Plan
    layer: Layer


class EarlierJobs(Precedents):
    """Of one root, which need not exist. `first`: a job that is looked at in any case, and before all others."""

    def __init__(self, root: Root, first: str | None = None) -> None:
        self._root = root
        self._first = first
        self._cost_digests: dict[Hashable, str] = {}  # of layers whose rows are alike

    def same_layer(self, work: Work, name: str, source: ArraySource | ItemsSource) -> SameLayer | None:
        for job, _, layer in self._by_source.get(_identity(name, source), []):
            same = layer_digest(work, name, layer.source, layer.shard_rows) == layer.digest
            if same and (self._state(job) not in UNWANTED or is_merged(self._root, job, layer)):
                cuts = layer.source.cuts if isinstance(layer.source, ItemsSource) else b""
                return SameLayer(job, layer.shard_rows, layer.in_bytes, cuts)
        return None

    def row_cost(self, work: Work, source: ArraySource | ItemsSource) -> RowCost | None:
        wanted = cost_digest(work, source)
        for job, plan in self._plans.items():
            if (plan.work.kind, plan.work.code) != (work.kind, work.code):
                continue
            alike = [layer for layer in plan.layers if self._cost_digest(job, plan, layer) == wanted]
            seconds = self._merged_seconds(job, alike) if alike else None
            if seconds is None and len(alike) == len(plan.layers):
                seconds = self._told_seconds(job)
            if seconds:
                return RowCost(seconds, f"as in {job}")
        tried = tried_rows.found(self._root, wanted)
        return RowCost(tried.seconds, "as `coordinator try` measured") if tried else None

    def job(self, name: str) -> EarlierJob | None:
        found = roots.resolve_job(self._root, name)
        folder, work = self._root.job(found), plans.load(self._root.job(found)).work
        model = work.model.digest if work.model is not None else None
        stands = self._state(found) in {"", *STANDING}
        return EarlierJob(found, work.kind, stands, model, JobPlace(folder.result, folder.checkpoints))

    # --- what is there -----------------------------------------------------------------------------------

    @cached_property
    def _plans(self) -> dict[str, Plan]:
        """By job, the newest first. One that cannot be read is of no use here; others say so."""
        found: dict[str, Plan] = {}
        left = PLANS_BYTES
        for path, size in self._plan_files():
            left -= size
            if found and (left < 0 or len(found) >= PLANS):
                break
            try:
                found[path.parent.name] = decode_plan(path.read_bytes())
            except (OSError, MusterError):
                continue
        return found

    def _plan_files(self) -> list[tuple[Path, int]]:
        """With their sizes; a plan's file is written once."""
        files = []
        for path in self._root.jobs.glob("*/plan.msgpack"):
            try:
                status = path.stat()
            except OSError:
                continue
            files.append((path.parent.name == self._first, status.st_mtime_ns, path, status.st_size))
        return [(path, size) for _, _, path, size in sorted(files, reverse=True)]

    @cached_property
    def _by_source(self) -> dict[Hashable, list[_Earlier]]:
        found: dict[Hashable, list[_Earlier]] = {}
        for earlier in self._layers():
            if isinstance(earlier.layer.source, ArraySource | ItemsSource):
                found.setdefault(_identity(earlier.layer.name, earlier.layer.source), []).append(earlier)
        return found

    def _layers(self) -> Iterator[_Earlier]:
        for job, plan in self._plans.items():
            yield from (_Earlier(job, plan, layer) for layer in plan.layers)

    @cached_property
    def _statuses(self) -> dict[str, JobStatus]:
        """As the daemon tells; nothing where none serves."""
        try:
            return {status.id: status for status in ask_daemon.ask(self._root, StatusAsk(), Status).jobs}
        except MusterError:
            return {}

    def _state(self, job: str) -> str:
        return self._statuses[job].state if job in self._statuses else ""

    # --- what rows took ----------------------------------------------------------------------------------

    def _cost_digest(self, job: str, plan: Plan, layer: Layer) -> str | None:
        """Made once for all layers of a job whose rows are alike."""
        source = layer.source
        if not isinstance(source, ArraySource | ItemsSource):
            return None
        form = (source.shape[1:], source.dtype) if isinstance(source, ArraySource) else source.columns
        key = (job, form, id(layer.params) if layer.params is not None else None)
        if key not in self._cost_digests:
            self._cost_digests[key] = cost_digest(plan.work_of(layer), source)
        return self._cost_digests[key]

    def _merged_seconds(self, job: str, layers: list[Layer]) -> float | None:
        """The median of what a row took in each shard: in some of them a process started first."""
        import numpy as np

        from muster.jobs.results.open_result import open_result

        found = []
        for layer in [layer for layer in layers if is_merged(self._root, job, layer)][:TABLES]:
            try:
                shards = open_result(self._root.job(job).result / layer.name).shards
                found.append(shards["seconds"] / np.maximum(shards["rows"], 1))
            except (MusterError, OSError, ValueError, KeyError):
                continue
        return float(np.median(np.concatenate(found))) if found else None

    def _told_seconds(self, job: str) -> float | None:
        """What the daemon has measured of it, in this life, of a job that is not merged."""
        agents = self._statuses[job].agents if job in self._statuses else []
        rows = sum(agent.rows for agent in agents)
        return sum(agent.busy for agent in agents) / rows if rows else None


def _identity(name: str, source: ArraySource | ItemsSource) -> Hashable:
    """A layer's name and source but for its cut."""
    if isinstance(source, ArraySource):
        return name, source
    return name, source.folder, source.columns, source.digest


def is_merged(root: Root, job: str, layer: Layer) -> bool:
    try:
        return read_manifest(root.job(job).result / layer.name).digest == layer.digest
    except MusterError:
        return False
