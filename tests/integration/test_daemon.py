"""What the daemon promises, shown with simulated agents over real helpers: leases, restarts, drains, poison, fences."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.api.requests import Drain, ExplainAgent, ExplainJob, Retry, Submit, Submitted
from muster.coordinator.api.status import Explained
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol import control, transfer, values
from muster.coordinator.protocol.frames import FRAME_LIMIT, HEAD, MAGIC, frame
from muster.coordinator.submission.submit import plan_file, submission
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.common.ranges import RangeSet
from muster.jobs.parts.part_file import encode_index, read_index
from tests.support.farm import FarmHarness, arrays, running, until
from tests.support.processes import peak_bytes
from tests.support.simulated import Cut, SimulatedAgent

SHARDS = 12
ROWS = 4
LEASE = 0.8  # seconds, where a test waits for its end
MEMORY_BYTES = 300 << 20  # what hostile bytes may make the daemon grow by


@pytest.fixture
def brisk(tmp_path: Path) -> Iterator[FarmHarness]:
    """A farm whose leases end soon."""
    with running(tmp_path, lease=LEASE, heartbeat=0.1, tick=0.05) as made:
        yield made


def submit(farm: FarmHarness, shards: int = SHARDS, **more: Any) -> str:
    return farm.submit(arrays(rows=shards * ROWS), shard_rows=ROWS, **more)


def numbers_of(agent: SimulatedAgent) -> list[int]:
    return [number for _, number in agent.computed]


def finish_some(agent: SimulatedAgent, at_least: int = 3) -> None:
    """Compute shards and report them, push none."""
    agent.join()

    def enough() -> bool:
        agent.sync(wait=0.05)
        agent.compute()
        return len(agent.computed) >= at_least

    until(enough, f"{at_least} shards to be finished")
    agent.sync(hungry=False)


def wait_gone(farm: FarmHarness, name: str) -> None:
    until(lambda: (status := farm.agent_status(name)) and status.state == "gone", f"{name} to be given up")


def wait_merged(farm: FarmHarness, job: str, layers: int) -> None:
    until(lambda: farm.status(job).layers_merged >= layers, f"{layers} layers to be merged")


def once_each(*agents: SimulatedAgent, shards: int = SHARDS) -> None:
    assert sorted(number for agent in agents for number in numbers_of(agent)) == list(range(shards))


# --- leases and late news -----------------------------------------------------------------------------------


def test_a_dead_machines_shards_are_pending_again(brisk: FarmHarness) -> None:
    job = submit(brisk)
    dead, heir = brisk.agent("dead"), brisk.agent("heir")
    finish_some(dead)
    dead.sync()
    assert brisk.status(job).totals.running > 0
    dead.die()
    wait_gone(brisk, "dead")
    totals = brisk.status(job).totals
    assert (totals.running, totals.finished, totals.pending) == (0, 0, SHARDS)
    heir.work(lambda: brisk.status(job).state == "complete")
    brisk.check_result(job)


def test_news_of_a_stale_attempt_changes_nothing(brisk: FarmHarness) -> None:
    job = submit(brisk, shards=1)
    old, new = brisk.agent("old"), brisk.agent("new")
    old.join()
    until(lambda: old.sync(wait=0.05) and old.granted, "a grant")
    [(_, layer, boot, attempt)] = old.granted
    old.granted.clear()
    old.hang_up(kill=True)
    wait_gone(brisk, "old")
    new.join()
    until(lambda: new.sync(wait=0.05) and new.granted, "the same shard for another agent")
    failure = control.Failure(job, layer, 0, boot, attempt, "exception", "late", "", 0.0, 0)
    loss = control.Loss(job, layer, boot, attempt, [(0, 1)], True, "late")
    old._failures = [failure]
    old.join()
    for _ in range(6):
        old._failures = [failure]
        old.sync(hungry=False, losses=[loss], returned=[control.Returned(layer, boot, attempt, [(0, 1)])])
    status = brisk.status(job)
    assert (status.failures, status.totals.running, status.totals.quarantined) == (0, 1, 0)
    new.work(lambda: brisk.status(job).state == "complete")
    assert numbers_of(new) == [0]
    brisk.check_result(job)


def test_finished_shards_are_not_done_again_while_their_machine_talks(farm: FarmHarness) -> None:
    job = submit(farm)
    slow, quick = farm.agent("slow"), farm.agent("quick")
    finish_some(slow)
    ours = len(slow.computed)
    slow.give_back()
    quick.work(lambda: slow.sync(hungry=False) and farm.status(job).totals.committed == SHARDS - ours)
    assert not set(numbers_of(quick)) & set(numbers_of(slow))
    slow.work(lambda: farm.status(job).state == "complete")
    once_each(slow, quick)
    farm.check_result(job)


def test_what_an_agent_does_not_have_by_its_own_count_runs_again(brisk: FarmHarness) -> None:
    job = submit(brisk, shards=1)
    agent = brisk.agent("forgetful")
    finish_some(agent, at_least=1)
    agent.sync(hungry=False)
    agent.parts.pop().path.unlink()
    rejected = until(lambda: isinstance(answer := agent.sync(counts={}), control.Rejected) and answer, "a refusal")
    assert rejected.code == "no-session" and "forgetful has 1 shards of" in brisk.said()
    agent.session = 0
    agent.work(lambda: brisk.status(job).state == "complete")
    brisk.check_result(job)


def test_a_kick_takes_a_shard_that_is_finished_and_not_sent(farm: FarmHarness) -> None:
    job = submit(farm, shards=1)
    keeper = farm.agent("keeper")
    finish_some(keeper, at_least=1)
    keeper.sync(hungry=False)
    refused = farm.coordinator("kick", f"{job}/a/7")
    kicked = farm.coordinator("kick", f"{job}/a/0")
    assert (refused.returncode, kicked.returncode) == (6, 0), kicked.stderr
    assert "is taken from keeper" in kicked.stdout
    other = farm.agent("other")
    other.work(lambda: farm.status(job).state == "complete")
    assert other.computed == keeper.computed
    assert keeper.push(keeper.parts[0]).code == "committed"
    farm.check_result(job)


def test_after_the_lease_they_come_last_and_on_return_count_unless_committed(brisk: FarmHarness) -> None:
    job = submit(brisk)
    lost, heir = brisk.agent("lost"), brisk.agent("heir", cpus=1)
    finish_some(lost)
    theirs = set(numbers_of(lost))
    lost.granted.clear()
    lost.hang_up(kill=True)
    wait_gone(brisk, "lost")
    heir.join()

    def step() -> bool:
        heir.sync(wait=0.02)
        heir.compute(limit=1)
        for part in list(heir.parts):
            heir.push(part)
        return bool(set(numbers_of(heir)) & theirs)

    until(step, "the heir to run one that was finished elsewhere")
    assert set(numbers_of(heir)[:-1]) == set(range(SHARDS)) - theirs, "untouched shards did not come first"
    heir.give_back()
    back = brisk.agent("lost")
    back.join()
    assert back.acknowledged[heir.computed[0][0]] == RangeSet.of([numbers_of(heir)[-1]])
    back.work(lambda: brisk.status(job).state == "complete")
    assert back.computed == []
    brisk.check_result(job)


def test_an_agent_that_was_given_up_is_told_so_on_its_old_channel(brisk: FarmHarness) -> None:
    """Else it would sync for ever and get nothing."""
    job = submit(brisk)
    sleeper, other = brisk.agent("sleeper"), brisk.agent("other")
    sleeper.join()
    wait_gone(brisk, "sleeper")
    other.join()
    answer = sleeper.sync()
    assert isinstance(answer, control.Rejected) and answer.code == "no-session"
    sleeper.work(lambda: brisk.status(job).state == "complete")
    once_each(sleeper)


def test_a_daemon_that_stood_still_blames_nobody(brisk: FarmHarness) -> None:
    submit(brisk)
    agent = brisk.agent()
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.granted, "a grant")
    brisk.kill(signal.SIGSTOP)
    resume_at = time.monotonic() + 2 * LEASE
    until(lambda: time.monotonic() > resume_at, "twice the lease to be over")
    brisk.kill(signal.SIGCONT)
    until(lambda: brisk.agent_status(agent.name), "the daemon to answer")
    status = brisk.agent_status(agent.name)
    assert status is not None and (status.state, status.running) == ("live", 1)
    assert isinstance(agent.sync(), control.News)


# --- the daemon dies ----------------------------------------------------------------------------------------


def test_a_restarted_daemon_adopts_what_agents_hold(farm: FarmHarness) -> None:
    """Finished, running and untouched: nothing is done twice, and the result is the serial run's."""
    job = submit(farm)
    agents = [farm.agent("one"), farm.agent("two")]
    for agent in agents:
        finish_some(agent)
        agent.sync()
    agents[0].push(agents[0].parts[0])
    assert farm.status(job).totals.running > 0
    farm.kill()
    farm.audit(job, *agents)
    farm.start()
    for agent in agents:
        with pytest.raises(Cut, match="went away"):
            agent.sync()
        agent.hang_up()
        agent.join()
    for agent in agents:
        agent.go()
    farm.wait(job)
    once_each(*agents)
    farm.check_result(job)


