"""Layers that do not merge: each is its own job's trouble. Others are merged meanwhile, and the helper lives on."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from muster.coordinator.api.process_messages import MergeOrder, MergeReply
from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.api.requests import ExplainJob, Retry
from muster.coordinator.api.status import Explained
from muster.coordinator.protocol.frames import HEAD, frame, payload_size
from muster.jobs.common import launch
from muster.jobs.contract.plan import Layer, Output
from muster.jobs.results.open_result import verify_layer
from tests.support.farm import FarmHarness, arrays, until
from tests.support.shards import files_of, layer_of, result_of, write_part
from tests.support.simulated import SimulatedAgent

DESCRIPTORS = 100  # that the helper may have
OUTPUTS = 3_000
MEMORY_BYTES = 2 << 30  # that the helper may have
HUGE = Output("huge", "sum", "<i8", (50_000_000_000,))
FOLDER_THERE = "Is a directory"


# --- the helper by itself -----------------------------------------------------------------------------------


class Helper:
    """A merge helper with limits of its own, asked as the daemon asks it."""

    def __init__(self, *words: str) -> None:
        command = launch.python("muster.coordinator.daemon.merge.merge_process", *words)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def merge(self, layer: Layer, bundles: list[Path], folder: Path) -> MergeReply:
        return self.ask(msgspec.msgpack.encode(MergeOrder("j.1", layer, [str(path) for path in bundles], str(folder))))

    def ask(self, raw: bytes) -> MergeReply:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(frame(raw))
        self.process.stdin.flush()
        head = self.process.stdout.read(HEAD.size)
        assert len(head) == HEAD.size, "the helper ended"
        return msgspec.msgpack.decode(self.process.stdout.read(payload_size(head)), type=MergeReply)


def test_what_ends_a_merge_unforeseen_is_in_the_daemon_s_log(tmp_path: Path) -> None:
    made = Helper(str(tmp_path / "daemon.log"))
    try:
        assert "ValidationError" in made.ask(msgspec.msgpack.encode("no order")).message
        assert "Traceback" in (tmp_path / "daemon.log").read_text()
    finally:
        made.process.kill()
        made.process.communicate()


@pytest.fixture
def helper() -> Iterator[Helper]:
    made = Helper()
    assert made.process.stdin and made.process.stdout
    try:
        yield made
        made.process.stdin.close()
        assert made.process.wait(40) == 0
    finally:
        made.process.kill()
        made.process.wait()
        made.process.stdout.close()


def test_more_outputs_than_files_may_be_open(helper: Helper, tmp_path: Path) -> None:
    outputs = tuple(Output(f"o{number:04}", "rows", "<i4", (9,)) for number in range(OUTPUTS))
    layer = layer_of(4, 2, outputs)
    shards = [
        (n, {one.name: np.full((2, 9), 1000 * n + i, "i4") for i, one in enumerate(outputs)})
        for n in range(layer.count)
    ]
    parts = [write_part(tmp_path / f"{n}.part", layer, [(n, result)]).path for n, result in shards]
    reply = helper.merge(layer, parts, tmp_path / "merged")
    assert reply.message == "" and verify_layer(tmp_path / "merged") == []
    for i in (0, 1, OUTPUTS - 1):
        found = np.load(tmp_path / "merged" / f"o{i:04}.npy")
        assert found.tolist() == [[i] * 9] * 2 + [[1000 + i] * 9] * 2


def test_an_order_that_wants_too_much_memory_ends_itself_alone(helper: Helper, tmp_path: Path) -> None:
    reply = helper.merge(layer_of(0, 1, (HUGE,)), [], tmp_path / "huge")
    assert "memory is short" in reply.message and "MemoryError" in reply.evidence and not reply.hopeless
    merges_still(helper, tmp_path)


def test_an_order_that_nobody_understands_ends_itself_alone(helper: Helper, tmp_path: Path) -> None:
    reply = helper.ask(b"\xc1")
    assert "DecodeError" in reply.message and "Traceback" in reply.evidence
    merges_still(helper, tmp_path)


def merges_still(helper: Helper, folder: Path) -> None:
    layer = layer_of(2, 1)
    part = write_part(folder / "part", layer, [(n, result_of(n, 1)) for n in range(2)]).path
    assert helper.merge(layer, [part], folder / "still").message == ""
    assert "manifest.json" in files_of(folder / "still")


# --- the queue ----------------------------------------------------------------------------------------------


def ready_but_one(farm: FarmHarness, agent: SimulatedAgent, job: str) -> None:
    """All shards are computed, and all parts but one are pushed."""
    count = farm.status(job).totals.shards

    def computed() -> bool:
        agent.sync(wait=0.05)
        agent.compute()
        return sum(len(part.numbers) for part in agent.parts) == count

    until(computed, "every shard to be computed")
    agent.sync(hungry=False)
    for part in agent.parts[:-1]:
        agent.push(part)


def a_folder_for_a_bundle(farm: FarmHarness, job: str) -> Path:
    """In the place of the first bundle, which goes aside."""
    bundle = min(farm.root.job(job).bundles.iterdir())
    bundle.rename(farm.folder / bundle.name)
    bundle.mkdir()
    return bundle


def test_a_layer_that_does_not_merge_holds_no_other_up_and_halts_its_job_at_last(farm: FarmHarness) -> None:
    ill, agent = farm.submit(arrays(), name="ill"), farm.agent()
    agent.join()
    ready_but_one(farm, agent, ill)
    bundle = a_folder_for_a_bundle(farm, ill)
    agent.push(agent.parts[-1])
    until(lambda: any(FOLDER_THERE in note for note in farm.status(ill).notes), "a note that it does not merge")
    well = farm.submit(arrays(seed=1), name="well")
    agent.work(lambda: farm.status(well).state == "complete")
    assert farm.status(ill).state == "running", "the other one waited until this one was halted"
    status = farm.wait(ill, "halted")
    assert FOLDER_THERE in status.why and "5 times in a row" in status.why
    assert any(FOLDER_THERE in line for line in farm.ask(ExplainJob(ill), Explained).lines)
    logs = farm.coordinator("logs", ill).stdout
    assert f"{ill}/a: merge: a does not merge" in logs and FOLDER_THERE in logs
    bundle.rmdir()
    (farm.folder / bundle.name).rename(bundle)
    farm.ask(Retry(ill, None), Answered)
    farm.wait(ill)
    farm.check_result(ill)


def test_a_layer_computed_anew_takes_a_folder_in_a_bundles_place_away(farm: FarmHarness) -> None:
    job, agent = farm.submit(arrays()), farm.agent()
    agent.join()
    ready_but_one(farm, agent, job)
    bundle = a_folder_for_a_bundle(farm, job)
    farm.ask(Retry(job, ["a"]), Answered)
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)
    assert bundle.is_dir()
    farm.restart()
    assert not bundle.exists()


def test_a_shard_that_is_in_two_bundles_halts_its_job_and_is_named(farm: FarmHarness) -> None:
    """Its row was lost, so it was computed and committed again."""
    job, agent = farm.submit(arrays()), farm.agent()
    agent.join()
    ready_but_one(farm, agent, job)
    farm.kill()
    with closing(sqlite3.connect(farm.root.store)) as store:
        assert store.execute("DELETE FROM shards WHERE number = (SELECT min(number) FROM shards)").rowcount == 1
        store.commit()
    agent.hang_up()
    farm.start()
    agent.work(lambda: farm.status(job).state == "halted")
    assert "there twice" in farm.status(job).why
    farm.ask(Retry(job, ["a"]), Answered)
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)


def test_failures_are_alike_in_whatever_folder_they_happen(farm: FarmHarness) -> None:
    [tmp] = [path for path in farm.root.tmp.iterdir() if path.name.isdecimal()]
    for number in range(1, 10):
        (tmp / f"merge-{number}").touch()  # in the way of the folders that tries are made in
    job, agent = farm.submit(arrays()), farm.agent()
    agent.work(lambda: farm.status(job).state == "halted")
    assert "File exists" in farm.status(job).why and "5 times in a row" in farm.status(job).why


def merging_for_ever(farm: FarmHarness) -> tuple[str, Path, Path]:
    """A job whose merge waits for a pipe in its first bundle's place, to which nobody writes: that, and the bundle."""
    job, agent = farm.submit(arrays()), farm.agent()
    agent.join()
    ready_but_one(farm, agent, job)
    first = min(farm.root.job(job).bundles.iterdir())
    aside, pipe = farm.folder / first.name, farm.folder / "pipe"
    first.rename(aside)
    os.mkfifo(pipe)
    first.symlink_to(pipe)
    agent.push(agent.parts[-1])
    return job, first, aside


