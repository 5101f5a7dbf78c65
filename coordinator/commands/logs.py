"""`coordinator logs`: what failed, with its evidence, and what users' code printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click

from muster.coordinator.api.requests import FailuresAsk, StatusAsk
from muster.coordinator.api.status import Failures, Status
from muster.coordinator.api.values import FAILURES_LIMIT
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.options import farm_option, json_option, plain, say, say_json
from muster.coordinator.display import jobs, tables
from muster.coordinator.farm_root import ask_daemon, printed_log
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.farm_root.printed_log import Saying
from muster.jobs.common.cli import example
from muster.jobs.common.errors import NoDaemonError, UsageError
from muster.jobs.common.names import parse_shard
from muster.jobs.common.units import counted

FOLLOW_SECONDS = 0.5


@click.command(
    epilog=example(
        "coordinator logs weights --failed", "coordinator logs weights.1/conv1/17", "coordinator logs weights -f"
    )
)
@click.argument("job", metavar="JOB", shell_complete=complete_names.job)
@click.argument("shard", metavar="[SHARD]", required=False)
@click.option("--failed", is_flag=True, help="Show only shards that are given up.")
@click.option("-f", "--follow", is_flag=True, help="Show what comes as well, until the job ends.")
@click.option("--limit", type=click.IntRange(1, FAILURES_LIMIT), default=50, show_default=True, help="The newest N.")
@farm_option
@json_option
def command(
    job: str, shard: str | None, failed: bool, follow: bool, limit: int, root: Path | None, as_json: bool
) -> None:
    """Show what failed of a job, or of one shard (LAYER/NUMBER), and what its code printed, oldest first.

    A failure is shown with its machine, its attempt, its peak memory, and its traceback or last lines of output. What a
    shard printed is known as soon as it has a result; the beginning and the end of it are kept.
    """
    if follow and (failed or as_json):
        raise UsageError("-f goes with neither --failed nor --json", "coordinator logs JOB -f")
    found = roots.existing(root)
    job, shard = split(job, shard)
    name = roots.resolve_job(found, job)
    layer, number = parse_shard(shard) if shard else (None, None)
    if follow:
        _follow(found, FailuresAsk(name, layer, number, False, limit))
        return
    what = f"{name}/{shard}" if shard else name
    try:
        answer, given_up = ask_daemon.failures(found, FailuresAsk(name, layer, number, failed, limit))
    except NoDaemonError:
        if shard or failed or as_json:
            raise
        say(_from_file(found, name))
        return
    sayings = [] if failed else _printed(found, name, layer, number)
    if not failed and printed_log.is_full(found.job(name).printed):
        click.echo(f"{name} printed more than is kept of a job: the end of it is missing", err=True)
    if as_json:
        say_json({**plain(answer), "printed": [plain(one) for one in sayings[-limit:]]})
    else:
        say(page(name, answer, what, given_up, sayings, limit))


def split(job: str, shard: str | None) -> tuple[str, str | None]:
    """`weights.1/conv1/17` in one word, or in two, or with the job in both."""
    head, slash, tail = job.partition("/")
    if slash and shard is None:
        return head, tail
    if shard is not None and shard.startswith(f"{job}/"):
        return job, shard[len(job) + 1 :]
    return job, shard


# --- what there is ----------------------------------------------------------------------------------------


def page(
    job: str, answer: Failures, what: str, given_up: bool, sayings: list[Saying] | None = None, limit: int = 50
) -> str:
    """`what` was asked for. `given_up`: whether only shards that are given up were, or no such choice was made."""
    sayings = sayings or []
    if not answer.items and not sayings:
        return f"nothing of {what} failed, or printed anything"
    pages = [] if given_up else [f"no shard of {what} is given up; these attempts failed:"]
    hidden = answer.total - len(answer.items)
    if hidden > 0:
        pages.append(f"… {counted(hidden, 'earlier failure')}; --limit shows more")
    if len(sayings) > limit:
        pages.append(f"… {counted(len(sayings) - limit, 'earlier shard')} printed something; --limit shows more")
    found = [(record.when, jobs.failure_page(job, record)) for record in answer.items]
    found += [(one.when, saying_page(job, one)) for one in sayings[-limit:]]
    return "\n\n".join([*pages, *(text for _, text in sorted(found, key=lambda pair: pair[0]))])


def saying_page(job: str, one: Saying) -> str:
    """What one shard printed, indented."""
    if one.left_out:
        return f"{job}: what {counted(one.left_out, 'shard')} printed on {one.agent} was too much, and left out"
    head = f"{job}/{one.layer}/{one.number} printed, on {one.agent} at {tables.moment(one.when)}:"
    return "\n".join([head, *(f"  | {line}" for line in one.text.splitlines())])


def _printed(root: Root, job: str, layer: str | None, number: int | None) -> list[Saying]:
    """Each run once: it is said twice where a link broke."""
    found = {
        one.run if one.text else one: one
        for _, one in printed_log.read(root.job(job).printed)
        if _fits(one, layer, number)
    }
    return list(found.values())


def _fits(one: Saying, layer: str | None, number: int | None) -> bool:
    return layer is None or (one.layer, one.number) == (layer, number)


def _from_file(root: Root, job: str) -> str:
    """What the job's own log has, where there is nobody to ask."""
    try:
        failed = root.job(job).failures.read_text(errors="replace").rstrip()
    except FileNotFoundError:
        failed = f"nothing of {job} failed"
    return "\n\n".join([failed, *(saying_page(job, one) for one in _printed(root, job, None, None))])


# --- what comes -------------------------------------------------------------------------------------------


def _follow(root: Root, question: FailuresAsk) -> None:
    """Until the job ends, or is halted: then nothing comes any more."""
    follower = _Follower(root, question)
    while True:
        [status] = ask_daemon.ask(root, StatusAsk(question.job), Status).jobs  # before the last look
        for text in follower.news():
            say(text)
        if status.state not in {"running", "paused"}:
            return
        time.sleep(FOLLOW_SECONDS)


class _Follower:
    """What was shown already."""

    def __init__(self, root: Root, question: FailuresAsk) -> None:
        self._root = root
        self._question = question
        self._shown: set[tuple[object, ...]] = set()
        self._place = 0  # in the log of what was printed

    def news(self) -> Iterator[str]:
        q = self._question
        for record in reversed(ask_daemon.ask(self._root, q, Failures).items):
            if self._is_new(record.layer, record.number, record.boot, record.attempt, record.when):
                yield jobs.failure_page(q.job, record)
        for place, one in printed_log.read(self._root.job(q.job).printed, self._place):
            self._place = place
            if _fits(one, q.layer, q.number) and (one.left_out or self._is_new(*one.run)):
                yield saying_page(q.job, one)

    def _is_new(self, *key: object) -> bool:
        known = key in self._shown
        self._shown.add(key)
        return not known
