"""`muster run` without a farm: what a line comes to, and what is refused with what to do instead."""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from muster import VERSION
from muster.coordinator import cli
from muster.coordinator.api import requests, status
from muster.coordinator.display.run_items import ItemsDisplay
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.runs import gnu_options, lines, wish
from muster.coordinator.runs.lines import Ended
from muster.coordinator.runs.wish import Wish
from muster.coordinator.submission import run_job, run_sources
from muster.jobs.common.errors import RefusedError
from tests.support.needs import skip_for
from tests.unit.coordinator.commands.test_commands import FixedDaemon

FOR_NEW_ITEMS = [
    ["--arg-file", "list"], ["--null"], ["--colsep", ","], ["--header", ":"], ["--array", "1-3"], ["--resume"],
    ["--return", "x"], ["--workdir", "."],
]  # fmt: skip
FOR_A_JOB = [
    ["--jobs", "1"], ["--retries", "2"], ["--timeout", "3"], ["--env", "HOME"], ["--max-output", "1KiB"],
    ["--name", "other"], ["--after", "weights"],
]  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_ROOT", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["run", "--dry-run", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert cli.main(["run", *words]) == code
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("error: ") == said.err.count("hint: ") == 1, said.err
    return said.err


def test_a_dry_run_prints_the_commands_and_asks_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(capsys, "echo", ":::", "a b", "-c") == "echo 'a b'\necho -c\n"
    assert dry(capsys, "-k", "x {2.} {1/}", ":::", "d/e", ":::", "f.g") == "x f e\n"
    assert dry(capsys, ":::", "echo a; echo b") == "echo a; echo b\n"
    assert dry(capsys, "--array", "1-3", "sim --seed {}") == "sim --seed 1\nsim --seed 2\nsim --seed 3\n"
    assert dry(capsys, "gzip < {} > {out}", "--return", "{}.gz", ":::", "a") == "gzip < a > a.gz\n"


def test_a_file_that_a_command_names_here_is_shown_as_it_is_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sim").touch()
    line = "./sim {} -f ./sim; ./none >./sim; echo './sim'"
    assert dry(capsys, line, ":::", "a") == line.replace("{}", "a") + "\n"
    work = run_sources.read(Wish(words=(line, ":::", "a")))
    assert work.params["run"] == "{code}/sim {1} -f {code}/sim; ./none >./sim; echo './sim'"
    assert work.more["code"] == {"include": ["sim"]}
    assert run_sources.read(Wish(words=(line, ":::", "a"), local=True)).more["code"] is None


def test_the_commands_own_options_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(capsys, "ls", "-l", "--json", "--no-such", ":::", "a") == "ls -l --json --no-such a\n"


def test_names_of_files_below_the_current_folder_are_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "-f").touch()
    (tmp_path / "g").touch()
    assert dry(capsys, "wc", ":::", "-f", "./g") == "wc ./-f\nwc g\n"
    assert dry(capsys, "wc", ":::", "-f", "./g", "none") == "wc -f\nwc ./g\nwc none\n"


def test_each_option_of_gnu_parallel_works_or_is_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    parallel = shutil.which("parallel")
    skip_for("" if parallel else "GNU Parallel is not installed")
    assert parallel is not None
    script = subprocess.run([parallel, "--shell-completion", "bash"], capture_output=True, text=True, check=True).stdout
    options = [word for word in shlex.split(script.partition("compgen -W ")[2])[0].split() if word.startswith("-")]
    assert len(options) > 250 and {"--keep-order", "--keeporder", "-k", "--tmuxpane"} <= set(options)
    unknown, worked = [], []
    for option in options:
        code = cli.main(["run", option])
        said = capsys.readouterr()
        if "No such option" in said.err:
            unknown.append(option)
        elif f"`muster run` has no {option}" not in said.err:
            worked.append(option)
        else:
            assert (code, said.err.count("hint: ")) == (2, 1)
    assert not unknown
    assert {"--keeporder", "--jl", "--dryrun", "--haltonerror", "--res", "-P", "--col-sep", "--help"} <= set(worked)
    assert not {"--tmuxpane", "-S", "--xapply", "--lb"} & set(worked)


