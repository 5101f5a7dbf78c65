"""What a new store has of a root whose own is lost: decided from plans, bundles' headers and manifests. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from muster.coordinator.scheduler.layers import LAYERS_OPEN
from muster.jobs.common.names import split_job_id
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Layer, MadeSource, Output, Plan
from muster.jobs.contract.states import JobState, LayerState

BOOTS_MOST = 1 << 20  # more are nobody's: numbers of a round's shards begin with the start's, and end at 53 bits
BOOTS_AHEAD = 1_000  # so many starts may have left no trace; agents may hold shards that were granted in them
GO_ON = "its store was rebuilt: `coordinator resume {}` goes on with it"


@dataclass(frozen=True)
class FoundBundle:
    """A bundle whose every digest was compared."""

    file: str
    order: tuple[int, int]  # the start and the number that it is named by
    layer: str
    numbers: RangeSet
    outputs: tuple[Output, ...]
    fingerprint: str
    agents: frozenset[str]
    boots: frozenset[int]  # in which its shards were granted
    nbytes: int  # of the file
    body: int  # bytes of results in it
    at: float  # when it was written


@dataclass(frozen=True)
class FoundResult:
    """A merged layer whose files were all read and compared."""

    manifest: str  # its digest
    outputs: tuple[Output, ...]
    fingerprints: tuple[str, ...]
    at: float


@dataclass(frozen=True)
class FoundJob:
    id: str
    plan: Plan
    digest: str  # of the plan's file
    created: float
    bundles: tuple[FoundBundle, ...] = ()
    results: Mapping[str, FoundResult] = field(default_factory=dict)  # by the layer's digest


@dataclass
class LayerRows:
    layer: Layer
    state: LayerState = "waiting"
    result: FoundResult | None = None
    bundles: list[FoundBundle] = field(default_factory=list)
    committed: RangeSet = field(default_factory=RangeSet)

    @property
    def outputs(self) -> tuple[Output, ...] | None:
        """As declared; else the first bundle's."""
        first = self.bundles[0].outputs if self.bundles else None
        return self.layer.outputs if self.layer.outputs is not None else first


@dataclass
class JobRows:
    found: FoundJob
    layers: list[LayerRows]
    kernels: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # bundle → why it has no row

    @property
    def state(self) -> JobState:
        return "complete" if all(layer.state == "merged" for layer in self.layers) else "paused"

    @property
    def why(self) -> str:
        return GO_ON.format(self.found.id) if self.state == "paused" else ""

    @property
    def ended(self) -> float | None:
        times = [layer.result.at for layer in self.layers if layer.result is not None]
        return max(times, default=self.found.created) if self.state == "complete" else None


@dataclass(frozen=True)
class StoreRows:
    jobs: list[JobRows]  # in the order of their submission, as far as that is known
    numbers: dict[str, int]  # name → the last number given
    boot: int
    agents: dict[str, tuple[float, str]]  # that may be back with shards → when heard of, kernels


def rows_of(found: Iterable[FoundJob], folders: Iterable[str], boots: Iterable[int]) -> StoreRows:
    """`folders`: the ids of all jobs in the root, those whose plan cannot be read too. `boots`: starts of a daemon that
    anything in the root tells of, beside the bundles."""
    jobs = [_job_rows(job) for job in sorted(found, key=lambda job: (job.created, split_job_id(job.id)))]
    _open_layers(jobs)
    numbers: dict[str, int] = {}
    for job in folders:
        name, number = split_job_id(job)
        numbers[name] = max(numbers.get(name, 0), number or 0)
    bundles = [bundle for job in jobs for bundle in job.found.bundles]
    known = {0, *boots, *(one.order[0] for one in bundles), *(boot for one in bundles for boot in one.boots)}
    agents = {
        name: (bundle.at, bundle.fingerprint)
        for bundle in sorted(bundles, key=lambda bundle: bundle.at)
        for name in bundle.agents
    }
    return StoreRows(jobs, numbers, max(boot for boot in known if boot <= BOOTS_MOST) + BOOTS_AHEAD, agents)


def _job_rows(job: FoundJob) -> JobRows:
    """What is merged counts, and of the bundles those with shards that no lower one has."""
    rows = JobRows(job, [LayerRows(layer, result=job.results.get(layer.digest)) for layer in job.plan.layers])
    by_digest = {row.layer.digest: row for row in rows.layers}
    for row in rows.layers:
        row.state = "waiting" if row.result is None else "merged"
    if job.plan.same_kernels:
        rows.kernels = next((print_ for one in rows.layers if one.result for print_ in one.result.fingerprints), None)
    for bundle in sorted(job.bundles, key=lambda bundle: bundle.order):
        if why := _obstacle(rows, by_digest.get(bundle.layer), bundle):
            rows.left_out[bundle.file] = why
            continue
        layer = by_digest[bundle.layer]
        layer.bundles.append(bundle)
        layer.committed.update(bundle.numbers)
        if job.plan.same_kernels:
            rows.kernels = rows.kernels or bundle.fingerprint
    return rows


def _obstacle(rows: JobRows, layer: LayerRows | None, bundle: FoundBundle) -> str:
    """Why a bundle does not count; "" if it does. It counts with all of its shards or not at all, as any commit."""
    if layer is None:
        return "of no layer of the plan"
    if layer.state == "merged":
        return "merged already"
    if isinstance(layer.layer.source, MadeSource):
        return "what its shards were made of was in the lost store"
    if not bundle.numbers or bundle.numbers.top > layer.layer.count:
        return "with shards that the plan does not know"
    if layer.outputs is not None and bundle.outputs != layer.outputs:
        return "with other outputs"
    if rows.kernels is not None and bundle.fingerprint != rows.kernels:
        return "of other kernels"
    if twice := bundle.numbers & layer.committed:
        return f"shards {str(twice)[:100]} are in a lower one"
    return ""


def _open_layers(jobs: Sequence[JobRows]) -> None:
    """Agents may be back with shards of any layer that is not merged, and keep those of open ones alone. Each digest is
    open once: in the job that has some of it. The first ones of each job, as no job opens more."""
    taken: set[str] = set()
    for has_some in (True, False):
        for job in jobs:
            left = LAYERS_OPEN - sum(layer.state == "open" for layer in job.layers)
            waiting = [layer for layer in job.layers if layer.state == "waiting" and bool(layer.bundles) is has_some]
            for row in [one for one in waiting if not isinstance(one.layer.source, MadeSource)][: max(0, left)]:
                if row.layer.digest not in taken:
                    taken.add(row.layer.digest)
                    row.state = "open"
