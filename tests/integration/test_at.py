"""The command line on a laptop: every command goes to a server that has its sshd alone, and says what it says there."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from muster.jobs.common import launch
from muster.jobs.common.errors import LinkError, NotFoundError, UsageError
from tests.support import sshd
from tests.support.farm import FarmHarness, arrays, running, until
from tests.support.sshd import HOST, Sshd

SECONDS = 60
WORK = "def double(rows):\n    return {'twice': rows * 2}\n"
LINES = "name,count\none,1\ntwo,2\n"

Done = subprocess.CompletedProcess[str]


@dataclass
class Laptop:
    """A machine whose ssh knows the server, and nothing else of ours. It never logs into a shell there."""

    farm: FarmHarness
    server: Sshd
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        self.use(self.server.ssh_config(name=f"config-{self.folder.name}"))

    def use(self, config: Path) -> None:
        """Its ssh's configuration: the real ssh reads that of the account's home, which a test has not for its own."""
        program = self.folder / "bin" / "ssh"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        program.chmod(0o755)

    @property
    def at(self) -> str:
        return f"{HOST}:{self.farm.root.path}"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in self.farm.environment().items() if name != "XDG_RUNTIME_DIR"}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**kept, "PATH": path, "HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.farm.temp), **self.env}

    def run(self, *words: str, given: str = "") -> Done:
        return subprocess.run(
            launch.python("muster.__main__", *words), cwd=self.folder, env=self.environment(), input=given,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    def muster(self, name: str, *words: str, given: str = "") -> Done:
        return self.run(name, "--at", self.at, *words, given=given)

    def job_file(self, fields: Mapping[str, object], files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            (self.folder / name).write_text(text)
        (self.folder / "job.yaml").write_text(yaml.safe_dump(fields))
        return self.folder / "job.yaml"


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.join("one", "--cpus", "2")
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Its accounts have a farm elsewhere for their own commands, which is not for ours."""
    sshd.require()
    made = Sshd(tmp_path_factory.mktemp("sshd"), env={"MUSTER_FARM": "nowhere.invalid", "MUSTER_SUBMIT_WAIT": "1"})
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def laptop(farm: FarmHarness, server: Sshd, tmp_path: Path) -> Laptop:
    return Laptop(farm, server, tmp_path / "laptop")


@pytest.fixture(scope="module")
def job(farm: FarmHarness) -> str:
    made = farm.submit(arrays(), name="weights")
    farm.wait(made)
    return made


@pytest.mark.parametrize(
    "words",
    [
        "status weights", "agents", "report weights", "verify weights", "diff weights weights", "wait weights",
        "watch weights", "result weights", "retry weights", "pause nothing", "kick weights/a/0",
    ],
)  # fmt: skip
def test_a_command_says_from_a_laptop_what_it_says_on_the_server(
    words: str, laptop: Laptop, farm: FarmHarness, job: str
) -> None:
    name, *rest = words.split()
    there, here = laptop.muster(name, *rest), farm.coordinator(name, *rest)
    assert there.returncode == here.returncode
    assert [line.split()[:1] for line in there.stdout.splitlines()] == [
        line.split()[:1] for line in here.stdout.splitlines()
    ]
    assert there.stderr == here.stderr


def test_a_job_file_goes_with_its_code_its_arrays_and_its_result_comes_back(laptop: Laptop, farm: FarmHarness) -> None:
    fields = {"name": "twice", "kind": "map", "source": "x.npy", "code": "work.py:double", "shard": {"rows": 8}}
    laptop.job_file(fields, {"work.py": WORK})
    rows = np.arange(64, dtype="f4").reshape(16, 4)
    np.save(laptop.folder / "x.npy", rows)
    assert "2 shards" in laptop.muster("plan", "job.yaml").stdout
    sent = laptop.muster("submit", "job.yaml", "--wait", "--json")
    assert sent.returncode == 0, sent.stderr
    document = json.loads(sent.stdout)
    assert document["status"]["state"] == "complete"
    got = laptop.muster("result", document["job"], "--to", "out")
    assert got.returncode == 0, got.stderr
    assert got.stdout == f"{laptop.folder}/out\n"
    assert np.array_equal(np.load(laptop.folder / "out" / "x" / "twice.npy"), rows * 2)
    page = laptop.muster("report", document["job"], "--html", "page.html")
    assert page.returncode == 0 and "twice.1" in (laptop.folder / "page.html").read_text()
    again = laptop.muster("submit", "job.yaml", "--from", document["job"], "--after", document["job"], "--wait")
    assert again.returncode == 0 and again.stdout.startswith("twice.2\n")
    assert farm.status("twice.2").layers[0].state == "merged"


def test_a_table_goes_with_its_job_and_its_params_can_be_changed(laptop: Laptop, farm: FarmHarness) -> None:
    fields = {"name": "lines", "kind": "command", "source": {"table": "t.csv"}, "params": {"run": "echo {name}"}}
    laptop.job_file(fields, {"t.csv": LINES})
    refused = laptop.muster("submit", "job.yaml", "--set", "nothing=1")
    assert refused.returncode == 3 and "nothing" in refused.stderr
    done = laptop.muster("submit", "job.yaml", "--set", "run=test {count} -lt 3", "--wait")
    assert done.returncode == 0, done.stderr
    job = done.stdout.splitlines()[0]
    assert farm.plan(job).work.params["run"] == "test {count} -lt 3"
    files = {**fields, "source": {"files": "*.csv"}}
    laptop.job_file(files, {})
    assert laptop.muster("submit", "job.yaml").returncode == UsageError.exit_code


