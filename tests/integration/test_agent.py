"""Promises 1, 5, 6, 7 and 10 with real agents: two Ray pools that joined by folder, and whatever may happen to them."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from muster.agent.commands.status import state_of
from muster.agent.host import lending
from muster.agent.pool import cleanup
from muster.jobs.common import launch
from muster.jobs.common.errors import DifferenceError, MusterError
from muster.jobs.parts.part_file import read_index
from tests import traps
from tests.support.farm import DEADLINE_SECONDS, Array, FarmHarness, arrays, running, until

NAMES = ("left", "right")
LEAVE_SECONDS = 60.0
MEGABYTE = 1 << 20
ON_FARM = "MUSTER_TEST_AGENT"  # set for the farm's processes: the serial run neither notes its runs nor naps
POISON, LOUD = 666, 667
WORK = f"""
import ctypes, os, time
from pathlib import Path
import numpy as np

ON_FARM = "{ON_FARM}" in os.environ

def note(log, shard):
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"%d\\n" % shard)
    os.close(fd)

def half(rows, shard, log, nap=0.0):
    if ON_FARM:
        time.sleep(nap)
        note(log, shard)
    return {{"half": rows / 2, "total": rows.reshape(len(rows), -1).sum(axis=1)}}

def trouble(rows, what, log="", shard=0):
    out = rows * 2
    if (rows == {LOUD}).any() and ON_FARM:
        for _ in range(200):
            print("x" * (1 << 20))
    if (rows == {POISON}).any():
        print("the last words of", what)
        if what == "raise":
            raise ValueError("it is poison")
        if what == "exit":
            os._exit(3)
        if what == "hang":
            time.sleep(3600)  # here
        if what == "segfault":
            ctypes.string_at(0)
        if what == "gluttony":
            eaten = np.ones({MEGABYTE} << 9, "u1")
            time.sleep(30)
        if what == "until mended" and Path(log).exists():
            return out
        if what == "until mended":
            raise ValueError("not yet")
        if what == "rows":
            return out[1:]
        if what == "dtype":
            return out.astype("i4")
    return out

def bug(rows):
    return rows.undefined

