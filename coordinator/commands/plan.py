"""`coordinator plan`: what a job would be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from muster.coordinator.api.requests import AgentsAsk, StatusAsk
from muster.coordinator.api.status import Agents, AgentStatus, JobStatus, Status
from muster.coordinator.commands.options import json_option, plain, reuse_options, root_option, say, say_json
from muster.coordinator.display import forecasts, tables
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import MusterError, UsageError

if TYPE_CHECKING:
    from muster.coordinator.submission.reuse import Wish


class Known(NamedTuple):
    """What the farm tells of itself; nothing where no coordinator runs."""

    agents: list[AgentStatus]
    jobs: list[JobStatus]
    free: int | None


@click.command(
    epilog=example(
        "coordinator plan job.yaml", "coordinator plan --from weights.1 --layers 'conv3*' --set n_clusters=256"
    )
)
@click.argument("job_file", metavar="[job.yaml]", type=click.Path(path_type=Path), required=False)
@reuse_options
@root_option
@json_option
def command(
    job_file: Path | None,
    old: str | None,
    layers: tuple[str, ...],
    sets: tuple[str, ...],
    root: Path | None,
    as_json: bool,
) -> None:
    """Check a job file and show its layers, its shards, the space and the time it needs.

    It starts nothing and needs no coordinator. If one runs, earlier jobs tell how long the job would take. With --from
    it says for each layer whether it would be taken over from that job, and if not, why. `coordinator try` runs a few
    of its shards.
    """
    from muster.coordinator.submission.forecast import forecast
    from muster.coordinator.submission.reuse import Wish, planned

    if old is not None:
        _plan_from(roots.existing(root), old, job_file, Wish(layers, sets), as_json)
        return
    if job_file is None:
        raise UsageError("plan wants a job file, or --from and an earlier job", "see `coordinator plan --help`")
    found = roots.find(root)
    plan = planned(job_file, Wish(layers, sets), found).plan
    known = ask_farm(found)
    seen = forecast(plan, known.agents, known.jobs, known.free)
    if as_json:
        say_json(seen)
    else:
        say(forecasts.forecast_page(seen))


def _plan_from(root: Root, old: str, job_file: Path | None, wish: Wish, as_json: bool) -> None:
    """Only what is computed counts in the forecast."""
    import msgspec

    from muster.coordinator.submission import reuse
    from muster.coordinator.submission.forecast import forecast

    job = roots.resolve_job(root, old)
    plan = reuse.planned_from(root, job, job_file, wish).plan
    fates = reuse.fates(root, job, plan)
    left = [layer for layer, fate in zip(plan.layers, fates, strict=True) if not fate.reused]
    known = ask_farm(root)
    seen = forecast(msgspec.structs.replace(plan, layers=tuple(left)), known.agents, known.jobs, known.free)
    if as_json:
        say_json({**plain(seen), "fates": [plain(fate) for fate in fates]})
        return
    rows = [(tables.short(one.layer), "reused" if one.reused else "computed", one.why) for one in fates]
    say(tables.table(("LAYER", "IS", "BECAUSE"), rows) + "\n\n" + forecasts.forecast_page(seen))


def ask_farm(root: Root) -> Known:
    free = shutil.disk_usage(root.path).free if root.path.is_dir() else None
    try:
        with ask_daemon.line(root) as line:
            agents = line.ask(AgentsAsk(), Agents).agents
            return Known(agents, line.ask(StatusAsk(), Status).jobs, free)
    except MusterError:  # planning needs none of it
        return Known([], [], free)
