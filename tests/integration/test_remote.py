"""Agents behind a real sshd: they pull what they run, keep to their disk, and lose their link without losing work."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from coordinator.commands.submit import submit
from tests import sshd
from tests.farm import Farm, arrays, until
from tests.faults import disks
from tests.proxy import Proxy
from tests.sshd import HOST, Sshd

LEASE_SECONDS = 3.0
MIB = 1 << 20
KIB = 1 << 10
DOUBLE = "def double(rows):\n    return {'twice': rows * 2}\n"
MAP = {"work": DOUBLE, "kind": "map", "code": "work.py:double", "name": "map"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as daemon:
        yield daemon


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    made = Farm(tmp_path, lease=LEASE_SECONDS)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def proxy(server: Sshd) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


class Remote:
    """An agent that comes over ssh, through a proxy if there is one."""

    def __init__(self, farm: Farm, server: Sshd, name: str = "far", proxy: Proxy | None = None) -> None:
        self.farm, self.name = farm, name
        self.spool = farm.folder / "spools" / name
        through = [f"Port {proxy.port}", f"HostKeyAlias [127.0.0.1]:{server.port}"] if proxy else []
        self._config = server.ssh_config(*through, name=f"ssh_config-{name}")

    def join(self, *args: str) -> Remote:
        options = ("--cpus", "1", "--ssh-config", str(self._config), *args)
        self.process = self.farm.join(self.name, *options, where=f"{HOST}:{self.farm.root.path}")
        return self

    @property
    def state(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(json.loads((self.spool / "state.json").read_bytes()))
        return {}

    def is_at_work(self) -> bool:
        return bool(self.state.get("linked") and self.state.get("ready"))

    def files(self) -> dict[str, int]:
        """Inputs in the spool, with the bytes of the disk that each takes."""
        found = {}
        for path in (self.spool / "in").iterdir():
            with suppress(FileNotFoundError):
                found[path.name] = path.stat().st_size
        return found

    def leave(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def said(self) -> str:
        return (self.farm.folder / f"agent-{self.name}.out").read_text(errors="replace")


def same_source(farm: Farm, job: str, **fields: Any) -> str:
    """Another job over the arrays of `job`, the first of this farm."""
    first = farm.folder / "job-1" / "job.yaml"
    again = first.with_name("again.yaml")
    again.write_text(yaml.safe_dump({**yaml.safe_load(first.read_text()), **fields}))
    return submit(farm.root, again)


def rows(count: int, width: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(seed).normal(size=(count, width)).astype("f4")}


@pytest.mark.parametrize("ssh", ["paramiko", "openssh"])
def test_jobs_over_ssh_equal_the_serial_run_and_a_source_is_pulled_once(farm: Farm, server: Sshd, ssh: str) -> None:
    far = Remote(farm, server).join("--ssh", ssh)
    job = farm.submit(arrays(2, 64, 1000))
    farm.wait(job)
    farm.check_result(job)
    nbytes = 2 * 64 * 1000 * 4
    until(lambda: far.state.get("pulled_bytes") == nbytes, "all of it to be pulled")
    again = same_source(farm, job, params={"n_clusters": 3})
    farm.wait(again)
    farm.check_result(again)
    mapped = farm.submit(rows(40, 500), 4, **MAP)
    farm.wait(mapped)
    farm.check_result(mapped)
    assert far.leave() == 0
    assert not far.state, "left in good order"
    code = sum(path.stat().st_size for path in farm.root.path.glob("code/*.pack"))
    log = farm.agent_status("far")
    assert log is not None and log.done == 16 + 16 + 10
    assert sum(far.files().values()) == nbytes + 40 * 500 * 4, "the cluster jobs' inputs are there once"
    assert code


def test_a_budget_of_three_shards_is_enough_for_a_thousand(farm: Farm, server: Sshd) -> None:
    each = 4096 * 4
    budget = 3 * (each + KIB)
    job = farm.submit(rows(1000, 4096), 1)
    far = Remote(farm, server).join("--disk", str(budget))
    most = 0
    while farm.status(job).state == "running":
        with suppress(FileNotFoundError):
            most = max(most, sum(far.files().values()))
    farm.wait(job)
    farm.check_result(job)
    assert each < most <= budget
    assert sum(size for name, size in far.files().items() if name.endswith(".half")) == 0
    assert far.leave() == 0


def test_a_shard_above_the_budget_is_refused_with_both_numbers(farm: Farm, server: Sshd) -> None:
    job = farm.submit(rows(8, 4096), 1)
    Remote(farm, server).join("--disk", "10KiB")
    until(lambda: farm.agent_status("far"), "the agent to join")
    notes = farm.status(job).notes
    wanted = 4096 * 4 + farm.plan(job).layers[0].out_bytes
    assert notes == [f"far may use 10240 bytes of disk, a shard wants {wanted}"]
    agent = farm.agent_status("far")
    assert agent is not None and job in agent.ineligible


def test_a_link_cut_within_a_pull_is_gone_on_with_after_the_lease(farm: Farm, server: Sshd, proxy: Proxy) -> None:
    size = 8 * MIB
    far = Remote(farm, server, proxy=proxy).join()
    until(far.is_at_work, "the agent to work")
    before, proxy.rate = proxy.moved, 4.0 * MIB
    job = farm.submit(rows(1, size // 4), 1)
    until(lambda: proxy.moved - before > size // 2, "half of it to come")
    proxy.cut()
    until(lambda: _is(farm, "far", "gone"), "the lease to end")
    proxy.mend()
    farm.wait(job)
    farm.check_result(job)
    assert proxy.moved - before < size * 1.3, "what had come was pulled again"


def test_a_link_that_swallows_everything_loses_no_work(farm: Farm, server: Sshd, proxy: Proxy) -> None:
    """Half-open: nobody is told. The agent computes what it has, and comes back when it can."""
    far = Remote(farm, server, proxy=proxy).join()
    until(far.is_at_work, "the agent to work")
    job = farm.submit(rows(400, 1024), 1)
    until(lambda: farm.status(job).totals.committed > 20, "some of it to be done")
    proxy.swallow()
    until(lambda: _is(farm, "far", "gone"), "the lease to end")
    proxy.cut()  # as the system's own timeout would, in the end
    proxy.mend()
    farm.wait(job)
    farm.check_result(job)


def test_the_daemon_is_killed_and_the_connection_stays(farm: Farm, server: Sshd, proxy: Proxy) -> None:
    far = Remote(farm, server, proxy=proxy).join()
    until(far.is_at_work, "the agent to work")
    connections = len(proxy.seen)
    job = farm.submit(rows(600, 1024), 1)
    until(lambda: farm.status(job).totals.committed > 20, "some of it to be done")
    farm.restart()
    farm.wait(job)
    farm.check_result(job)
    assert len(proxy.seen) == connections, "a new connection was made"


def test_an_agent_killed_within_a_pull_begins_it_anew(farm: Farm, server: Sshd, proxy: Proxy) -> None:
    far = Remote(farm, server, proxy=proxy).join()
    until(far.is_at_work, "the agent to work")
    proxy.rate = 2.0 * MIB
    job = farm.submit(rows(2, MIB), 1)
    until(lambda: any(name.endswith(".half") for name in far.files()), "a pull to begin")
    far.process.kill()
    far.process.wait(30)
    proxy.mend()
    far.join()
    farm.wait(job)
    farm.check_result(job)
    assert far.leave() == 0
    assert sorted(far.files().values()) == [4 * MIB, 4 * MIB]


def test_a_source_that_changes_is_noticed_before_it_is_run(farm: Farm, server: Sshd) -> None:
    job = farm.submit(rows(8, 1024), 1)
    path = farm.folder / "job-1" / "arrays" / "x.npy"
    np.save(path, np.zeros((8, 1024), "f4"))
    Remote(farm, server).join()
    until(lambda: "source of layer x changed" in farm.status(job).notes, "the change to be noticed")


def test_a_spoilt_copy_is_pulled_again(farm: Farm, server: Sshd) -> None:
    far = Remote(farm, server).join()
    job = farm.submit(rows(8, 1024), 1)
    farm.wait(job)
    for path in (far.spool / "in").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    again = same_source(farm, job, params={"n_clusters": 3})
    farm.wait(again)
    farm.check_result(again)
    assert farm.failures(again) == []


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_spool_makes_room_and_goes_on(farm: Farm, server: Sshd) -> None:
    """The budget promises more than the disk has, so that the system is the first to say that it is full."""
    if obstacle := disks.obstacle("mount"):
        pytest.skip(obstacle)
    far = Remote(farm, server)
    with tmpfs(far.spool, 6 * MIB):
        far.join("--disk", "1GiB")
        job = farm.submit(rows(40, MIB // 8), 1)  # 20 MiB
        farm.wait(job)
        farm.check_result(job)
        assert far.leave() == 0


def test_bandwidth_is_kept(farm: Farm, server: Sshd, proxy: Proxy) -> None:
    """Not how fast it is: that what is on its way is bounded, so that the limit holds on the wire."""
    rate = 2 * MIB
    far = Remote(farm, server, proxy=proxy).join("--bandwidth", "2MiB")
    until(far.is_at_work, "the agent to work")
    job = farm.submit(rows(2, MIB), 1)
    farm.wait(job)
    farm.check_result(job)
    status = farm.status(job)
    assert status.ended is not None and status.started is not None
    assert status.ended - status.started > 0.9 * 8 * MIB / rate


def _is(farm: Farm, name: str, state: str) -> bool:
    agent = farm.agent_status(name)
    return agent is not None and agent.state == state
