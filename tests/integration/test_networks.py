"""Machines with addresses of their own behind a router, which share nothing with the server but ssh: one with a small
disk that comes late, one with a slow link that is drained, one that is cut off for longer than its lease. As root."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from muster.agent.commands.status import state_of
from muster.agent.display import DisplayState
from muster.jobs.common import launch
from tests.support import netns, sshd
from tests.support.farm import FarmHarness, until
from tests.support.netns import Machine, Net
from tests.support.sshd import HOST, Sshd

pytestmark = [pytest.mark.ray, pytest.mark.root]

LEASE_SECONDS = 4.0
LEAVE_SECONDS = 60.0
SMALL_DISK = "64m"
RATE = "20mbit"
SHARDS, WIDTH = 150, 1 << 18  # one row each: 1 MiB, so that they do not fit the small disk
NOTES = "MUSTER_TEST_NOTES"  # the file in which a machine's function notes each shard that it has finished
NAP = "MUSTER_TEST_NAP"  # seconds that each takes there; the serial run neither notes nor naps
NAP_SECONDS, LONG_NAP_SECONDS = 0.3, 0.8
WORK = f"""
import os, time

def half(rows):
    half = rows / 2
    if "{NOTES}" in os.environ:
        time.sleep(float(os.environ["{NAP}"]))
        fd = os.open(os.environ["{NOTES}"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, b"%d\\n" % rows[0, 0])
        os.close(fd)
    return {{"half": half[:, ::4].copy(), "total": rows.sum(axis=1)}}
"""


@pytest.fixture
def net() -> Iterator[Net]:
    netns.require()
    with netns.running() as made:
        yield made


@dataclass
class Site:
    """A server in its namespace, with its own sshd, and the machines that join it from theirs."""

    net: Net
    farm: FarmHarness
    server: Machine
    sshd: Sshd
    folder: Path

    def machine(self, name: str, disk: str | None = None, nap: float = NAP_SECONDS) -> Guest:
        return Guest(self, name, self.net.add(name), disk, nap)


@dataclass
class Guest:
    """A machine. It sees neither the farm's root nor the source: an empty disk hides them there."""

    site: Site
    name: str
    machine: Machine
    disk: str | None
    nap: float

    @property
    def spool(self) -> Path:
        return self.site.folder / self.name / "spool"

    def join(self) -> None:
        self.spool.mkdir(parents=True)
        mounts = [f"mount -t tmpfs none {self.site.farm.folder}"]
        if self.disk:
            mounts.append(f"mount -t tmpfs -o size={self.disk} none {self.spool}")
        within = [
            "sh",
            "-c",
            " && ".join([*mounts, 'exec "$@"']),
            "sh",
            "env",
            f"{NOTES}={self._notes}",
            f"{NAP}={self.nap}",
        ]
        where = f"{HOST}:{self.site.farm.root.path}"
        options = ["--name", self.name, "--cpus", "1", "--spool", str(self.spool)]
        config = ["--ssh-config", str(self.site.sshd.ssh_config())]
        agent = launch.python("muster.agent.cli", "join", where, *options, *config)
        self.site.farm.real[self.name] = self.site.farm.run([*self.machine.enter, *within, *agent], f"{self.name}.out")

    @property
    def _notes(self) -> Path:
        return self.site.folder / self.name / "notes"

    def finished(self) -> Counter[int]:
        """How often each shard was finished here."""
        return Counter(map(int, self._notes.read_text().split())) if self._notes.exists() else Counter()

    @property
    def state(self) -> DisplayState | None:
        """What it says of itself; nothing where its disk is hidden from us, too."""
        return state_of(self.spool)

    def is_ready(self) -> bool:
        return self.state is not None and self.state.ready and self.state.linked

    def kept(self) -> Counter[int]:
        """What was finished, once the agent knows of all of it; nothing before."""
        finished, state = self.finished(), self.state
        return finished if state and state.done >= sum(finished.values()) else Counter()

    @property
    def status(self) -> str:
        """Its state as the server sees it; "" before it has come."""
        found = self.site.farm.agent_status(self.name)
        return found.state if found else ""

    def leave(self) -> int:
        """Its exit code."""
        return self.site.farm.real[self.name].wait(LEAVE_SECONDS)

    def said(self) -> str:
        return (self.site.farm.folder / f"{self.name}.out").read_text(errors="replace")


@pytest.fixture
def site(net: Net, tmp_path: Path) -> Iterator[Site]:
    sshd.require()
    server = net.add("server")
    farm = FarmHarness(tmp_path / "farm", lease=LEASE_SECONDS, heartbeat=0.5, tick=0.2)
    daemon = Sshd(tmp_path / "sshd", address=server.address, prefix=server.enter, env=farm.marked)
    try:
        farm.start(prefix=server.enter)
        daemon.start()
        yield Site(net, farm, server, daemon, tmp_path)
    finally:
        farm.close()
        daemon.stop()


def check_listeners(site: Site, *guests: Guest) -> None:
    """Nothing listens on the machines but on loopback, and on the server nothing but sshd."""
    for guest in guests:
        assert not list(open_listeners(guest.machine)), f"{guest.name} can be reached"
    beyond = list(open_listeners(site.server))
    assert beyond == [f"{site.server.address}:{site.sshd.port}"], "the server can be reached by more than its sshd"


def open_listeners(machine: Machine) -> Iterator[str]:
    """What can be reached from elsewhere."""
    for line in machine.listeners():
        address = line.split()[3]
        host = address.rpartition(":")[0].strip("[]").partition("%")[0].removeprefix("::ffff:")
        if host == "*" or not ipaddress.ip_address(host).is_loopback:
            yield address


def submit(farm: FarmHarness) -> str:
    """Each row starts with its number, by which the machines note it."""
    rows = np.random.default_rng(3).normal(size=(SHARDS, WIDTH)).astype("f4")
    rows[:, 0] = np.arange(SHARDS)
    return farm.submit({"x": rows}, 1, WORK, kind="map", code="work.py:half", name="map")


def committed(farm: FarmHarness, job: str) -> int:
    count: int = farm.status(job).totals.committed
    return count


def makers(farm: FarmHarness, job: str) -> list[str]:
    """Per shard, the machine whose result it is."""
    folder = farm.root.job(job).result / "x"
    return [str(name) for name in np.load(folder / "shards.npy")["agent"]]


def test_three_machines_that_share_nothing_but_ssh(site: Site) -> None:
    farm = site.farm
    slow, lost = site.machine("slow"), site.machine("lost")
    small = site.machine("small", SMALL_DISK, LONG_NAP_SECONDS)  # alone with the rest, it leaves some untouched
    site.net.slow(slow.machine, RATE)
    slow.join()
    lost.join()
    until(lambda: slow.is_ready() and lost.is_ready(), "both to be ready")
    job = submit(farm)
    until(lambda: slow.finished() and len(lost.finished()) > 5, "both to work")
    small.join()  # mid-run
    check_listeners(site, small, slow, lost)

    site.net.cut(lost.machine)
    before = lost.finished()
    until(lambda: lost.status == "gone", "the lease to end")
    until(small.finished, "the late one to work")
    assert farm.coordinator("drain", "slow").returncode == 0
    assert slow.leave() == 0, slow.said()
    at = committed(farm, job)
    until(lambda: committed(farm, job) > at + 5, "the last one to go on alone")
    check_listeners(site, small, lost)
    cut_off = until(lost.kept, "it to finish what it runs")
    assert sum(cut_off.values()) > sum(before.values()), "it computed on without a link"
    assert committed(farm, job) + len(cut_off) < SHARDS - 10, "there were untouched shards for the length of the cut"

    site.net.heal(lost.machine)
    until(lambda: lost.status == "live", "the lost one to come back", 60.0)
    farm.wait(job, seconds=90.0)
    check_listeners(site, small, lost)
    farm.check_result(job)
    machines = (small, slow, lost)
    everywhere = sum((machine.finished() for machine in machines), Counter())
    assert set(everywhere) == set(range(SHARDS))
    assert {number for number in cut_off if everywhere[number] > 1} == set(), "finished while cut off, and done again"
    assert {number for number in slow.finished() if everywhere[number] > 1} == set(), "drained, and done again"
    made_by = makers(farm, job)
    assert {made_by[number] for number in cut_off} == {"lost"}
    assert set(made_by) == {"small", "slow", "lost"}
