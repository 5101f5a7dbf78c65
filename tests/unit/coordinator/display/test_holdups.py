"""What watchers are told of a job that does not move, and of one that does: in a line, behind a bar, from Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from muster.coordinator.api.status import JobStatus, Status, Window
from muster.coordinator.client.job import Job
from muster.coordinator.commands.watch import Bars
from muster.coordinator.display import jobs
from muster.coordinator.submission.eta import Trace
from tests.unit.coordinator.submission.test_eta import MIB, agent, job, tally

LACKS = "lab3 has no torch, which the job wants"


def answer(seen: JobStatus, **more: Any) -> Status:
    return Status(100.0, "0.1", 1, [seen], **more)


@pytest.mark.parametrize("why", ["no agent has joined", LACKS, "the root's disk is full: 1 MiB are free"])
def test_a_line_says_why_nothing_runs(why: str) -> None:
    still = job(tally(), notes=[why])
    assert jobs.progress_line(answer(still)).endswith(f", {why}")
    assert jobs.holdups(answer(still)) == [why]


def test_a_paused_job_says_who_paused_it_and_an_ended_one_no_more_than_that() -> None:
    assert jobs.holdups(answer(job(tally(), state="paused", why="by hand"))) == ["by hand"]
    assert jobs.holdups(answer(job(tally(), state="incomplete", why="1 shard given up", notes=["a"]))) == []


def test_rows_a_second_and_the_time_so_far_are_shown() -> None:
    recent = Window(50.0, finished=100, bytes_in=100 * MIB, rows=170_000)
    seen = answer(job(tally(committed=300), agents=[agent()], recent=recent, started=20.0))
    for said in (jobs.progress_line(seen), jobs.bar_note(seen)):
        assert "3,400 rows/s, 2 MiB/s, 1 min 20 s so far" in said


def test_a_bar_moves_with_what_machines_have_finished() -> None:
    seen = job(tally(committed=300, finished=40, running=4), agents=[agent()])
    assert jobs.bar_counts(seen) == (1000, 340)
    assert "340/1,000 shards (34%), 40 to push" in jobs.progress_line(answer(seen))
    assert "300/1,000 committed" in jobs.job_page(seen, 100.0)


def test_a_silent_daemon_is_what_is_said_first() -> None:
    silent = answer(job(tally(), notes=[LACKS]), silent=2.4)
    assert jobs.holdups(silent) == ["the coordinator has not answered for 2 s"]


class Followed:
    """A farm of which one job's statuses are known."""

    def __init__(self, *answers: Status) -> None:
        self._answers = answers

    def follow(self, job: str) -> Iterator[Status]:
        yield from self._answers


def test_the_bar_of_python_says_why_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    still, done = job(tally(), notes=[LACKS]), job(tally(committed=1000), state="complete")
    silent = msgspec.structs.replace(answer(still), silent=3.0)
    Job(Followed(answer(still), silent, answer(done)), "weights.1").wait()  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert LACKS in said and "has not answered for 3 s" in said


def test_a_terminal_has_a_line_for_each_holdup_and_each_machine(capsys: pytest.CaptureFixture[str]) -> None:
    screen, trace = Bars(), Trace()
    for seen in (job(tally(), notes=[LACKS]), job(tally(committed=300, finished=40), agents=[agent("lab4")])):
        trace.add(seen, 100.0)
        screen.show(answer(seen), trace)
    screen.close()
    said = capsys.readouterr().err
    assert f"  {LACKS}" in said and "340/1000" in said and "  lab4: " in said
