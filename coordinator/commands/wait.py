"""`coordinator wait`: until jobs are over, without a word; how they ended is the exit code."""

from __future__ import annotations

import select
from pathlib import Path

import click

from muster.coordinator.api.status import JobStatus
from muster.coordinator.commands.chosen_jobs import NOT_OVER, choose, jobs_arguments
from muster.coordinator.commands.options import farm_option, json_option, say_json
from muster.coordinator.display import jobs as display
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import INTERRUPTED_EXIT

STDOUT = 1


@click.command(epilog=example("coordinator wait weights && next-step", "coordinator wait all"))
@jobs_arguments
@farm_option
@json_option
def command(jobs: tuple[str, ...], states: tuple[str, ...], root: Path | None, as_json: bool) -> int:
    """Wait until jobs do not go on by themselves, and print nothing; `coordinator watch` shows how one goes on.

    The exit code is 0 when all are complete, 11 when one ended without all of its shards, is halted or cancelled, 12
    when one is damaged, 6 when one is not there or is deleted meanwhile, and 130 after Ctrl-C, which ends no job.
    """
    found = roots.existing(root)
    chosen = choose(found, jobs, states, NOT_OVER)
    try:
        ended = [_ended(found, job) for job in chosen.ids]
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    told = [{"job": job.id, "state": job.state, "why": job.why} for job in ended]
    if wrong := [display.incomplete(job) for job in ended if job.state != "complete"]:
        wrong[-1].earlier = tuple(error.message for error in wrong[:-1])
        wrong[-1].document = {"jobs": told}
        raise wrong[-1]
    if as_json:
        say_json({"jobs": told})
    return 0


def _ended(root: Root, job: str) -> JobStatus:
    """The last that is said of a job, once it is over. A BrokenPipeError once nobody waits for us: who hung up an ssh
    would not be told by a word that cannot be printed."""
    stdout = select.poll()
    stdout.register(STDOUT, 0)  # errors and hang-ups are told unasked
    for answer in ask_daemon.statuses(root, job):
        last = answer.jobs[0]
        if stdout.poll(0):
            raise BrokenPipeError
    return last