def test_after_a_restart_nobody_else_gets_what_may_still_be_held(farm: FarmHarness) -> None:
    job = submit(farm, shards=300)
    holder, other = farm.agent("holder"), farm.agent("other")
    finish_some(holder)
    holder.sync()
    held = set(numbers_of(holder)) | {n for numbers in holder.granted.values() for n in numbers}
    holder.hang_up(kill=True)
    farm.restart()
    other.join()
    assert any("wait for holder" in note for note in farm.status(job).notes)

    def idle() -> bool:
        other.step(wait=0.05)
        totals = farm.status(job).totals
        return totals.pending == 0 and totals.committed == len(other.computed)

    until(idle, "all that nobody held to be committed")
    assert not set(numbers_of(other)) & held
    assert numbers_of(other)
    other.sync(hungry=False)
    holder.work(lambda: farm.status(job).state == "complete")
    once_each(holder, other, shards=300)
    farm.check_result(job)


def test_whatever_is_killed_a_reader_never_sees_a_partial_result(farm: FarmHarness) -> None:
    job = farm.submit(arrays(6), shard_rows=ROWS)
    expected = farm.serial(job)
    stop, wrong, seen = threading.Event(), list[str](), set[str]()

    def read() -> None:
        while not stop.is_set():
            for layer, files in farm.merged(job).items():
                if files != expected[layer]:
                    wrong.append(layer)
                seen.add(layer)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for name in ("one", "two"):
            farm.agent(name).go()
        for merged in (1, 2, 4):
            wait_merged(farm, job, merged)
            farm.restart()
        farm.wait(job)
    finally:
        stop.set()
        reader.join()
    assert not wrong
    assert seen and farm.merged(job) == expected


