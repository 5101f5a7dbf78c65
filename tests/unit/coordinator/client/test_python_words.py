"""What a Python user is told: of arguments and methods, with the exception of the code, in a line, in a notebook."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.coordinator.api.requests import FailuresAsk
from muster.coordinator.api.status import AgentStatus, FailureRecord, JobStatus, LayerStatus, Status
from muster.coordinator.client import Farm, Job
from muster.coordinator.client.python_words import python_words
from muster.coordinator.client.shards import Shard
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.errors import IncompleteError, JobFileError, MusterError, StillRunningError, UsageError
from muster.jobs.results.open_result import RaggedRows
from tests.unit.coordinator.submission.test_eta import agent, job, tally

FAILED = FailureRecord(
    "array", 2, 1, 7, "lab3", 50.0, "exception", "ValueError: thirteen", "Traceback\n  line 3", 1.0, 9, False
)
LINE = 120


class Known:
    """A farm of which everything is known."""

    def __init__(self, *statuses: JobStatus, failures: tuple[FailureRecord, ...] = ()) -> None:
        self.here = True
        self._statuses, self._failures = statuses, failures
        self.asked: list[FailuresAsk] = []

    def __str__(self) -> str:
        return "x" * 500

    def status(self, job: str | None) -> Status:
        return Status(100.0, "0.1", 1, [self._statuses[-1]])

    def follow(self, job: str) -> Iterator[Status]:
        for one in self._statuses:
            yield Status(100.0, "0.1", 1, [one])

    def failures(self, question: FailuresAsk) -> list[FailureRecord]:
        self.asked.append(question)
        return list(self._failures)

    def agents(self) -> list[AgentStatus]:
        return []


def job_of(*statuses: JobStatus, **more: Any) -> Job:
    return Job(Known(*statuses, **more), "weights.1")  # type: ignore[arg-type]


def farm_of(*statuses: JobStatus) -> Farm:
    made = Farm.__new__(Farm)
    made._place = Known(*statuses)  # type: ignore[assignment]
    return made


# --- how waiting ends -----------------------------------------------------------------------------------------


def test_an_incomplete_error_has_what_the_code_raised_and_where() -> None:
    halted = job(tally(), state="halted", why="it only fails", failures=3)
    with pytest.raises(IncompleteError, match="it only fails; array/2: ValueError: thirteen") as raised:
        job_of(halted, failures=(FAILED,)).wait(progress=False)
    error = raised.value
    assert (error.shard, error.cause, error.evidence) == ("array/2", FAILED.message, FAILED.evidence)
    assert "job.logs(failed=True)" in error.hint and "job.retry()" in error.hint
    assert error.__notes__[0] == f"hint: {error.hint}" and "  line 3" in error.__notes__


def test_a_timeout_is_an_error_of_its_own_and_the_job_goes_on() -> None:
    running = job(tally(committed=1), agents=[agent()])
    with pytest.raises(StillRunningError, match="goes on after 0 s") as raised:
        job_of(running, running).wait(progress=False, timeout=0)
    assert isinstance(raised.value, TimeoutError)
    done = job(tally(committed=1000), state="complete")
    assert job_of(done).wait(progress=False, timeout=0) is done


def test_an_interrupt_says_that_the_job_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupted(Known):
        def follow(self, job: str) -> Iterator[Status]:
            yield from super().follow(job)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Job(Interrupted(job(tally())), "weights.1").wait(progress=False)  # type: ignore[arg-type]
    assert "weights.1 goes on; farm.job('weights.1').wait()" in capsys.readouterr().err


# --- words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (None, "correct the argument; nothing was started"),
        ("write `shard: {size: 128MiB}`", "write `shard={'size': '128MiB'}`"),
        ("code: work.py:function", "code='work.py:function'"),
        ("`coordinator logs weights.1 --failed` has it", "`job.logs(failed=True)` has it"),
        ("`coordinator status` lists the jobs, `coordinator agents` the machines", "`farm.jobs()` lists the jobs, "),
        ("agents: lab1, lab2", "agents: lab1, lab2"),
        ("paths are relative to the job file's folder", "paths are relative to the current folder"),
        ("start it with `coordinator serve --detach`", "start it with `coordinator serve --detach`"),
    ],
)
def test_advice_is_about_arguments_and_methods(hint: str | None, said: str) -> None:
    with pytest.raises(MusterError) as raised, python_words():
        raise JobFileError("shard: no", hint)
    assert raised.value.hint.startswith(said)
    assert raised.value.__notes__ == [f"hint: {raised.value.hint}"]


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(roots.prepare(tmp_path / "farm").path)


def embed(rows: Any, size: int = 1) -> Any:
    return rows * size


def test_a_wrong_argument_is_named_without_a_word_of_job_files(farm: Farm) -> None:
    with pytest.raises(MusterError) as raised:
        farm.map(embed, np.zeros((4, 2)), shard={"rowz": 1}, progress=False)
    assert "job file" not in f"{raised.value}{raised.value.hint}" and "coordinator" not in raised.value.hint


def test_a_field_that_is_misspelt_and_an_array_as_an_argument_have_advice_that_works(farm: Farm) -> None:
    with pytest.raises(UsageError, match="'timeuot'") as raised:
        farm.map(embed, np.zeros((4, 2)), timeuot=3, progress=False)
    assert "did you mean `timeout`?" in raised.value.hint
    with pytest.raises(UsageError, match="argument 'size' is an array") as raised:
        farm.map(embed, np.zeros((4, 2)), size=np.zeros(3), progress=False)
    assert "arrays travel with the function" in raised.value.hint


# --- at a prompt ----------------------------------------------------------------------------------------------


def test_what_a_prompt_shows_fits_a_line() -> None:
    status = job(tally(), layers=[LayerStatus("x" * 512, "open", tally(10))] * 99, notes=["y" * 900])
    shard = Shard("l" * 512, 3, 0, 10, {f"out{i}": np.zeros(1000) for i in range(50)}, "1:2")
    ragged = RaggedRows(np.zeros(1000), np.zeros(1000))
    machine = AgentStatus("a" * 64, "h" * 200, "live", 1.0, 8, 1, 1, 1, 1, 1, "f" * 4000, "0.1")
    record = msgspec.structs.replace(FAILED, message="m" * 4000, layer="l" * 512)
    for one in (status, shard, ragged, record, machine, job_of(status), farm_of(status)):
        assert len(repr(one)) <= LINE and "\n" not in repr(one), repr(one)


def test_a_notebook_shows_tables_and_nothing_that_others_wrote_as_html() -> None:
    evil = job(tally(), why="<script>alert(1)</script>", state="halted", layers=[LayerStatus("<b>", "open", tally(10))])
    for shown in (job_of(evil)._repr_html_(), farm_of(evil)._repr_html_()):
        assert "<table>" in shown and "<script>" not in shown
    assert "&lt;script&gt;" in job_of(evil)._repr_html_() and "&lt;b&gt;" in job_of(evil)._repr_html_()
