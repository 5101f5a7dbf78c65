"""`coordinator watch`: follow a job until it ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import click
import msgspec

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import JobStatus, Status
from muster.coordinator.commands.options import farm_option, json_option, say, say_json
from muster.coordinator.display import agents, colours, jobs, tables
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.submission.eta import Trace
from muster.jobs.common.cli import example
from muster.jobs.common.errors import INTERRUPTED_EXIT, NotFoundError
from muster.jobs.common.units import format_duration

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_SECONDS = 1.0  # between two lines of JSON
PLAIN_SECONDS = 5.0  # between two lines where there is no terminal
MACHINES_SHOWN = 8
HOLDUPS_SHOWN = 3
PROGRESS_SHOWN = 12  # lines of what a driver says, such as the best trials of a search
BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"


@click.command(epilog=example("coordinator watch weights", "coordinator watch"))
@click.argument("job", metavar="[JOB]", required=False)
@farm_option
@json_option
def command(job: str | None, root: Path | None, as_json: bool) -> int:
    """Follow a job, or the latest one, until it ends: its shards, its rate, the time left, each machine, and why
    nothing runs.

    The exit code is 0 when the job is complete, 11 when it ends, or is halted, without all of its shards, and 12 when
    it is damaged. Ctrl-C leaves the job running. --json prints a line each second, with the job as `status` shows it,
    without its layers; the exit code is then 0 also if the job is halted or damaged. `coordinator wait` says nothing.
    """
    found = roots.existing(root)
    name = ask_daemon.job_named(found, job) if job else latest(found)
    if as_json:
        say_lines(ask_daemon.statuses(found, name))
        return 0
    return watch(found, name)


def latest(root: Root) -> str:
    """The job that was submitted last."""
    known = ask_daemon.ask(root, StatusAsk(), Status).jobs
    if not known:
        raise NotFoundError("there is no job to watch", "`coordinator submit job.yaml` starts one")
    return max(known, key=lambda job: job.created).id


def say_lines(found: Iterator[Status]) -> None:
    """One in LINE_SECONDS, and the last."""
    due = 0.0
    for answer in found:
        job = answer.jobs[0]
        if time.monotonic() >= due or job.is_over:
            due = time.monotonic() + LINE_SECONDS
            said = msgspec.structs.replace(answer, jobs=[msgspec.structs.replace(job, layers=[])])
            say_json(said, indent=0)


def watch(root: Root, job: str) -> int:
    """Follow `job` until it ends or Ctrl-C; the exit code."""
    try:
        follow(root, job)
    except KeyboardInterrupt:
        print(f"\n{job} goes on; `coordinator watch {job}` follows it again", file=sys.stderr)
        return INTERRUPTED_EXIT
    return 0


def follow(root: Root, job: str) -> None:
    """Show `job` until it ends; an IncompleteError unless it is complete."""
    conclude(shown(ask_daemon.statuses(root, job)))


def shown(found: Iterator[Status]) -> JobStatus:
    """Show a job as it goes on; what it was in the end."""
    trace = Trace()
    screen: Screen = Bars() if _is_wide(sys.stderr) else Lines()
    try:
        for answer in found:
            trace.add(answer.jobs[0], answer.now)
            screen.show(answer, trace)
    finally:
        screen.close()
    return answer.jobs[0]


def conclude(status: JobStatus) -> None:
    """What a job's end means for who waited for it."""
    if status.state == "complete":
        took = f" in {format_duration(status.ended - status.started)}" if status.ended and status.started else ""
        has = f"{took}; `coordinator result {status.id}` has the result"
        say(colours.joined("", [f"{status.id} is ", colours.state(status.state), has]))
        return
    raise jobs.incomplete(status)


def _is_wide(stream: TextIO) -> bool:
    """Whether it is a terminal that knows its width."""
    return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0


class Screen(Protocol):
    """Where a job is shown."""

    def show(self, answer: Status, trace: Trace) -> None: ...

    def close(self) -> None: ...


class Lines:
    """A line when there is news, and not too often."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()  # what was last said, without the time that passed
        self._silent = False
        self._next = 0.0

    def show(self, answer: Status, trace: Trace) -> None:
        job = answer.jobs[0]
        silent = bool(answer.silent)
        slow = [(one.layer, one.number) for one in job.slow]
        said = (job.state, job.totals, job.layers_merged, job.progress, slow, silent or jobs.holdups(answer))
        due = time.monotonic() >= self._next or job.is_over or silent != self._silent
        if not due or said == self._last:
            return
        self._last, self._silent, self._next = said, silent, time.monotonic() + PLAIN_SECONDS
        say(jobs.progress_line(answer))
        if silent:
            return
        for machine in agents.machine_lines(job, trace):
            say(machine)

    def close(self) -> None:
        """Nothing is open."""


class Bars:
    """A bar for the job, a line for each thing that holds it up, and one for each machine."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._tqdm = tqdm
        self._bar: tqdm[Any] | None = None  # which is false while it has no total
        self._below: list[tqdm[Any]] = []

    def show(self, answer: Status, trace: Trace) -> None:
        job = answer.jobs[0]
        if self._bar is None:
            self._bar = self._made(BAR, tables.short(job.id))
        bar = self._bar
        bar.total, bar.n = jobs.bar_counts(job)
        bar.set_postfix_str(colours.shown(jobs.bar_note(answer), sys.stderr), refresh=True)
        lines = [f"  {why}" for why in jobs.holdups(answer)[:HOLDUPS_SHOWN]]
        lines += [f"  {line}" for line in job.progress.lines[:PROGRESS_SHOWN]] if job.progress is not None else []
        lines += agents.machine_lines(job, trace)[:MACHINES_SHOWN]
        while len(self._below) < len(lines):
            self._below.append(self._made("{desc}", lines[len(self._below)]))
        for i, line in enumerate(self._below):
            line.set_description_str(lines[i] if i < len(lines) else "", refresh=True)

    def _made(self, form: str, text: str) -> tqdm[Any]:
        row = len(self._below) + 1 if self._bar is not None else 0
        keep = row == 0
        return self._tqdm(
            desc=text, total=1, bar_format=form, position=row, leave=keep, dynamic_ncols=True, file=sys.stderr
        )

    def close(self) -> None:
        for bar in [*reversed(self._below), *([self._bar] if self._bar is not None else [])]:
            bar.close()
