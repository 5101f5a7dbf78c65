"""Every command as it is typed, against a daemon that gives fixed answers: output, errors, exit codes."""

from __future__ import annotations

import io
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.agent.display import DisplayState
from muster.coordinator import cli
from muster.coordinator.api import requests, status
from muster.coordinator.commands import logs, serve, verify
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol.frames import FrameReader, frame
from muster.coordinator.protocol.values import Decoder, Message, encode
from muster.coordinator.submission.forecast import Forecast, LayerForecast
from muster.coordinator.submission.try_shards import Tried
from muster.jobs.common.errors import (
    INTERNAL_EXIT,
    INTERRUPTED_EXIT,
    JobFileError,
    MusterError,
    RefusedError,
    UsageError,
)
from muster.jobs.common.locations import Folder, Host, parse
from muster.jobs.common.names import parse_shard
from muster.jobs.common.program import BROKEN_PIPE_EXIT
from tests import traps
from tests.support import networks
from tests.unit.coordinator.submission.test_eta import agent, job, tally

Answer = Message | Callable[[Any], Message]
OUTPUT_WIDTH = 100


class FixedDaemon:
    """Answers each question by its type, and keeps what it was asked."""

    def __init__(self, root: roots.Root) -> None:
        self.answers: dict[type[Message], Answer] = {}
        self.asked: list[Message] = []
        self._decode = Decoder(requests.FromCommand)
        self._server = socket.socket(socket.AF_UNIX)
        with roots.address(root.socket) as where:
            self._server.bind(where)
        self._server.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                with client:
                    self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        reader = FrameReader()
        while data := client.recv(1 << 16):
            for payload in reader.feed(data):
                client.sendall(frame(encode(self._answer(self._decode(payload)))))

    def _answer(self, question: Message) -> Message:
        self.asked.append(question)
        answer = self.answers.get(type(question), requests.Problem("not now", "ask later", 7))
        return answer if isinstance(answer, Message) else answer(question)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> roots.Root:
    made = roots.prepare(tmp_path / "farm")
    monkeypatch.setenv("MUSTER_ROOT", str(made.path))
    (made.jobs / "weights.1").mkdir()
    return made


@pytest.fixture
def daemon(root: roots.Root) -> Iterator[FixedDaemon]:
    made = FixedDaemon(root)
    yield made
    made.close()


