"""What there is of jobs to be reported: figures from the daemon, or from its file where none serves; plans; kinds.

Reads only. Imports numpy no sooner than a kind asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from muster import VERSION
from muster.coordinator.api.figures import Figures, JobFiguresKept, MachineFigures
from muster.coordinator.api.requests import FiguresAsk
from muster.coordinator.farm_root import ask_daemon, figures_file
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.report.advice import advice
from muster.coordinator.report.measures import report_of
from muster.coordinator.report.values import JobReport
from muster.coordinator.submission.reuse import stored_plan
from muster.jobs.common.errors import LinkError, MusterError, NoDaemonError, NotFoundError, UsageError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.contract.kind import JobPlace, KindReport
from muster.jobs.contract.plan import Plan, total_shards
from muster.jobs.kinds import registry

NO_FIGURES = "nothing was measured of it: it ran before figures were kept, or figures.sqlite was deleted"
FindJob = Callable[[Root, str], tuple[Plan, Figures, str]]  # a job's plan, and what was measured, with a note on that
LAYERS_SHOWN = 40
TEXT_BYTES = 64 << 10  # of a job file


@dataclass(frozen=True)
class LayerMade:
    """A layer of a plan, for people."""

    name: str
    digest: str
    shards: int
    rows: int


@dataclass(frozen=True)
class Made:
    """How a job was made."""

    job_file: str
    plan: str  # digest of the plan's file; "" where it is not known
    kind: str
    kernel: int
    params: str  # as JSON
    layers: Sequence[LayerMade]
    layers_total: int
    shards: int
    fingerprints: Sequence[str]  # of what computed its merged layers


@dataclass(frozen=True)
class Gathered:
    """Jobs of one kind, in the order in which they were named."""

    kind: str
    reports: Sequence[JobReport]
    made: Sequence[Made]
    own: KindReport | None  # what is the kind's own; None where there is nothing yet
    why_not: str = ""  # why there is not


def gather(
    root: Root, named: Sequence[str], target: float | None, timeline: bool, find: FindJob | None = None
) -> Gathered:
    """A UsageError where jobs are of different kinds. `find`: who knows of jobs, where not as ever."""
    jobs = list(dict.fromkeys(roots.resolve_job(root, job) for job in named))
    found = {job: (find or asked)(root, job) for job in jobs}
    plans = {job: plan for job, (plan, *_) in found.items()}
    kinds = sorted({plan.work.kind for plan in plans.values()})
    if len(kinds) > 1:
        raise UsageError(f"jobs of different kinds: {', '.join(kinds)}", "name jobs of one kind")
    reports = [_measured(root, job, *found[job], timeline) for job in jobs]
    own, why_not = _own(root, kinds[0], jobs, target)
    if own is not None:
        for report, value in zip(reports, own.values, strict=True):
            report.effect.of_kind = value if value.__struct_fields__ else None
    return Gathered(kinds[0], reports, [_made(root, job, plans[job]) for job in jobs], own, why_not)


def document(gathered: Gathered, curves: bool = False) -> dict[str, Any]:
    """What `--json` prints. Fields of a kind that others have as well stand where those have them."""
    jobs = [msgspec.to_builtins(report) for report in gathered.reports]
    for job in jobs:
        if job["timeline"] is None:
            del job["timeline"]
    parts = {"curves": gathered.own.curves()} if curves and gathered.own is not None else {}
    return {"version": VERSION, "generated": time.time(), "jobs": jobs, **parts}


def _own(root: Root, kind: str, jobs: Sequence[str], target: float | None) -> tuple[KindReport | None, str]:
    places = {job: JobPlace(root.job(job).result, root.job(job).checkpoints) for job in jobs}
    try:
        return registry.load(kind).report(places, target), ""
    except NotFoundError as error:
        return None, f"{error.message}: {error.hint}"


# --- what was measured ----------------------------------------------------------------------------------------


def _measured(root: Root, job: str, plan: Plan, figures: Figures, note: str, timeline: bool) -> JobReport:
    notes = [note] if note else []
    record = figures.job or JobFiguresKept(job, plan.work.kind, state="unknown", created=_created(root, job))
    if figures.job is None:
        notes.append(NO_FIGURES)
    if figures.trouble:
        notes.append(f"measurements are not written now: {figures.trouble}")
    report = report_of(record, figures.machines, plan.work.memory, timeline)
    report.notes += notes
    report.advice = advice(report, record.spread, is_cut=not plan.driven)
    return report


def asked(root: Root, job: str) -> tuple[Plan, Figures, str]:
    """What the daemon knows; where none serves the root, what it wrote last, with a note of that."""
    plan = stored_plan(root, job)
    try:
        return plan, ask_daemon.ask(root, FiguresAsk(job), Figures), ""
    except (NoDaemonError, LinkError) as error:
        return plan, *kept_figures(root, job, error.message)


def kept_figures(root: Root, job: str, why: str) -> tuple[Figures, str]:
    """What the daemon wrote last, and that this is so, and why."""
    found = figures_file.read(root.figures, job)
    machines: list[MachineFigures] = found[1] if found else []
    return Figures(found[0] if found else None, machines), f"{why}: this is what figures.sqlite in the root had last"


def _created(root: Root, job: str) -> float:
    try:
        return root.job(job).plan.stat().st_mtime
    except OSError:
        return 0.0


# --- how it was made ------------------------------------------------------------------------------------------


def _made(root: Root, job: str, plan: Plan) -> Made:
    layers = [LayerMade(layer.name, layer.digest, layer.count, layer.rows) for layer in plan.layers[:LAYERS_SHOWN]]
    return Made(
        job_file=_bytes(root.job(job).job_file, TEXT_BYTES).decode(errors="replace"),
        plan=of_bytes(written) if (written := _bytes(root.job(job).plan)) else "",
        kind=plan.work.kind,
        kernel=plan.work.kernel,
        params=msgspec.json.encode(plan.work.params).decode(),
        layers=layers,
        layers_total=len(plan.layers),
        shards=total_shards(plan),
        fingerprints=_fingerprints(root.job(job).result, [layer.name for layer in plan.layers[:LAYERS_SHOWN]]),
    )


def _bytes(path: Path, most: int = -1) -> bytes:
    """Nothing of a file that cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(most)
    return b""


def _fingerprints(result: Path, layers: Sequence[str]) -> list[str]:
    from muster.jobs.parts.manifest import read_manifest

    found: dict[str, None] = {}
    for layer in layers:
        try:
            found.update(dict.fromkeys(read_manifest(result / layer).fingerprints))
        except (MusterError, OSError, ValueError):
            continue
    return list(found)
