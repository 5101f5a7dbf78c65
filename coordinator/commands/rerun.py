"""`coordinator verify --rerun`: some of a job's shards run again on the farm, as a job of their own, and compared."""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import floor, log10
from typing import TYPE_CHECKING

import click
import msgspec

from muster.coordinator.api.requests import AgentsAsk, Cancel, Done, Remove, Submit, Submitted
from muster.coordinator.api.status import Agents, JobStatus, Status
from muster.coordinator.commands.options import plain, say, say_json
from muster.coordinator.commands.result import nothing_merged
from muster.coordinator.commands.watch import shown
from muster.coordinator.farm_root import ask_daemon, plans
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.result_downloads.file_server import layers_of
from muster.coordinator.submission import rerun
from muster.jobs.common.errors import DifferenceError, IncompleteError, MusterError, NotFoundError, RefusedError
from muster.jobs.common.units import counted

if TYPE_CHECKING:
    from muster.coordinator.submission.submit import Planned

DIFFERING_SHOWN = 20
ALONE_SECONDS = 15.0  # that no machine is there for the rest before it is given up: the coordinator may start again
HERE = frozenset({"live", "draining"})


class RerunReport(msgspec.Struct):
    """What was found."""

    job: str
    seed: int  # of the choice
    shards: int  # they were chosen from
    compared: int
    equal: int = 0
    bound: float | None = None  # with 95% confidence less than this share of the shards differs; None: some do
    differing: list[rerun.Pair] = []
    machines: dict[str, tuple[int, int]] = {}  # who computed now → how many, and how many of them differ


class ShardsFailed(IncompleteError):
    """Some did not come out at all; their job is kept, for it has the evidence."""


def run(root: Root, job: str, count: int, machine: str, seed: int, keep: bool, as_json: bool) -> RerunReport:
    """Choose, run, compare. The job that runs them is removed, whatever comes of it, unless shards of it failed."""
    folder = root.job(job)
    plan = plans.load(folder)
    if plan.driven:
        why = f"shards of {job} follow from the results of others, and cannot be run again by themselves"
        raise RefusedError(why, f"submit its job file again, then `coordinator diff {job} OTHER` compares the results")
    merged = set(layers_of(folder, plan)[0])
    if not merged:
        raise nothing_merged(job, folder)
    _check_machine(root, machine)
    sample = rerun.choose(folder, [layer for layer in plan.layers if layer.name in merged], count, seed)
    planned = rerun.planned(root, job, plan, sample, machine, time.time_ns())
    with _running(root, planned, keep) as check:
        watched = _watched(root, check, machine)
        _judge(root, job, deque(watched, 1)[0].jobs[0] if as_json else shown(watched))
        report = RerunReport(job, seed, sample.population, sample.count)
        for pair in rerun.compared(folder, root.job(check), planned.plan.layers):
            _count(report, pair)
    report.bound = None if report.differing else rerun.bound(report.compared, report.shards)
    return report


def _count(report: RerunReport, pair: rerun.Pair) -> None:
    ran, odd = report.machines.get(pair.now.agent, (0, 0))
    report.machines[pair.now.agent] = (ran + 1, odd + (not pair.is_equal))
    report.equal += pair.is_equal
    if not pair.is_equal:
        report.differing.append(pair)


# --- the job that runs them ---------------------------------------------------------------------------------


def _check_machine(root: Root, machine: str) -> None:
    here = [agent.name for agent in ask_daemon.ask(root, AgentsAsk(), Agents).agents if agent.state in HERE]
    if not here:
        raise RefusedError("no machine is here to run anything", "`agent join HOST`, typed on a machine, lends it")
    if machine and machine not in here:
        raise NotFoundError(f"no agent called {machine} is here now", "`coordinator agents` lists them")