@pytest.mark.parametrize("option", ["--tagstring", "--tag-string", "--sem", "--shebang-wrap", "--citation", "-u", "-N"])
def test_an_option_that_is_not_here_is_refused_however_it_is_spelled(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"hint: {gnu_options.instead(option)}" in refused(capsys, option, "echo", ":::", "a")


def test_other_spellings_are_those_of_gnu_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        dry(capsys, "--keeporder", "--col-sep", ",", "--haltonerror", "now,fail=1", "echo", ":::", "a,b")
        == "echo a b\n"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--no-such", "echo"], "No such option"),
        (["-j", "50%", "echo", ":::", "a"], "agent set cpus="),
        (["-j", "+1", "echo", ":::", "a"], "agent set cpus="),
        (["--halt", "soon", "echo", ":::", "a"], "--halt soon"),
        (["--header", "x", "echo", ":::", "a"], "--header :"),
        (["--results", "all.csv", "echo", ":::", "a"], "--joblog FILE is a table"),
        (["--joblog", "no/such/log", "echo", ":::", "a"], "no/such/log: No such file"),
        (["--results", "/dev/null/x", "echo", ":::", "a"], "/dev/null/x: "),
        (["--colsep", "(", "echo", ":::", "a"], "--colsep ("),
        (["--env", "NO_SUCH_VARIABLE", "echo", ":::", "a"], "NO_SUCH_VARIABLE"),
        (["--array", "1-3", "echo", ":::", "a"], "leave one of them out"),
        (["echo", ":::+", "a"], "the first source"),
        (["echo", "::::"], "names no file"),
        (["--dry-run", "echo {3}", ":::", "a", ":::", "b"], "{3}: an item has 2 values"),
        (["--dry-run", "echo {%}", ":::", "a"], "{%}"),
        (["-a", "-", "echo", "::::", "-"], "stdin is named twice"),
        (["--retry-failed", "echo"], "leave the command and the items out"),
        (["--attach", "run.1", "--retry-failed"], "--attach follows a run, and --retry-failed starts one"),
        *((["--retry-failed", *words], f"{words[0]} is for new items") for words in FOR_NEW_ITEMS),
        *((["--attach", "run.1", *words], f"{words[0]} is for new items") for words in FOR_NEW_ITEMS),
        *((["--attach", "run.1", *words], f"{words[0]} comes too late: --attach follows run.1") for words in FOR_A_JOB),
        (["--retries", "0", "echo", ":::", "a"], "--retries 0: 1 to 1,000"),
        (["echo", *[":::", *["x"] * 1001] * 2], "1,002,001 items, a run has at most 1,000,000"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refused(capsys, *words)


def test_each_option_is_new_items_or_a_jobs_or_shown_and_the_first_two_are_all_tried_here() -> None:
    tried = {words[0] for words in (*FOR_NEW_ITEMS, *FOR_A_JOB)}
    assert tried == {wish.long_name(option) for option in wish.set_by_the_run("--attach")}


def test_what_is_configured_is_for_runs_that_begin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_RUN_JOBS", "3")
    monkeypatch.setenv("MUSTER_RUN_COLSEP", ",")
    for again in (["--attach", "run.1"], ["--retry-failed"]):
        assert "is not a farm's root" in refused(capsys, *again, code=5)


def test_a_run_of_which_all_is_committed_is_known_before_it_is_merged(tmp_path: Path) -> None:
    root = roots.prepare(tmp_path / "farm")
    daemon = FixedDaemon(root)

    def answer(committed: int) -> status.Status:
        tally = status.Tally(shards=3, committed=committed)
        job = status.JobStatus("run.1", "command", "running", "", 1, 0.0, 0.0, None, tally, 0)
        return status.Status(0.0, VERSION, 1, [job])

    try:
        daemon.answers[requests.StatusAsk] = answer(3)
        run_job.check_known(root, "run.1")
        daemon.answers[requests.StatusAsk] = answer(2)
        with pytest.raises(RefusedError, match="still runs"):
            run_job.check_known(root, "run.1")
    finally:
        daemon.close()


def test_a_command_that_cannot_be_is_refused_with_its_own_hint(capsys: pytest.CaptureFixture[str]) -> None:
    for words, option, hint in (
        (["echo '{}'", ":::", "a"], "the command: ", "leave the quotes out"),
        (["echo {fil}", ":::", "a"], "the command: ", "there are {}, "),
        (["--return", "{}.gz", "gzip {}", ":::", "a"], "--return: ", "write {out}"),
    ):
        said = refused(capsys, "--dry-run", *words)
        assert said.startswith(f"error: {option}") and f"hint: {hint}" in said
    assert "none: No such file" in refused(capsys, "echo", "::::", "none", code=4)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("run:7: at_once: expected 1 or more", "-j: expected 1 or more"),
        ("run:1: name: 'a b' is not allowed", "--name: 'a b' is not allowed"),
        ("params.timeout: expected a duration", "--timeout: expected a duration"),
        ("params.capture: too much", "--max-output: too much"),
        ("source.table: a column called in", "--header: a column called in"),
        ("named: something else", "named: something else"),
        ("a shard: params.run", "a shard: params.run"),
    ],
)
def test_what_is_wrong_with_the_job_is_said_of_the_option_that_it_comes_of(message: str, said: str) -> None:
    assert wish.said_of_options(message) == said


