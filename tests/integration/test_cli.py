"""The commands as people type them, end to end: a real farm, two real agents, exit codes, and Ctrl-C at any of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from muster.coordinator import cli
from muster.coordinator.farm_root import paths
from muster.jobs.common.errors import INTERRUPTED_EXIT
from tests.support.farm import DEADLINE_SECONDS, FarmHarness, arrays, until

NAMES = ("left", "right")
ON_FARM = "MUSTER_TEST_AGENT"  # set for the farm's processes: the serial run does not nap
WORK = f"""
import os, time
def half(rows, nap=0.0, fail=False):
    time.sleep(nap if "{ON_FARM}" in os.environ else 0)
    if fail and (rows == 666).any():
        raise ValueError("no")
    return rows / 2
"""
SLOW: dict[str, Any] = {"nap": 0.1}


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    """Below a path too long for a socket's name, and with a space in it."""
    made = FarmHarness(tmp_path_factory.mktemp("farm") / ("long and " * 12))
    made.env[ON_FARM] = "1"
    try:
        made.start()
        for name in NAMES:
            made.join(name, "--cpus", "1")
        until(lambda: all(made.agent_status(name) for name in NAMES), "both agents")
        yield made
    finally:
        made.close()


def halves(farm: FarmHarness, layers: int = 2, poison: bool = False, **args: object) -> Path:
    """A job file of 30 one-row shards a layer."""
    made = arrays(layers, 30, 16)
    if poison:
        made["b"][29, 0] = 666
    return farm.job_file(made, 1, WORK, kind="map", code="work.py:half", params={"args": args}, attempts=1)


def submit(farm: FarmHarness, file: Path) -> str:
    done = farm.coordinator("submit", str(file))
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.strip()


def said(farm: FarmHarness, *args: str, code: int = 0) -> str:
    """What a command says; two lines on stderr where it ends with another code than 0."""
    done = farm.coordinator(*args)
    assert done.returncode == code, (args, done)
    if code:
        assert is_two_lines(done.stderr), done.stderr
        return done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout


