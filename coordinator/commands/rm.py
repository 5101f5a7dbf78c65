"""`coordinator rm`: delete an ended job."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import Done, Remove, StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.commands.options import json_option, root_option, say, say_done, say_json
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.units import counted, parse_duration
from muster.jobs.contract.states import ENDED


@click.command(epilog=example("coordinator rm weights.1", "coordinator rm --older-than 30d"))
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--older-than", "age", metavar="AGE", help="All jobs that ended so long ago, such as 30d.")
@root_option
@json_option
def command(job: str | None, age: str | None, root: Path | None, as_json: bool) -> None:
    """Delete an ended job, or all that ended some time ago, with their results.

    Copy a result first if you want to keep it: `coordinator result JOB --to DIR`. Jobs that are halted or damaged have
    not ended; they are deleted only if they are named.
    """
    if (job is None) == (age is None):
        raise UsageError("a job, or --older-than", "coordinator rm weights.1, or coordinator rm --older-than 30d")
    found = roots.existing(root)
    if age is not None:
        _remove_old(found, _seconds(age), as_json)
        return
    assert job is not None
    name = ask_daemon.job_named(found, job, for_good=True)
    say_done(ask_daemon.ask(found, Remove(name), Done).said, as_json, job=name)


def _seconds(age: str) -> float:
    try:
        return parse_duration(age)
    except ValueError as error:
        raise UsageError(f"--older-than {age!r}: {error}", "coordinator rm --older-than 30d") from None


def _remove_old(root: Root, seconds: float, as_json: bool) -> None:
    """One after the other, each said as it goes: an error stops it, and what is deleted stays so."""
    removed = []
    with ask_daemon.line(root) as line:
        answer = line.ask(StatusAsk(), Status)
        for job in answer.jobs:
            if job.state in ENDED and job.ended is not None and job.ended <= answer.now - seconds:
                said = line.ask(Remove(job.id), Done).said
                removed.append(job.id)
                if not as_json:
                    say(said)
    if as_json:
        say_json({"jobs": removed})
    else:
        say(f"{counted(len(removed), 'job')} deleted")