def devices(rows):
    seen = [int(number) for number in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    return {{"seen": np.tile(np.array(seen, "i4"), (len(rows), 1))}}
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    farm = FarmHarness(tmp_path_factory.mktemp("farm"))
    farm.cwd = traps.plant(farm.folder / "planted")
    farm.env[ON_FARM] = "1"
    farm.env["CUDA_VISIBLE_DEVICES"] = "5,3"
    farm.env["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "1"  # a user's own setting, with which Ray would blank that
    try:
        farm.start()
        for name in NAMES:
            farm.join(name, "--cpus", "1")
        yield farm
    finally:
        farm.close()


@pytest.fixture
def pair(shared: FarmHarness) -> FarmHarness:
    """The farm with both agents at work, whatever the last test did to them."""
    if shared.daemon is None or shared.daemon.poll() is not None:
        shared.start()
    for name in NAMES:
        if shared.real[name].poll() is not None:
            shared.join(name, "--cpus", "1")
    for name in NAMES:
        wait_ready(shared, name)
    return shared


def wait_ready(farm: FarmHarness, name: str) -> None:
    """Until its workers are, too."""
    until(lambda: is_ready(farm, name), f"{name} to be ready")


def is_ready(farm: FarmHarness, name: str) -> bool:
    state = state_of(farm.folder / "spools" / name)
    ready = state is not None and state.pid == farm.real[name].pid and state.ready
    return ready and farm.is_live(name)


def halves(farm: FarmHarness, log: Path, shards: int = 60, nap: float = 0.05, **fields: Any) -> str:
    """A job of one-row shards, which note in `log` that they ran."""
    args = {"args": {"log": str(log), "nap": nap}}
    return farm.submit(arrays(1, shards, 64), 1, WORK, kind="map", code="work.py:half", params=args, **fields)


def runs(log: Path) -> Counter[int]:
    """How often each shard ran."""
    return Counter(map(int, log.read_text().split())) if log.exists() else Counter()


def parts(farm: FarmHarness, name: str) -> set[int]:
    """The shards in the parts of an agent's spool."""
    found = (farm.folder / "spools" / name / "done").rglob("*.part")
    return {entry.number for path in found for entry in read_index(path).entries}


def machines(farm: FarmHarness, job: str) -> set[str]:
    return {agent.name for agent in farm.status(job).agents if agent.shards}


def test_nothing_is_imported_from_where_an_agent_is_started(pair: FarmHarness) -> None:
    """Not by agents, their workers, the daemon nor its helpers."""
    cluster = pair.submit(arrays(2, 24, 32), 4, name="cluster")
    mapped = pair.submit(arrays(1, 8, 8), 2, WORK, kind="map", code="work.py:half", params={"args": {"log": "log"}})
    for job in (cluster, mapped):
        pair.wait(job)
        pair.check_result(job)
    assert traps.sprung(pair.cwd) == []


def test_an_agent_that_was_typed_behind_another_name_is_detached(pair: FarmHarness) -> None:
    spool = str(pair.folder / "spools" / "typed")
    command = launch.python("muster.__main__", "agent", "join", str(pair.root.path), "--cpus", "1", "--detach")
    command += ["--name", "typed", "--spool", spool]
    done = subprocess.run(
        command, env=pair.environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "typed works (process " in done.stdout
    assert pair.agent_command("leave", "--now", "--spool", spool).returncode == 0


# --- promise 1: the same bytes ------------------------------------------------------------------------------


def layers_of_all_sorts() -> dict[str, Array]:
    random = np.random.default_rng(5)
    normal = random.normal(0, 50, (24, 64))
    sorts = ["<f2", "<f4", ">f4", "<f8", "<i4", ">i8", "u1"]
    names = ["half", "net/conv1.weight", "net/deep/big-endian", "double", "net/int", "net/long", "bytes"]
    return {name: np.abs(normal).astype(sort) for name, sort in zip(names, sorts, strict=True)}


def test_clusters_of_two_agents_are_the_serial_runs(pair: FarmHarness) -> None:
    job = pair.submit(layers_of_all_sorts(), 2, name="sorts")
    pair.wait(job)
    assert set(pair.merged(job)) == set(layers_of_all_sorts())
    pair.check_result(job)


def test_maps_of_two_agents_are_the_serial_runs(pair: FarmHarness, tmp_path: Path) -> None:
    layers = {**layers_of_all_sorts(), "line": np.arange(24.0), "cube": np.ones((24, 3, 2, 2), ">f2")}
    args = {"args": {"log": str(tmp_path / "runs"), "nap": 0.02}}
    job = pair.submit(layers, 2, WORK, kind="map", code="work.py:half", params=args)
    pair.wait(job)
    assert machines(pair, job) == set(NAMES)
    pair.check_result(job)


# --- promise 5: what is finished counts ---------------------------------------------------------------------


def test_a_killed_agents_finished_work_counts_on_return(pair: FarmHarness, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    job = halves(pair, log, shards=200, nap=0.02)
    until(lambda: runs(log).total() >= 40, "the pace to be known")
    pair.kill(signal.SIGSTOP)  # nobody takes results now
    try:
        victim = until(lambda: next((name for name in NAMES if len(parts(pair, name)) > 1), ""), "finished parts")
        pair.real[victim].kill()
        pair.real[victim].wait()
    finally:
        pair.kill(signal.SIGCONT)
    kept = parts(pair, victim)
    pair.join(victim, "--cpus", "1")
    pair.wait(job)
    ran = runs(log)
    assert len(kept) > 1 and all(ran[number] == 1 for number in kept)
    pair.check_result(job)


def test_a_dead_coordinator_costs_no_finished_work(pair: FarmHarness, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    job = halves(pair, log)
    for share in (6, 20, 40):
        until(lambda share=share: runs(log).total() >= share, f"{share} runs")  # type: ignore[misc]
        pair.restart()
    pair.wait(job)
    assert runs(log) == Counter(range(60))
    pair.check_result(job)


def test_a_killed_agent_leaves_nothing_once_it_is_back(pair: FarmHarness, tmp_path: Path) -> None:
    """Promise 10."""
    job = halves(pair, tmp_path / "runs", shards=20, nap=0.2)
    until(lambda: runs(tmp_path / "runs").total() >= 2, "work to be under way")
    spool = pair.folder / "spools" / "right"
    pool = cleanup.read(spool / "run")
    assert pool is not None and pool.temp
    tree = psutil.Process(pair.real["right"].pid).children(recursive=True)
    pair.real["right"].kill()
    pair.real["right"].wait()
    pair.join("right", "--cpus", "1")
    pair.wait(job)
    assert not Path(pool.temp).exists()
    assert not [process for process in tree if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    pair.check_result(job)


# --- promise 6: a drain recomputes nothing ------------------------------------------------------------------


@pytest.mark.parametrize("way", ["agent leave", "SIGTERM", "coordinator drain"])
def test_a_drain_recomputes_nothing(pair: FarmHarness, tmp_path: Path, way: str) -> None:
    log = tmp_path / "runs"
    job = halves(pair, log)
    until(lambda: machines(pair, job) == set(NAMES), "both to have finished some")
    if way == "agent leave":
        ended = pair.agent_command("leave", "--spool", str(pair.folder / "spools" / "left"))
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left left\n", "")
    elif way == "SIGTERM":
        pair.real["left"].terminate()
    else:
        assert pair.coordinator("drain", "left").returncode == 0
    assert pair.real["left"].wait(LEAVE_SECONDS) == 0
    assert parts(pair, "left") == set()
    state = pair.agent_status("left")
    assert state is not None and state.state == "left"
    pair.wait(job)
    assert runs(log) == Counter(range(60))
    pair.check_result(job)


# --- promise 7: one bad shard, and one bad job --------------------------------------------------------------

TROUBLES = {  # what the function does: the failure's code, what its evidence must have
    "raise": ("exception", "ValueError: it is poison"),
    "exit": ("exit", ""),
    "hang": ("timeout", "line 31 in trouble"),
    "segfault": ("signal", "Segmentation fault"),
    "rows": ("output", ""),
    "dtype": ("output", "<i4 where the layer's first commit has"),
}


@pytest.fixture(scope="module")
def poisoned(shared: FarmHarness) -> dict[str, str]:
    """A job for each trouble, all of them under way at once."""
    good, bad = arrays(2, 32, 16).values()
    good[5, 0] = LOUD
    bad[27, 3] = POISON
    bad[2, 3] = LOUD
    made = {}
    for what in TROUBLES:
        fields = {"kind": "map", "code": "work.py:trouble", "params": {"args": {"what": what}}, "timeout": "20s"}
        fields |= {"timeout": "1s"} if what == "hang" else {}
        layers = {"good": good, "bad": bad} if what != "hang" else {"good": abs(good) % 1, "bad": bad[4:]}
        made[what] = shared.submit(layers, 2, WORK, name=what, **fields)
    return made


@pytest.mark.parametrize("what", TROUBLES)
def test_a_poison_shard_is_given_up_and_all_else_completes(
    pair: FarmHarness, poisoned: dict[str, str], what: str
) -> None:
    job, (code, words) = poisoned[what], TROUBLES[what]
    status = pair.wait(job, "incomplete", "halted", "complete", seconds=120)
    assert (status.state, status.totals.quarantined) == ("incomplete", 1)
    assert status.totals.committed == status.totals.shards - 1
    pair.check_result(job, "good")
    number = 13 if what != "hang" else 11
    records = pair.failures(job)
    assert {(one.layer, one.number, one.code) for one in records} == {("bad", number, code)}
    assert {one.agent for one in records} == set(NAMES) and len(records) == 3
    ended = pair.coordinator("watch", job)
    assert ended.returncode == 11 and "error: " in ended.stderr and "hint: " in ended.stderr
    for said in (pair.coordinator("logs", job, "--failed").stdout, pair.root.job(job).failures.read_text()):
        assert f"{job}/bad/{number}" in said and code in said and "left" in said and words in said, said
        assert what == "dtype" or ("peak" in said and f"the last words of {what}" in said), said
        assert len(said) < 200_000


def test_nan_fails_its_shard_by_name(pair: FarmHarness) -> None:
    layers = arrays(2, 16, 32)
    layers["b"][9, 4] = np.nan
    job = pair.submit(layers, 4)
    assert pair.wait(job, "incomplete").totals.quarantined == 1
    failures = pair.failures(job)  # once, whatever `attempts` says
    assert [(one.code, one.message.partition(";")[0]) for one in failures] == [
        ("data", "row 9 of layer b has a value that is not finite")
    ]
    pair.check_result(job, "a")


def test_a_row_with_nan_is_recorded_and_all_others_have_their_centers(pair: FarmHarness) -> None:
    layers = arrays(1, 16, 32)
    expected = layers["a"].copy()
    layers["a"][9, 4] = np.nan
    job = pair.submit(layers, 4, params={"n_clusters": 4, "on_item_error": "record"})
    pair.wait(job, "complete")
    assert pair.failures(job) == []
    pair.check_result(job, "a")
    folder = pair.root.job(job).result / "a"
    ok, centers = np.load(folder / "ok.npy"), np.load(folder / "centers.npy")
    assert np.flatnonzero(~ok).tolist() == np.flatnonzero(np.isnan(centers).any(axis=1)).tolist() == [9]
    means = (centers * np.load(folder / "counts.npy")).sum(axis=1) / 32
    assert np.allclose(expected.mean(axis=1)[ok], means[ok], atol=1e-4)


@pytest.mark.parametrize(("function", "words"), [("bug", "undefined"), ("nothing", "nothing")])
def test_a_bug_in_every_shard_halts_the_job(pair: FarmHarness, function: str, words: str) -> None:
    try:
        job = pair.submit(arrays(2, 32, 8), 2, WORK, kind="map", code=f"work.py:{function}")
    except MusterError as error:  # found before anything ran is better still
        assert function == "nothing" and words in error.message and error.exit_code == 3
        return
    status = pair.wait(job, "halted", "incomplete")
    assert (status.state, status.totals.committed) == ("halted", 0)
    assert len(pair.failures(job)) < 8
    ended = pair.coordinator("watch", job)
    assert ended.returncode == 11 and "retry" in ended.stderr
    assert words in pair.coordinator("logs", job).stdout


def test_a_retry_after_mending_completes(pair: FarmHarness, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    layers = arrays(2, 24, 8)
    layers["b"][23, 0] = POISON
    params = {"args": {"what": "until mended", "log": str(mended)}}
    job = pair.submit(layers, 2, WORK, kind="map", code="work.py:trouble", params=params, attempts=1)
    pair.wait(job, "incomplete")
    mended.touch()
    assert f"submit job.yaml --from {job}" in pair.coordinator("retry", job).stdout
    pair.wait(job)
    assert pair.status(job).totals.quarantined == 0
    pair.check_result(job)


def test_a_changed_source_stops_its_layer_and_says_so(pair: FarmHarness, tmp_path: Path) -> None:
    log = tmp_path / "runs"
    file = pair.job_file(
        arrays(2, 40, 16), 1, WORK, kind="map", code="work.py:half", params={"args": {"log": str(log), "nap": 0.05}}
    )
    job = pair.coordinator("submit", str(file)).stdout.strip()
    until(lambda: runs(log).total() >= 4, "some to run")
    np.save(file.parent / "arrays" / "a.npy", np.ones((40, 16), "f4"))
    status = pair.wait(job, "incomplete")
    assert {layer.name: layer.state for layer in status.layers} == {"a": "changed", "b": "merged"}
    said = pair.coordinator("status", job).stdout
    assert "changed" in said and status.failures == 0
    pair.check_result(job, "b")


# --- machines -----------------------------------------------------------------------------------------------


def test_what_an_agent_says_of_its_kernels_is_what_its_parts_say(pair: FarmHarness) -> None:
    job = pair.submit(arrays(2, 40, 64), 2, same_kernels="require")
    assert pair.wait(job).failures == 0
    pair.check_result(job)


WRONG = """
from dataclasses import replace
from muster.jobs.clustering import lloyd

right = lloyd.cluster
def cluster(*args):
    found = right(*args)
    return replace(found, centers=found.centers * 1.001)
lloyd.cluster = cluster
"""


def test_a_machine_that_computes_wrong_takes_no_part_and_says_why(pair: FarmHarness, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    pair.env["PYTHONPATH"] = str(tmp_path)
    pair.join("wrong", "--cpus", "1")
    del pair.env["PYTHONPATH"]
    try:
        wait_ready(pair, "wrong")
        job = pair.submit(arrays(4, 128, 512), 1)
        why = "centers of a problem with a known answer are off by"
        told = f"takes no cluster jobs: {why}"
        until(lambda: (seen := pair.agent_status("wrong")) and told in seen.note, "it to say so")
        assert told in pair.coordinator("agents").stdout
        assert why in (pair.folder / "spools" / "wrong" / "agent.log").read_text()
        spool = str(pair.folder / "spools" / "wrong")
        until(lambda: told in pair.agent_command("status", "--spool", spool).stdout, "its status to say so")
        assert pair.wait(job).failures == 0
        pair.check_result(job)
        for table in pair.root.job(job).result.glob("*/shards.npy"):
            assert "wrong" not in np.load(table)["agent"]
    finally:
        pair.real["wrong"].terminate()
        pair.real["wrong"].wait(DEADLINE_SECONDS)


ONE_BIT = """
from dataclasses import replace
import numpy as np
from muster.jobs.clustering import lloyd

right = lloyd.cluster
def cluster(*args):
    found = right(*args)
    centers = found.centers.astype("f4")
    centers.view("u4")[:, 0] ^= 1
    return replace(found, centers=centers.astype("f8"))
lloyd.cluster = cluster
"""


def test_a_machine_whose_bits_are_not_those_of_its_fingerprint_takes_no_part(pair: FarmHarness, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ONE_BIT)
    pair.env["PYTHONPATH"] = str(tmp_path)
    pair.join("bit", "--cpus", "1")
    del pair.env["PYTHONPATH"]
    try:
        wait_ready(pair, "bit")
        told = "takes no cluster jobs: answers the known problem of cluster with other bits"
        spool = pair.folder / "spools" / "bit"
        until(lambda: told in (spool / "agent.log").read_text(), "it to be told")
        until(lambda: told in pair.coordinator("agents").stdout, "it to say so")
        pair.restart()
        until(lambda: pair.is_live("bit"), "it to be back")
        job = pair.submit(arrays(4, 128, 512), 1)
        assert told.partition(": ")[2] in pair.coordinator("explain", "bit").stdout
        assert pair.wait(job).failures == 0
        pair.check_result(job)
        for table in pair.root.job(job).result.glob("*/shards.npy"):
            assert "bit" not in np.load(table)["agent"]
        until(lambda: told in pair.agent_command("status", "--spool", str(spool)).stdout, "its status to say so")
        found = pair.coordinator("verify", job, "--rerun", "3", "--on", "bit")
        assert found.returncode == DifferenceError.exit_code, found.stdout + found.stderr
        assert "of what bit computed now, 3 of 3 differ" in found.stdout + found.stderr
    finally:
        pair.real["bit"].terminate()
        pair.real["bit"].wait(DEADLINE_SECONDS)


def test_unpacked_code_that_somebody_changed_never_runs(pair: FarmHarness) -> None:
    fields = {"kind": "map", "code": "work.py:scaled"}
    work = "def scaled(rows, by):\n    return rows * by\n"
    pair.wait(pair.submit(arrays(1, 8, 4), 1, work, params={"args": {"by": 2}}, **fields))
    digest = pair.plan(pair.jobs()[-1].id).work.code
    changed = list((pair.folder / "spools").glob(f"*/code/{digest}/work.py"))
    for file in changed:
        file.write_text(work.replace("* by", "* 99"))
    job = pair.submit(arrays(1, 8, 4), 1, work, params={"args": {"by": 3}}, **fields)
    assert pair.wait(job).failures == 0 and changed
    pair.check_result(job)


def test_the_users_code_sees_the_gpus_that_the_agent_was_given(pair: FarmHarness) -> None:
    job = pair.submit(arrays(1, 8, 4), 2, WORK, kind="map", code="work.py:devices")
    pair.wait(job)
    (files,) = pair.merged(job).values()
    assert np.load(BytesIO(files["seen.npy"])).tolist() == [[5, 3]] * 8


def test_a_second_agent_of_a_name_is_refused(pair: FarmHarness, tmp_path: Path) -> None:
    second = pair.agent_command("join", str(pair.root.path), "--name", "left", "--spool", str(tmp_path / "other"))
    assert second.returncode == 7, second.stderr
    assert "left" in second.stderr and "--name" in second.stderr
    assert is_ready(pair, "left")


def test_a_second_agent_on_a_spool_is_refused(pair: FarmHarness) -> None:
    spool = str(pair.folder / "spools" / "left")
    second = pair.agent_command("join", str(pair.root.path), "--name", "left", "--cpus", "1", "--spool", spool)
    assert second.returncode in (7, 13), second.stderr
    assert second.stderr.startswith("error: ") and second.stderr.count("\n") == 2
    assert pair.real["left"].poll() is None


@pytest.fixture
def small(tmp_path: Path) -> Iterator[FarmHarness]:
    """A farm with one agent, whose memory budget one shard in a hundred does not fit."""
    with running(tmp_path / "farm") as farm:
        farm.env[ON_FARM] = "1"
        farm.join("small", "--cpus", "1", "--memory", "350MiB")
        yield farm


def test_a_shard_beyond_the_memory_budget_is_killed(small: FarmHarness) -> None:
    layers = arrays(1, 16, 8)
    layers["a"][13, 0] = POISON
    params = {"args": {"what": "gluttony"}}
    job = small.submit(layers, 2, WORK, kind="map", code="work.py:trouble", params=params, attempts=2)
    status = small.wait(job, "incomplete", "halted")
    assert (status.state, status.totals.committed) == ("incomplete", 7)
    assert {(one.number, one.code) for one in small.failures(job)} == {(6, "memory")}
    assert all("memory budget" in one.message for one in small.failures(job))
    assert small.real["small"].poll() is None


def test_the_second_agent_of_a_machine_lends_what_the_first_leaves_and_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        for name in NAMES:
            farm.join(name)
            until(partial(farm.is_live, name), f"{name} to be there")
        lent = [status.cpus for name in NAMES if (status := farm.agent_status(name))]
        assert lent == [lending.cores(), 1]
        assert "shares this machine's" in (farm.folder / "agent-right.out").read_text()