def is_two_lines(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("hint: ")


def value(farm: FarmHarness, *args: str) -> object:
    """A command's JSON."""
    return json.loads(said(farm, *args, "--json"))


# --- a job from plan to rm ----------------------------------------------------------------------------------


def test_a_job_from_plan_to_rm(farm: FarmHarness, tmp_path: Path) -> None:
    file = farm.job_file(arrays(2), name="whole")
    assert "2 layers, 12 shards" in said(farm, "plan", str(file))
    waited = farm.coordinator("submit", str(file), "--wait")
    assert waited.returncode == 0, waited
    assert waited.stdout.startswith("whole.1\n") and "whole.1 is complete" in waited.stdout
    assert "complete" in said(farm, "watch", "whole") and "complete" in said(farm, "status", "whole")
    folder = Path(said(farm, "result", "whole").strip())
    assert np.load(folder / "a" / "centers.npy").shape == (48, 4)
    assert "whole.1" in said(farm, "verify", "whole") and said(farm, "verify", "whole", "--inputs")
    copy = tmp_path / "copy"
    said(farm, "result", "whole", "--to", str(copy))
    for path in folder.rglob("*.npy"):
        assert (copy / path.relative_to(folder)).read_bytes() == path.read_bytes()
    assert "one file, and there are 2 layers" in said(farm, "result", "whole", "--as", "npz", "--to", "x.npz", code=2)
    assert "where to?" in said(farm, "result", "whole", "--as", "csv", code=2)
    files: Any = value(farm, "result", "whole", "--as", "npz", "--to", str(tmp_path / "as"))
    with np.load(files["files"]["b"]) as found:
        assert np.array_equal(found["centers"], np.load(folder / "b" / "centers.npy"))
    assert said(farm, "result", "whole", "--as", "csv", "--to", str(tmp_path)).endswith("b.csv\n")
    assert (tmp_path / "a.csv").read_text().startswith("centers.0,centers.1,")
    assert "whole.1" in said(farm, "du")
    assert "nothing" in said(farm, "logs", "whole")
    assert "name full ids, such as whole.1, or add --yes" in said(farm, "rm", "whole", code=2)
    assert "whole.1" in said(farm, "rm", "whole", "--yes")
    assert "there is no job" in said(farm, "status", "whole", code=6)
    assert not folder.exists()


def test_all_json_can_be_read(farm: FarmHarness) -> None:
    file = farm.job_file(arrays(1), name="json")
    assert value(farm, "plan", str(file))
    assert value(farm, "submit", str(file)) == {"schema": 2, "job": "json.1"}
    farm.wait("json.1")
    commands = (["status"], ["status", "json"], ["agents"], ["logs", "json"], ["du"], ["result", "json"])
    for command in (*commands, ["verify", "json"], ["verify", "json", "--inputs"]):
        assert value(farm, *command), command
    agents = farm.agent_command("status", "--spool", str(farm.folder / "spools" / "left"), "--json")
    assert json.loads(agents.stdout)["agents"][0]["name"] == "left"
    whole: Any = value(farm, "submit", str(file), "--wait")
    assert (whole["job"], whole["status"]["state"]) == ("json.2", "complete")


def test_a_job_that_is_waited_for_and_fails_is_one_document_and_the_exit_code_as_ever(farm: FarmHarness) -> None:
    file = farm.job_file(arrays(1), work="def f(rows):\n    raise ValueError('no')\n", **{**MAP_F, "name": "fails"})
    ended = farm.coordinator("submit", str(file), "--wait", "--json")
    said = json.loads(ended.stdout)
    assert (ended.returncode, said["code"], said["job"]) == (11, 11, "fails.1")
    assert said["error"] and said["hint"] and said["status"]["failures"]
    assert ended.stderr == f"error: {said['error']}\nhint: {said['hint']}\n"


MAP_F: dict[str, Any] = {"kind": "map", "code": "work.py:f", "name": "draws"}
DRAWS = """
import numpy as np, time
def f(rows):
    return np.random.default_rng().random(len(rows)) + time.time()
"""


def test_verify_calls_serial_what_our_own_code_computed_alone(farm: FarmHarness) -> None:
    ours, theirs = submit(farm, farm.job_file(arrays(1))), submit(farm, farm.job_file(arrays(1), 8, DRAWS, **MAP_F))
    for job in (ours, theirs):
        farm.wait(job)
    assert "computed on 1 kernel fingerprint; the bytes are those of a serial run" in said(farm, "verify", ours)
    told = said(farm, "verify", theirs, "--inputs")
    assert "serial run" in told and "are those of" not in told and "as it was written, not compared" in told
    found = [json.loads(said(farm, "verify", job, "--json")) for job in (ours, theirs)]
    assert [one["serial"] for one in found] == [True, None]


def test_a_wait_for_what_fails_ends_with_11(farm: FarmHarness) -> None:
    file = halves(farm, poison=True, fail=True)
    done = farm.coordinator("submit", str(file), "--wait")
    assert done.returncode == 11
    job = done.stdout.splitlines()[0]
    assert is_two_lines(done.stderr) and "--failed" in done.stderr and "retry" in done.stderr
    assert "ValueError: no" in said(farm, "logs", job, "b/29")
    for command in ("watch", "verify"):
        said(farm, command, job, code=11)
    partly = farm.coordinator("result", job)
    assert partly.returncode == 0 and "1 of 2 layers merged; not yet: b" in partly.stderr, partly


# --- a running job ------------------------------------------------------------------------------------------


def test_a_running_job_is_paused_watched_and_goes_on(farm: FarmHarness) -> None:
    job = submit(farm, halves(farm, **SLOW))
    until(lambda: farm.status(job).totals.committed, "a commit")
    assert "is paused" in said(farm, "pause", job)
    until(lambda: farm.status(job).totals.running == 0, "what runs to end")
    assert "paused" in said(farm, "status", job) and farm.status(job).state == "paused"
    assert "only a running job" in said(farm, "pause", job, code=7)
    assert "has priority 7" in said(farm, "priority", job, "7")
    assert "runs again" in said(farm, "resume", job)
    assert "retry" in said(farm, "resume", job, code=7)
    assert said(farm, "du") and said(farm, "logs", job)
    farm.wait(job)
    assert farm.status(job).priority == 7
    farm.check_result(job)


def test_a_running_job_gives_what_is_merged(farm: FarmHarness, tmp_path: Path) -> None:
    job = submit(farm, halves(farm, layers=3, **SLOW))
    assert "cancel" in said(farm, "rm", job, code=7)
    until(lambda: farm.status(job).layers_merged, "a layer to be merged")
    done = farm.coordinator("result", job, "--to", str(tmp_path / "some"))
    assert done.returncode in (0, 11), done
    copied = [path.parent.name for path in (tmp_path / "some").rglob("manifest.json")]
    assert copied
    verified = farm.coordinator("verify", job)
    assert verified.returncode in (0, 11) and "damage" not in verified.stdout, verified
    farm.wait(job)
    farm.check_result(job)


def test_a_cancelled_job_keeps_what_is_merged_and_a_retry_goes_on(farm: FarmHarness) -> None:
    job = submit(farm, halves(farm, **SLOW))
    until(lambda: farm.status(job).totals.committed, "a commit")
    assert "is cancelled" in said(farm, "cancel", job)
    assert "cancelled already" in said(farm, "cancel", job, code=7)
    assert farm.coordinator("watch", job).returncode == 11
    assert said(farm, "retry", job)
    farm.wait(job)
    farm.check_result(job)


def test_a_layer_is_computed_anew(farm: FarmHarness) -> None:
    job = submit(farm, halves(farm))
    farm.wait(job)
    before = farm.merged(job)
    assert "no layer" in said(farm, "retry", job, "--layers", "nope", code=6)
    assert "nothing of it failed" in said(farm, "retry", job, code=7)
    said(farm, "retry", job, "--layers", "b")
    farm.wait(job)
    assert farm.merged(job) == before


# --- what cannot be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a.b", "a\nb", "x" * 300, "", "ä", "-" * 65])
def test_a_job_name_that_cannot_be(farm: FarmHarness, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = farm.job_file(arrays(1), name=name)
    assert cli.main(["submit", str(file), "--root", str(farm.root.path)]) == 3
    told = capsys.readouterr().err
    assert is_two_lines(told) and "name" in told and len(told) < 600


@pytest.mark.parametrize("name", ["../etc", "a/../b", "weights.0", "x" * 300, "a\nb"])
@pytest.mark.parametrize("command", ["status", "cancel", "rm", "result", "watch"])
def test_a_job_that_cannot_be_named(
    farm: FarmHarness, name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, name, "--root", str(farm.root.path)]) in (2, 6)
    told = capsys.readouterr().err
    assert is_two_lines(told) and len(told) < 600


def test_a_second_daemon_is_refused(farm: FarmHarness) -> None:
    assert "served already" in said(farm, "serve", code=7)
    assert "served already" in said(farm, "serve", "--detach", code=7)


def test_a_root_that_everyone_may_write_to_is_refused(farm: FarmHarness, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for command in (paths.command("serve", tmp_path), paths.command("status", tmp_path)):
        (tmp_path / "farm.json").write_text("{}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        assert done.returncode == 7 and is_two_lines(done.stderr) and "chmod 700" in done.stderr, done


def test_no_job_file(farm: FarmHarness, tmp_path: Path) -> None:
    assert "No such file" in said(farm, "submit", str(tmp_path / "job.yaml"), code=3)
    assert "Is a directory" in said(farm, "submit", str(tmp_path), code=3)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"name": "x", "kind": "cluster", "sorce": "."}))
    assert "did you mean" in said(farm, "submit", str(tmp_path / "job.yaml"), code=3)


