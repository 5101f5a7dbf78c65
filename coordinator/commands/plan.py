"""`coordinator plan`: what a job would be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import click

from coordinator import ask, render
from coordinator import root as roots
from coordinator.admin import Agents, AgentsAsk, AgentStatus, JobStatus, Status, StatusAsk
from coordinator.commands.options import example, job_file_argument, json_option, root_option, say, say_json
from coordinator.root import Root
from jobs.errors import MusterError


class Known(NamedTuple):
    """What the farm tells of itself; nothing where no coordinator runs."""

    agents: list[AgentStatus]
    jobs: list[JobStatus]
    free: int | None


@click.command(epilog=example("coordinator plan job.yaml"))
@job_file_argument
@root_option
@json_option
def command(job_file: Path, root: Path | None, as_json: bool) -> None:
    """Check a job file and show its layers, its shards, the space and the time it needs.

    Starts nothing, and needs no coordinator; with one, earlier jobs tell how long it would take.
    """
    from coordinator.forecast import forecast
    from coordinator.planning import plan_file

    plan = plan_file(job_file).plan
    known = ask_farm(roots.find(root))
    seen = forecast(plan, known.agents, known.jobs, known.free)
    if as_json:
        say_json(seen)
    else:
        say(render.forecast_page(seen))


def ask_farm(root: Root) -> Known:
    free = shutil.disk_usage(root.path).free if root.path.is_dir() else None
    try:
        with ask.line(root) as line:
            agents = line.ask(AgentsAsk(), Agents).agents
            return Known(agents, line.ask(StatusAsk(), Status).jobs, free)
    except MusterError:  # planning needs none of it
        return Known([], [], free)
