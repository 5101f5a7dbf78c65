"""A lost store is rebuilt of what lies in the root: every job comes back and ends as a serial run has it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.api.requests import Cancel, Done, Pause, Resume
from muster.coordinator.commands.submit import submit
from muster.coordinator.daemon.store.opening import is_sound
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol import transfer
from tests.integration import test_train
from tests.support.farm import FarmHarness, arrays, strace_obstacle, until
from tests.support.simulated import SimulatedAgent

SHARDS, ROWS = 6, 4
MOST_RENAMES = 12


def job_of(farm: FarmHarness, name: str, seed: int, **more: Any) -> str:
    return farm.submit(arrays(rows=SHARDS * ROWS, seed=seed), shard_rows=ROWS, name=name, **more)


def ask(farm: FarmHarness, question: Any) -> None:
    farm.ask(question, Done)


def granted(agent: SimulatedAgent) -> None:
    if not agent.session:
        agent.join()
    until(lambda: agent.sync(wait=0.05) and any(agent.granted.values()), "a grant")


def commit_some(agent: SimulatedAgent, count: int) -> None:
    """Of the one job that runs; the rest is handed back."""
    done = 0
    while done < count:
        granted(agent)
        done += agent.compute(1)
    for part in list(agent.parts):
        agent.push(part)
    agent.give_back()


def compute_all(agent: SimulatedAgent) -> None:
    def enough() -> bool:
        agent.sync(wait=0.05)
        agent.compute()
        return sum(len(part.numbers) for part in agent.parts) >= SHARDS

    agent.join()
    until(enough, "all shards")
    agent.sync(hungry=False)


def lose_store(farm: FarmHarness) -> None:
    farm.kill()
    for path in farm.root.path.glob("state.sqlite*"):
        path.unlink()


def rebuilt(farm: FarmHarness) -> str:
    ran = farm.coordinator("rebuild")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_ten_jobs_in_all_states_end_as_ever_after_the_store_was_lost(farm: FarmHarness) -> None:
    worker = farm.agent("worker")
    whole = job_of(farm, "whole", 1)
    worker.work(lambda: farm.status(whole).state == "complete")
    poisoned = job_of(farm, "poisoned", 2)
    worker.fails = {("a", 2)}
    worker.work(lambda: farm.status(poisoned).state == "incomplete")
    halted = job_of(farm, "halted", 3)
    worker.fails = {("a", number) for number in range(SHARDS)}
    worker.work(lambda: farm.status(halted).state == "halted")
    worker.fails = set()
    cancelled = job_of(farm, "cancelled", 4)
    commit_some(worker, 2)
    ask(farm, Cancel(cancelled))
    paused = job_of(farm, "paused", 5)
    commit_some(worker, 2)
    ask(farm, Pause(paused))
    training = test_train.submit(farm, rounds=300)
    points = farm.root.job(training).checkpoints
    worker.work(lambda: len(list(points.glob("round-*"))) >= 2)
    ask(farm, Pause(training))
    file = farm.job_file(arrays(rows=SHARDS * ROWS, seed=6), ROWS, name="shared")
    shared = [submit(farm.root, file) for _ in range(2)]
    commit_some(worker, 3)
    for job in shared:
        ask(farm, Pause(job))
    worker.leave()
    half, holder = job_of(farm, "half", 7), farm.agent("holder")
    compute_all(holder)
    holder.push(holder.parts[0])
    kept = [number for part in holder.parts for number in part.numbers]
    assert kept
    ask(farm, Pause(half))
    merging, last = job_of(farm, "merging", 8), farm.agent("last")
    compute_all(last)
    ask(farm, Pause(merging))
    fresh = job_of(farm, "fresh", 9)
    for job in (half, training, *shared):
        ask(farm, Resume(job))
    assert farm.status(training).state == "running"
    for part in list(last.parts):
        last.push(part)
    last.die()
    lose_store(farm)
    assert farm.coordinator("serve").returncode == 12

    said = rebuilt(farm)
    paused_again = {poisoned, halted, cancelled, paused, training, *shared, half, fresh}
    for job in paused_again:
        assert f"{job}: paused" in said
    assert "its plan is" not in said
    assert f"{whole}: complete" in said and "failures and what was given up" in said
    farm.start()
    states = {job.id: job.state for job in farm.jobs()}
    assert states[whole] == "complete" and {job for job in states if states[job] == "paused"} >= paused_again
    assert farm.status(cancelled).totals.committed == farm.status(paused).totals.committed == 2
    holder.hang_up()
    holder.join()
    assert [number for part in holder.parts for number in part.numbers] == kept  # nobody told it to forget them
    farm.wait(merging)
    before = list(holder.computed)
    for job in paused_again:
        ask(farm, Resume(job))
    holder.work(lambda: all(job.state == "complete" for job in farm.jobs()))
    of_half = {layer.digest for layer in farm.plan(half).layers}
    assert not [run for run in holder.computed[len(before) :] if run[0] in of_half]
    for job in {*states} - {training}:
        farm.check_result(job)
        assert farm.coordinator("verify", job).returncode == 0
    test_train.check(farm, training)
    assert job_of(farm, "whole", 1) == "whole.2"


def test_who_has_grants_of_a_later_start_than_this_keeps_what_it_finished(farm: FarmHarness) -> None:
    """The root is one of an older version, which noted no starts, and was served often without a trace."""
    job = job_of(farm, "job", 1)
    agent = farm.agent()
    granted(agent)
    agent.compute(1)
    granted(agent)
    lose_store(farm)
    agent.granted = {(*key[:2], 1 << 20, key[3]): numbers for key, numbers in agent.granted.items()}
    rebuilt(farm)
    farm.start()
    agent.hang_up()
    agent.join()
    assert not any(agent.granted.values()) and agent.parts  # it is told to drop what it never began
    answer = agent.push(agent.parts[0])
    assert isinstance(answer, transfer.Settled), answer  # it counts once it is pushed
    ask(farm, Resume(job))
    agent.work(lambda: farm.status(job).state == "complete")
    assert sorted(number for _, number in agent.computed) == list(range(SHARDS))
    farm.check_result(job)


def test_a_rebuild_is_refused_while_it_is_served_and_where_nothing_is_lost(farm: FarmHarness) -> None:
    job = job_of(farm, "job", 1)
    assert farm.coordinator("rebuild").returncode == 7
    farm.stop()
    ran = farm.coordinator("rebuild")
    assert ran.returncode == 7 and "is not lost" in ran.stderr
    assert farm.coordinator("rebuild", "--anyway").returncode == 0
    assert farm.stored()[job].state == "paused"
    assert (farm.root.path / "state.sqlite.before-rebuild-1").exists()


def test_a_plan_that_was_changed_is_named(farm: FarmHarness) -> None:
    job = job_of(farm, "job", 1)
    lose_store(farm)
    change(farm.root.job(job).plan, lambda raw: raw.replace(b"n_clusters\x04", b"n_clusters\x05"))
    assert f"{job}: its plan is damaged" in rebuilt(farm)


@pytest.fixture
def spoilt(farm: FarmHarness) -> FarmHarness:
    """A farm with something of everything that is damaged, its store lost."""
    agent = farm.agent()
    whole, other, bad = (job_of(farm, name, seed) for seed, name in enumerate(("whole", "other", "bad")))
    agent.work(lambda: farm.status(whole).state == farm.status(other).state == farm.status(bad).state == "complete")
    half = job_of(farm, "half", 5)
    commit_some(agent, 1)
    commit_some(agent, 1)
    commit_some(agent, 1)
    lose_store(farm)
    change(farm.root.job(other).result / "a" / "manifest.json", lambda raw: raw.replace(b'"rows": ', b'"rows": 1'))
    change(farm.root.job(bad).plan, lambda raw: raw[: len(raw) // 2])
    bundles = sorted(farm.root.job(half).bundles.iterdir())
    assert len(bundles) == 3
    change(bundles[0], lambda raw: bytes([raw[0] ^ 1]) + raw[1:])
    shutil.copy(bundles[1], bundles[1].with_name("9-1.part"))
    return farm


def change(file: Path, by: Callable[[bytes], bytes]) -> None:
    file.write_bytes(by(file.read_bytes()))


def assert_rebuilt(farm: FarmHarness) -> None:
    stored = farm.stored()
    assert {job: (one.state, len(one.layers[0].committed)) for job, one in stored.items()} == {
        "whole.1": ("complete", 0),
        "other.1": ("paused", 0),
        "half.1": ("paused", 2),
    }
    half = farm.root.job("half.1")
    assert len(list(half.bundles.iterdir())) == len(list((half.path / "aside/bundles").iterdir())) == 2
    assert (farm.root.job("other.1").path / "aside/result/a/manifest.json").exists()


def finish(farm: FarmHarness) -> None:
    farm.start()
    for job in ("other.1", "half.1"):
        ask(farm, Resume(job))
    farm.agent().work(lambda: all(job.state == "complete" for job in farm.jobs()))
    for job in ("whole.1", "other.1", "half.1"):
        farm.check_result(job)


def test_what_is_damaged_is_named_and_set_aside(spoilt: FarmHarness) -> None:
    said = rebuilt(spoilt)
    for told in (
        "bad.1 has no row",
        "other.1/a is computed again",
        "half.1: a bundle is damaged",
        "9-1.part is set aside",
    ):
        assert told in said
    assert_rebuilt(spoilt)
    finish(spoilt)
    assert spoilt.root.job("bad.1").plan.exists()


@pytest.mark.skipif(bool(strace_obstacle()), reason=strace_obstacle())
def test_a_rebuild_that_is_killed_between_any_two_steps_begins_anew(spoilt: FarmHarness) -> None:
    before = spoilt.folder / "before"
    spoilt.root.socket.unlink()
    spoilt.root.store.write_bytes(b"not a store")
    shutil.copytree(spoilt.root.path, before, symlinks=True)
    sound: list[int] = []
    for at in range(1, MOST_RENAMES):
        fault = ["-e", "trace=rename", "-e", f"inject=rename:signal=SIGKILL:when={at}"]
        command = ["strace", "-o", "/dev/null", *fault, *roots.command("rebuild", spoilt.root.path)]
        if spoilt.run(command, f"killed-{at}.out").wait(60) == 0:
            break
        if is_sound(spoilt.root):  # the new one is in its place
            sound.append(at)
        else:
            rebuilt(spoilt)
        assert_rebuilt(spoilt)
        assert (spoilt.root.path / "state.sqlite.before-rebuild-1").read_bytes() == b"not a store"
        shutil.rmtree(spoilt.root.path)
        shutil.copytree(before, spoilt.root.path, symlinks=True)
    else:
        raise AssertionError("it was killed at every rename")
    assert at > 5 and sound == [at - 1]
    finish(spoilt)
