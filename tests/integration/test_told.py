"""Who wants to know of a job's end is told at least once, whoever is killed in between."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.support.farm import FarmHarness, arrays, until

SENDER = "muster.coordinator.daemon.notify.sender"


def completed(farm: FarmHarness, command: str) -> str:
    """A job that is complete, and whose user is told so by this command."""
    job = farm.submit(arrays(rows=8), shard_rows=4, notify={"command": command})
    farm.agent().work(lambda: farm.status(job).state == "complete")
    return job


def slow(tmp_path: Path) -> tuple[str, Path, Path]:
    """A command that notes what it is told of, and ends once it may; what it notes, and what it waits for."""
    told, go = tmp_path / "told", tmp_path / "go"
    return f"cat >> {told}; while [ ! -e {go} ]; do sleep 0.05; done", told, go


def events(told: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []


def times(count: int, told: Path) -> Callable[[], bool]:
    return lambda: len(events(told)) == count


def is_settled(farm: FarmHarness, job: str) -> bool:
    """Whether the store knows that nobody is to be told any more."""
    with closing(sqlite3.connect(f"file:{farm.root.store}?mode=ro", uri=True)) as db:
        return bool(db.execute("SELECT untold IS NULL FROM jobs WHERE id = ?", (job,)).fetchone()[0])


def kill_sender(farm: FarmHarness) -> None:
    """With the command that it runs, as a machine's end would."""
    (sender,) = farm.processes(SENDER)
    children = psutil.Process(sender).children(recursive=True)
    os.kill(sender, signal.SIGKILL)
    for child in children:
        child.kill()


def test_a_daemon_that_dies_in_between_tells_of_it_when_it_is_back(farm: FarmHarness, tmp_path: Path) -> None:
    command, told, go = slow(tmp_path)
    job = completed(farm, command)
    until(times(1, told), "the first word of it")
    farm.kill()
    kill_sender(farm)
    go.touch()
    farm.start()
    until(times(2, told), "word of it again")
    first, second = events(told)
    assert first == second and (first["event"], first["job"]) == ("complete", job)
    until(partial(is_settled, farm, job), "the store to know")
    farm.restart()
    assert farm.status(job).state == "complete"
    assert not farm.processes(SENDER) and len(events(told)) == 2, "told, and told again"


def test_who_tells_and_is_killed_is_started_again(farm: FarmHarness, tmp_path: Path) -> None:
    command, told, go = slow(tmp_path)
    completed(farm, command)
    until(times(1, told), "the first word of it")
    kill_sender(farm)
    until(times(2, told), "word of it again")
    go.touch()


def test_a_job_that_goes_on_is_no_news_any_more(farm: FarmHarness, tmp_path: Path) -> None:
    """What it was told of is over: a later daemon tells of the state that it is in."""
    command, told, go = slow(tmp_path)
    job = completed(farm, command)
    until(times(1, told), "the first word of it")
    assert farm.coordinator("retry", job, "--layers", "a").returncode == 0
    farm.kill()
    kill_sender(farm)
    go.touch()
    farm.start()
    farm.agent().work(lambda: farm.status(job).state == "complete")
    until(times(2, told), "word of its second end")
    first, second = events(told)
    assert first["at"] < second["at"]
