"""What `status` and `agents` say of a farm that does not do as one would like: too little memory, a machine that is
silent or does not come back, more lent than there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.protocol import control, transfer
from tests.support.farm import FarmHarness, arrays, running, until

LEASE_SECONDS = 16.0  # of which a quarter is silence
TAKEN = "the kernel's out-of-memory killer took the process at 1.2 GiB or more; its group may take 1.5 GiB"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path) as made:
        yield made


def notes(farm: FarmHarness, job: str) -> list[str]:
    """As `status JOB` prints them."""
    return [line for line in farm.coordinator("status", job).stdout.splitlines() if line.startswith("  note ")]


def test_what_was_too_large_for_a_machine_is_named_once_with_what_it_took(farm: FarmHarness) -> None:
    job, agent = farm.submit(arrays(1)), farm.agent()
    agent.join()
    agent.sync()
    (key, numbers), *_ = agent.granted.items()
    _, layer, boot, attempt = key
    failure = control.Failure(job, layer, numbers.bottom, boot, attempt, "memory", TAKEN, "", 1.0, 5)
    agent.sync(failures=[failure])
    assert notes(farm, job) == [f"  note      1 attempt failed for want of memory, on one: {TAKEN}"]


def test_a_machine_that_runs_fewer_shards_for_their_memory_says_so_of_that_job_alone(farm: FarmHarness) -> None:
    job, other, agent = farm.submit(arrays(1)), farm.submit(arrays(1, seed=5)), farm.agent()
    agent.join()
    why = f"memory: {TAKEN}; going on with 1 cpu"
    agent.sync(narrowed={job: why})
    assert notes(farm, job) == [f"  note      one: {why}"] and notes(farm, other) == []
    agent.sync(hungry=False)
    assert notes(farm, job) == []


def test_a_shard_whose_bundle_is_sooner_than_its_report_is_finished_once(farm: FarmHarness) -> None:
    job, agent = farm.submit(arrays(1)), farm.agent()
    agent.join()
    agent.sync()
    count = agent.compute()
    for part in list(agent.parts):
        assert isinstance(agent.push(part), transfer.Settled)
    agent.sync(hungry=False)
    status = farm.status(job)
    assert (status.totals.committed, status.agents[0].shards) == (count, count)


def test_a_job_that_is_halted_says_what_its_shards_failed_with(farm: FarmHarness) -> None:
    job, agent = farm.submit(arrays(1)), farm.agent()
    agent.join()
    agent.fails = {("a", number) for number in range(6)}
    agent.work(lambda: farm.status(job).state == "halted")
    assert farm.status(job).why == "3 different shards failed, and none succeeded; the last: it is poison"


def test_a_machine_that_is_silent_is_not_shown_as_live(tmp_path: Path) -> None:
    with running(tmp_path, lease=LEASE_SECONDS) as farm:
        agent = farm.agent()
        agent.join()
        assert "live" in farm.coordinator("agents").stdout
        until(lambda: "silent for " in farm.coordinator("agents").stdout, "it to be silent")
        agent.sync()
        assert "silent" not in farm.coordinator("agents").stdout


def test_after_a_restart_a_job_says_whom_it_waits_for_though_nobody_is_there(farm: FarmHarness) -> None:
    job, agent = farm.submit(arrays(1)), farm.agent()
    agent.join()
    agent.sync()
    assert agent.granted
    farm.restart()
    said = "\n".join(notes(farm, job))
    assert "no agent has joined" in said and "wait for one: `coordinator drop AGENT`" in said


def test_agents_of_other_users_on_one_machine_are_added_up(farm: FarmHarness) -> None:
    for name in ("mine", "yours"):
        agent = farm.agent(name)
        hello = msgspec.structs.replace(agent.hello(), machine="m" * 32, cores=3)
        assert isinstance(agent.control.ask(hello), control.Welcome)
    said = farm.coordinator("agents").stdout.splitlines()
    assert said[-1].startswith("here: mine (2), yours (2) together lend 4 of its 3 cores; ")
    assert farm.ask(StatusAsk(), Status).agents == 2