def test_stopped_in_good_order_it_goes_on(farm: FarmHarness) -> None:
    job = submit(farm)
    agent = farm.agent()
    finish_some(agent)
    assert farm.stop() == 0
    assert not farm.root.socket.exists()
    assert list(farm.root.tmp.iterdir()) == []
    farm.start()
    agent.work(lambda: farm.status(job).state == "complete")
    once_each(agent)
    farm.check_result(job)


def test_a_second_daemon_is_refused(farm: FarmHarness) -> None:
    second = farm.coordinator("serve")
    assert second.returncode == 7
    assert second.stderr.startswith(f"error: {farm.root.path} is served already\nhint: ")


@pytest.mark.parametrize("harm", ["a bit turned", "cut short", "gone"])
def test_a_damaged_bundle_runs_again_and_nothing_else(farm: FarmHarness, harm: str) -> None:
    job = submit(farm)
    agent = farm.agent()
    finish_some(agent, at_least=SHARDS)
    for part in agent.parts[:-1]:
        agent.push(part)
    victim = min(farm.root.job(job).bundles.iterdir())
    lost = [entry.number for entry in read_index(victim).entries]
    raw = victim.read_bytes()
    if harm == "gone":
        victim.unlink()
    else:
        victim.write_bytes(bytes([raw[0] ^ 1]) + raw[1:] if harm == "a bit turned" else raw[: len(raw) // 2])
    agent.acknowledged.clear()
    agent.work(lambda: farm.status(job).state == "complete")
    assert sorted(numbers_of(agent)) == sorted([*range(SHARDS), *lost])
    assert "is damaged" in farm.said()
    farm.check_result(job)


# --- damaged plans ------------------------------------------------------------------------------------------


def spoil(plan: Path, harm: str = "another number") -> bytes:
    """Harm a plan; what it was."""
    raw = plan.read_bytes()
    if harm == "another number":
        assert raw.count(b"n_clusters\x04") == 1
        plan.write_bytes(raw.replace(b"n_clusters\x04", b"n_clusters\x06"))
    else:
        plan.write_bytes(raw[: len(raw) // 2])
    return raw


def assert_damaged(farm: FarmHarness, *command: str) -> None:
    ran = farm.coordinator(*command)
    assert ran.returncode == 12, (command, ran.stdout, ran.stderr)
    assert ran.stdout == "" and ran.stderr.startswith("error: ") and "plan.msgpack is damaged: " in ran.stderr
    assert ran.stderr.count("\n") == 2 and "\nhint: restore the file from a backup" in ran.stderr


@pytest.mark.parametrize("harm", ["another number", "cut short"])
def test_a_damaged_plan_keeps_no_other_job_from_being_served(farm: FarmHarness, harm: str) -> None:
    spoilt, sound = submit(farm), submit(farm, shards=5)
    farm.stop()
    raw = spoil(farm.root.job(spoilt).plan, harm)
    farm.start()
    agent = farm.agent()
    agent.work(lambda: farm.status(sound).state == "complete")
    farm.check_result(sound)
    assert len(agent.computed) == 5 and [job.state for job in farm.jobs()] == ["damaged", "complete"]
    assert f"{spoilt}: {farm.root.job(spoilt).plan} is damaged" in farm.coordinator("status").stdout
    for command in ("retry", "cancel", "verify", "result"):
        assert_damaged(farm, command, spoilt)
    farm.stop()
    farm.root.job(spoilt).plan.write_bytes(raw)
    farm.start()
    farm.agent().work(lambda: farm.status(spoilt).state == "complete")
    farm.check_result(spoilt)


def test_a_plan_of_another_format_keeps_no_other_job_from_being_served(farm: FarmHarness) -> None:
    newer, sound = submit(farm), submit(farm, shards=5)
    farm.stop()
    plan = farm.root.job(newer).plan
    plan.write_bytes(msgspec.msgpack.encode(msgspec.msgpack.decode(plan.read_bytes()) | {"format": 2}))
    with closing(sqlite3.connect(farm.root.store)) as store, store:
        store.execute("UPDATE jobs SET plan = NULL")  # as of a version that knew no digests
    farm.start()
    farm.agent().work(lambda: farm.status(sound).state == "complete")
    assert f"{newer}: a plan of format 2" in farm.coordinator("status").stdout
    ran = farm.coordinator("retry", newer)
    assert ran.returncode == 12 and ran.stderr.startswith("error: a plan of format 2")


def test_a_job_with_a_damaged_plan_can_be_deleted(farm: FarmHarness) -> None:
    spoilt = submit(farm)
    farm.stop()
    spoil(farm.root.job(spoilt).plan)
    farm.start()
    assert farm.coordinator("rm", spoilt).returncode == 0
    assert not farm.root.job(spoilt).path.exists() and farm.coordinator("status", spoilt).returncode == 6
    farm.restart()
    assert farm.jobs() == []


def test_what_a_job_with_a_damaged_plan_shares_stays_until_it_is_whole_again(farm: FarmHarness) -> None:
    fields: dict[str, Any] = {"work": "def f(rows): return rows * 2\n", "kind": "map", "code": "work.py:f"}
    spoilt, other = submit(farm, **fields), submit(farm, **fields)
    farm.stop()
    raw = farm.root.job(spoilt).plan.read_bytes()
    farm.root.job(spoilt).plan.write_bytes(raw[:-1])
    farm.start()
    for command in ("cancel", "rm"):
        assert farm.coordinator(command, other).returncode == 0
    farm.stop()
    farm.root.job(spoilt).plan.write_bytes(raw)
    farm.start()
    farm.agent().work(lambda: farm.status(spoilt).state == "complete")
    farm.check_result(spoilt)


def test_a_plan_that_was_changed_is_told_with_a_daemon_and_without(farm: FarmHarness) -> None:
    job = submit(farm)
    farm.agent().work(lambda: farm.status(job).state == "complete")
    assert farm.coordinator("verify", job, "--inputs").returncode == 0
    raw = spoil(farm.root.job(job).plan)
    for _ in range(2):
        assert_damaged(farm, "verify", job, "--inputs")
        assert_damaged(farm, "result", job)
        if farm.daemon and farm.daemon.poll() is None:
            farm.kill()  # what it wrote last is in its log alone
    farm.root.job(job).plan.write_bytes(raw)
    assert farm.coordinator("verify", job, "--inputs").returncode == 0
    farm.start()
    assert farm.status(job).state == "complete"


def test_a_manifest_that_was_changed_is_told_with_a_daemon_and_without(farm: FarmHarness) -> None:
    job = submit(farm)
    farm.agent().work(lambda: farm.status(job).state == "complete")
    manifest = farm.root.job(job).result / "a" / "manifest.json"
    raw = manifest.read_bytes()
    manifest.write_bytes(raw.replace(b"numpy", b"numqy"))  # of the kernels, which stand nowhere else
    for _ in range(2):
        assert farm.coordinator("verify", job).returncode == 12
        if farm.daemon and farm.daemon.poll() is None:
            farm.kill()
    manifest.write_bytes(raw)
    assert farm.coordinator("verify", job).returncode == 0
    with contextlib.closing(sqlite3.connect(farm.root.store)) as db:
        db.execute("ALTER TABLE layers DROP COLUMN manifest")  # as of a version that kept no such digests
    assert farm.coordinator("verify", job).returncode == 0
    farm.start()
    manifest.write_bytes(raw.replace(b'"rows": ', b'"rows": 1'))
    assert farm.coordinator("verify", job).returncode == 12


def test_a_root_from_before_plans_had_digests_gets_them(farm: FarmHarness) -> None:
    job = submit(farm)
    farm.agent().work(lambda: farm.status(job).state == "complete")
    farm.stop()
    with contextlib.closing(sqlite3.connect(farm.root.store)) as db:
        db.execute("ALTER TABLE jobs DROP COLUMN plan")
    assert farm.coordinator("verify", job).returncode == 0
    farm.start()
    farm.stop()
    assert farm.stored()[job].plan == of_bytes(farm.root.job(job).plan.read_bytes())
    spoil(farm.root.job(job).plan)
    assert_damaged(farm, "verify", job)


# --- a root that is not what it was -------------------------------------------------------------------------


def test_a_second_daemon_is_refused_though_the_lock_is_gone(farm: FarmHarness) -> None:
    farm.root.lock.unlink()
    second = farm.coordinator("serve")
    assert second.returncode == 7 and f"{farm.root.path} is served already" in second.stderr
    assert farm.stop() == 0


@pytest.mark.parametrize("after", ["moved", "removed", "made anew"])
def test_a_root_that_goes_under_its_daemon_ends_it_with_a_sentence(farm: FarmHarness, after: str) -> None:
    job = submit(farm)
    moved = farm.folder / "moved"
    farm.root.path.rename(moved)
    if after == "removed":
        shutil.rmtree(moved)
    if after == "made anew":
        farm.root.path.mkdir()
        farm.root.socket.touch()
    assert farm.await_death() == 7
    said = (farm.folder / "daemon.out").read_text()
    assert f"error: the root {farm.root.path} was moved or removed while it was served\nhint: " in said
    assert "a bug of ours" not in said
    if after == "made anew":
        assert list(farm.root.path.iterdir()) == [farm.root.socket]
        shutil.rmtree(farm.root.path)
    if after != "removed":
        moved.rename(farm.root.path)
        farm.start()
        farm.agent().work(lambda: farm.status(job).state == "complete")


def test_a_lost_store_is_not_served(farm: FarmHarness) -> None:
    submit(farm)
    farm.kill()
    farm.root.store.unlink()
    for options in ((), ("--detach",)):
        ran = farm.coordinator("serve", *options)
        assert ran.returncode == 12 and "coordinator rebuild" in ran.stderr, ran.stderr
    assert not farm.root.store.exists()


# --- submitters that die ------------------------------------------------------------------------------------


LAYS_OUT = """
import sys
from pathlib import Path
from muster.coordinator.submission.submit import plan_file, submission
from muster.coordinator.farm_root import paths as root
with submission(root.find(Path(sys.argv[1])), plan_file(Path(sys.argv[2]))) as name:
    print(name, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("daemon", ["runs", "starts"])
def test_what_a_killed_submitter_left_is_swept_and_a_live_ones_is_not(brisk: FarmHarness, daemon: str) -> None:
    file = str(brisk.job_file(arrays(), ROWS))
    command = [sys.executable, "-c", LAYS_OUT, str(brisk.root.path), file]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    live, dead = (brisk.run(command, "submitter.out", **streams) for _ in range(2))
    folders = []
    for one in (live, dead):
        assert one.stdout is not None
        folders.append(brisk.root.tmp / one.stdout.readline().decode().strip())
    if daemon == "starts":
        brisk.kill()
    dead.kill()
    if daemon == "starts":
        brisk.start()
    until(lambda: not folders[1].exists(), "the dead one's folder to go")
    assert (folders[0] / "plan.msgpack").exists()
    job = brisk.ask(Submit(folders[0].name), Submitted).job
    for one in (live, dead):
        one.communicate()
    agent = brisk.agent()
    agent.work(lambda: brisk.status(job).state == "complete")
    assert not list(brisk.root.tmp.glob("submit-*"))


def test_a_job_whose_name_nobody_could_read_is_not_taken(brisk: FarmHarness) -> None:
    planned = plan_file(brisk.job_file(arrays(), ROWS))
    for name in ("x" * 65, "../jobs", ""):
        named = replace(planned, plan=msgspec.structs.replace(planned.plan, name=name))
        with submission(brisk.root, named) as folder, pytest.raises(RefusedError, match="cannot name a job"):
            brisk.ask(Submit(folder), Submitted)
    assert brisk.jobs() == [] and not list(brisk.root.jobs.iterdir())


# --- shards that take too long ------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, "1h"])
def test_a_shard_that_runs_ten_times_the_median_is_named(brisk: FarmHarness, timeout: str | None) -> None:
    fields: dict[str, Any] = {"timeout": timeout} if timeout else {}
    job = submit(brisk, **fields)
    agent = brisk.agent()
    finish_some(agent, SHARDS - 2)
    until(lambda: agent.sync() and agent.granted, "a grant")
    stuck = min(number for numbers in agent.granted.values() for number in numbers)
    began = time.monotonic()

    def named() -> bool:
        agent.sync(hungry=False)
        return bool(brisk.status(job).slow) if timeout is None else time.monotonic() - began > LEASE

    until(named, "it to be named")
    slow = brisk.status(job).slow
    if timeout is None:
        assert [(one.layer, one.number, one.agent) for one in slow] == [("a", stuck, "one")]
        assert slow[0].seconds > 10 * slow[0].median > 0
    else:
        assert slow == []
    agent.work(lambda: brisk.status(job).state == "complete")
    assert brisk.status(job).slow == []
    brisk.check_result(job)


def test_status_names_the_machine_that_has_no_room_for_a_shard(farm: FarmHarness) -> None:
    job, agent = submit(farm), farm.agent()
    agent.join()
    news = agent.control.ask(control.Sync(agent.session, 10, 0.0))
    assert isinstance(news, control.News) and not news.grants
    [note] = farm.status(job).notes
    assert re.fullmatch(rf"one is idle: {job}: a shard needs [\d.]+ \w+ of disk, 10 B are left", note)
    assert note.removeprefix("one is idle: ") in "".join(farm.ask(ExplainAgent("one"), Explained).lines)


def test_why_a_machine_takes_nothing_of_a_job_is_explained_once(farm: FarmHarness) -> None:
    job, agent = submit(farm), farm.agent("bare", kinds={"chain": 1})
    agent.join()
    [note] = farm.status(job).notes
    assert note.startswith("bare has no kind ")
    why = note.removeprefix("bare ")
    lines = [line for line in farm.ask(ExplainJob(job), Explained).lines if why in line]
    assert lines == [f"bare takes nothing of it: {why}"]


# --- machines that compute other bits -----------------------------------------------------------------------


def test_a_job_that_wants_the_same_kernels_goes_to_no_other_machine(farm: FarmHarness) -> None:
    job = submit(farm, same_kernels="require")
    first, other = farm.agent("first"), farm.agent("other", fingerprint="numpy 0.9")
    finish_some(first)
    assert isinstance(first.push(first.parts[0]), transfer.Settled)
    farm.kill()
    farm.start()
    assert farm.stored()[job].kernels == first.fingerprint
    for _ in range(3):
        other.step()
    status = farm.agent_status("other")
    assert other.computed == [] and status is not None and list(status.ineligible) == [job]
    assert "numpy 0.9 here" in status.ineligible[job] and first.fingerprint.split(", ")[0] in status.ineligible[job]
    assert "other: takes nothing of job.1: has other kernels" in farm.coordinator("agents").stdout
    until(lambda: _rejoined(first), "the first to come back")
    refused = other.push_link.ask(headed(other, first, other.name, "numpy 0.9"))
    assert isinstance(refused, transfer.Refused) and refused.code == "kernels"
    first.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)
    assert farm.status(job).failures == 0 and "1 kernel fingerprint;" in farm.coordinator("verify", job).stdout


def _rejoined(agent: SimulatedAgent) -> bool:
    agent.hang_up()
    return isinstance(agent.join(), control.Welcome)


def headed(sender: SimulatedAgent, maker: SimulatedAgent, name: str, fingerprint: str) -> transfer.Offer:
    """An offer of a part that `maker` has, by `sender`, whose header says this."""
    bundle = maker.bundle_of(maker.parts[0])
    entries = tuple(msgspec.structs.replace(entry, agent=name) for entry in bundle.index.entries)
    index = msgspec.structs.replace(bundle.index, fingerprint=fingerprint, entries=entries)
    return msgspec.structs.replace(maker.offer_of(bundle), session=sender.session, index=encode_index(index))


@pytest.mark.parametrize("same_kernels", ["any", "require"])
def test_who_says_that_another_computed_it_or_on_other_kernels_harms_itself_alone(
    farm: FarmHarness, same_kernels: str
) -> None:
    job = submit(farm, same_kernels=same_kernels)
    honest, liar, fake = farm.agent("honest"), farm.agent("liar"), farm.agent("fake")
    for agent in (honest, liar, fake):
        finish_some(agent, 1)
    for agent, name, fingerprint, why in (
        (liar, honest.name, liar.fingerprint, "sent results under the name honest"),
        (fake, fake.name, "numpy 0.9", "sent results of kernels that it never told of: numpy 0.9 here"),
    ):
        refused = agent.push_link.ask(headed(agent, agent, name, fingerprint))
        assert isinstance(refused, transfer.Refused) and refused.code == "sender" and why in refused.message
        assert f"{agent.name}: takes nothing of {job}: {why}" in farm.coordinator("agents").stdout
        assert f"{agent.name} {why}" in farm.said()
        agent.sync(hungry=True)
        assert not agent.granted
    assert farm.stored()[job].kernels == "" and farm.status(job).totals.committed == 0
    honest.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)
    result = np.load(next((farm.root.job(job).result).glob("*/shards.npy")))
    assert set(result["agent"].tolist()) == {"honest"} and farm.status(job).failures == 0


def test_parts_of_an_agent_that_was_renamed_and_whose_packages_changed_count(farm: FarmHarness) -> None:
    job = submit(farm)
    old = farm.agent("old")
    finish_some(old)
    old.die()
    farm.kill()
    farm.start()
    new = SimulatedAgent(farm.root, old.spool, "new", env=farm.environment(), fingerprint="numpy 3.0")
    try:
        new.join()
        assert isinstance(new.push(new.parts[0]), transfer.Settled)
        assert farm.status(job).totals.committed > 0
    finally:
        new.die()


# --- drains, poison, retries --------------------------------------------------------------------------------


def test_a_drain_recomputes_nothing(farm: FarmHarness) -> None:
    job = submit(farm)
    leaver, stayer = farm.agent("leaver"), farm.agent("stayer")
    finish_some(leaver)
    leaver.sync()
    farm.ask(Drain("leaver"), Answered)
    until(lambda: leaver.sync(hungry=True) and leaver.drained, "to be told of the drain")
    leaver.give_back()
    assert leaver.sync(hungry=True).grants == []
    for part in list(leaver.parts):
        assert isinstance(leaver.push(part), transfer.Settled)
    leaver.leave()
    status = farm.agent_status("leaver")
    assert status is not None and status.state == "left"
    stayer.work(lambda: farm.status(job).state == "complete")
    once_each(leaver, stayer)
    farm.check_result(job)


def test_a_poison_shard_stops_after_its_attempts_and_all_else_completes(farm: FarmHarness) -> None:
    for name in ("one", "two"):
        agent = farm.agent(name)
        agent.fails.add(("b", 3))
        agent.go()
        until(partial(farm.agent_status, name), "it to join")  # else one alone may be given all attempts
    job = farm.submit(arrays(2), attempts=2)
    status = farm.wait(job, "incomplete")
    assert status.why == "1 shard given up"
    failures = farm.failures(job)
    assert [(f.layer, f.number, f.code, f.evidence) for f in failures] == 2 * [("b", 3, "exception", "the evidence")]
    assert {failure.agent for failure in failures} == {"one", "two"}
    assert "job.1/b/3 given up" in farm.root.job(job).failures.read_text()
    assert farm.merged(job) == {"a": farm.serial(job)["a"]}
    assert [layer.tally.committed for layer in status.layers] == [6, 5]
    assert farm.coordinator("watch", job).returncode == 11

    for agent in farm.agents:
        agent.fails.clear()
    farm.ask(Retry(job), Answered)
    farm.wait(job)
    farm.check_result(job)


def test_layers_that_run_again_forget_their_results_first(farm: FarmHarness) -> None:
    job = farm.submit(arrays(2))
    agent = farm.agent()
    agent.work(lambda: farm.status(job).state == "complete")
    farm.ask(Retry(job, ["b"]), Answered)
    until(lambda: set(farm.merged(job)) == {"a"}, "the old result to go")
    farm.restart()
    assert [layer.state for layer in farm.status(job).layers] == ["merged", "open"]
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)
    assert len(agent.computed) == 6 + 6 + 6


# --- who may speak ------------------------------------------------------------------------------------------


def test_the_newest_process_fences_the_old(farm: FarmHarness) -> None:
    old, new = farm.agent(), farm.agent()
    old.join()
    assert isinstance(new.join(), control.Welcome)
    for answer in (old.sync(), old.join()):
        assert isinstance(answer, control.Rejected) and answer.code == "fenced" and answer.hint
    assert isinstance(new.sync(), control.News)


def test_a_name_with_another_live_spool_is_refused(brisk: FarmHarness) -> None:
    first = brisk.agent("same")
    second = SimulatedAgent(brisk.root, brisk.folder / "spools" / "else", "same", env=brisk.environment())
    brisk.agents.append(second)
    first.join()
    answer = second.join()
    assert isinstance(answer, control.Rejected) and answer.code == "name-taken"
    first.hang_up()
    wait_gone(brisk, "same")
    assert isinstance(second.join(), control.Welcome)


def test_a_pinned_key_speaks_for_its_own_name_alone(farm: FarmHarness) -> None:
    job = submit(farm)
    honest, liar = farm.agent("honest"), farm.agent("liar", pinned="liar")
    finish_some(honest)
    assert isinstance(liar.join(), control.Welcome)
    liar.name = "honest"
    answer = liar.join()
    assert isinstance(answer, control.Rejected) and answer.code == "not-allowed"
    liar.session, liar.parts = honest.session, honest.parts
    answer = liar.push(honest.parts[0])
    assert isinstance(answer, transfer.Refused) and answer.code == "no-session"
    assert farm.status(job).totals.committed == 0
    assert isinstance(honest.sync(), control.News)


# --- hostile bytes ------------------------------------------------------------------------------------------


HOSTILE = {
    "half a head": b"mus",
    "another magic": b"GET / HTTP/1.1\r\n\r\n",
    "a length above the limit": HEAD.pack(MAGIC, FRAME_LIMIT + 1),
    "the longest length": HEAD.pack(MAGIC, 0xFFFFFFFF) + b"x",
    "half a payload": HEAD.pack(MAGIC, 1000) + b"x" * 999,
    "no msgpack": frame(b"\xc1" * 100),
    "no message": frame(b"\x81\xa1t\xa5bogus"),
    "an empty payload": frame(b""),
    "nested without end": frame(b"\x91" * 1_000_000),
    "a message of the other side": frame(values.encode(control.Bye("so there"))),
    "a long message of noise": frame(np.random.default_rng(0).bytes(FRAME_LIMIT)),
    "work before it said who it is": frame(values.encode(control.Sync(1, 1))),
    "an unknown role": frame(values.encode(transfer.Attach("root"))) + frame(values.encode(control.Sync(1, 1))),
    "control on a push channel": frame(values.encode(transfer.Attach("push")))
    + frame(values.encode(control.Sync(1, 1))),
    "a bundle nobody accepted": frame(values.encode(transfer.Attach("push")))
    + frame(values.encode(transfer.Stored(7, 1))),
    "a sync of nobody's session": frame(values.encode(transfer.Attach("control")))
    + frame(values.encode(control.Sync(1, 1))),
    "ranges out of order": frame(values.encode(transfer.Attach("push")))
    + frame(values.encode(transfer.Offer(1, "0" * 32, [(5, 2)], [], b"", 0))),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("target")) as made:
        yield made


@pytest.mark.parametrize("name", HOSTILE)
def test_the_daemon_outlives_hostile_bytes(target: FarmHarness, name: str) -> None:
    assert target.daemon is not None
    before = peak_bytes(target.daemon.pid)
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as peer, roots.address(target.root.socket) as where:
            peer.settimeout(30)
            peer.connect(where)
            try:
                peer.sendall(HOSTILE[name])
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    continue
            except ConnectionError:
                continue
    assert target.agent_status("nobody") is None
    assert peak_bytes(target.daemon.pid) - before < MEMORY_BYTES
    assert "Traceback" not in target.said()


def test_connections_that_say_nothing_hold_nobody_up(target: FarmHarness) -> None:
    silent = []
    for _ in range(50):
        peer = socket.socket(socket.AF_UNIX)
        with roots.address(target.root.socket) as where:
            peer.connect(where)
        peer.sendall(HEAD.pack(MAGIC, FRAME_LIMIT))
        silent.append(peer)
    agent = target.agent()
    job = submit(target)
    agent.work(lambda: target.status(job).state == "complete")
    for peer in silent:
        peer.close()
    target.check_result(job)


def test_the_socket_and_the_store_are_private(target: FarmHarness) -> None:
    for path in (target.root.socket, target.root.store, target.root.log):
        assert path.stat().st_mode & 0o077 == 0, path
    assert target.root.path.stat().st_uid == os.getuid()