class Ran:
    """What a command said, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*args: object) -> Ran:
        code = cli.main([str(arg) for arg in args])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return call


def assert_two_lines(err: str) -> None:
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")


RUNNING = job(
    tally(committed=300, running=4, finished=10), agents=[agent()], recent=status.Window(60.0, 120, 100, 1 << 27)
)


def status_of(*jobs: status.JobStatus, agents: int = 1) -> status.Status:
    return status.Status(100.0, "0.1", agents, list(jobs))


# --- files that act when they are opened ---------------------------------------------------------------------


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("command", ["plan", "submit", "try"])
def test_a_torchscript_that_nobody_trusts_is_opened_by_no_command(
    command: str, daemon: FixedDaemon, run: Callable[..., Ran], tmp_path: Path
) -> None:
    networks.save_torchscript_that_writes(tmp_path / "net.pt", tmp_path / "written")
    np.save(tmp_path / "rows.npy", np.zeros((4, 2), "f4"))
    (tmp_path / "job.yaml").write_text("name: a\nkind: infer\nsource: rows.npy\nparams: {model: net.pt}\n")
    ran = run(command, tmp_path / "job.yaml")
    assert ran.code == JobFileError.exit_code and "trust_torchscript: true" in ran.err
    assert_two_lines(ran.err)
    assert not (tmp_path / "written").exists()


# --- finding commands, and errors -------------------------------------------------------------------------


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself_with_an_example(name: str, run: Callable[..., Ran]) -> None:
    ran = run(name, "--help")
    assert ran.code == 0
    assert f"Usage: coordinator {name}" in ran.out
    assert f"Example:\n  coordinator {name}" in ran.out.replace("\n    ", "\n  ").replace("  Example", "Example")


def test_the_list_of_commands_imports_none(run: Callable[..., Ran]) -> None:
    ran = run("--help")
    hidden = cli.SECTIONS[cli.OF_PROGRAMS]
    assert all((f"\n  {name} " in ran.out) != (name in hidden) for name in cli.COMMANDS)
    assert run().out == ran.out


@pytest.mark.parametrize(
    "args", [["--help"], ["status"], ["agents"], ["connect", "--role=control"], ["connect", "--help"]]
)
def test_nothing_heavy_is_imported_at_start(args: list[str], root: roots.Root) -> None:
    check = (
        "import sys; from muster.coordinator.cli import main; main(sys.argv[1:]); "
        "heavy = {'numpy', 'sklearn', 'ray', 'tqdm', 'yaml', 'paramiko'} & set(sys.modules); "
        "heavy |= {'click'} & set(sys.modules) if sys.argv[1] == 'connect' else set(); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    command = [sys.executable, "-c", check, *args]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["statsu"], "did you mean `coordinator status`?"),
        (["--nope"], "see `coordinator --help`"),
        (["status", "--nope"], "see `coordinator status --help`"),
        (["plan"], "see `coordinator plan --help`"),
        (["priority", "weights", "0"], "see `coordinator priority --help`"),
        (["connect", "--rôle"], "see `--help`"),
        (["connect"], "give one of control, push, pull"),
        (["retry", "--state", "halted", "--layers", "conv1"], "--layers are of one job"),
        (["cancel", "--state", "halting"], "see `coordinator cancel --help`"),
        (["pause"], "name jobs: weights, weights.2, last, all; or say --state halted"),
        (["cancel", "../weights"], "use 1 to 64 letters, digits, `_` and `-`"),
        (["drop", "a/b"], "use 1 to 64 letters, digits, `_` and `-`"),
        (["drain", "a/b"], "use 1 to 64 letters, digits, `_` and `-`"),
    ],
)
def test_what_cannot_be_meant_is_refused(args: list[str], said: str, root: roots.Root, run: Callable[..., Ran]) -> None:
    ran = run(*args)
    assert ran.code == UsageError.exit_code
    assert_two_lines(ran.err)
    assert said in ran.err


@pytest.mark.parametrize("args", [["status"], ["agents"], ["stop"], ["cancel", "weights"], ["watch", "weights"]])
def test_without_a_daemon(
    args: list[str], root: roots.Root, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.coordinator.farm_root.ask_daemon.AWAY_SECONDS", 0.0)
    monkeypatch.setattr("muster.coordinator.farm_root.ask_daemon.POLL_SECONDS", 0.0)
    ran = run(*args)
    assert ran.code == 5
    assert_two_lines(ran.err)
    assert "coordinator serve" in ran.err


def test_without_a_root(tmp_path: Path, run: Callable[..., Ran]) -> None:
    ran = run("status", "--root", tmp_path / "none")
    assert ran.code == 5
    assert f"coordinator serve --root {tmp_path / 'none'}" in ran.err


def test_a_misspelt_job_names_the_nearest(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    daemon.answers[requests.StatusAsk] = status_of(RUNNING)
    for typed in ("wieghts", "weigths.1"):
        assert "did you mean weights" in run("result", typed).err


def test_all_that_is_wrong_with_a_job_file_is_said(root: roots.Root, run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: a\nkind: map\nattempts: x\nsource: .\ncode: w.py:f\npriority: 0\n")
    ran = run("plan", tmp_path / "job.yaml", "--json")
    assert [line.partition(": job.yaml")[2][:2] for line in ran.err.splitlines()[:2]] == [":3", ":6"]
    said = json.loads(ran.out)
    assert ran.code == 3 and len(said["earlier"]) == 1 and "job.yaml:6: priority" in said["error"]


@pytest.mark.parametrize(
    ("definition", "args", "said"),
    [
        ("def f(rows, size=1): pass", "{sise: 2}", "f has no parameter 'sise'; did you mean `size`?"),
        ("def f(rows): pass", "{size: 2}", "f has no parameter 'size'"),
        ("def f(rows, size, *, by): pass", "{by: 1}", "f wants 'size', which has no default"),
        ("def f(rows, size, first_row, shard, out): pass", "{size: 2}", ""),
        ("def f(rows, *, by=2, **more): pass", "{size: 2}", ""),
        ("def f(): pass", "{}", "f takes no argument"),
        ("@decorated\ndef f(rows): pass", "{size: 2}", ""),
    ],
)
def test_arguments_that_a_function_cannot_take_are_found_at_plan(
    definition: str, args: str, said: str, root: roots.Root, run: Callable[..., Ran], tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((4, 2), "f4"))
    (tmp_path / "w.py").write_text(definition)
    text = f"name: a\nkind: map\nsource: rows.npy\ncode: w.py:f\nparams: {{args: {args}}}\n"
    (tmp_path / "job.yaml").write_text(text)
    ran = run("plan", tmp_path / "job.yaml")
    assert (ran.code, said in ran.err) == (3 if said else 0, True), ran.err


def test_a_problem_comes_back_as_its_error(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    daemon.answers[requests.Cancel] = requests.Problem(
        "weights.1 has\nended", "submit it again", RefusedError.exit_code
    )
    ran = run("cancel", "weights")
    assert (ran.code, ran.err) == (7, "error: weights.1 has ended\nhint: submit it again\n")


def test_an_answer_of_the_wrong_kind(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    daemon.answers[requests.Cancel] = status.Used(1, 2)
    assert run("cancel", "weights").code == 10


def test_a_bug_of_ours_keeps_its_traceback_out_of_sight(
    root: roots.Root, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("muster.coordinator.farm_root.ask_daemon.connect", lambda root: 1 / 0)
    ran = run("status")
    assert ran.code == 70
    assert_two_lines(ran.err)
    kept = Path(ran.err.split()[-1])
    assert "ZeroDivisionError" in kept.read_text()


def test_what_serve_prints_is_to_be_pasted_here_and_on_another_machine() -> None:
    said = serve.serving(Path("/data/my farm"), 7, "me@server").splitlines()
    typed = [shlex.split(line) for line in said if line.startswith("  ")]
    assert [words[:2] + words[3:] for words in typed] == [["agent", "join", "--detach"]] * 2
    assert [parse(words[2]) for words in typed] == [
        Folder(Path("/data/my farm")),
        Host("server", user="me", root="/data/my farm"),
    ]


def test_the_page_of_commands_has_every_exit_code_and_command() -> None:
    page = (Path(__file__).parents[4] / "docs" / "cli.md").read_text()
    codes = {cls.exit_code for cls in MusterError.__subclasses__()} | {0, MusterError.exit_code, INTERNAL_EXIT}
    for code in codes | {INTERRUPTED_EXIT}:
        assert f"\n| {code} | " in page
    for name in cli.COMMANDS.keys() - {"connect", "pause", "resume"}:
        assert f"`coordinator {name}" in page


def test_an_interrupt_is_quiet(root: roots.Root, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(root: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("muster.coordinator.farm_root.ask_daemon.connect", interrupt)
    ran = run("status")
    assert (ran.code, ran.err) == (130, "")


def test_a_terminal_without_a_character_is_no_error(daemon: FixedDaemon) -> None:
    layers = [status.LayerStatus("x" * 60, "open", tally(10))]
    daemon.answers[requests.StatusAsk] = status_of(job(tally(), layers=layers))
    command = [sys.executable, "-m", "muster.coordinator", "status", "weights"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "?xxx" in done.stdout


def test_a_closed_pipe_is_quiet(root: roots.Root) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "muster.coordinator", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE_EXIT, "")


@pytest.mark.parametrize("package", ["muster", "muster.agent", "muster.coordinator"])
def test_nothing_is_imported_from_where_a_command_is_typed(package: str, tmp_path: Path) -> None:
    planted = traps.plant(tmp_path / "planted", *traps.NAMES)
    command = [sys.executable, "-m", package, "status", "--help"]
    done = subprocess.run(command, cwd=planted, capture_output=True, text=True, check=False)
    assert traps.sprung(planted) == []
    assert (done.returncode, done.stderr) == (0, "")


# --- for programs -------------------------------------------------------------------------------------------

FOR_MACHINES = {"serve", "connect", "fetch", "session", "stream", "completion"}  # whose output is bytes, or that go on


@pytest.mark.parametrize("name", sorted(cli.COMMANDS.keys() - FOR_MACHINES))
def test_every_command_that_reports_or_changes_takes_json(name: str, run: Callable[..., Ran]) -> None:
    assert "--json" in run(name, "--help").out


CHANGES: list[tuple[type[Message], list[str], dict[str, object]]] = [
    (requests.Cancel, ["cancel", "weights"], {"job": "weights.1"}),
    (requests.Pause, ["pause", "weights"], {"job": "weights.1"}),
    (requests.Resume, ["resume", "weights"], {"job": "weights.1"}),
    (requests.Priority, ["priority", "weights", "4"], {"job": "weights.1", "priority": 4}),
    (requests.Retry, ["retry", "weights", "--layers", "fc"], {"job": "weights.1", "layers": ["fc"]}),
    (requests.Kick, ["kick", "weights.1/fc/3"], {"job": "weights.1", "layer": "fc", "number": 3}),
    (requests.Drain, ["drain", "lab3"], {"agent": "lab3"}),
    (requests.Remove, ["rm", "weights.1"], {"job": "weights.1"}),
]


@pytest.mark.parametrize(("question", "args", "facts"), CHANGES, ids=[args[0] for _, args, _ in CHANGES])
def test_what_was_changed_is_a_document(
    question: type[Message], args: list[str], facts: object, daemon: FixedDaemon, run: Callable[..., Ran]
) -> None:
    daemon.answers[question] = requests.Done("it is so")
    assert json.loads(run(*args, "--json").out) == {"schema": 2, **facts, "said": "it is so"}  # type: ignore[dict-item]


def test_every_answer_has_the_number_of_its_schema(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    daemon.answers[requests.StatusAsk] = status_of(msgspec.structs.replace(RUNNING, state="complete"))
    daemon.answers[requests.AgentsAsk] = status.Agents(100.0, [])
    daemon.answers[requests.ExplainJob] = status.Explained("weights.1", ["is running"])
    daemon.answers[requests.FailuresAsk] = status.Failures(0, [])
    daemon.answers[requests.Usage] = status.Used(1, 1)
    for args in (["status"], ["watch", "weights"], ["agents"], ["explain"], ["logs", "weights"], ["du"], ["uploads"]):
        ran = run(*args, "--json")
        assert (ran.code, json.loads(ran.out)["schema"]) == (0, 2), args


def test_bytes_are_called_by_one_name_in_every_document() -> None:
    told = (status.Tally, status.AgentRate, status.Window, status.JobStatus, status.AgentStatus)
    written = {field for one in (*told, DisplayState) for field in one.__struct_fields__}
    reckoned = {field.name for one in (Forecast, LayerForecast, Tried) for field in fields(one)}
    names = {name for name in written | reckoned if "bytes" in name}
    assert names == {f"bytes_{what}" for what in ONE_NAME_EACH}


ONE_NAME_EACH = ("in", "out", "committed", "merged", "pulled", "pushed", "spared", "of_root")


@pytest.mark.parametrize(
    ("args", "code"),
    [(["cancel", "weights"], 7), (["cancel"], 2), (["status", "--nope"], 2), (["statsu"], 2), (["rm", "none.7"], 7)],
)
def test_an_error_is_json_too_and_the_two_lines_stay(
    args: list[str], code: int, daemon: FixedDaemon, run: Callable[..., Ran]
) -> None:
    ran = run(*args, "--json")
    said = json.loads(ran.out)
    assert (ran.code, said["code"], said["schema"]) == (code, code, 2)
    assert ran.err == f"error: {said['error']}\nhint: {said['hint']}\n"


def test_what_is_damaged_is_named_in_the_one_document(merged: roots.JobFolder, run: Callable[..., Ran]) -> None:
    said = json.loads(run("verify", "weights", "--json").out)
    assert (said["code"], said["bad_layers"]) == (12, ["fc"]) and said["error"]


def test_a_name_behind_two_dashes_asks_for_no_json(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    assert run("cancel", "--", "--json").out == ""


# --- what they show ---------------------------------------------------------------------------------------


def test_status_lists_jobs(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    long = job(tally(committed=1000), state="complete", started=10.0, ended=75.0)
    daemon.answers[requests.StatusAsk] = status_of(RUNNING, long)
    ran = run("status")
    assert ran.code == 0
    assert "weights.1  cluster  running     300/1,000   30%" in ran.out
    assert "took 1 min 5 s" in ran.out
    assert max(len(line) for line in ran.out.splitlines()) <= OUTPUT_WIDTH


def test_status_of_one_job_has_its_layers_and_machines(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    layers = [status.LayerStatus(f"encoder/block{i}/attention.weight", "open", tally(10)) for i in range(50)]
    halted = job(tally(), state="halted", why="2 shards failed on two machines", layers=layers, agents=[agent("lab3")])
    daemon.answers[requests.StatusAsk] = status_of(halted)
    ran = run("status", "weights")
    assert daemon.asked == [requests.StatusAsk("weights.1")]
    assert "halted (2 shards failed on two machines)" in ran.out
    assert "… and 20 layers more" in ran.out
    assert "lab3" in ran.out
    assert max(len(line) for line in ran.out.splitlines()) <= OUTPUT_WIDTH


def test_status_as_json_has_the_eta(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    daemon.answers[requests.StatusAsk] = status_of(RUNNING)
    said = json.loads(run("status", "--json").out)
    assert said["jobs"][0]["id"] == "weights.1"
    assert said["jobs"][0]["eta"]["bottleneck"] == "compute"
    assert "t" not in said


def test_agents_say_why_they_take_nothing(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    one = status.AgentStatus("lab3", "lab3.local", "live", 90.0, 8, 4, 1, 30, 0, 0, "print", "0.1", "spool full")
    far = status.AgentStatus("far", "far", "gone", 40.0, 8, 0, 0, 0, 0, 0, "", "0.1", "", {"weights.1": "no GPU"})
    daemon.answers[requests.AgentsAsk] = status.Agents(100.0, [far, one])
    said = run("agents").out
    assert "lab3: spool full" in said
    assert "far: takes nothing of weights.1: no GPU" in said
    assert "1 min ago" in said
    assert json.loads(run("agents", "--json").out)["agents"][0]["name"] == "far"


def test_logs_show_evidence_and_tame_it(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    evidence = "Traceback\nValueError: \x1b[2Jbad"
    record = status.FailureRecord("conv1", 17, 3, 9, "lab3", 50.0, "exception", "bad", evidence, 2.5, 1 << 20, True)
    daemon.answers[requests.FailuresAsk] = status.Failures(3, [record])
    said = run("logs", "weights", "conv1/17").out
    assert daemon.asked == [requests.FailuresAsk("weights.1", "conv1", 17)]
    assert "… 2 earlier failures" in said
    assert "weights.1/conv1/17, given up: exception: bad" in said
    assert "  | Traceback" in said
    assert "\x1b" not in said


def test_logs_without_a_daemon_show_the_file(root: roots.Root, run: Callable[..., Ran]) -> None:
    assert "nothing of weights.1 failed" in run("logs", "weights").out
    root.job("weights.1").failures.write_text("conv1/17 failed\n")
    assert run("logs", "weights").out == "conv1/17 failed\n"


@pytest.mark.parametrize(
    ("job", "shard", "meant"),
    [
        ("w.1/a/b/17", None, ("w.1", "a/b/17")),
        ("w.1", "w.1/a/17", ("w.1", "a/17")),
        ("w", "a/17", ("w", "a/17")),
        ("w", None, ("w", None)),
    ],
)
def test_a_shard_may_be_named_as_it_is_printed(job: str, shard: str | None, meant: tuple[str, str | None]) -> None:
    assert logs.split(job, shard) == meant


@pytest.mark.parametrize("text", ["17", "conv1", "conv1/x", "/17", "conv1/-1"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(UsageError):
        parse_shard(text)


# --- what they ask for ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "question"),
    [
        (["cancel", "weights"], requests.Cancel("weights.1")),
        (["pause", "weights"], requests.Pause("weights.1")),
        (["resume", "weights.1"], requests.Resume("weights.1")),
        (["rm", "weights.1"], requests.Remove("weights.1")),
        (["priority", "weights", "4"], requests.Priority("weights.1", 4)),
        (["drain", "lab3"], requests.Drain("lab3")),
        (["drop", "lab3"], requests.DropAgent("lab3")),
        (["drop", "lab3", "--force"], requests.DropAgent("lab3", force=True)),
        (["retry", "weights"], requests.Retry("weights.1")),
        (["retry", "weights", "--layers", "a", "b"], requests.Retry("weights.1", ["a", "b"])),
        (["retry", "weights", "--layers", "a", "--layers", "b"], requests.Retry("weights.1", ["a", "b"])),
    ],
)
def test_a_wish_is_passed_on(args: list[str], question: Message, daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    daemon.answers[type(question)] = requests.Done("it is so")
    ran = run(*args)
    assert (ran.code, ran.out) == (0, "it is so\n")
    assert daemon.asked == [question]


# --- several jobs -----------------------------------------------------------------------------------------


def several(*states: str) -> status.Status:
    """weights.1, weights.2, … in these states."""
    made = [msgspec.structs.replace(RUNNING, id=f"weights.{i}", state=state) for i, state in enumerate(states, 1)]
    return status_of(*made)


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["pause", "weights.1", "weights.3", "weights.1"], ["weights.1", "weights.3"]),
        (["pause", "all"], ["weights.1"]),
        (["resume", "all"], ["weights.3"]),
        (["cancel", "all"], ["weights.1", "weights.2", "weights.3", "weights.4"]),
        (["retry", "all"], ["weights.4", "weights.5"]),
        (["retry", "--state", "cancelled", "--state", "halted"], ["weights.4", "weights.6"]),
        (["cancel", "weights.1", "weights.4", "--state", "halted"], ["weights.4"]),
        (["rm", "all", "--yes"], ["weights.5", "weights.6", "weights.7"]),
        (["rm", "weights.7", "--state", "incomplete"], []),
    ],
)
def test_jobs_may_be_named_by_the_handful(
    args: list[str], meant: list[str], daemon: FixedDaemon, run: Callable[..., Ran]
) -> None:
    states = ("running", "waiting", "paused", "halted", "incomplete", "cancelled", "complete")
    daemon.answers[requests.StatusAsk] = several(*states)
    for kind in (requests.Pause, requests.Resume, requests.Cancel, requests.Retry, requests.Remove):
        daemon.answers[kind] = lambda asked: requests.Done(f"{asked.job} it is")
    for name in states:
        (roots.find(None).jobs / f"weights.{states.index(name) + 1}").mkdir(exist_ok=True)
    ran = run(*args)
    assert [getattr(asked, "job", "") for asked in daemon.asked if type(asked) is not requests.StatusAsk] == meant
    lines = [f"{job} it is" for job in meant]
    assert ran.code == 0 and (ran.out.splitlines() == lines if meant else "no job is" in ran.out)
    told = json.loads(run(*args, "--json").out)
    assert told["jobs"] == [{"job": job, "said": f"{job} it is"} for job in meant]


def test_an_error_of_one_job_keeps_none_of_the_others_from_it(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    def cancel(asked: requests.Cancel) -> Message:
        odd = asked.job in {"weights.1", "weights.3"}
        return requests.Problem(f"{asked.job} is over", "rm it", 7) if odd else requests.Done(f"{asked.job} ends")

    daemon.answers[requests.Cancel] = cancel
    ran = run("cancel", "weights.1", "weights.2", "weights.3", "weights.4")
    assert (ran.code, ran.out) == (7, "weights.2 ends\nweights.4 ends\n")
    assert ran.err == "error: weights.1 is over\nerror: weights.3 is over\nhint: rm it\n"
    told = json.loads(run("cancel", "weights.1", "weights.2", "--json").out)
    assert told["code"] == 7
    assert told["jobs"] == [
        {"job": "weights.1", "error": "weights.1 is over"},
        {"job": "weights.2", "said": "weights.2 ends"},
    ]


def test_status_shows_some_jobs_and_those_in_a_state(daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    every = several("running", "paused")
    daemon.answers[requests.StatusAsk] = lambda asked: msgspec.structs.replace(
        every, jobs=[one for one in every.jobs if asked.job in (None, one.id)]
    )
    both = run("status", "weights.2", "weights.1").out
    assert both.index("weights.2: cluster, paused") < both.index("weights.1: cluster, running")
    assert [one["id"] for one in json.loads(run("status", "--state", "paused", "--json").out)["jobs"]] == ["weights.2"]
    assert run("status", "all").out == run("status").out
    assert run("status", "--state", "halted").out == "no job is halted\n"


def test_last_is_the_job_whose_plan_is_the_latest(
    daemon: FixedDaemon, root: roots.Root, run: Callable[..., Ran]
) -> None:
    for name, written in (("weights.1", 20), ("other.1", 30), ("weights.2", 10), ("half.1", None)):
        (root.jobs / name).mkdir(exist_ok=True)
        if written is not None:
            root.job(name).plan.touch()
            os.utime(root.job(name).plan, (written, written))
    daemon.answers[requests.Pause] = requests.Done("it is so")
    assert run("pause", "last").code == 0
    assert daemon.asked == [requests.Pause("other.1")]


@pytest.mark.parametrize(
    ("states", "code"),
    [(["complete", "complete"], 0), (["complete", "halted"], 11), (["cancelled", "complete"], 11), (["damaged"], 12)],
)
def test_wait_says_nothing_but_by_its_exit_code(
    states: list[str], code: int, daemon: FixedDaemon, run: Callable[..., Ran]
) -> None:
    every = several(*states)
    asked = 0

    def answer(question: requests.StatusAsk) -> Message:
        nonlocal asked
        asked += 1
        found = [one for one in every.jobs if one.id == question.job]
        return status_of(*(msgspec.structs.replace(one, state="running") if asked < 3 else one for one in found))

    daemon.answers[requests.StatusAsk] = answer
    names = [one.id for one in every.jobs]
    ran = run("wait", *names)
    assert (ran.code, ran.out) == (code, "") and asked >= 3
    wrong = [one.id for one in every.jobs if one.state != "complete"]
    assert all(f"error: {job} is" in ran.err for job in wrong) and bool(ran.err) == bool(wrong)
    told = json.loads(run("wait", *names, "--json").out)
    assert [(one["job"], one["state"]) for one in told["jobs"]] == list(zip(names, states, strict=True))


def test_rm_deletes_nothing_that_is_not_named_in_full_without_a_word(
    daemon: FixedDaemon, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers[requests.Remove] = requests.Done("it is so")
    daemon.answers[requests.StatusAsk] = status_of(RUNNING)  # a name alone might be a damaged job's
    ran = run("rm", "weights")
    assert ran.code == 2 and "name full ids, such as weights.1, or add --yes" in ran.err
    for said, deleted in (("n\n", False), ("\n", False), ("y\n", True)):
        daemon.asked.clear()
        monkeypatch.setattr("sys.stdin", Terminal(said))
        ran = run("rm", "weights")
        assert "delete weights.1 for good, with its results? [y/N]" in ran.err
        assert (ran.code, requests.Remove("weights.1") in daemon.asked) == (0, deleted)
        assert ("nothing is deleted" in ran.err) != deleted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- submitting and following -----------------------------------------------------------------------------


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    np.save(tmp_path / "weights" / "fc.npy", np.zeros((10, 4), np.float32))
    file = tmp_path / "job.yaml"
    (tmp_path / "work.py").write_text("def double(rows):\n    return rows * 2\n")
    file.write_text("name: weights\nkind: map\nsource: weights\nshard: {rows: 3}\ncode: work.py:double\n")
    return file


def test_submit_lays_out_what_the_daemon_takes(
    daemon: FixedDaemon, root: roots.Root, job_file: Path, run: Callable[..., Ran]
) -> None:
    seen: list[str] = []

    def take(question: requests.Submit) -> Message:
        seen.extend(sorted(path.name for path in (root.tmp / question.folder).iterdir()))
        return requests.Submitted("weights.2")

    daemon.answers[requests.Submit] = take
    ran = run("submit", job_file)
    assert (ran.code, ran.out) == (0, "weights.2\n")
    assert seen == ["code.pack", "job.yaml", "plan.msgpack"]
    assert list(root.tmp.iterdir()) == []


def test_submit_checks_the_job_file_before_anything_is_stored(
    daemon: FixedDaemon, root: roots.Root, job_file: Path, run: Callable[..., Ran]
) -> None:
    job_file.write_text(job_file.read_text().replace("shard:", "shards:"))
    ran = run("submit", job_file)
    assert ran.code == 3
    assert_two_lines(ran.err)
    assert list(root.tmp.iterdir()) == []


def test_waiting_ends_with_the_job(daemon: FixedDaemon, job_file: Path, run: Callable[..., Ran]) -> None:
    complete = job(tally(committed=1000), state="complete", started=10.0, ended=75.0, layers_merged=1)
    states = iter([RUNNING, complete])
    daemon.answers[requests.Submit] = requests.Submitted("weights.1")
    daemon.answers[requests.StatusAsk] = lambda _: status_of(next(states))
    ran = run("submit", job_file, "--wait")
    assert ran.code == 0
    assert "310/1,000 shards (31%), 10 to push" in ran.out
    assert "weights.1 is complete in 1 min 5 s" in ran.out


@pytest.mark.parametrize("state", ["incomplete", "halted", "cancelled"])
def test_a_job_that_ends_short_is_an_error(state: str, daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    ended = job(tally(committed=999, quarantined=1), state=state, why="1 shard failed 3 times", failures=3)
    daemon.answers[requests.StatusAsk] = status_of(ended)
    ran = run("watch", "weights")
    assert ran.code == 11
    assert_two_lines(ran.err)
    assert f"weights.1 is {state}: 1 shard failed 3 times" in ran.err


def test_an_interrupted_wait_leaves_the_job(
    daemon: FixedDaemon, job_file: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    daemon.answers[requests.Submit] = requests.Submitted("weights.1")
    daemon.answers[requests.StatusAsk] = status_of(RUNNING)
    monkeypatch.setattr("time.sleep", interrupt)
    ran = run("submit", job_file, "--wait")
    assert ran.code == 130
    assert "weights.1 goes on" in ran.err
    assert requests.Cancel("weights.1") not in daemon.asked


def test_plan_needs_no_daemon(tmp_path: Path, job_file: Path, run: Callable[..., Ran]) -> None:
    ran = run("plan", job_file, "--root", tmp_path / "none")
    assert ran.code == 0
    assert "weights: map, 1 layer, 4 shards, 10 rows" in ran.out
    assert json.loads(run("plan", job_file, "--json").out)["shards"] == 4


# --- results ----------------------------------------------------------------------------------------------


@pytest.fixture
def merged(daemon: FixedDaemon, root: roots.Root, job_file: Path, run: Callable[..., Ran]) -> roots.JobFolder:
    """A job of which a layer looks merged."""
    folder = root.job("weights.1")

    def take(question: requests.Submit) -> Message:
        for name in ("job.yaml", "plan.msgpack"):
            (root.tmp / question.folder / name).rename(folder.path / name)
        return requests.Submitted("weights.1")

    daemon.answers[requests.Submit] = take
    daemon.answers[requests.StatusAsk] = requests.Problem("there is no job weights.1", "none has a plan's digest", 6)
    daemon.answers[requests.ManifestsAsk] = daemon.answers[requests.StatusAsk]
    assert run("submit", job_file).code == 0
    layer = folder.result / "fc"
    layer.mkdir(parents=True)
    np.save(layer / "centers.npy", np.arange(6))
    (layer / "manifest.json").write_text("{}")
    return folder


def test_result_is_a_path(merged: roots.JobFolder, run: Callable[..., Ran]) -> None:
    assert run("result", "weights").out == f"{merged.result}\n"
    said = json.loads(run("result", "weights", "--json").out)
    assert (said["layers"], said["missing"]) == (["fc"], [])


def test_result_copies_and_goes_on_where_it_was(
    merged: roots.JobFolder, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    for _ in range(2):
        assert run("result", "weights", "--to", tmp_path / "out").code == 0
    assert np.load(tmp_path / "out" / "fc" / "centers.npy").tolist() == list(range(6))
    assert sorted(path.name for path in (tmp_path / "out" / "fc").iterdir()) == ["centers.npy", "manifest.json"]
    assert run("result", "weights", "--to", merged.result / "fc").code == 7


def test_a_result_that_is_not_there_yet(merged: roots.JobFolder, run: Callable[..., Ran]) -> None:
    (merged.result / "fc" / "manifest.json").unlink()
    ran = run("result", "weights")
    assert ran.code == 11
    assert_two_lines(ran.err)


def test_verify_tells_damage(merged: roots.JobFolder, run: Callable[..., Ran]) -> None:
    ran = run("verify", "weights")
    assert ran.code == 12
    assert_two_lines(ran.err)
    assert "retry weights.1 --layers fc" in ran.err


@pytest.mark.parametrize(
    ("prints", "problems", "serial", "line"),
    [
        (1, 0, True, "computed on 1 kernel fingerprint; the bytes are those of a serial run"),
        (2, 0, False, "computed on 2 kernel fingerprints; bits may differ between them"),
        (2, 0, None, "by code that is not Muster's: as it was written, not compared with a serial run"),
        (1, 1, None, "computed on 1 kernel fingerprint\n"),
    ],
)
def test_verify_claims_no_more_than_it_knows(prints: int, problems: int, serial: bool | None, line: str) -> None:
    told = [f"problem {i}" for i in range(problems)]
    report = verify.VerifyReport("job.1", 1, 8, 64, [], ["print"] * prints, told, told, None, serial)
    assert line in verify.page(report) + "\n"


def test_du_adds_up(merged: roots.JobFolder, daemon: FixedDaemon, run: Callable[..., Ran]) -> None:
    daemon.answers[requests.Usage] = status.Used(1 << 30, 1 << 20)
    assert "of that reserved 1 MiB" in run("du").out
    said = json.loads(run("du", "--json").out)
    assert said["jobs"][0]["result"] == sum(path.stat().st_size for path in (merged.result / "fc").iterdir())
