"""Names of jobs and machines for a shell that completes a word: quick, and without a word where there is no answer."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from muster.coordinator.api.requests import AgentsAsk
from muster.coordinator.api.status import Agents
from muster.coordinator.commands.farm_meant import farm_meant
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.ask_daemon import DaemonConnection
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.errors import MusterError, NotFoundError
from muster.jobs.common.locations import Host
from muster.jobs.common.names import ALL_JOBS, LAST_JOB, is_job, split_job_id

ANSWER_SECONDS = 0.3  # somebody waits with a finger on the key
PRESENT = {"live", "draining"}


def job(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """One job: ids and names, by their folders, so that no coordinator is needed."""
    try:
        ids = [entry.name for entry in _root(context).jobs.iterdir() if is_job(entry.name)]
    except (MusterError, OSError):
        return []
    names = {split_job_id(one)[0] for one in ids}
    return [word for word in (*sorted(names), *sorted(ids), LAST_JOB) if word.startswith(begun)]


def jobs(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """One of several jobs; none that stands there already."""
    named: Any = context.params.get(parameter.name or "") or ()
    found = [*job(context, parameter, begun), *([ALL_JOBS] if ALL_JOBS.startswith(begun) else [])]
    return [word for word in found if word not in named]


def agent(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """A machine that is here, as the coordinator knows them."""
    try:
        with closing(DaemonConnection(ask_daemon.connect(_root(context)))) as line:
            line.begin(AgentsAsk())
            answer = line.answered(Agents, ANSWER_SECONDS)
    except (MusterError, OSError):
        return []
    known = answer.agents if answer is not None else []
    return sorted(one.name for one in known if one.state in PRESENT and one.name.startswith(begun))


def agent_or_job(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    return [*agent(context, parameter, begun), *job(context, parameter, begun)]


def _root(context: click.Context) -> Root:
    """A farm elsewhere is not asked: that takes longer than a finger waits."""
    place = farm_meant(context.params.get("at"), context.params.get("root"))
    if isinstance(place, Host):
        raise NotFoundError(f"{place} is not asked for names")
    return roots.find(place)
