"""What people are shown of a training."""

from __future__ import annotations

from functools import partial

import msgspec

from muster.coordinator.api.status import AgentRate, JobStatus, Progress, Status, Tally
from muster.coordinator.display import agents, jobs
from muster.coordinator.drivers.training.progress import progress_of
from muster.coordinator.submission.eta import Trace

so_far = partial(progress_of, 120, 1000, loss=0.45678, accuracy=0.9, best=0.91, rate=40.0, seconds=3.0)
NEWS = so_far()


def status(news: Progress, state: str = "running") -> JobStatus:
    agent = AgentRate("a", True, 2, 1, 0, 9, 9, 0, 0, 0.1, 1.0)
    return JobStatus("digits.1", "train", state, "", 1, 5.0, 6.0, None, Tally(), 0, agents=[agent], progress=news)  # type: ignore[arg-type]


def line(job: JobStatus) -> str:
    return jobs.progress_line(Status(10.0, "0.1", 1, [job]))


def test_a_line_has_round_loss_accuracy_rate_machines_and_time() -> None:
    said = line(status(NEWS))
    assert said == (
        "digits.1 running: round 120/1,000, loss 0.4568, accuracy 0.9000, best 0.9100, 40 rounds/s, 1 machine,"
        " left: 22 s, 4 s so far"
    )


def test_time_is_to_the_target_where_it_can_be_told() -> None:
    near = so_far(target=0.95, target_seconds=7.4)
    far = so_far(target=0.95)
    assert "left: about 7.0 s to 0.95" in line(status(near))
    slow = so_far(target=0.95, target_seconds=40.0)
    assert "left: at most 22 s" in line(status(slow))
    assert "left: at most 22 s" in line(status(far))


def test_the_page_and_the_table_speak_of_rounds() -> None:
    page = jobs.job_page(status(NEWS), 10.0)
    assert "rounds    120/1,000 (12%)" in page and "LAYER" not in page and "shards" not in page
    assert "120/1,000" in jobs.jobs_table([status(NEWS)], 10.0)
    assert jobs.bar_counts(status(NEWS)) == (1000, 120)


def test_one_that_reached_its_target_is_whole() -> None:
    done = status(so_far(target=0.9), "complete")
    assert " 100% " in jobs.jobs_table([done], 10.0)
    assert "120/1,000 (100%)" in jobs.job_page(done, 10.0) and "target 0.9 reached" in jobs.job_page(done, 10.0)


def test_before_the_first_round_nothing_is_made_up() -> None:
    said = line(status(progress_of(0, 50)))
    assert said == "digits.1 running: round 0/50, 1 machine, left: measuring, 4 s so far"
    assert "measuring left" not in jobs.jobs_table([status(progress_of(0, 50))], 10.0)


def test_of_machines_what_they_read_is_not_told() -> None:
    job, trace = status(NEWS), Trace()
    assert "READ" not in jobs.job_page(job, 10.0)
    trace.add(job, 10.0)
    later = msgspec.structs.replace(job.agents[0], shards=29, bytes_in=5000)
    job = msgspec.structs.replace(job, agents=[later])
    trace.add(job, 12.0)
    assert agents.machine_lines(job, trace) == ["  a: 10.0 shards/s, 29 finished"]
