"""Which jobs a command line means: several, `last`, `all`, those in a state; and one question about each. Does nothing
to a job by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import click

from muster.coordinator.api.requests import Done, StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.options import say, say_done, say_json
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.values import Message
from muster.jobs.common.errors import LinkError, MusterError, NoDaemonError, UsageError
from muster.jobs.common.names import ALL_JOBS
from muster.jobs.contract.states import ENDED, STANDING, JobState

F = TypeVar("F", bound=Callable[..., Any])
STATES: tuple[JobState, ...] = get_args(JobState)
NOT_ENDED = frozenset(STATES) - ENDED - {"damaged"}
NOT_OVER = frozenset(STATES) - STANDING


def state_option(function: F) -> F:
    """--state, which may be given again."""
    return click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice(STATES),
        help="Only jobs that are so; may be given again. Without a JOB: all of them.",
    )(function)


def jobs_arguments(function: F) -> F:
    """Any number of jobs, and --state."""
    argument = click.argument("jobs", metavar="JOB...", nargs=-1, shell_complete=complete_names.jobs)
    return argument(state_option(function))


@dataclass(frozen=True)
class Chosen:
    """The full ids of jobs. `several`: the command line might have meant any number of them; `what`: which, for people
    where there are none."""

    ids: list[str]
    several: bool
    what: str


def choose(
    root: Root, named: Sequence[str], states: Sequence[str], of_all: Collection[str], for_good: bool = False
) -> Chosen:
    """`of_all`: the states of jobs that `all` means to a command. `for_good`: as `job_named` takes it."""
    if not named and not states:
        raise UsageError("no job is named", "name jobs: weights, weights.2, last, all; or say --state halted")
    wanted = [state for state in STATES if state in (states or of_all)]
    is_open = ALL_JOBS in named or bool(states)
    known = {job.id: job.state for job in ask_daemon.ask(root, StatusAsk(), Status).jobs} if is_open else {}
    ids: dict[str, None] = {}
    for name in named or (ALL_JOBS,):
        if name == ALL_JOBS:
            ids.update(dict.fromkeys(job for job, state in known.items() if state in wanted))
        else:
            ids[ask_daemon.job_named(root, name, for_good)] = None
    kept = [job for job in ids if not states or known.get(job) in states]
    return Chosen(kept, len(named) != 1 or is_open, f"no job is {' or '.join(wanted)}")


def ask_each(root: Root, chosen: Chosen, question: Callable[[str], Message], as_json: bool, **facts: object) -> None:
    """Put a question about one job after the other, and say what each came to. An error of one keeps none of the others
    from it: all are told, and the exit code is that of the last."""
    if not chosen.several:
        (job,) = chosen.ids
        say_done(ask_daemon.ask(root, question(job), Done).said, as_json, job=job, **facts)
        return
    told: list[dict[str, object]] = []
    errors: list[MusterError] = []
    for job in chosen.ids:
        try:
            said = ask_daemon.ask(root, question(job), Done).said
        except (NoDaemonError, LinkError):
            raise
        except MusterError as error:
            errors.append(error)
            told.append({"job": job, "error": error.message})
            continue
        told.append({"job": job, "said": said})
        if not as_json:
            say(said)
    if errors:
        errors[-1].earlier = tuple(error.message for error in errors[:-1])
        errors[-1].document = {"jobs": told}
        raise errors[-1]
    if as_json:
        say_json({"jobs": told})
    elif not told:
        say(chosen.what)