def test_more_items_on_stdin_than_a_run_may_have_are_not_read_to_their_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(io.RawIOBase):
        read_so_far = 0

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            self.read_so_far += size
            assert self.read_so_far < 16 << 20
            return b"x\n" * (size // 2)

    class Stdin:
        buffer = Endless()

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert "more than 1,000,000 items" in refused(capsys, "echo", code=4)


def test_without_a_farm_it_says_how_to_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`muster run --local …` starts one" in refused(capsys, "echo", ":::", "a", code=5)


def test_an_items_end_is_a_line_of_nine_columns() -> None:
    ended = Ended(0, "desk", 1795096118.1574, 0.0034, -9, False, b"abc", b"")
    wanted = "1\tdesk\t1795096118.157\t     0.003\t0\t3\t0\t9\techo a\\nb\n"
    assert lines.joblog_line(ended, "echo a\nb") == wanted
    assert lines.JOBLOG_HEAD.count("\t") == wanted.count("\t") == 8


def test_no_value_leads_out_of_the_results_folder() -> None:
    values = ["../x", "..", ".", "", "a\\b/c\t"]
    folders = lines.results_folder(["1"] * 5, values)
    assert folders[1::2] == ["..\\_x", "\\..", "\\.", "\\", "a\\\\b\\_c\\t"]


def test_a_value_that_is_too_long_for_a_folder_has_one_of_its_own() -> None:
    for width, letter in ((255, "x"), (256, "x"), (300, "é"), (2000, "\N{GRINNING FACE}")):
        names = [lines.results_folder(["1"], [letter * width + end])[1] for end in "ab"]
        assert all(len(name.encode()) <= 255 for name in names) and len(set(names)) == 2
    assert lines.results_folder(["1"], ["x" * 255])[1] == "x" * 255


def shown(asked: Wish, order: Iterable[int], text: bytes) -> int:
    """Print items as if they ended in this order; bytes of memory that were held after the last one."""
    with closing(ItemsDisplay(run_sources.read(asked).items(), asked)) as display:
        tracemalloc.start()
        for number in order:
            display.show(Ended(number, "desk", 0.0, 0.0, 0, True, text + b"%d" % number, b"!%d" % number))
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return held


@pytest.mark.parametrize(
    ("order", "text", "said"),
    [
        ([2, 1, 3, 0], b"x", b"x0x1x2x3!0!1!2!3"),
        ([0, 2, 1], b"", b"012!0!1!2"),
        ([2, 3], b"", b"23!2!3"),  # where it was left
    ],
)
def test_with_k_items_are_printed_in_their_order(
    order: list[int], text: bytes, said: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    shown(Wish(words=("echo", ":::", "a", "b", "c", "d"), keep_order=True), order, text)
    assert b"".join(capsysbinary.readouterr()) == said


def test_what_waits_for_its_turn_is_not_held_in_memory(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    asked = Wish(words=("echo",), array="0-64", keep_order=True)
    assert shown(asked, range(1, 65), bytes(1 << 20)) < 8 << 20
    assert len(capsysbinary.readouterr().out) > 64 << 20
