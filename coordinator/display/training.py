"""What people are shown of a training, in place of shards and layers. Decides and fetches nothing."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from muster.coordinator.api.status import JobStatus, TrainNews
from muster.jobs.common.units import format_duration, format_size

if TYPE_CHECKING:
    from muster.coordinator.submission.forecast import TrainForecast


def rounds(news: TrainNews) -> str:
    return f"{news.round:,}/{news.rounds:,}"


def share(news: TrainNews) -> float:
    """Of the rounds, how many are over; 0 to 1."""
    return news.round / news.rounds if news.rounds else 0.0


def percent(job: JobStatus, news: TrainNews) -> str:
    """A training that reached its target is whole, whatever rounds it might have had."""
    return "100%" if job.state == "complete" else f"{int(100 * share(news))}%"


def rate(news: TrainNews) -> str:
    """Rounds a second, evaluations left out."""
    return f"{news.rate:.3g} rounds/s" if news.rate > 0 else "-"


def scores(news: TrainNews) -> list[str]:
    """Loss and accuracy, as far as they are known."""
    parts = [f"loss {news.loss:.4g}"] if news.loss is not None else []
    if news.accuracy is not None:
        best = f", best {news.best:.4f}" if news.best is not None and news.best > news.accuracy else ""
        parts.append(f"accuracy {news.accuracy:.4f}{best}")
    return parts


def machines(job: JobStatus) -> str:
    """How many are at work."""
    count = sum(agent.live for agent in job.agents)
    return f"{count} machine{'' if count == 1 else 's'}"


def left(news: TrainNews) -> str:
    """The time until the target, where scores go there before the last round, or else until that."""
    if news.rate <= 0:
        return "measuring"
    seconds = max(0.0, (news.rounds - news.round) / news.rate)
    if news.target is not None and news.target_seconds is not None and news.target_seconds < seconds:
        return f"about {format_duration(round(news.target_seconds))} to {news.target:g}"
    most = "at most " if news.target is not None else ""
    return f"{most}{format_duration(round(seconds))}"


def line(job: JobStatus, news: TrainNews) -> str:
    """One line for watchers where there is no terminal."""
    parts = [f"{job.id} {job.state}: round {rounds(news)}", *scores(news)]
    if job.state == "running":
        parts += [rate(news), machines(job), f"left: {left(news)}"]
    return ", ".join(part for part in parts if part != "-")


def bar_note(job: JobStatus, news: TrainNews) -> str:
    """What stands behind a bar."""
    if job.state != "running":
        return ", ".join([job.state, *scores(news)])
    return ", ".join(part for part in [*scores(news), rate(news), machines(job), left(news)] if part != "-")


def page_lines(job: JobStatus, news: TrainNews) -> list[str]:
    """What a job's page says instead of shards, layers and rate."""
    reached = news.target is not None and news.best is not None and news.best >= news.target
    target = f", target {news.target:g}{' reached' if reached else ''}" if news.target is not None else ""
    lines = [f"  rounds    {rounds(news)} ({percent(job, news)}), {format_duration(news.seconds)} of training"]
    lines.append(f"  scores    {', '.join(scores(news)) or 'none yet'}{target}")
    if job.state == "running":
        lines += [f"  rate      {rate(news)}, {machines(job)} at work", f"  left      {left(news)}"]
    return lines


def planned(job: str, seen: TrainForecast) -> list[str]:
    """What `plan` says instead of layers and shards."""
    factors = [seen.workers, *([seen.steps] if seen.steps > 1 else []), seen.microbatch]
    rows = f"{' × '.join(f'{one:,}' for one in factors)} = {prod(factors):,} rows"
    return [
        f"{job}: train, {seen.model} with {seen.parameters:,} parameters",
        f"  data     {seen.rows:,} rows, {seen.test_rows:,} to test on",
        f"  rounds   {seen.rounds:,}, {seen.mode}; each of {rows}",
        f"  link     about {format_size(seen.round_bytes)} a round to each machine, and as much from it",
    ]
