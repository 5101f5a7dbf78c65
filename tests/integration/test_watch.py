"""Following a job whose farm does not do as one would like: no machine, no answer, no name."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.coordinator.farm_root import paths as roots
from tests.support.farm import FarmHarness, arrays, running, until

WATCHERS: list[subprocess.Popen[bytes]] = []  # of the test that runs


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path) as made:
        yield made
        made.kill(signal.SIGCONT)
        for watcher in WATCHERS:
            watcher.kill()
            watcher.wait()
        WATCHERS.clear()


def watching(farm: FarmHarness, *args: str) -> Path:
    """What `coordinator watch ARGS` goes on to print."""
    WATCHERS.append(farm.run([*roots.command("watch", farm.root.path), *args], "watch.out"))
    return farm.folder / "watch.out"


def said(path: Path, text: str) -> str:
    return until(lambda: found if text in (found := path.read_text()) else "", f"{text!r} to be said")


def whole_lines(path: Path) -> list[str]:
    return path.read_text().rpartition("\n")[0].splitlines()


def is_silent(line: str) -> bool:
    if line.startswith("{"):
        return bool(json.loads(line)["silent"])
    return "the coordinator has not answered for" in line


def test_without_a_name_the_latest_job_is_followed_and_it_says_that_there_is_no_machine(farm: FarmHarness) -> None:
    farm.submit(arrays())
    second = farm.submit(arrays(seed=1))
    out = said(watching(farm), "no agent has joined")
    assert out.startswith(f"{second} running: ")


def test_without_a_job_there_is_nothing_to_watch(farm: FarmHarness) -> None:
    ended = farm.coordinator("watch")
    assert ended.returncode == 6 and "there is no job to watch" in ended.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_daemon_that_stops_answering_is_said_to_be_silent_until_it_answers(
    options: tuple[str, ...], farm: FarmHarness
) -> None:
    job = farm.submit(arrays())
    out = watching(farm, job, *options)
    said(out, job)
    farm.kill(signal.SIGSTOP)
    until(lambda: any(map(is_silent, whole_lines(out))), "a line that says so")
    farm.kill(signal.SIGCONT)
    farm.coordinator("pause", job)
    said(out, '"state":"paused"' if options else f"{job} paused")
    assert not is_silent(whole_lines(out)[-1])


def test_a_daemon_that_is_killed_is_said_to_be_silent_and_the_next_one_is_followed(farm: FarmHarness) -> None:
    job = farm.submit(arrays())
    out = watching(farm, job)
    said(out, job)
    farm.kill()
    said(out, "the coordinator has not answered for")
    farm.start()
    farm.coordinator("cancel", job)
    said(out, f"{job} is cancelled")
