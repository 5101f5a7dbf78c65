"""`coordinator submit`: plan a job here, hand it to the daemon, perhaps wait for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.coordinator.api.requests import Submit, Submitted
from muster.coordinator.api.status import Status
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.farm_meant import handed_over, reached, run_there
from muster.coordinator.commands.options import json_option, place_options, plain, reuse_options, say, say_json
from muster.coordinator.commands.watch import watch
from muster.coordinator.display import jobs
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import INTERRUPTED_EXIT, MusterError, UsageError
from muster.jobs.common.locations import Host
from muster.jobs.common.printable import harmless
from muster.jobs.contract.plan import Plan

if TYPE_CHECKING:
    from muster.coordinator.client.backends.remote import RemoteBackend
    from muster.coordinator.client.backends.ssh import Ssh


@click.command(
    epilog=example(
        "coordinator submit job.yaml --wait",
        "coordinator submit job.yaml --set n_clusters=256",
        "coordinator submit --from weights.1 --layers 'conv3*' --set n_clusters=256",
        "coordinator submit job.yaml --from weights.1",
        "coordinator submit cluster.yaml --after prepare --after clean.2",
    )
)
@click.argument("job_file", metavar="job.yaml", type=click.Path(path_type=Path), required=False)
@click.option("--parcel", is_flag=True, help="Read the job, its code and the names of its uploads from stdin.")
@reuse_options
@click.option(
    "--after",
    multiple=True,
    metavar="JOB",
    shell_complete=complete_names.job,
    help="Start once this job is complete; may be given again.",
)
@click.option("--owner", hidden=True, help="Of a parcel: the second person whose job it is.")
@click.option("--wait", is_flag=True, help="Follow the job until it ends; Ctrl-C leaves it running.")
@place_options
@json_option
def command(
    job_file: Path | None,
    parcel: bool,
    old: str | None,
    layers: tuple[str, ...],
    sets: tuple[str, ...],
    after: tuple[str, ...],
    owner: str | None,
    wait: bool,
    place: Host | Path | None,
    as_json: bool,
) -> int:
    """Plan a job and run it; print its id.

    With --from, layers that an earlier job has finished, and that would come out the same, are taken over as hard links
    and not computed again. Without a job file, that of the earlier job is used as it was submitted, and its code too.
    `coordinator plan` with the same options says what would be reused. --set changes the params, for all layers or for
    those of --layers, with --from or without; the job file itself is not changed. A search goes on from that of --from,
    once that is over, with more `trials` or another `stop` or `budget`; with `--set extends=null` it begins anew.

    With --after, or `after` in the job file, it waits for other jobs. It is halted if one of those is cancelled,
    halted or deleted, or ends incomplete.

    To a farm elsewhere (--at me@server) the job's code and table go with it, its arrays and model once. What is named
    by an absolute path, or ~/…, is of the server.

    With --wait, the exit code is 0 when the job is complete, 11 when it ends without all of its shards, and 12 when it
    is damaged. --parcel is for muster.coordinator.client.
    """
    if (sets or layers) and parcel:
        raise UsageError("--set and --layers change a job file", "coordinator submit job.yaml --set n_clusters=256")
    if owner is not None and not parcel:
        raise UsageError("--owner is for --parcel", "coordinator submit job.yaml")
    if (parcel and job_file) or not (parcel or job_file or old):
        raise UsageError("submit wants either a job file, --from or --parcel", "coordinator submit job.yaml")
    if isinstance(place, Host):
        if job_file is None:
            return handed_over(place, reads=parcel)
        ssh = reached(place)
        return _told(ssh, *_sent(ssh, job_file, old, layers, sets, after), wait, as_json)
    found = roots.existing(place)
    ask_daemon.connect(found).close()  # no daemon: said before a long plan, not after it
    if parcel:
        job = _submit_parcel(found, after, old, owner or "")
    elif old is not None:
        job = _submit_from(found, roots.resolve_job(found, old), job_file, layers, sets, after)
    else:
        assert job_file is not None
        job = submit(found, job_file, layers, sets, after)
    if as_json and wait:
        return _await(ask_daemon.statuses(found, job), job)
    if as_json:
        say_json({"job": job})
    else:
        say(job)
        if old is None and not parcel:
            _tell_what_pays(found, job)
    return watch(found, job) if wait else 0


def _sent(
    ssh: Ssh,
    job_file: Path,
    old: str | None,
    layers: tuple[str, ...],
    sets: tuple[str, ...],
    after: tuple[str, ...],
) -> tuple[RemoteBackend, str]:
    """A job file of this machine to a farm elsewhere: that farm, and the job's id."""
    from muster.coordinator.client import job_draft
    from muster.coordinator.client.backends.remote import RemoteBackend
    from muster.coordinator.client.hand_in import hand_in
    from muster.coordinator.submission.reuse import Wish

    farm = RemoteBackend(ssh)
    draft = job_draft.from_file(job_file, False, after, Wish(layers, sets, old or ""))
    return farm, hand_in(farm, draft, sys.stderr.isatty(), old)