@contextmanager
def _running(root: Root, planned: Planned, keep: bool) -> Iterator[str]:
    """The id of the job. Ctrl-C and SIGTERM wait until that is known, and until the job is gone."""
    from muster.coordinator.submission.submit import submission

    check = ""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _uninterrupted(), submission(root, planned) as folder:
            check = ask_daemon.ask(root, Submit(folder), Submitted).job
        yield check
    except ShardsFailed:
        keep = True
        raise
    finally:
        if check and not keep:
            _remove(root, check)
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM come after this."""
    came: list[int] = []
    ends = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: came.append(number)) for number in ends]
    try:
        yield
    finally:
        for number, handler in zip(ends, before, strict=True):
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def _remove(root: Root, check: str) -> None:
    try:
        with _uninterrupted(), ask_daemon.line(root) as daemon:
            with suppress(RefusedError):  # it has ended
                daemon.ask(Cancel(check), Done)
            daemon.ask(Remove(check), Done)
    except MusterError as error:
        click.echo(f"note: {check} stays: {error.message}; `coordinator cancel`, then `rm {check}`", err=True)


def _watched(root: Root, check: str, machine: str) -> Iterator[Status]:
    """Its status until it ends; an error once no machine that is here could go on with it."""
    alone_since: float | None = None
    for number, answer in enumerate(ask_daemon.statuses(root, check)):
        yield answer
        if answer.silent:  # there is nobody to ask about machines
            continue
        why = _why_alone(root, answer.jobs[0], machine)
        if why and number == 0:
            raise RefusedError(f"no machine suits: {why}", "`coordinator agents` says what each can run")
        alone_since = (alone_since or time.monotonic()) if why else None
        if alone_since and time.monotonic() - alone_since > ALONE_SECONDS:
            done, all_ = answer.jobs[0].totals.committed, answer.jobs[0].totals.shards
            raise IncompleteError(
                f"stopped after {done} of {counted(all_, 'shard')}: {why}", "try again once a machine is here"
            )


def _why_alone(root: Root, job: JobStatus, machine: str) -> str:
    """Why no machine that is here takes any of it; "" where one does, or need not."""
    todo = job.totals.pending + job.totals.running
    if job.state != "running" or not todo or any(one.live or one.running for one in job.agents):
        return ""
    here = {one.name: one for one in ask_daemon.ask(root, AgentsAsk(), Agents).agents if one.state in HERE}
    if machine:
        return here[machine].ineligible.get(job.id, "") if machine in here else f"{machine} is gone"
    if any(job.id not in one.ineligible for one in here.values()):
        return ""
    return "; ".join(f"{one.name} {one.ineligible[job.id]}" for one in here.values()) or "no machine is here"


def _judge(root: Root, job: str, check: JobStatus) -> None:
    """An error unless all of it came out."""
    if check.state == "complete":
        return
    if any(layer.state == "changed" for layer in check.layers):
        why = f"the input of {job} is not what it was, so nothing can be compared: {'; '.join(check.notes)}"
        raise RefusedError(why, f"`coordinator verify {job} --inputs` says which shards' inputs changed")
    if check.state == "cancelled":
        raise IncompleteError(f"{check.id}, which computed them, was cancelled", "begin again")
    if check.state == "halted":  # so that `rm` deletes it
        ask_daemon.ask(root, Cancel(check.id), Done)
    what = f"{counted(check.totals.quarantined, 'shard')} given up" if check.totals.quarantined else check.why
    hint = f"`coordinator logs {check.id}` has the evidence; `coordinator rm {check.id}` deletes it"
    raise ShardsFailed(f"{job} came out once and does not now: {what}", hint)


# --- what is said ---------------------------------------------------------------------------------------------


def conclude(report: RerunReport, as_json: bool) -> None:
    """Say it; a DifferenceError where shards differ."""
    if not as_json:
        say(page(report))
    elif not report.differing:
        say_json(report)
    if report.differing:
        error = DifferenceError(f"{counted(len(report.differing), 'shard')} of {report.job} came out otherwise")
        error.document = plain(report)
        raise error


def page(report: RerunReport) -> str:
    """As people read it."""
    chosen = f"{report.job}: {report.equal:,} of {report.compared:,} equal"
    if not report.differing:
        return f"{chosen}: {_claim(report)} (seed {report.seed})"
    kernels = {text: i + 1 for i, text in enumerate(_fingerprints(report))}
    lines = [f"{chosen}, of {counted(report.shards, 'shard')} (seed {report.seed})"]
    lines += [_line(pair, kernels) for pair in report.differing[:DIFFERING_SHOWN]]
    hidden = len(report.differing) - DIFFERING_SHOWN
    lines += [f"… and {hidden:,} more; --json has all"] if hidden > 0 else []
    lines += [f"kernels {number}: {text}" for text, number in kernels.items()]
    for name, (ran, odd) in sorted(report.machines.items()):
        lines.append(f"of what {name} computed now, {odd:,} of {ran:,} differ")
    then = Counter(pair.then.agent for pair in report.differing)
    lines.append(f"of those that differ, {_listed(then)} computed then")
    return "\n".join(lines)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} had {count:,}" for name, count in counts.most_common())


def _claim(report: RerunReport) -> str:
    if not report.bound:
        return "all shards were compared"
    if report.bound * report.shards <= 1:
        return f"with 95% confidence none of the {report.shards:,} shards differs"
    return f"with 95% confidence under {percent(report.bound)} of the shards differ"


def percent(share: float) -> str:
    """Never less than it is, in two digits."""
    step = 10.0 ** (floor(log10(100 * share)) - 1)
    return f"{-floor(-100 * share / step) * step:.10g}%"


def _fingerprints(report: RerunReport) -> list[str]:
    return sorted({run.fingerprint for pair in report.differing for run in (pair.then, pair.now)})


def _line(pair: rerun.Pair, kernels: dict[str, int]) -> str:
    then, now = (f"{run.agent} (kernels {kernels[run.fingerprint]})" for run in (pair.then, pair.now))
    return f"{pair.layer}/{pair.number}: then {then}, now {now}{'' if pair.same_input else '; of another input'}"
