"""One job's fault holds up nobody else: it is damaged, said to be so, and goes on once it is mended."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.coordinator.client.farm import Farm
from muster.coordinator.protocol import transfer
from muster.jobs.common.errors import DamagedError, IncompleteError
from tests.support.farm import FarmHarness, Tracer, arrays, strace_obstacle, until
from tests.support.simulated import Part, SimulatedAgent

ROWS, SHARDS = 8, 6


def submit(farm: FarmHarness, seed: int = 0, **more: Any) -> str:
    return farm.submit(arrays(rows=SHARDS * ROWS, seed=seed), ROWS, **more)


def finish(farm: FarmHarness, *jobs: str) -> SimulatedAgent:
    """An agent that computed all of these jobs, and pushed one part of each."""
    agent = farm.agent()
    agent.join()

    def computed() -> bool:
        agent.sync(wait=0.05)
        agent.compute()
        return len(agent.computed) >= SHARDS * len(jobs)

    until(computed, "all shards to be computed")
    agent.sync(hungry=False)
    for job in jobs:
        assert isinstance(agent.push(parts_of(agent, job)[0]), transfer.Settled)
    return agent


def parts_of(agent: SimulatedAgent, job: str) -> list[Part]:
    return [part for part in agent.parts if part.job == job]


def statement(sql: str) -> Callable[[FarmHarness, str], None]:
    def harm(farm: FarmHarness, job: str) -> None:
        with closing(sqlite3.connect(farm.root.store)) as store, store:
            assert store.execute(sql, {"job": job}).rowcount

    return harm


OF_JOB = "layer IN (SELECT id FROM layers WHERE job = :job)"
ROWS_HARMED = {
    "priority 0": ("UPDATE jobs SET priority = 0 WHERE id = :job", "the priority 0"),
    "a priority in words": ("UPDATE jobs SET priority = 'high' WHERE id = :job", "the priority 'high'"),
    "an unknown state": ("UPDATE jobs SET state = 'odd' WHERE id = :job", "the state 'odd'"),
    "a layer's state": ("UPDATE layers SET state = 'odd' WHERE job = :job", "the state 'odd' of layer a"),
    "a layer missing": ("UPDATE layers SET digest = 'x' || substr(digest, 2) WHERE job = :job", "no row of layer a"),
    "a shard too many": (f"UPDATE shards SET number = 99 WHERE {OF_JOB}", "shard 99 among the 6 of layer a"),
    "a shard below none": (f"UPDATE shards SET number = -7 WHERE {OF_JOB}", "shard -7 among the 6 of layer a"),
    "a shard in words": ("INSERT INTO quarantined SELECT id, 'x', '' FROM layers WHERE job = :job", "TypeError"),
    "outputs of no kind": ("UPDATE layers SET outputs = x'c1' WHERE job = :job", "DecodeError"),
}


@pytest.mark.parametrize(("sql", "evidence"), ROWS_HARMED.values(), ids=ROWS_HARMED)
def test_a_row_that_cannot_be_keeps_no_other_job_from_being_served(farm: FarmHarness, sql: str, evidence: str) -> None:
    spoilt, sound = submit(farm), submit(farm, seed=1)
    agent = finish(farm, spoilt, sound)
    farm.stop()
    statement(sql)(farm, spoilt)
    assert_set_apart(farm, agent, spoilt, sound, evidence)


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def put_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def remove_plan(folder: Path) -> None:
    (folder / "plan.msgpack").unlink()


def spoil_bundles(folder: Path) -> None:
    shutil.rmtree(folder / "bundles")
    (folder / "bundles").write_text("")


@pytest.mark.parametrize(
    ("harm", "evidence"),
    [
        (remove_folder, "plan.msgpack is damaged: No such file"),
        (put_a_file, "plan.msgpack is damaged: Not a directory"),
        (remove_plan, "plan.msgpack is damaged: No such file"),
        (spoil_bundles, "bundles: File exists"),
    ],
)
def test_a_folder_that_is_not_one_keeps_no_other_job_from_being_served(
    farm: FarmHarness, harm: Callable[[Path], None], evidence: str
) -> None:
    spoilt, sound = submit(farm), submit(farm, seed=1)
    agent = finish(farm, spoilt, sound)
    farm.stop()
    harm(farm.root.job(spoilt).path)
    assert_set_apart(farm, agent, spoilt, sound, evidence)


def assert_set_apart(farm: FarmHarness, agent: SimulatedAgent, spoilt: str, sound: str, evidence: str) -> None:
    """Started again, the farm completes the other job, keeps what agents have of this one, says so, and deletes it."""
    kept = parts_of(agent, spoilt)
    farm.start()
    agent.hang_up()
    agent.join()
    agent.work(lambda: farm.status(sound).state == "complete")
    farm.check_result(sound)
    assert len(agent.computed) == 2 * SHARDS and agent.parts == kept != [], "nothing is computed twice, nor lost"
    status = farm.status(spoilt)
    assert status.state == "damaged" and evidence in status.why
    page, explained = farm.coordinator("status", spoilt).stdout, farm.coordinator("explain", spoilt).stdout
    assert evidence in farm.coordinator("status").stdout and evidence in page and evidence in explained
    assert f"coordinator rm {spoilt}" in page and f"coordinator rm {spoilt}" in explained
    [said] = json.loads(farm.coordinator("status", spoilt, "--json").stdout)["jobs"]
    assert (said["id"], said["state"]) == (spoilt, "damaged")
    assert evidence in farm.root.log.read_text()
    for command in ("watch", "retry", "cancel", "pause"):
        ran = farm.coordinator(command, spoilt)
        assert ran.returncode == 12 and evidence in ran.stderr, (command, ran.stderr)
    assert farm.coordinator("rm", spoilt).returncode == 0
    assert not farm.root.job(spoilt).path.exists() and [job.id for job in farm.jobs()] == [sound]
    assert farm.coordinator("status", spoilt).returncode == 6
    agent.work(lambda: not agent.parts)
    farm.restart()
    assert [job.state for job in farm.jobs()] == ["complete"]


def test_a_folder_deleted_under_a_running_job_blocks_no_pushes_and_put_back_it_goes_on(farm: FarmHarness) -> None:
    told = farm.folder / "told"
    spoilt, sound = submit(farm, notify={"command": f"cat > {told}"}), submit(farm, seed=1)
    agent = finish(farm, spoilt, sound)
    place = farm.root.job(spoilt).path
    kept = parts_of(agent, spoilt)
    aside = place.rename(farm.folder / "aside")
    watching = farm.run(["/bin/sh", "-c", 'exec "$@"', "sh", *watch_command(farm, spoilt)], "watch.out")
    answer = agent.push(parts_of(agent, spoilt)[0])
    assert isinstance(answer, transfer.Refused) and answer.code == "later", answer
    agent.work(lambda: farm.status(sound).state == "complete")
    farm.check_result(sound)
    assert agent.parts == kept
    status = farm.status(spoilt)
    assert status.state == "damaged" and f"{place}" in status.why
    assert 0 < status.totals.committed == SHARDS - status.totals.pending
    assert watching.wait(40) == 12 and str(place) in (farm.folder / "watch.out").read_text()
    until(told.exists, "who is to be notified to be")
    until(lambda: '"event":"damaged"' in told.read_text(), "the word of it")
    with pytest.raises(DamagedError):
        Farm(farm.root.path).job(spoilt).wait(progress=False)
    farm.stop()
    aside.rename(place)
    farm.start()
    agent.hang_up()
    agent.join()
    agent.work(lambda: farm.status(spoilt).state == "complete")
    farm.check_result(spoilt)
    assert len(agent.computed) == 2 * SHARDS, "something was computed twice"


def watch_command(farm: FarmHarness, job: str) -> list[str]:
    from muster.coordinator.farm_root import paths as roots

    return [*roots.command("watch", farm.root.path), job]


def test_another_job_over_the_same_data_computes_it(farm: FarmHarness) -> None:
    spoilt = submit(farm)
    agent = finish(farm, spoilt)
    other = submit(farm)
    place = farm.root.job(spoilt).path
    shutil.rmtree(place)
    agent.push(agent.parts[0])
    assert farm.status(spoilt).state == "damaged"
    agent.work(lambda: farm.status(other).state == "complete")
    farm.check_result(other)


def test_the_latest_job_of_a_name_is_the_damaged_one_without_a_folder_too(farm: FarmHarness) -> None:
    sound, spoilt = submit(farm), submit(farm, seed=1)
    agent = finish(farm, sound, spoilt)
    shutil.rmtree(farm.root.job(spoilt).path)
    agent.work(lambda: farm.status(sound).state == "complete")
    assert f"{spoilt}: cluster, damaged" in farm.coordinator("status", spoilt).stdout
    assert farm.coordinator("rm", "job", "--yes").stdout == f"{spoilt} is deleted\n"
    assert [job.id for job in farm.jobs()] == [sound]


@pytest.mark.skipif(bool(strace_obstacle()), reason=strace_obstacle())
@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_folder_that_takes_no_bundle_for_an_input_output_error(farm: FarmHarness, call: str) -> None:
    spoilt, sound = submit(farm), submit(farm, seed=1)
    agent = finish(farm, spoilt, sound)
    when = 1 if call == "rename" else 2  # the first is the bundle's own
    with Tracer(farm, agent.push_link.pid, f"{call}:error=EIO:when={when}"):
        answer = agent.push(parts_of(agent, spoilt)[0])
    assert isinstance(answer, transfer.Refused) and answer.code == "later", answer
    assert "Input/output error" in answer.message and "Input/output error" in farm.said()
    assert farm.status(spoilt).state == "running", "its folder is there, and may take it next time"
    agent.work(lambda: farm.status(sound).state == "complete")
    agent.work(lambda: farm.status(spoilt).state == "complete")
    farm.check_result(spoilt)


ESCAPES = "\x1b[2J" * 4_000  # as a version before this one may have stored them: 16,000 characters and far more


def test_hostile_texts_that_an_older_version_stored_keep_nobody_from_an_answer(farm: FarmHarness) -> None:
    spoilt, sound = submit(farm), submit(farm, seed=1)
    agent = finish(farm, spoilt, sound)
    farm.stop()
    with closing(sqlite3.connect(farm.root.store)) as store, store:
        store.execute("UPDATE jobs SET state = 'halted', why = ? WHERE id = ?", (ESCAPES * 2, spoilt))
        row = "SELECT NULL, id, 1, 1, 1, 'one', ?, 'exit', ?, ?, 1.0, 0, 1 FROM layers WHERE job = ?"
        rows = [(float(at), ESCAPES * 2, ESCAPES * 2, spoilt) for at in range(600)]
        store.executemany(f"INSERT INTO failures {row}", rows)
        (raw,) = store.execute("SELECT info FROM agents").fetchone()
        info = {**msgspec.msgpack.decode(raw), "note": ESCAPES * 2, "fingerprint": ESCAPES * 2, "host": ESCAPES}
        store.execute("UPDATE agents SET info = ?", (msgspec.msgpack.encode(info),))
    (farm.root.job(spoilt).failures).write_text(ESCAPES)
    farm.start()
    asked = (
        ["status"], ["status", spoilt], ["watch", spoilt], ["explain", spoilt], ["explain", f"{spoilt}/a/1"],
        ["explain", agent.name], ["agents"], ["logs", spoilt, "--limit", "500"], ["logs", spoilt, "--json"],
    )  # fmt: skip
    for command in asked:
        said = farm.coordinator(*command)
        wanted = IncompleteError.exit_code if command[0] == "watch" else 0  # it is halted
        assert said.returncode == wanted and said.stdout, (command, said.stderr[-500:])
        assert "\x1b" not in said.stdout + said.stderr, command