@pytest.mark.parametrize(("deaths", "state"), [(4, "complete"), (5, "halted")])
def test_a_helper_killed_time_and_again(farm: FarmHarness, deaths: int, state: str) -> None:
    job, first, aside = merging_for_ever(farm)
    killed: set[int] = set()
    while len(killed) < deaths:
        [helper] = until(
            lambda: set(farm.processes("muster.coordinator.daemon.merge.merge_process")) - killed, "a helper"
        )
        killed.add(helper)
        os.kill(helper, signal.SIGKILL)
    first.unlink()
    aside.rename(first)
    farm.wait(job, state)
    if state == "halted":
        assert "the merge helper ended with -9 (5 times in a row)" in farm.status(job).why
        farm.ask(Retry(job, None), Answered)
        farm.wait(job)
    farm.check_result(job)


def stood_still(farm: FarmHarness) -> int:
    """A helper in the middle of a merge, stopped where it is; its process."""
    merging_for_ever(farm)
    [helper] = until(lambda: farm.processes("muster.coordinator.daemon.merge.merge_process"), "a helper")
    os.kill(helper, signal.SIGSTOP)
    return helper


def test_a_stop_does_not_wait_for_a_helper_that_stands_still(farm: FarmHarness) -> None:
    helper = stood_still(farm)
    assert farm.daemon is not None
    farm.daemon.send_signal(signal.SIGTERM)
    assert farm.daemon.wait(40) == 0
    until(lambda: helper not in farm.processes("muster.coordinator.daemon.merge.merge_process"), "it to be gone")


