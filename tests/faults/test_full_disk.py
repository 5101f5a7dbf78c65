"""Promise 9, the coordinator's side: a full root says so, grants nothing more, and goes on once there is room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from muster.coordinator.api.requests import FailuresAsk, StatusAsk
from muster.coordinator.api.status import Failures, Status
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol import control, transfer
from muster.jobs.common.errors import SpaceError
from tests.support import disks
from tests.support.disks import Ballast
from tests.support.farm import FarmHarness, arrays, running, until

pytestmark = pytest.mark.root

DISK_MEGABYTES = 100
MEGABYTE = 1 << 20


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[tuple[FarmHarness, Ballast]]:
    """A farm on a disk of 100 MB, and what fills it up."""
    disks.require("mount")
    with disks.small(tmp_path / "root", DISK_MEGABYTES) as disk, running(tmp_path) as farm:
        yield farm, Ballast(disk)


def test_no_layer_opens_without_room_for_its_result(tight: tuple[FarmHarness, Ballast]) -> None:
    farm, ballast = tight
    ballast.leave(10 * MEGABYTE)
    job = farm.submit(arrays())
    agent = farm.agent()
    agent.join()
    until(lambda: agent.sync(wait=0.05) and "in the root" in farm.status(job).why, "the reason")
    assert not agent.granted
    ballast.drop()
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)


def test_a_full_disk_refuses_results_and_takes_them_later(tight: tuple[FarmHarness, Ballast]) -> None:
    farm, ballast = tight
    job = farm.submit(arrays())
    agent = farm.agent()
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.compute() == 0 and len(agent.computed) == 6, "all to be finished")
    ballast.leave(0)
    answer = agent.push(agent.parts[0])
    assert isinstance(answer, transfer.Refused) and answer.code == "full"
    assert "0 B are left beside the 64 MiB that are kept free" in answer.message
    until(
        lambda: "note      the root's disk is full" in farm.coordinator("status", job).stdout,
        "the job's page to say so",
    )
    with pytest.raises(SpaceError, match="No space left"):
        farm.submit(arrays())
    ballast.drop()
    agent.work(lambda: farm.status(job).state == "complete")
    assert len(agent.computed) == 6
    farm.check_result(job)


def test_a_database_without_room_waits_for_it(tight: tuple[FarmHarness, Ballast]) -> None:
    """Failures are stored with their evidence until the disk is full, and the rest of them afterwards."""
    farm, ballast = tight
    job = farm.submit(arrays(), attempts=1000, max_failures=1000)
    agent = farm.agent()
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.compute(limit=1), "a shard")
    agent.sync()
    ballast.leave(0)
    told = 0

    def trouble() -> list[str]:
        nonlocal told
        for (named, layer, boot, attempt), numbers in list(agent.granted.items()):
            told += len(numbers)
            agent._failures += [
                control.Failure(named, layer, n, boot, attempt, "exception", "no", "x" * 16_000, 0.1, 1)
                for n in numbers
            ]
        agent.granted.clear()
        agent.sync()
        notes: list[str] = farm.ask(StatusAsk(), Status).notes
        return [note for note in notes if "database" in note]

    [note] = until(trouble, "a note that the database has no room")
    assert "cannot be written" in note and "full" in note
    ballast.drop()
    until(lambda: not farm.ask(StatusAsk(), Status).notes, "the database to be written again")
    assert farm.ask(FailuresAsk(job, limit=1), Failures).total == told
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)


@pytest.mark.parametrize("known", [True, False], ids=["a root", "a new root"])
@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_daemon_that_starts_on_a_full_disk_says_what_to_free(tmp_path: Path, what: str, known: bool) -> None:
    """From nothing that is left to a little less than it needs, it ends with the same word; then it is served."""
    disks.require("mount")
    with disks.small(tmp_path / "disk", megabytes=4, inodes=200) as disk, closing(FarmHarness(tmp_path)) as farm:
        farm.root = roots.find(disk / "root")
        if known:
            farm.start()
            farm.kill()
        taken = Ballast(disk, what)
        taken.fill()
        for _ in range(6):
            ended = farm.coordinator("serve")
            assert ended.returncode == 8, ended.stderr
            assert f"error: {disk}" in ended.stderr and "No space left on device" in ended.stderr
            assert "make room there for 1 MiB and 16 files" in ended.stderr
            taken.give_back(2)
        taken.drop()
        farm.start()
