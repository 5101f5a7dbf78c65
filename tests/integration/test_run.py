"""`muster run` on real farms: beside GNU Parallel's own tutorial, at a terminal's pace, through interruptions."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from muster.jobs.common import launch
from muster.jobs.common.errors import INTERRUPTED_EXIT
from tests.support.farm import FarmHarness, running, until
from tests.support.needs import skip_for

needs_parallel = pytest.mark.usefixtures("parallel")

SECONDS = 120
PARALLEL = shutil.which("parallel")
FILES = {
    "abc-file": b"A\nB\nC\n",
    "def-file": b"D\nE\nF\n",
    "abc0-file": b"A\0B\0C\0",
    "tsv-file.tsv": b"f1\tf2\nA\tB\nC\tD\n",
    "empty-line": b"a\n\nb",
    "commands": b"echo one\necho two; echo three >&2\n",
}


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.env["MUSTER_ROOT"] = str(made.root.path)
        made.join("one", "--cpus", "2")
        yield made


@pytest.fixture(scope="module")
def parallel() -> None:
    skip_for("" if PARALLEL else "GNU Parallel is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, raw in FILES.items():
        (tmp_path / name).write_bytes(raw)
    return tmp_path


Done = subprocess.CompletedProcess[str]


def run(farm: FarmHarness, folder: Path, *words: str, given: str = "", env: Mapping[str, str] | None = None) -> Done:
    return subprocess.run(
        launch.python("muster.__main__", "run", *words), cwd=folder, env={**farm.environment(), **(env or {})},
        input=given, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def peer(farm: FarmHarness, folder: Path, *words: str, given: str = "", env: Mapping[str, str] | None = None) -> Done:
    assert PARALLEL is not None
    return subprocess.run(
        [PARALLEL, "--will-cite", *words], cwd=folder, env={**farm.environment(), **(env or {})},
        input=given, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def sh(line: str, folder: Path) -> list[str]:
    """The words of a line as a shell gives them."""
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], cwd=folder, capture_output=True, check=True).stdout
    return said.decode().split("\0")[:-1]


# Of its tutorial, with -k so that both print in one order; behind `<`, what is on stdin
TUTORIAL = """
-k echo ::: A B C
-k -a abc-file echo
-k echo < abc-file
-k echo ::: A B C ::: D E F
-k -a abc-file -a def-file echo
-k -a - -a def-file echo < abc-file
-k echo :::: - def-file < abc-file
-k echo ::: A B C :::: def-file
-k echo :::: abc-file :::+ G H I :::: def-file
-k echo :::: abc-file ::: G H I ::::+ def-file
-k echo ::: A B C D E :::+ F G
-k -0 echo :::: abc0-file
-k ::: 'echo foo' 'echo bar'
-k < commands
-k echo ::: A/B.C
-k echo {} {.} {/} {//} {/.} {#} ::: A/B.C
-k echo {#} ::: A B C
-k echo {1} and {2} ::: A B ::: C D
-k echo /={1/} //={1//} /.={1/.} .={1.} ::: A/B.C D/E.F
-k echo 1={1} 2={2} -1={-1} -2={-2} ::: A B ::: C D
-k echo {.}-{/} ::: a.b c.d ::: e.f
-k --colsep '\\t' echo 1={1} 2={2} :::: tsv-file.tsv
-k --header : --colsep '\\t' echo f1={f1} f2={f2} :::: tsv-file.tsv
-k --header : echo {a} {1} {b} ::: a 1 2 ::: b 3 4
-k --colsep , echo ::: a,b c,d
-k echo x{}x :::: empty-line
-k --tag echo foo-{} ::: A B C
-k --tag echo ::: A B ::: C D
-k --tag 'echo {}; echo two; printf three' ::: A B
--dry-run -k echo {} ::: A "b c" "it's" '$x' ''
-kj2 'echo {}; exit {}' ::: 1 0
-k --jobs=1 'echo {} >&2' ::: 1 0
-k --env MYVAR 'echo $MYVAR' ::: baz
-k -j 2 --timeout 1 'sleep {}; echo {}' ::: 0.1 5
-k echo ::: 'a  b' '$(touch x)' ';' '*' '"' '~'
-k 'for x in 1 2; do echo $x {}; done' ::: a b
-k echo < /dev/null
""".strip().splitlines()


@needs_parallel
@pytest.mark.parametrize("line", TUTORIAL)
def test_the_tutorials_lines_print_what_gnu_parallel_prints(line: str, farm: FarmHarness, folder: Path) -> None:
    words, _, stdin = line.partition(" < ")
    given = Path(folder, stdin).read_text() if stdin else ""
    if stdin == "":
        words, _, stdin = line.partition("< ")
        given = Path(folder, stdin).read_text() if stdin else ""
    env = {"MYVAR": "foo bar"}
    args = sh(words, folder)
    theirs, ours = (one(farm, folder, *args, given=given, env=env) for one in (peer, run))
    assert ours.stdout == theirs.stdout, f"{ours.stderr}\n{theirs.stderr}"
    assert (ours.returncode == 0) == (theirs.returncode == 0) and ours.returncode in (0, 11)


@needs_parallel
def test_logs_and_results_are_written_as_gnu_parallel_writes_them(farm: FarmHarness, folder: Path) -> None:
    logs, trees = [], []
    for name, one in (("theirs", peer), ("ours", run)):
        line = [f"--joblog={name}.log", "--results", name, "--header", ":"]
        one(
            farm,
            folder,
            *line,
            "printf %s {n}; echo bad >&2; exit {n}",
            ":::",
            "n",
            "1",
            "0",
            ":::",
            "dir",
            "a/b",
            "c d",
        )
        log = [row.split("\t") for row in (folder / f"{name}.log").read_text().splitlines()]
        assert all(float(row[2]) > 1e9 and float(row[3]) >= 0 for row in log[1:])
        logs.append([log[0], *sorted([row[0], *row[4:]] for row in log[1:])])
        files = [path for path in (folder / name).rglob("*") if path.is_file()]
        trees.append({str(path.relative_to(folder / name)): path.read_text() for path in files})
    assert logs[0] == logs[1] and trees[0] == trees[1]


@needs_parallel
def test_an_item_is_tried_as_often_as_gnu_parallel_tries_it(farm: FarmHarness, folder: Path) -> None:
    for name, one in (("theirs", peer), ("ours", run)):
        one(farm, folder, "-k", "--retries", "3", f"echo {{}} >> {folder}/{name}; exit {{}}", ":::", "2", "0")
    assert sorted((folder / "ours").read_text()) == sorted((folder / "theirs").read_text()) == sorted("2\n" * 3 + "0\n")


# --- what is here alone ---


def test_files_go_to_the_machine_and_come_back(farm: FarmHarness, folder: Path) -> None:
    names = ["a.log", "sub/b c.log"]
    (folder / "sub").mkdir()
    for name in names:
        (folder / name).write_text(name)
    done = run(farm, folder, "gzip -9 < {} > {out}", "--return", "{}.gz", ":::", *names)
    assert (done.returncode, done.stderr) == (0, "")
    for name in names:
        unpacked = subprocess.run(["gunzip", "-c", f"{name}.gz"], cwd=folder, capture_output=True, check=True)
        assert unpacked.stdout.decode() == name
    done = run(farm, folder, "-k", "wc", "-c", given="./a.log\n./sub/b c.log\n")
    assert done.stdout == "5 a.log\n11 sub/b c.log\n"
    done = run(farm, folder, "--workdir", ".", "cat {} > {.}.copy; ls /proc/self/fd > /dev/null", ":::", *names)
    assert done.returncode == 0 and (folder / "sub/b c.copy").read_text() == "sub/b c.log"


def test_numbers_come_of_an_array_and_only_so_many_run_at_once(farm: FarmHarness, folder: Path) -> None:
    once = f"mkdir {folder}/lock && sleep 0.1 && rmdir {folder}/lock && echo {{}}"
    done = run(farm, folder, "--array", "1-9:2%1", "-k", once)
    assert (done.returncode, done.stdout) == (0, "1\n3\n5\n7\n9\n")


def test_a_run_begins_once_the_jobs_it_comes_after_are_complete(farm: FarmHarness, folder: Path) -> None:
    assert run(farm, folder, "--name", "prepare", f"sleep 0.5; touch {folder}/{{}}", ":::", "made").returncode == 0
    done = run(farm, folder, "--name", "second", "--after", "prepare", f"ls {folder}/{{}}", ":::", "made")
    assert (done.returncode, done.stdout) == (0, f"{folder}/made\n"), done.stderr
    [first] = farm.plan("second.1").after
    assert first == "prepare.1"
    missing = run(farm, folder, "--after", "nothing", "echo {}", ":::", "1")
    assert missing.returncode == 6 and "nothing" in missing.stderr
    begun = run(farm, folder, "--after", "prepare", "--attach", "second")
    assert begun.returncode == 2 and "--attach follows second, which has begun" in begun.stderr


def test_a_run_ends_early_where_its_rule_is_met(farm: FarmHarness, folder: Path) -> None:
    for rule in ("now,fail=1", "soon,fail=1"):
        done = run(farm, folder, "-j", "1", "--halt", rule, "sleep 0.3; exit {}", ":::", "1", *["0"] * 200)
        assert done.returncode == 11 and "1 of 201 items failed, " in done.stderr
        assert " did not run, as the job is cancelled" in done.stderr
        [job] = [job for job in farm.jobs() if job.id == max(farm.jobs(), key=lambda job: job.created).id]
        assert job.state == "cancelled" and job.totals.committed < 100


def test_what_an_item_prints_beyond_its_limit_is_said_and_not_cut_in_silence(farm: FarmHarness, folder: Path) -> None:
    done = run(farm, folder, "--max-output", "1KiB", "head -c {} /dev/zero | tr '\\0' x", ":::", "1024", "9999999")
    assert done.returncode == 11 and done.stdout == "x" * 2048
    assert "item 2 printed more than 1024 bytes (--max-output)" in done.stderr


def test_items_are_printed_as_they_end_and_ctrl_c_leaves_the_run_going(farm: FarmHarness, folder: Path) -> None:
    words = ["-j", "2", "--name", "slow", f"echo {{}}; test {{}} = 0 || until test -e {folder}/go; do sleep 0.05; done"]
    command = launch.python("muster.__main__", "run", *words, ":::", "0", "1")
    with subprocess.Popen(
        command, cwd=folder, env=farm.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "0\n"  # while the other item goes on
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(SECONDS) == INTERRUPTED_EXIT and "slow.1 goes on" in said
    assert "muster run --attach slow.1" in said and farm.status("slow.1").state == "running"
    refused = run(farm, folder, "--name", "slow", "--retry-failed")
    assert refused.returncode == 7 and "slow.1 still runs" in refused.stderr
    (folder / "go").touch()
    again = run(farm, folder, "-k", "--attach", "slow.1", "--joblog", "log")
    assert (again.returncode, again.stdout) == (0, "0\n1\n") and len((folder / "log").read_text().splitlines()) == 3
    assert run(farm, folder, "-k", "--tag", "--attach", "slow").stdout == "0\t0\n1\t1\n"


def test_what_ended_well_is_known_by_its_content_wherever_it_stands(farm: FarmHarness, folder: Path) -> None:
    name = ["--name", "resumed", "-k"]
    ran = folder / "ran"
    work = f"echo {{}} >> {ran}; test {{}} != b -o -e {folder}/mended"

    def words() -> list[str]:
        said = sorted(ran.read_text().split())
        ran.unlink()
        return said

    assert run(farm, folder, *name, work, ":::", "a", "b", "c").returncode == 11 and words() == ["a", "b", "c"]
    assert run(farm, folder, *name, "--resume", work, ":::", "d", "c", "b", "a").returncode == 11
    assert words() == ["b", "d"], "by content, not by number"
    (folder / "mended").touch()
    assert run(farm, folder, *name, "--retry-failed").returncode == 0 and words() == ["b"]
    done = run(farm, folder, *name, "--resume", work, ":::", "a", "b", "c", "d")
    assert done.returncode == 0 and "4 of 4 items ended well before" in done.stderr and not ran.exists()
    assert run(farm, folder, *name, "--resume", f"{work} ", ":::", "a").returncode == 0 and words() == ["a"], "another"
    assert run(farm, folder, *name, "--retry-failed").returncode == 0 and not ran.exists()


def test_a_program_of_the_current_folder_goes_along(farm: FarmHarness, folder: Path) -> None:
    (folder / "simulate").write_text('#!/bin/sh\necho "$@"; cat < "${0%/*}/lib/seed"; exit 3\n')
    (folder / "lib").mkdir()
    (folder / "lib" / "seed").write_text("7\n")
    name = ["--name", "program", "-k", "--joblog", "log"]
    done = run(farm, folder, *name, "./simulate", "--seed", "{}", "< ./lib/seed", given="1\n2\n")
    assert (done.returncode, done.stdout) == (11, "--seed 1\n7\n--seed 2\n7\n"), done.stderr
    assert (folder / "log").read_text().splitlines()[1].endswith("\t./simulate --seed 1 < ./lib/seed")
    (folder / "simulate").write_text("#!/bin/sh\necho mended\n")
    assert run(farm, folder, *name, "--retry-failed").stdout == "mended\nmended\n"
    (folder / "simulate").unlink()
    missing = run(farm, folder, *name, "./simulate", given="1\n")
    assert missing.returncode == 11 and "./simulate: No such file" in missing.stderr


def test_what_is_left_of_a_run_keeps_its_numbers(farm: FarmHarness, folder: Path) -> None:
    name = ["--name", "numbered", "-k", "--tag", "--results", "kept", "--joblog", "log"]
    work = f"echo {{#}} $MUSTER_ITEM; echo {{}} > {{out}}; test {{}} != b -a {{}} != d -o -e {folder}/mended"
    line = [work, "--return", "{#}.dat", ":::"]

    def files() -> dict[str, str]:
        return {path.name: path.read_text() for path in folder.glob("*.dat")}

    def log() -> list[str]:
        return [row.split("\t")[0] for row in (folder / "log").read_text().splitlines()[1:]]

    assert run(farm, folder, *name, *line, "a", "b", "c", "d").returncode == 11
    assert files() == {"1.dat": "a\n", "3.dat": "c\n"}
    resumed = run(farm, folder, *name, "--resume", *line, "a", "b", "c", "d", "eee")
    assert (resumed.returncode, resumed.stdout) == (11, "b\t2 2\nd\t4 4\neee\t5 5\n"), resumed.stderr
    assert files() == {"1.dat": "a\n", "3.dat": "c\n", "5.dat": "eee\n"}
    (folder / "mended").touch()
    retried = run(farm, folder, *name, "--retry-failed")
    assert (retried.returncode, retried.stdout) == (0, "b\t2 2\nd\t4 4\n"), retried.stderr
    assert files() == {"1.dat": "a\n", "2.dat": "b\n", "3.dat": "c\n", "4.dat": "d\n", "5.dat": "eee\n"}
    assert [(folder / "kept" / "1" / item / "seq").read_text() for item in "abcd"] == ["1", "2", "3", "4"]
    assert log()[-2:] == ["2", "4"] and sorted(log()) == ["1", "2", "2", "2", "3", "4", "4", "4", "5"]
    for job, said in (("numbered.2", resumed.stdout), ("numbered.3", retried.stdout)):
        assert farm.status(job).layers[0].state == "merged"
        assert run(farm, folder, "-k", "--tag", "--attach", job).stdout == said, "out of its result as well"
        assert farm.coordinator("verify", job).returncode == 0
    assert farm.status("numbered.3").totals.shards == 2
    for shard, is_run in ((0, False), (1, True), (3, True), (4, False)):
        told = farm.coordinator("explain", f"numbered.3/items/{shard}").stdout
        assert ("was computed by one" in told) is is_run and ("is not run" in told) is not is_run


def test_a_retry_takes_the_limits_that_it_is_given(farm: FarmHarness, folder: Path) -> None:
    name, tries = ["--name", "limited", "-k"], folder / "tries"
    work = f"echo >> {tries}; test $WORD = long && test $(wc -l < {tries}) -ge {{}} && sleep 0.6 && printf %05000d {{}}"
    env = {"WORD": "short"}
    first = run(farm, folder, *name, "--timeout", "0.3", "--env", "WORD", work, ":::", "1", "4", env=env)
    assert first.returncode == 11 and tries.read_text() == "\n\n"
    more = ["--timeout", "30", "--env", "WORD", "--retries", "9", "--max-output", "6KiB", "-j", "1"]
    again = run(farm, folder, *name, "--retry-failed", *more, env={"WORD": "long"})
    assert again.returncode == 0 and again.stdout == f"{1:05000d}{4:05000d}", again.stderr
    plan = farm.plan("limited.2")
    assert (plan.at_once, plan.work.variables) == (1, {"WORD": "long"})
    before, now = farm.plan("limited.1").work.params, plan.work.params
    assert now == {**before, "timeout": 30, "tries": 9, "capture": 6 << 10}


def test_of_files_only_those_that_are_left_need_be_there(farm: FarmHarness, folder: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text(name[0])
    line = ["--name", "vanished", "-k", "grep -v b {}; test $? = 0 && echo {#}", ":::", "a.txt", "b.txt", "c.txt"]
    assert run(farm, folder, *line).stdout == "a\n1\nc\n3\n"
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("mended: x")
    (folder / "c.txt").rename(folder / "d.txt")
    assert run(farm, folder, "--name", "vanished", "--retry-failed").stdout == "mended: x\n2\n"
    (folder / "b.txt").write_text("b")
    assert run(farm, folder, "--name", "gone", *line[2:5], "b.txt").returncode == 11
    (folder / "b.txt").unlink()
    missing = run(farm, folder, "--name", "gone", "--retry-failed")
    assert missing.returncode == 4 and f"put it back into {folder}" in missing.stderr


def test_a_file_that_changed_is_run_again(farm: FarmHarness, folder: Path) -> None:
    line = ["--name", "changed", "-k", "--resume", "cat", ":::", "abc-file", "def-file"]
    assert run(farm, folder, *line).stdout == "A\nB\nC\nD\nE\nF\n"
    assert run(farm, folder, *line).stdout == ""
    (folder / "def-file").write_text("G\n")
    assert run(farm, folder, *line).stdout == "G\n"


def test_a_run_goes_on_when_the_coordinator_is_killed_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path / "farm") as farm:
        farm.env["MUSTER_ROOT"] = str(farm.root.path)
        farm.join("one", "--cpus", "2")
        items = [str(number) for number in range(24)]
        work = f"sleep 0.2; echo {{}}; test -e {tmp_path}/mended || test $(({{}} % 4)) = 0"

        def printed(*words: str) -> tuple[list[str], int]:
            """With a kill behind the first line."""
            command = launch.python("muster.__main__", "run", "-k", *words)
            with subprocess.Popen(command, env=farm.environment(), stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                first = process.stdout.readline()
                farm.restart()
                return [first.strip(), *process.stdout.read().split()], process.wait(SECONDS)

        assert printed(work, ":::", *items) == (items, 11)
        (tmp_path / "mended").touch()
        assert printed("--retry-failed") == ([item for item in items if int(item) % 4], 0)


def test_local_starts_a_farm_for_the_run_and_leaves_nothing_running(tmp_path: Path) -> None:
    farm = FarmHarness(tmp_path / "farm")
    farm.env["MUSTER_ROOT"] = str(farm.root.path)
    try:
        missing = run(farm, tmp_path, "echo", ":::", "a")
        assert missing.returncode == 5 and "`muster run --local …` starts one" in missing.stderr
        done = run(farm, tmp_path, "--local", "-k", "echo {} | tee {}.made; exit {}", ":::", "1", "0")
        assert (done.returncode, done.stdout) == (11, "1\n0\n"), done.stderr
        assert (tmp_path / "0.made").read_text() == "0\n", "commands start in the current folder, as there"
        until(lambda: not farm.processes(), "its processes to be gone")
        begun = time.monotonic()
        command = launch.python("muster.__main__", "run", "--local", "--retry-failed")
        with subprocess.Popen(
            command, cwd=tmp_path, env=farm.environment(), stderr=subprocess.PIPE, text=True
        ) as again:
            assert again.wait(SECONDS) == 11, f"after {time.monotonic() - begun:.0f} s"
        until(lambda: not farm.processes(), "its processes to be gone")
        command = launch.python("muster.__main__", "run", "--local", "echo {}; sleep 600", ":::", "1")
        with subprocess.Popen(
            command, cwd=tmp_path, env=farm.environment(), stderr=subprocess.PIPE, text=True
        ) as interrupted:
            until(lambda: farm.processes("/bin/sh", "sleep"), "the command to run")
            interrupted.send_signal(signal.SIGINT)
            assert interrupted.stderr is not None
            said = next(line for line in interrupted.stderr if line.strip())
            assert "is kept, and goes on with `muster run --local --attach run.3`" in said
            interrupted.send_signal(signal.SIGINT)  # while its farm ends, which is then killed
            assert interrupted.wait(SECONDS) == INTERRUPTED_EXIT
        until(lambda: not farm.processes(), "its processes to be gone")
    finally:
        farm.close()


def test_items_are_lines_of_json_where_that_is_asked_for(farm: FarmHarness, folder: Path) -> None:
    done = run(farm, folder, "--json", "-k", "echo {1}; exit {2}", ":::", "a b", ":::", "0", "3")
    first, second, error = map(json.loads, done.stdout.splitlines())
    assert (first["number"], first["values"], first["exit"], first["ok"]) == (1, ["a b", "0"], 0, True)
    assert (second["command"], second["stdout"], second["exit"]) == ("echo 'a b'; exit 3", "a b\n", 3)
    assert second["agent"] == "one" and error["code"] == done.returncode == 11


def test_items_that_no_machine_can_run_are_said_to_be_so(farm: FarmHarness, folder: Path) -> None:
    done = run(farm, folder, "--workdir", "/no/such", "echo", ":::", "1", "2")
    assert done.returncode == 11 and done.stdout == ""
    assert (
        "2 did not run, as the job is incomplete: " in done.stderr and "there is no folder /no/such on" in done.stderr
    )


def test_what_cannot_be_written_ends_the_printing_and_not_the_run(farm: FarmHarness, folder: Path) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "1").touch()
    done = run(farm, folder, "--name", "unwritten", "--results", "kept", "echo {}", ":::", "a", "b")
    assert done.returncode == 7 and "kept/1/" in done.stderr and ": Not a directory" in done.stderr
    assert "unwritten.1 goes on" in done.stderr
    assert run(farm, folder, "-k", "--attach", "unwritten", "--results", "other").stdout == "a\nb\n"
    assert (folder / "other" / "1" / "b" / "stdout").read_text() == "b\n"


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_says_whether_all_ended_well(code: int, farm: FarmHarness, folder: Path) -> None:
    assert run(farm, folder, "exit {}", ":::", str(code)).returncode == (11 if code else 0)


def test_each_command_knows_its_job_its_shard_and_its_item(farm: FarmHarness, folder: Path) -> None:
    line = 'echo "$MUSTER_ITEM" "$MUSTER_JOB/$MUSTER_SHARD" {}'
    done = run(farm, folder, "-k", "--name", "told", line, ":::", "a", "b")
    items = [said.split() for said in done.stdout.splitlines()]
    assert [(number, value) for number, _, value in items] == [("1", "a"), ("2", "b")], done
    for _, shard, _ in items:
        assert shard.startswith("told.1/") and farm.coordinator("explain", shard).returncode == 0
