"""The kind `command` with real processes: outputs, exit codes, every way a command can end, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import Bench, Items, Listed, Runner, RunnerLost, Shard, ShardFailure, Site, Written
from muster.jobs.job_file.make_plan import make_plan
from muster.jobs.job_file.read import parse_job
from muster.jobs.kinds import registry
from muster.jobs.kinds.command import Command, CommandParams
from muster.jobs.results.merge import merge_layer
from muster.jobs.results.open_result import WrittenFiles, open_result
from muster.jobs.user_code.code_pack import collect, opened, pack
from muster.jobs.workbench.serial import run_serially
from tests.support.farm import until
from tests.support.odd_names import fill
from tests.support.processes import is_running

SITE = Site(Path(), (), 1, False, None)


def params(**given: Any) -> CommandParams:
    return Command().prepare(msgspec.convert(given, CommandParams), SITE).params


def listed(*names: str) -> Listed:
    return Listed((), lambda: iter(names))


@contextmanager
def running(folder: Path, seconds: float | None = 30.0, code: Path | None = None, **given: Any) -> Iterator[Runner]:
    runner = Command().open(Bench(params(**given), 1, seconds, folder / "scratch", code=code))
    try:
        yield runner
    finally:
        runner.close()


def shard(folder: Path, **files: bytes) -> Shard:
    place = folder / "scratch/items"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    return Shard("items", 0, 4, None, items=Items(place, names=sorted(files)))


def failure(folder: Path, run: str, **given: Any) -> ShardFailure:
    with running(folder, run=run, **given) as runner, pytest.raises(ShardFailure) as caught:
        runner.run(shard(folder, a=b"1", b=b"2"))
    assert "\n" not in caught.value.message
    return caught.value


# --- what it gives ------------------------------------------------------------------------------------------


def test_it_is_found_by_its_name_and_says_what_it_gives() -> None:
    kind = registry.load("command")
    assert kind.kernel == 1
    for given, expected in (
        ({"run": "true"}, ["exit", "seconds"]),
        ({"run": "cp {in} {out}"}, ["exit", "files", "seconds"]),
        ({"run": "cp {in} {out}", "on_item_error": "record"}, ["exit", "files", "ok", "seconds"]),
    ):
        outputs = kind.declare_items(params(**given), listed("a"))
        assert outputs is not None and [output.name for output in outputs] == expected


def test_outputs_are_files_under_the_names_of_the_items(tmp_path: Path) -> None:
    with running(tmp_path, run="tr a-z A-Z < {in} > {out}", out="{.}.up") as runner:
        result = runner.run(shard(tmp_path, **{"x.txt": b"ab", "-n": b"c", "it's.txt": b"d"}))
        written = result["files"]
        assert isinstance(written, Written)
        assert written.files == [(0, "-n.up"), (1, "it's.up"), (2, "x.up")]
        assert [(written.folder / name).read_bytes() for _, name in written.files] == [b"C", b"D", b"AB"]
    assert result["exit"].tolist() == [0, 0, 0] and (np.array(result["seconds"]) > 0).all()


def test_a_command_is_told_its_job_its_shard_and_its_item(tmp_path: Path) -> None:
    folder = tmp_path / "scratch/items"
    folder.mkdir(parents=True)
    lines = [{"a": "x"}, {"a": "y"}]
    told = Shard("table", 3, 4, None, items=Items(folder, lines=lines), job="prepare.2")
    with running(tmp_path, run='echo "$MUSTER_JOB/$MUSTER_SHARD $MUSTER_ITEM" {a}', capture=1000) as runner:
        said = runner.run(told)["stdout"].values.tobytes()
        assert said == b"prepare.2/table/3 5 x\nprepare.2/table/3 6 y\n"
        runner.run(replace(told, number=0, first_row=0))
    with running(tmp_path, run="printenv MUSTER_ITEM", capture=1000) as runner:
        assert runner.run(told)["stdout"].values.tobytes() == b"5\n6\n", "without a shell, too"


def test_without_a_shell_the_same(tmp_path: Path) -> None:
    with running(tmp_path, run="cp -- {in} {out}") as runner:
        written = runner.run(shard(tmp_path, **{"-f": b"1", "a b": b"2", "$(x)": b"3"}))["files"]
        assert isinstance(written, Written) and [name for _, name in written.files] == ["$(x)", "-f", "a b"]
        assert (written.folder / "a b").read_bytes() == b"2"


def test_placeholders_of_lines_and_the_users_own_files(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/sim.sh").write_text('echo "$1:$2" > "$3"')
    lines = [{"alpha": "0.5", "b c": "x;y"}, {"alpha": "", "b c": "$HOME"}]
    folder = tmp_path / "scratch/items"
    folder.mkdir(parents=True)
    run = "sh {code}/sim.sh {alpha} {b c} {out}"
    with running(tmp_path, code=tmp_path / "code", run=run, out="{#}.txt") as runner:
        written = runner.run(Shard("items", 0, 4, None, items=Items(folder, lines=lines)))["files"]
        assert isinstance(written, Written) and [name for _, name in written.files] == ["5.txt", "6.txt"]
        assert [(written.folder / name).read_text() for _, name in written.files] == ["0.5:x;y\n", ":$HOME\n"]


def test_a_command_sees_no_keys_and_no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSH_AUTH_SOCK", "RAY_AUTH_TOKEN_PATH", "MUSTER_ROOT", "SEEN"):
        monkeypatch.setenv(name, "/a/secret/place")
    with running(tmp_path, run="cat /proc/$PPID/environ; env") as runner:
        runner.run(shard(tmp_path, a=b""))
        assert runner.printed.replace("SEEN=/a/secret/place", "").count("/a/secret/place") == 0
        assert "SEEN=" in runner.printed


def test_what_is_printed_is_kept_and_a_gigabyte_does_no_harm(tmp_path: Path) -> None:
    with running(tmp_path, run="echo hello {}; head -c 200000000 /dev/zero | tr '\\0' x") as runner:
        runner.run(shard(tmp_path, a=b""))
        assert runner.printed.startswith("hello a\nxxx") and len(runner.printed) < 40_000


# --- what is kept of what they print ---


def kept(result: Any, name: str) -> list[bytes]:
    lengths, values = result[name].lengths.tolist(), result[name].values.tobytes()
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    assert result[name].lengths.dtype == "<i8" and sum(lengths) == len(values)
    return [values[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def test_stdout_and_stderr_of_each_item_are_outputs(tmp_path: Path) -> None:
    given: dict[str, Any] = {"run": "cat {}; echo bad >&2", "capture": "1KiB", "on_item_error": "record"}
    outputs = Command().declare_items(params(**given), listed("a"))
    assert outputs is not None
    ragged = [output.name for output in outputs if output.form == "ragged"]
    assert ragged == ["stderr", "stdout"] and params(**given).capture == 1024
    with running(tmp_path, **given) as runner:
        result = runner.run(shard(tmp_path, a=b"x\0y", b=b"", c=b"\xff" * 1024))
        assert kept(result, "stdout") == [b"x\0y", b"", b"\xff" * 1024] and runner.printed == ""
    assert kept(result, "stderr") == [b"bad\n"] * 3 and result["exit"].tolist() == [0, 0, 0]


def test_an_item_that_prints_more_than_its_limit_fails_and_the_disk_is_safe(tmp_path: Path) -> None:
    given: dict[str, Any] = {"run": "printf %s {}; test {} = a || exec cat /dev/zero", "capture": 100}
    with running(tmp_path, on_item_error="record", **given) as runner:
        result = runner.run(shard(tmp_path, a=b"", b=b"", c=b""))
    assert result["exit"].tolist() == [0, -signal.SIGXFSZ, -signal.SIGXFSZ] and result["ok"].tolist() == [1, 0, 0]
    assert kept(result, "stdout") == [b"a", b"b" + bytes(99), b"c" + bytes(99)]
    failed = failure(tmp_path, **given)
    assert failed.code == "output" and "printed more than 100 B" in failed.message


def test_what_an_item_left_running_prints_into_no_other_items_output(tmp_path: Path) -> None:
    late = "echo {}; setsid sh -c 'sleep 0.3; echo late' & test {} = a || sleep 1"
    with running(tmp_path, run=late, capture=100, on_item_error="record") as runner:
        assert kept(runner.run(shard(tmp_path, a=b"", b=b"")), "stdout")[0] == b"a\n"


def test_what_a_failed_item_printed_is_evidence_where_its_prints_are_kept(tmp_path: Path) -> None:
    failed = failure(tmp_path, "echo out; echo bad >&2; exit 3", capture=100)
    assert failed.code == "exit" and "out" in failed.evidence and "bad" in failed.evidence


def test_an_item_is_tried_as_often_as_was_said_and_its_last_try_is_kept(tmp_path: Path) -> None:
    count = tmp_path / "count"
    run = f"echo x >> {count}; wc -l < {count}; test $(wc -l < {count}) -ge 3"
    with running(tmp_path, run=run, capture=100, on_item_error="record", tries=4) as runner:
        result = runner.run(shard(tmp_path, a=b""))
    assert result["exit"].tolist() == [0] and kept(result, "stdout") == [b"3\n"]


def test_a_late_command_is_ended_where_its_prints_are_kept(tmp_path: Path) -> None:
    run = "trap '' TERM; echo begun; while :; do sleep 1; done"
    with running(tmp_path, run=run, capture=100, on_item_error="record", timeout=0.3) as runner:
        result = runner.run(shard(tmp_path, a=b""))
    assert result["exit"].tolist() == [124] and kept(result, "stdout") == [b"begun\n"]


@pytest.mark.parametrize(("given", "told"), [({"capture": "1GiB"}, "capture"), ({"workdir": "here"}, "workdir")])
def test_what_cannot_be_kept_or_entered_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(JobFileError, match=f"params.{told}"):
        params(run="true", **given)


def lines_shard(folder: Path, *lines: dict[str, str]) -> Shard:
    place = folder / "scratch/items"
    place.mkdir(parents=True, exist_ok=True)
    return Shard("items", 0, 0, None, items=Items(place, lines=lines))


def test_commands_start_in_the_folder_that_was_named(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    run = "pwd; echo {n} > {out}; echo {n} > made.{n}"
    given: dict[str, Any] = {"run": run, "out": "{n}", "capture": 1000, "workdir": str(tmp_path / "there")}
    with running(tmp_path, **given) as runner:
        result = runner.run(lines_shard(tmp_path, {"n": "5"}))
        written = result["files"]
        assert isinstance(written, Written) and (written.folder / "5").read_text() == "5\n"
    assert kept(result, "stdout") == [f"{tmp_path}/there\n".encode()]
    assert (tmp_path / "there/made.5").read_text() == "5\n"
    with pytest.raises(JobFileError, match="a folder of their own"):
        Command().declare_items(params(**given), listed("a"))
    (tmp_path / "there/made.5").unlink()
    (tmp_path / "there").rmdir()
    with running(tmp_path, **given) as runner, pytest.raises(ShardFailure, match="there is no folder"):
        runner.run(lines_shard(tmp_path, {"n": "5"}))


def test_a_columns_value_has_the_forms_of_a_name(tmp_path: Path) -> None:
    run = "printf '%s|' {1} {1.} {1/} {1//} {1/.} {b.}"
    with running(tmp_path, run=run, capture=1000) as runner:
        result = runner.run(lines_shard(tmp_path, {"1": "d/e.tar.gz", "b": "it's.x"}))
    assert kept(result, "stdout") == [b"d/e.tar.gz|d/e.tar|e.tar.gz|d|e.tar|it's|"]


# --- how commands end ---------------------------------------------------------------------------------------


def test_a_status_other_than_0_fails_with_what_was_printed(tmp_path: Path) -> None:
    failed = failure(tmp_path, "echo the end of {}; exit 3")
    assert failed.code == "exit" and failed.message == "'a': `echo the end of a; exit 3` ended with status 3"
    assert "the end of a" in failed.evidence and "the end of b" not in failed.evidence


def test_a_script_of_several_lines_is_one_in_a_message(tmp_path: Path) -> None:
    failed = failure(tmp_path, "set -e\ncat {in}\nexit 4\n")
    assert failed.message == "'a': `set -e\\ncat a\\nexit 4\\n` ended with status 4"


@pytest.mark.parametrize("run", ["no-such-program {in}", "no-such-program {in} | cat && exit 127"])
def test_a_program_that_is_not_there_names_the_machine(tmp_path: Path, run: str) -> None:
    failed = failure(tmp_path, run)
    assert failed.code == "exit" and f"was not found on {os.uname().nodename}" in failed.message
    assert "no-such-program" in failed.evidence


def test_a_signal_is_named(tmp_path: Path) -> None:
    failed = failure(tmp_path, "kill -SEGV $$")
    assert failed.code == "signal" and failed.message.endswith("died of SIGSEGV")


def test_killed_from_outside_is_a_loss(tmp_path: Path) -> None:
    with running(tmp_path, run="kill -KILL $$") as runner, pytest.raises(RunnerLost, match="'a': `kill -KILL"):
        runner.run(shard(tmp_path, a=b""))


def test_one_that_is_late_and_ignores_sigterm_is_killed_with_all_it_started(tmp_path: Path) -> None:
    begun = time.monotonic()
    failed = failure(tmp_path, "trap '' TERM; echo $$; sleep 60 & sleep 60; sleep 60", timeout="200ms")
    assert failed.code == "timeout" and "took longer than 0.2 s" in failed.message
    assert time.monotonic() - begun < 30
    pid = int(failed.evidence.split()[-1])
    until(lambda: not psutil.pid_exists(pid), "it to be gone")


def test_what_a_command_leaves_running_ends_with_it(tmp_path: Path) -> None:
    with running(tmp_path, run="sleep 60 & echo $!") as runner:
        runner.run(shard(tmp_path, a=b""))
        pid = int(runner.printed)
        until(lambda: not is_running(pid), "its end")


def test_the_timeout_of_the_shard_ends_everything(tmp_path: Path) -> None:
    with (
        running(tmp_path, seconds=0.5, run="sleep 60") as runner,
        pytest.raises(ShardFailure, match="longer than"),
    ):
        runner.run(shard(tmp_path, a=b""))


def test_no_output_file_is_a_failure(tmp_path: Path) -> None:
    failed = failure(tmp_path, "echo {out} > /dev/null")
    assert failed.code == "output" and "wrote no output file" in failed.message


def test_an_output_that_is_a_link_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, run="ln -s /etc/passwd {out}") as runner:
        result = runner.run(shard(tmp_path, a=b""))
        from muster.jobs.results.outputs import settle

        with pytest.raises(ShardFailure, match="it wrote 'a', which is a symbolic link"):
            settle(result, None, 1)


def test_recorded_failures_leave_the_others_alone(tmp_path: Path) -> None:
    contents = {"a": b"1", "b": b"exit 3", "c": b"kill -TERM $$", "d": b"kill -KILL $$", "e": b"sleep 60", "f": b"1"}
    run = "echo x > {out}; case {in} in [b-e]) . ./{in};; esac"
    with running(tmp_path, run=run, on_item_error="record", timeout=1) as runner:
        result = runner.run(shard(tmp_path, **contents))
    assert result["exit"].tolist() == [0, 3, -signal.SIGTERM, -signal.SIGKILL, 124, 0]
    assert np.array(result["ok"]).tolist() == [True, False, False, False, False, True]
    written = result["files"]
    assert isinstance(written, Written) and written.files == [(0, "a"), (5, "f")]


def test_a_command_that_kills_its_starter_is_a_loss_and_the_next_shard_runs(tmp_path: Path) -> None:
    with running(tmp_path, run="test {in} = b || kill -KILL $PPID") as runner:
        with pytest.raises(RunnerLost):
            runner.run(shard(tmp_path, a=b""))
        (tmp_path / "scratch/items/a").unlink()
        assert runner.run(shard(tmp_path, b=b""))["exit"].tolist() == [0]


PARENT = """
import sys
from pathlib import Path
from muster.jobs.kinds import Bench, Items, Shard
from muster.jobs.kinds.command import Command, CommandParams
folder = Path(sys.argv[1])
runner = Command().open(Bench(CommandParams(run="echo $$ > ../pid; sleep 1000; true"), 1, None, folder))
(folder / "items").mkdir()
runner.run(Shard("items", 0, 0, None, items=Items(folder / "items", names=["a"])))
"""


def test_a_kill_of_the_worker_ends_the_command(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the command to run")
    command = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.wait()
    until(lambda: not is_running(command), "its end")


# --- what is refused at submit ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        ({"run": "cat {inn}"}, ("a",), "params.run: there is no {inn}"),
        ({"run": "cat '{in}'"}, ("a",), "params.run: {in} stands in quotes"),
        ({"run": "true", "out": "{}"}, ("a",), "params.out: the command has no {out}"),
        ({"run": "x {out}", "out": "{in}"}, ("a",), "params.out: there is no {in}"),
        ({"run": "x {out}", "out": "../{}"}, ("a",), "the output of 'a' would be '../a'"),
        ({"run": "x {out}", "out": "/tmp/{}"}, ("a",), "the output of 'a' would be '/tmp/a'"),
        (
            {"run": "x {out}", "out": "{/.}.png"},
            ("a/x.jpg", "b/x.jpg"),
            "'b/x.jpg' and item 1 would both",
        ),
        ({"run": "x {out}", "out": "{.}"}, ("a.d", "a/b"), "item 1 would write 'a', item 2 below it"),
        ({"run": "x {out}", "out": "{}" + "y" * 250}, ("abcdefgh",), "the output of 'abcdefgh' would be"),
    ],
)
def test_what_could_never_run_is_refused(given: dict[str, Any], names: tuple[str, ...], message: str) -> None:
    with pytest.raises(JobFileError) as caught:
        Command().declare_items(params(**given), listed(*names))
    assert message in caught.value.message and caught.value.hint


def test_lines_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    lines = Listed(("a", "b"), lambda: iter([{"a": "ok", "b": "1"}, {"a": "../up", "b": "2"}]))
    with pytest.raises(JobFileError, match=r"the output of line 2 would be '\.\./up'"):
        Command().declare_items(params(run="x {out}", out="{a}"), lines)


@pytest.mark.parametrize(
    ("run", "value", "message"),
    [
        ("echo $(( {a} + 1 ))", "x[$(touch ran)]", "and 'x[$(touch ran)]' of line 2 is no whole number"),
        ("echo {a}", "€" * 50_000, "{a} of line 2 has 150000 bytes"),
    ],
)
def test_values_that_cannot_stand_where_they_are_to_are_refused(run: str, value: str, message: str) -> None:
    lines = Listed(("a",), lambda: iter([{"a": "-7"}, {"a": value}]))
    with pytest.raises(JobFileError) as caught:
        Command().declare_items(params(run=run), lines)
    assert message in caught.value.message and caught.value.hint


def test_what_an_older_plan_lets_a_shell_evaluate_fails_its_shard(tmp_path: Path) -> None:
    failed = failure(tmp_path, "echo $(( {in} ))")
    assert failed.message.startswith("params.run: {in} stands where a shell evaluates it, and 'a' is no whole number")


def test_more_than_a_program_takes_fails_its_shard_with_why(tmp_path: Path) -> None:
    with running(tmp_path, run="true {a}") as runner, pytest.raises(ShardFailure, match="ended with status 126") as why:
        runner.run(Shard("items", 0, 0, None, items=Items(tmp_path, lines=[{"a": "x" * (1 << 18)}])))
    assert "Argument list too long" in why.value.evidence and len(why.value.message) < 500


def test_here_documents_get_values_as_they_are_and_results_of_older_versions_stay_apart(tmp_path: Path) -> None:
    with running(tmp_path, run="cat > {out} <<E\nthe file {in}\nE") as runner:
        written = runner.run(shard(tmp_path, **{"it's $(x)": b""}))["files"]
        assert isinstance(written, Written)
        assert (written.folder / "it's $(x)").read_text() == "the file it's $(x)\n"
    assert "here" in msgspec.to_builtins(params(run="cat <<E\nE"))
    assert "here" not in msgspec.to_builtins(params(run="cat {in}"))


@pytest.mark.parametrize("name", ["in", "out", "code"])
def test_columns_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(JobFileError, match=f"a column called {name}"):
        Command().declare_items(params(run="true"), Listed(("a", name), lambda: iter(())))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("source: w.npy\nparams: {run: 'true'}", "kind `command` runs on files or the lines of a table"),
        ("source: {files: '*.yaml'}", "params.run: missing"),
        ("source: {files: '*.yaml'}\nparams: {run: 'true', timeout: soon}", "params.timeout: "),
        ("source: {files: '*.yaml'}\nparams: {run: 'true'}\ncode: work.py:f", "calls no function"),
        ("source: {files: '*.yaml'}\nparams: {run: 'true'}\ncode: {include: []}", "calls no function"),
    ],
)
def test_job_files_that_cannot_be(tmp_path: Path, more: str, message: str) -> None:
    np.save(tmp_path / "w.npy", np.zeros((2, 2)))
    (tmp_path / "a.yaml").write_text("")
    with pytest.raises(JobFileError) as caught:
        make_plan(parse_job(f"name: a\nkind: command\n{more}\n", "job.yaml"), tmp_path, None)
    assert message in caught.value.message


def test_code_without_a_function_is_packed(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/a.sh").write_text("echo")
    bundle = collect("", ["tools"], tmp_path)
    assert list(bundle.files) == ["tools/a.sh"] and opened(pack(bundle)).entry == ""


# --- the promises of every kind -----------------------------------------------------------------------------


def test_items_split_anyhow_merge_to_the_same_bytes(tmp_path: Path) -> None:
    contents = fill(tmp_path / "in")
    found = []
    for count in (1, 3, 100):
        head = f"name: a\nkind: command\nsource: {{files: 'in/**/*'}}\nshard: {{files: {count}}}\n"
        job = parse_job(head + "params: {run: 'tr a-z A-Z < {in} > {out}', out: 'x/{}'}\n", "job.yaml")
        folder = tmp_path / str(count)
        (folder / "out").mkdir(parents=True)
        plan = make_plan(job, tmp_path, None, folder / "list")
        [layer] = plan.layers
        part = run_serially(layer, plan.work, folder, items=folder / "list")
        merge_layer(layer, [part], folder / "out", job="a.1", items=folder / "list")
        result = open_result(folder / "out")
        files = result.outputs["files"]
        assert isinstance(files, WrittenFiles)
        assert {name.removeprefix("x/") for name in files} == {name for name in contents if "/." not in name}
        texts = (folder / "out/files.csv").read_bytes(), (folder / "out/items.csv").read_bytes()
        found.append(
            (
                texts,
                {name: path.read_bytes() for name, path in files.items()},
                np.array(result.outputs["exit"]).tolist(),
            )
        )
    assert found[0] == found[1] == found[2]
