"""What may befall any program of ours: closed streams, a full disk behind stdout, no more processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster.jobs.common.errors import RefusedError, SpaceError, UsageError

# Runs the lines of its argument as a program of ours
PROGRAM = """
import sys
from muster.jobs.common.program import exit_code

def run():
    exec(sys.argv[1])
    return 0

sys.exit(exit_code(run))
"""


def ran(lines: str, streams: str = "") -> subprocess.CompletedProcess[str]:
    """`streams`: as a shell has them: `<&-` closes stdin."""
    command = ["sh", "-c", f'exec "$0" "$@" {streams}', sys.executable, "-c", PROGRAM, lines]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_nowhere_and_no_file_comes_to_stand_there(streams: str, tmp_path: Path) -> None:
    lines = f"assert not sys.stdin.isatty(); file = open({str(tmp_path / 'a')!r}, 'w'); assert file.fileno() > 2"
    lines += "; import os, subprocess; subprocess.run(['true'], check=True); sys.stderr.write('said'); os.fstat(1)"
    done = ran(lines, streams)
    assert done.returncode == 0 and done.stderr in ("said", "")


def test_what_would_be_printed_to_a_closed_stdout_is_an_error_in_two_lines() -> None:
    done = ran("import click; click.echo('a result')", ">&-")
    assert done.returncode == UsageError.exit_code
    assert done.stderr.startswith("error: stdout is closed: there is nowhere to print to\nhint: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_behind_stdout_is_no_bug() -> None:
    done = ran("print('a result')", ">/dev/full")
    assert done.returncode == SpaceError.exit_code and len(done.stderr.splitlines()) == 2
    assert done.stderr.startswith("error: a disk is full: ")


@pytest.mark.parametrize("error", ['RuntimeError("can\'t start new thread")', "BlockingIOError(11, 'try again')"])
def test_too_low_a_limit_of_processes_is_said_to_be_one(error: str) -> None:
    done = ran(f"import errno; raise {error.replace('11', 'errno.EAGAIN')}")
    assert done.returncode == RefusedError.exit_code and "`ulimit -u`" in done.stderr
    assert done.stderr.startswith("error: this account may start no more processes or threads here\nhint: ")


def test_an_error_is_a_document_where_json_is_asked_for_and_what_was_found_stands_in_it() -> None:
    lines = "from muster.jobs.common.errors import DamagedError\nerror = DamagedError('it is bad', 'mend it')\n"
    lines += "error.document = {'bad': ['fc']}\nraise error"
    code = PROGRAM.replace("exit_code(run)", "exit_code(run, True)")
    done = subprocess.run([sys.executable, "-c", code, lines], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (12, "error: it is bad\nhint: mend it\n")
    assert json.loads(done.stdout) == {
        "schema": 2, "bad": ["fc"], "error": "it is bad", "hint": "mend it", "code": 12,
    }  # fmt: skip


def test_a_bug_is_a_document_too() -> None:
    code = PROGRAM.replace("exit_code(run)", "exit_code(run, True)")
    done = subprocess.run(
        [sys.executable, "-c", code, "1 / 0"], capture_output=True, text=True, check=False, timeout=60
    )
    said = json.loads(done.stdout)
    assert (done.returncode, said["code"]) == (70, 70) and "ZeroDivisionError" in said["error"]
    Path(said["hint"].split()[-1]).unlink()


def test_commands_of_the_agent_say_their_errors_as_json_too(tmp_path: Path) -> None:
    for name in ("pause", "resume", "leave", "status"):
        command = [sys.executable, "-m", "muster.agent", name, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert "--json" in shown.stdout
    command = [sys.executable, "-m", "muster.agent", "leave", "--spool", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 6 and json.loads(done.stdout)["code"] == 6