# --- Ctrl-C -------------------------------------------------------------------------------------------------


def interrupted(process: subprocess.Popen[bytes]) -> int:
    """Ctrl-C in its terminal: to all of its processes."""
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(DEADLINE_SECONDS)


@pytest.mark.parametrize("command", ["submit", "watch"])
def test_an_interrupted_wait_leaves_the_job_running(farm: FarmHarness, command: str) -> None:
    file = halves(farm, nap=1.0)  # longer than it takes to interrupt it on a busy machine
    args = ["submit", "--wait", str(file)] if command == "submit" else ["watch", submit(farm, file)]
    out = farm.folder / f"interrupted-{command}"
    process = farm.run([*paths.command(args[0], farm.root.path), *args[1:]], out.name)
    until(lambda: "running" in out.read_text(), "the first line")
    job = farm.jobs()[-1].id
    assert interrupted(process) == INTERRUPTED_EXIT
    text = out.read_text()
    assert "Traceback" not in text and f"{job} goes on" in text, text
    assert farm.status(job).state == "running"
    said(farm, "cancel", job)


def test_an_interrupted_farm_leaves_nothing(tmp_path: Path) -> None:
    farm = FarmHarness(tmp_path)
    try:
        farm.start()
        agent = farm.join("one", "--cpus", "1")
        until(lambda: farm.agent_status("one"), "the agent")
        assert interrupted(agent) == 0
        until(
            lambda: not farm.processes("muster.agent.cli") and not farm.processes("ray"), "the agent's processes to end"
        )
        assert farm.daemon is not None
        assert interrupted(farm.daemon) == 0
        until(lambda: not farm.processes(), "all processes to end")
        left = sorted(path.name for path in farm.root.path.iterdir())
        assert "control.sock" not in left and not list(farm.root.tmp.iterdir())
        assert "Traceback" not in farm.said() + (tmp_path / "agent-one.out").read_text()
    finally:
        farm.close()


@pytest.mark.parametrize("times", [1, 2])
def test_an_agent_interrupted_while_it_starts_leaves_nothing(farm: FarmHarness, times: int, tmp_path: Path) -> None:
    agent = farm.join("brief", "--cpus", "1")
    out = farm.folder / "agent-brief.out"
    until(lambda: out.exists() and "starting" in out.read_text(), "its pool to start")
    for _ in range(times):
        os.killpg(agent.pid, signal.SIGINT)
    assert agent.wait(DEADLINE_SECONDS) in (0, INTERRUPTED_EXIT)
    assert "Traceback" not in out.read_text()
    spool = str(farm.folder / "spools" / "brief")
    until(lambda: not farm.processes(spool), "its processes to end")
    out.unlink()