def test_a_run_has_its_items_from_here_and_no_file_of_here(laptop: Laptop, job: str) -> None:
    done = laptop.muster("run", "-k", "echo", "--at", "{}", ":::", "a", "b")  # the second --at is the command's own
    assert (done.returncode, done.stdout) == (0, "--at a\n--at b\n"), done.stderr
    done = laptop.muster("run", "-k", "--after", job, "echo {}", given="1\n2\n")
    assert (done.returncode, done.stdout) == (0, "1\n2\n"), done.stderr
    laptop.env["MUSTER_RUN_JOBS"] = "1"  # of runs that begin
    assert laptop.muster("run", "-k", "--attach", "run").stdout == "1\n2\n"
    (laptop.folder / "list").write_text("1\n")
    for words in (
        ["-a", "list", "echo"],
        ["echo", "::::", "list"],
        ["cat", ":::", "list"],
        ["--joblog", "l", "true"],
        ["cat ./list", ":::", "a"],
    ):
        refused = laptop.muster("run", *words)
        assert refused.returncode == UsageError.exit_code and "of this machine" in refused.stderr
    assert not (laptop.folder / "l").exists()


def test_the_farm_may_be_configured_and_two_farms_on_a_line_are_refused(laptop: Laptop, job: str) -> None:
    (laptop.folder / ".config" / "muster").mkdir(parents=True)
    config = laptop.folder / ".config" / "muster" / "config.yaml"
    config.write_text(f"farm: {laptop.at}\nlogs: {{limit: many}}\n")
    assert job in laptop.run("status").stdout
    config.write_text("farm: nowhere.invalid\n")
    assert laptop.run("status").returncode == LinkError.exit_code
    laptop.env["MUSTER_FARM"] = laptop.at
    assert job in laptop.run("status").stdout
    assert job in laptop.run("status", "--root", str(laptop.farm.root.path)).stdout
    both = laptop.run("status", "--at", laptop.at, "--root", "/nowhere")
    assert both.returncode == UsageError.exit_code and "--at and --root name a farm each" in both.stderr
    config.write_text("logs: {limit: many}\n")
    assert "correct `logs.limit` in " in laptop.run("logs", job).stderr
    config.write_text("logs: {failed: true}\n")
    assert laptop.run("logs", job).returncode == 0  # where --failed is known, it went along


@pytest.mark.parametrize("words", ["serve", "rebuild", "try job.yaml", "service show", "agent status", "deploy status"])
def test_commands_of_this_machine_alone_refuse_another(words: str, laptop: Laptop) -> None:
    refused = laptop.run(*words.split(), "--at", laptop.at)
    assert refused.returncode == UsageError.exit_code
    assert f"`muster {words.split(maxsplit=1)[0]}" in refused.stderr and "is of this machine alone" in refused.stderr


def test_commands_share_a_connection_unless_the_user_has_a_way_of_their_own(laptop: Laptop, server: Sshd) -> None:
    def logins() -> int:
        return server.log().count("Accepted publickey")

    before = logins()
    for _ in range(3):
        assert laptop.muster("agents").returncode == 0
    shared = logins() - before
    assert shared <= 1  # an earlier test's may still be there
    assert [path for path in (laptop.farm.temp / "muster").iterdir() if path.is_socket()]
    own = laptop.folder / "own"
    laptop.use(server.ssh_config("ControlMaster no", f"ControlPath {own}", name="config-own"))
    before = logins()
    assert laptop.muster("agents").returncode == 0
    assert logins() - before == 2 and not own.exists()  # to find the program, and to run it


def test_what_cannot_be_reached_is_said_once_and_as_everywhere(laptop: Laptop) -> None:
    laptop.env["MUSTER_FARM"] = "nowhere.invalid"
    done = laptop.run("status", "--json")
    assert done.returncode == LinkError.exit_code and done.stderr.count("\n") == 2
    assert json.loads(done.stdout)["code"] == LinkError.exit_code
    missing = laptop.muster("status", "nothing", "--json")
    assert missing.returncode == NotFoundError.exit_code and json.loads(missing.stdout)["code"] == missing.returncode


def test_at_a_terminal_the_far_command_has_it(laptop: Laptop, farm: FarmHarness) -> None:
    made = farm.submit(arrays(seed=5), name="asked")
    farm.wait(made)
    ours, theirs = pty.openpty()
    command = launch.python("muster.__main__", "rm", "--at", laptop.at, "asked")
    process = subprocess.Popen(
        command, cwd=laptop.folder, env=laptop.environment(), stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    said = b""

    def is_asked() -> bool:
        nonlocal said
        said += os.read(ours, 4096)
        return b"for good" in said

    until(is_asked, "rm to ask")
    os.write(ours, b"n\r")
    assert process.wait(SECONDS) == 0 and farm.status(made).state == "complete"
    os.close(ours)


def test_who_waits_in_vain_leaves_no_process_there(laptop: Laptop, farm: FarmHarness) -> None:
    held = farm.submit(arrays(seed=6), name="held", resources={"gpus": 1})  # which nobody lends
    command = launch.python("muster.__main__", "wait", "--at", laptop.at, held)
    process = subprocess.Popen(command, env=laptop.environment(), stdin=subprocess.DEVNULL, start_new_session=True)

    def is_there() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return any("wait" in one.cmdline() for one in laptop.server.sessions())
        return True

    until(is_there, "the far end to wait")
    os.killpg(process.pid, signal.SIGHUP)  # as a terminal that is closed does
    process.wait(SECONDS)
    until(lambda: not is_there(), "the far end to end")
    assert farm.coordinator("cancel", held).returncode == 0