def _told(ssh: Ssh, farm: RemoteBackend, job: str, wait: bool, as_json: bool) -> int:
    """Say what was submitted elsewhere, and follow it if that is wanted; the exit code."""
    if as_json and wait:
        return _await(_followed(farm, job), job)
    if as_json:
        say_json({"job": job})
    else:
        say(job)
    return run_there(ssh, ["--", job], "watch") if wait else 0


def _followed(farm: RemoteBackend, job: str) -> Iterator[Status]:
    """In the end with its layers, which are not told while it goes on."""
    yield from farm.follow(job)
    yield farm.status(job)


def _await(statuses: Iterator[Status], job: str) -> int:
    """Follow it without a word to its end, which is one document: the job as `status` has it, and perhaps why it is
    not complete."""
    document: dict[str, object] = {"job": job}
    try:
        for answer in statuses:
            document["status"] = plain(answer.jobs[0])
            status = answer.jobs[0]
        if status.state != "complete":
            raise jobs.incomplete(status)
    except MusterError as error:
        error.document = document
        raise
    except KeyboardInterrupt:
        said = {"error": f"{job} goes on", "hint": f"`coordinator watch {job}` follows it", "code": INTERRUPTED_EXIT}
        say_json({**document, **said})
        return INTERRUPTED_EXIT
    say_json(document)
    return 0


def _tell_what_pays(root: Root, job: str) -> None:
    """What machines that pull their inputs add to the job, on stderr beside its id."""
    from muster.coordinator.commands.plan import ask_farm
    from muster.coordinator.display.agents import payoff_lines
    from muster.coordinator.submission.forecast import forecast
    from muster.coordinator.submission.reuse import stored_plan

    known = ask_farm(root)
    if all(agent.in_place for agent in known.agents):
        return
    seen = forecast(stored_plan(root, job), known.agents, known.jobs, None)
    for line in payoff_lines(seen.payoffs):
        click.echo(line, err=True)


def _submit_parcel(root: Root, after: tuple[str, ...], old: str | None, owner: str) -> str:
    from muster.coordinator.submission import client_job as parcel

    return parcel.submit(root, parcel.decode(sys.stdin.buffer.read(parcel.BYTES_LIMIT + 1)), after, old, owner)


def _submit_from(
    root: Root,
    old: str,
    job_file: Path | None,
    layers: tuple[str, ...],
    sets: tuple[str, ...],
    after: tuple[str, ...],
) -> str:
    from muster.coordinator.submission import reuse
    from muster.coordinator.submission.submit import submission

    planned = reuse.planned_from(root, old, job_file, reuse.Wish(layers, sets))
    for fate in reuse.fates(root, old, planned.plan):
        click.echo(f"{fate.layer}: {'reused' if fate.reused else 'computed'}: {fate.why}", err=True)
    say_notes(planned.plan)
    with submission(root, planned, after=after) as folder:
        return ask_daemon.ask(root, Submit(folder, old), Submitted).job


def say_notes(plan: Plan) -> None:
    """What its user should know before it runs."""
    for note in plan.notes:
        click.echo(harmless(note), err=True)


def submit(
    root: Root, job_file: Path, layers: tuple[str, ...] = (), sets: tuple[str, ...] = (), after: tuple[str, ...] = ()
) -> str:
    """The id of the job."""
    from muster.coordinator.submission import reuse
    from muster.coordinator.submission.submit import submission

    planned = reuse.planned(job_file, reuse.Wish(layers, sets), root)
    say_notes(planned.plan)
    with submission(root, planned, after=after) as folder:
        return ask_daemon.ask(root, Submit(folder), Submitted).job
