"""Promise 2 where only an fsync helps: what was acknowledged survives a power cut, for which an ext4 is shut down."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from muster.coordinator.protocol import transfer as m
from tests.support import disks
from tests.support.farm import FarmHarness, arrays, until
from tests.support.simulated import SimulatedAgent

pytestmark = pytest.mark.root


class Powered:
    """A farm whose root is on a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.disk = disks.Cuttable(folder / "root")
        self.farm = FarmHarness(folder)
        self.farm.start()

    def cut(self) -> None:
        self.disk.cut_beneath(self.farm)


@pytest.fixture
def powered(tmp_path: Path) -> Iterator[Powered]:
    if obstacle := disks.obstacle("mkfs.ext4", "mount"):
        pytest.skip(obstacle)
    made = Powered(tmp_path)
    try:
        yield made
    finally:
        made.farm.close()
        made.disk.close()


def test_what_was_acknowledged_survives_a_power_cut(powered: Powered) -> None:
    """A submit, bundles, and a merged result, each cut off as soon as it is acknowledged."""
    farm = powered.farm
    job = farm.submit(arrays())
    powered.cut()
    assert job in farm.stored(), "a submitted job is gone"

    farm.start()
    agent = farm.agent()
    for shards in (1, 3):
        _work_until(agent, shards)
        powered.cut()
        farm.audit(job, agent)
        farm.start()

    agent.work(lambda: farm.status(job).state == "complete")
    powered.cut()
    farm.check_result(job)
    farm.start()
    farm.wait(job)
    assert farm.coordinator("verify", job).returncode == 0
    assert len(agent.computed) == 6, "what was acknowledged was computed again"


def _work_until(agent: SimulatedAgent, acknowledged: int) -> None:
    agent.work(lambda: sum(map(len, agent.acknowledged.values())) >= acknowledged)


def test_the_power_goes_before_the_acknowledgement(powered: Powered) -> None:
    """Half done is not done: the shards are computed or pushed again, and counted once."""
    farm = powered.farm
    job = farm.submit(arrays())
    agent = farm.agent()
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.compute(), "a finished shard")
    bundle = agent.bundle_of(agent.parts[0])
    assert isinstance(agent.push_link.ask(agent.offer_of(bundle)), m.Accepted)
    powered.cut()
    farm.audit(job, agent)
    farm.start()
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)


def test_a_disk_is_back_though_another_namespace_keeps_its_mount(tmp_path: Path) -> None:
    disks.require("mkfs.ext4", "mount", "unshare", "losetup")
    disk = disks.Cuttable(tmp_path / "disk", 16)
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; read line"], stdin=PIPE, stdout=PIPE) as keeper:
        try:
            assert keeper.stdout is not None and keeper.stdout.readline()
            for number in range(3):
                disk.cut()
                disk.back(check=True)
                (disk.folder / str(number)).write_text("written")
        finally:
            keeper.kill()
            disk.close()