def test_who_asks_twice_does_not_wait_for_a_good_end(farm: FarmHarness) -> None:
    farm.kill(signal.SIGSTOP)  # so that both come at once, in whatever order
    assert farm.daemon is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        farm.daemon.send_signal(number)
    assert farm.daemon.wait(40) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert "not waiting any longer" in farm.root.log.read_text()


def test_a_bug_of_ours_in_a_merge_is_that_jobs_alone(tmp_path: Path) -> None:
    farm = FarmHarness(tmp_path)
    script = farm.folder / "bug.py"
    script.write_text(BUG)
    try:
        farm.start(prefix=[sys.executable, str(script)])
        agent = farm.agent()
        ill, well = farm.submit(arrays(), name="ill"), farm.submit(arrays(seed=1), name="well")
        agent.work(lambda: farm.status(well).state == "complete" and farm.status(ill).state == "halted")
        assert "KeyError" in farm.status(ill).why
        assert "Traceback" in farm.root.log.read_text() and "Traceback" in farm.failures(ill)[0].evidence
    finally:
        farm.close()


BUG = """
import sys
from muster.coordinator.daemon.merge import publish as merging
publish = merging.publish
def buggy(folder, target):
    if "ill.1" in str(target):
        raise KeyError("the bug")
    publish(folder, target)
merging.publish = buggy
sys.argv = sys.argv[3:]
from muster.coordinator.cli import main
sys.exit(main())
"""
