"""`coordinator logs`: what failed, with its evidence."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator import ask, render
from coordinator import root as roots
from coordinator.admin import FAILURES_LIMIT, Failures, FailuresAsk
from coordinator.commands.options import example, json_option, root_option, say, say_json
from coordinator.root import Root
from jobs.errors import NoDaemonError, UsageError


@click.command(epilog=example("coordinator logs weights --failed", "coordinator logs weights.1/conv1/17"))
@click.argument("job", metavar="JOB")
@click.argument("shard", metavar="[SHARD]", required=False)
@click.option("--failed", is_flag=True, help="Only of shards that are given up.")
@click.option("--limit", type=click.IntRange(1, FAILURES_LIMIT), default=50, show_default=True, help="The newest N.")
@root_option
@json_option
def command(job: str, shard: str | None, failed: bool, limit: int, root: Path | None, as_json: bool) -> None:
    """Show what failed of a job, or of one shard (LAYER/NUMBER), oldest first.

    Each with its machine, its attempt, its peak memory, and its traceback or last lines of output.
    """
    found = roots.existing(root)
    job, shard = split(job, shard)
    name = roots.resolve_job(found, job)
    layer, number = parse_shard(shard) if shard else (None, None)
    try:
        answer = ask.ask(found, FailuresAsk(name, layer, number, failed, limit), Failures)
        given_up = bool(answer.items) or not failed
        if not given_up and not as_json:  # a halted job has nothing else to show
            answer = ask.ask(found, FailuresAsk(name, layer, number, False, limit), Failures)
    except NoDaemonError:
        if shard or failed or as_json:
            raise
        say(_from_file(found, name))
        return
    if as_json:
        say_json(answer)
    else:
        say(page(name, answer, f"{name}/{shard}" if shard else name, given_up))


def split(job: str, shard: str | None) -> tuple[str, str | None]:
    """`weights.1/conv1/17` in one word, or in two, or with the job in both."""
    head, slash, tail = job.partition("/")
    if slash and shard is None:
        return head, tail
    if shard is not None and shard.startswith(f"{job}/"):
        return job, shard[len(job) + 1 :]
    return job, shard


def parse_shard(text: str) -> tuple[str, int]:
    """`conv1/17` is layer conv1, shard 17."""
    layer, _, number = text.rpartition("/")
    if not layer or not number.isdecimal():
        raise UsageError(f"{text!r} is not a shard", "write LAYER/NUMBER, such as conv1/17")
    return layer, int(number)


def page(job: str, answer: Failures, what: str, given_up: bool) -> str:
    """`what` was asked for. `given_up`: whether only shards that are given up were, or no such choice was made."""
    if not answer.items:
        return f"nothing of {what} failed"
    pages = [] if given_up else [f"no shard of {what} is given up; these attempts failed:"]
    pages += [render.failure_page(job, record) for record in reversed(answer.items)]
    hidden = answer.total - len(answer.items)
    if hidden > 0:
        pages.insert(0, f"… {render.counted(hidden, 'earlier failure')}; --limit shows more")
    return "\n\n".join(pages)


def _from_file(root: Root, job: str) -> str:
    """What the job's own log has, where there is nobody to ask."""
    try:
        return root.job(job).failures.read_text(errors="replace").rstrip()
    except FileNotFoundError:
        return f"nothing of {job} failed"
