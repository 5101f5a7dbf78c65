"""Agents behind a real sshd: they pull what they run, keep to their disk, and lose their link without losing work."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from muster.coordinator.commands.submit import submit
from muster.jobs.common.units import format_size
from tests.support import disks
from tests.support.farm import Array, FarmHarness, arrays, running, until
from tests.support.proxy import Proxy
from tests.support.sshd import HOST, Sshd

LEASE_SECONDS = 3.0
MIB = 1 << 20
KIB = 1 << 10
DOUBLE = "def double(rows):\n    return {'twice': rows * 2}\n"
MAP = {"work": DOUBLE, "kind": "map", "code": "work.py:double", "name": "map"}


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path, lease=LEASE_SECONDS) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, server: Sshd) -> Iterator[Field]:
    """One farm and one agent for most tests: workers take seconds to start."""
    proxy = Proxy(server.port)
    try:
        with running(tmp_path_factory.mktemp("farm"), lease=LEASE_SECONDS) as farm:
            yield Field(farm, proxy, Remote(farm, server, proxy=proxy).join())
    finally:
        proxy.close()


@pytest.fixture
def field(shared: Field) -> Field:
    """Its agent at work."""
    shared.proxy.mend()
    until(shared.far.is_at_work, "the agent to work")
    return shared


class Remote:
    """An agent that comes over ssh, through a proxy if there is one."""

    def __init__(self, farm: FarmHarness, server: Sshd, name: str = "far", proxy: Proxy | None = None) -> None:
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

    def input_bytes(self) -> int:
        with suppress(FileNotFoundError):
            return sum(self.files().values())
        return 0

    def leave(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


class Field(NamedTuple):
    farm: FarmHarness
    proxy: Proxy
    far: Remote


def twice(farm: FarmHarness, arrays: Mapping[str, Array], shard_rows: int) -> Iterator[str]:
    """Two jobs over the same source, the second with other parameters."""
    file = farm.job_file(arrays, shard_rows)
    yield submit(farm.root, file)
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "params": {"n_clusters": 3}}))
    yield submit(farm.root, file)


def rows(count: int, width: int, seed: int = 0) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).normal(size=(count, width)).astype("f4")}


def finish(farm: FarmHarness, job: str) -> None:
    farm.wait(job)
    farm.check_result(job)


# --- jobs ---


def test_jobs_equal_the_serial_run_and_a_source_is_pulled_once(field: Field) -> None:
    farm, far = field.farm, field.far
    before = far.state["bytes_pulled"]
    for job in twice(farm, arrays(2, 64, 1000), 8):
        finish(farm, job)
    mapped = farm.submit(rows(40, 500), 4, **MAP)
    finish(farm, mapped)
    plan = farm.plan(mapped)
    code = farm.root.pack(str(plan.work.code)).stat().st_size
    wanted = 2 * 64 * 1000 * 4 + 40 * 500 * 4 + code
    until(lambda: far.state.get("bytes_pulled", 0) - before == wanted, "each input to be pulled once")


def test_a_spoilt_copy_is_pulled_again(field: Field) -> None:
    jobs = twice(field.farm, rows(8, 1024, seed=1), 1)
    finish(field.farm, next(jobs))
    for path in (field.far.spool / "in").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    again = next(jobs)
    finish(field.farm, again)
    assert field.farm.failures(again) == []


def test_a_source_that_changes_is_noticed_before_it_is_run(field: Field) -> None:
    file = field.farm.job_file(rows(8, 1024, seed=2), 1)
    field.far.process.send_signal(signal.SIGSTOP)
    job = submit(field.farm.root, file)
    np.save(file.parent / "arrays" / "x.npy", np.zeros((8, 1024), "f4"))
    field.far.process.send_signal(signal.SIGCONT)
    until(lambda: "source of layer x changed" in field.farm.status(job).notes, "the change to be noticed")
    assert field.farm.merged(job) == {}


def test_the_systems_ssh_within_its_bandwidth(farm: FarmHarness, server: Sshd) -> None:
    """Not how fast it is: that no more is on its way than the limit allows."""
    far = Remote(farm, server).join("--bandwidth", "2MiB", "--ssh", "openssh")
    job = farm.submit(rows(2, MIB), 1)
    finish(farm, job)
    status = farm.status(job)
    assert status.ended is not None and status.started is not None
    assert status.ended - status.started > 0.9 * 8 * MIB / (2 * MIB)
    assert far.leave() == 0
    assert not far.state, "left in good order"


# --- disks ---


def test_a_budget_of_three_shards_is_enough_for_a_thousand(farm: FarmHarness, server: Sshd) -> None:
    each = 4096 * 4
    budget = 3 * (each + KIB)
    job = farm.submit(rows(1000, 4096), 1)
    far = Remote(farm, server).join("--disk", str(budget))
    seen = [0]
    until(lambda: seen.append(far.input_bytes()) or farm.status(job).state != "running", "the job to end")  # type: ignore[func-returns-value]
    finish(farm, job)
    assert each < max(seen) <= budget
    assert not any(name.endswith(".half") for name in far.files())


def test_a_shard_above_the_budget_is_refused_with_both_numbers(farm: FarmHarness, server: Sshd) -> None:
    job = farm.submit(rows(8, 4096), 1)
    Remote(farm, server).join("--disk", "10KiB")
    until(lambda: farm.agent_status("far"), "the agent to join")
    wanted = 4096 * 4 + farm.plan(job).layers[0].out_bytes
    assert farm.status(job).notes == [f"far has 10 KiB of disk for this, a shard wants {format_size(wanted)}"]
    agent = farm.agent_status("far")
    assert agent is not None and job in agent.ineligible


def test_a_full_spool_makes_room_and_goes_on(farm: FarmHarness, server: Sshd) -> None:
    """The budget promises more than the disk has, so that the system is the first to say that it is full."""
    disks.require("mount")
    far = Remote(farm, server)
    with disks.small(far.spool, 6):
        far.join("--disk", "1GiB")
        finish(farm, farm.submit(rows(40, MIB // 8), 1))  # 20 MiB
        assert far.leave() == 0


# --- links ---


def test_a_link_cut_within_a_pull_is_gone_on_with_after_the_lease(field: Field) -> None:
    farm, proxy, size = field.farm, field.proxy, 8 * MIB
    before, proxy.rate = proxy.moved, 4.0 * MIB
    job = farm.submit(rows(1, size // 4), 1)
    until(lambda: proxy.moved - before > size // 2, "half of it to come")
    proxy.cut()
    until(lambda: is_gone(farm), "the lease to end")
    proxy.mend()
    finish(farm, job)
    assert proxy.moved - before < size * 1.3, "what had come was pulled again"


def test_a_link_that_swallows_everything_loses_no_work(field: Field) -> None:
    """Half-open: nobody is told. The agent computes what it has, and comes back when it can."""
    farm, proxy = field.farm, field.proxy
    job = farm.submit(rows(400, 1024, seed=3), 1)
    until(lambda: farm.status(job).totals.committed > 20, "some of it to be done")
    proxy.swallow()
    until(lambda: is_gone(farm), "the lease to end")
    proxy.cut()  # as the system's own timeout would, in the end
    proxy.mend()
    finish(farm, job)


def test_the_daemon_is_killed_and_the_connection_stays(field: Field) -> None:
    farm = field.farm
    job = farm.submit(rows(600, 1024, seed=4), 1)
    until(lambda: farm.status(job).totals.committed > 20, "some of it to be done")
    connections = len(field.proxy.seen)  # all there are by now: it controls, pulls and pushes
    farm.restart()
    finish(farm, job)
    assert len(field.proxy.seen) == connections, "a new connection was made"


def test_an_agent_killed_within_a_pull_begins_it_anew(field: Field) -> None:
    farm, proxy, far = field
    proxy.rate = 2.0 * MIB
    job = farm.submit(rows(2, MIB, seed=5), 1)
    until(lambda: any(name.endswith(".half") for name in far.files()), "a pull to begin")
    far.process.kill()
    far.process.wait(30)
    proxy.mend()
    far.join()
    finish(farm, job)
    assert far.leave() == 0
    assert list(far.files().values()).count(4 * MIB) == 2
    assert not any(name.endswith(".half") for name in far.files())


def is_gone(farm: FarmHarness) -> bool:
    agent = farm.agent_status("far")
    return agent is not None and agent.state == "gone"
