"""`coordinator plan`: what a job would be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from muster.coordinator.api.requests import AgentsAsk, StatusAsk
from muster.coordinator.api.status import Agents, AgentStatus, JobStatus, Status
from muster.coordinator.commands.farm_meant import handed_over, reached
from muster.coordinator.commands.options import json_option, place_options, plain, reuse_options, say, say_json
from muster.coordinator.display import forecasts, tables
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import MusterError, UsageError
from muster.jobs.common.locations import Host

if TYPE_CHECKING:
    from muster.coordinator.submission.reuse import Wish
    from muster.jobs.contract.plan import Plan


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
@place_options
@json_option
def command(
    job_file: Path | None,
    old: str | None,
    layers: tuple[str, ...],
    sets: tuple[str, ...],
    place: Host | Path | None,
    as_json: bool,
) -> int:
    """Check a job file and show its layers, its shards, the space and the time it needs.

    It starts nothing and needs no coordinator. If one runs, earlier jobs tell how long the job would take. With --from
    it says for each layer whether it would be taken over from that job, and if not, why. `coordinator try` runs a few
    of its shards.

    Of a farm elsewhere (--at me@server) a job file is planned here, for the machines there.
    """
    from muster.coordinator.submission.reuse import Wish, planned

    if isinstance(place, Host):
        return _plan_far(place, job_file, old, Wish(layers, sets), as_json)
    if old is not None:
        return _plan_from(roots.existing(place), old, job_file, Wish(layers, sets), as_json)
    if job_file is None:
        raise UsageError("plan wants a job file, or --from and an earlier job", "see `coordinator plan --help`")
    found = roots.find(place)
    return _say_forecast(planned(job_file, Wish(layers, sets), found).plan, ask_farm(found), as_json)


def _plan_far(host: Host, job_file: Path | None, old: str | None, wish: Wish, as_json: bool) -> int:
    from muster.coordinator.client.backends.remote import RemoteBackend
    from muster.coordinator.submission.reuse import planned

    if job_file is None:
        return handed_over(host)
    if old is not None:
        raise UsageError("--from and a job file are planned where the earlier job is", "leave the job file out")
    farm = RemoteBackend(reached(host))
    return _say_forecast(planned(job_file, wish).plan, Known(farm.agents(), farm.status(None).jobs, None), as_json)


def _say_forecast(plan: Plan, known: Known, as_json: bool) -> int:
    from muster.coordinator.submission.forecast import forecast

    seen = forecast(plan, known.agents, known.jobs, known.free)
    if as_json:
        say_json(seen)
    else:
        say(forecasts.forecast_page(seen))
    return 0


def _plan_from(root: Root, old: str, job_file: Path | None, wish: Wish, as_json: bool) -> int:
    """Only what is computed counts in the forecast; the exit code."""
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
        return 0
    rows = [(tables.short(one.layer), "reused" if one.reused else "computed", one.why) for one in fates]
    say(tables.table(("LAYER", "IS", "BECAUSE"), rows) + "\n\n" + forecasts.forecast_page(seen))
    return 0


def ask_farm(root: Root) -> Known:
    free = shutil.disk_usage(root.path).free if root.path.is_dir() else None
    try:
        with ask_daemon.line(root) as line:
            agents = line.ask(AgentsAsk(), Agents).agents
            return Known(agents, line.ask(StatusAsk(), Status).jobs, free)
    except MusterError:  # planning needs none of it
        return Known([], [], free)
