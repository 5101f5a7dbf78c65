"""`coordinator agents`: the machines of the farm."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import AgentsAsk, StatusAsk
from muster.coordinator.api.status import Agents, Status
from muster.coordinator.commands.options import farm_option, json_option, plain, say, say_json
from muster.coordinator.display import agents, colours
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.submission import makespan
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator agents"))
@farm_option
@json_option
def command(root: Path | None, as_json: bool) -> None:
    """List the machines: their state, their work, what they cannot run and why.

    A machine of which nothing was heard for a quarter of its lease is shown as silent. Agents that together lend more
    processors than their machine has are named. For machines that pull their inputs it also says how fast these come,
    and how long each running job takes with and without them, reckoned from what was measured.
    """
    found = roots.existing(root)
    with ask_daemon.line(found) as line:
        answer = line.ask(AgentsAsk(), Agents)
        jobs = line.ask(StatusAsk(), Status).jobs if not all(agent.in_place for agent in answer.agents) else []
    if as_json:
        adds = {job.id: makespan.payoffs_now(job, answer.agents) for job in jobs if job.state == "running"}
        say_json({**plain(answer), "adds": plain(adds)})
    elif answer.agents:
        lines = [agents.agents_table(answer.agents, answer.now), *agents.payoffs_of_jobs(jobs, answer.agents)]
        say(colours.joined("\n", lines))
    else:
        say(agents.no_machines(found.path))
