"""The scripts that run on a machine, each run here by sh in a home of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster import VERSION as MUSTER
from muster.deploy import bootstrap, services
from tests.support.farm import until
from tests.support.site import put_cron, put_systemd


@pytest.fixture
def home(tmp_path: Path) -> Path:
    put_cron(tmp_path)
    return tmp_path


def run(home: Path, body: str, **values: str) -> list[str]:
    """What the script says to us."""
    env = {"PATH": f"{home}:{os.environ['PATH']}", "HOME": str(home)}
    script = bootstrap.script(body, **{"name": "lab3", **values})
    done = subprocess.run(["sh", "-s"], input=script, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    *said, end = [line.removeprefix("@muster ") for line in done.stdout.splitlines()]
    assert end == "end"
    return said


def found(home: Path, python: str = "auto") -> list[str]:
    """What a probe says of interpreters and of the environment called v; of those on the PATH the first two."""
    said = run(home, bootstrap.PROBE, version="v", python=python, service="none")
    return [line for line in said if line.startswith(("python ", "stamp ", "own "))][:2]


VERSION = "{}.{}".format(*sys.version_info)


def test_an_environment_counts_for_as_long_as_its_interpreter_has_muster(home: Path) -> None:
    made = home / ".local/share/muster/v"
    python = made / "bin/python"
    python.parent.mkdir(parents=True)
    (made / "stamp").write_text("digest")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert found(home) == [f"python {VERSION} with {python}", "stamp digest"]
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # the system has another Python now
    assert not any(line.startswith("stamp") for line in found(home))
    python.unlink()
    python.symlink_to("/gone/python3")
    first, _ = found(home)
    assert first.startswith("python 3") and str(made) not in first


def test_a_python_without_ensurepip_is_no_way_to_a_venv(home: Path) -> None:
    """As Debian has it without python3-venv."""
    (home / "hiding").mkdir()
    (home / "hiding/sitecustomize.py").write_text('import sys; sys.modules["ensurepip"] = None\n')
    bare = home / "python3"
    bare.write_text(f'#!/bin/sh\nPYTHONPATH={home}/hiding exec {sys.executable} "$@"\n')
    bare.chmod(0o755)
    assert found(home)[0] == f"python {VERSION} without {bare}"
    assert found(home, str(bare)) == [f"python {VERSION} without {bare}", f"own {MUSTER}"]


def test_what_is_added_to_an_environment_leaves_what_it_has(home: Path) -> None:
    base = home / ".local/share/muster"
    python = base / "v/bin/python"
    (base / "incoming").mkdir(parents=True)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >>{home}/asked\n')
    python.chmod(0o755)
    given = {"version": "v", "stamp": "digest", "wheel": "the.whl", "index": "", "needs": ""}
    run(home, bootstrap.INSTALL, python="", **given)
    assert (home / "asked").read_text().endswith(f"{base}/incoming/the.whl\n") and python.exists()
    assert (base / "v/stamp").read_text() == "digest" and not (base / "incoming").exists()


def test_a_unit_whose_agent_computes_on_is_told_twice_and_then_started_anew(home: Path) -> None:
    """systemd alone would wait for minutes, and whoever asked it to stop the unit with it."""
    put_systemd(home)
    (home / "agent").write_text(
        f"#!/bin/sh\ntold=0\ntrap 'told=$((told + 1)); echo $told >>{home}/told; [ $told = 1 ] || exit 1' TERM\n"
        f"echo begun >>{home}/told\nwhile :; do sleep 0.1; done\n"
    )
    (home / "agent").chmod(0o755)
    units = home / ".config/systemd/user"
    units.mkdir(parents=True)
    (units / "muster-lab3.service").write_text(f"ExecStart={home}/agent\n")
    given = {"how": "unit", "cron": "", "patience": "1"}
    told = home / "told"
    try:
        run(home, bootstrap.START, **given)
        until(lambda: told.exists() and told.read_text() == "begun\n", "the agent")
        run(home, bootstrap.START, **given)
        until(lambda: told.read_text() == "begun\n1\n2\nbegun\n", "another agent")
    finally:
        os.kill(int((home / "pid-muster-lab3.service").read_text()), signal.SIGKILL)


def test_why_a_venv_is_not_made_is_said_on_stderr(home: Path) -> None:
    (home / "bad").write_text("#!/bin/sh\necho 'Error: why not'; exit 1\n")
    (home / "bad").chmod(0o755)
    given = {"version": "v", "stamp": "", "wheel": "", "index": "", "needs": "", "name": "lab3"}
    script = bootstrap.script(bootstrap.INSTALL, python=str(home / "bad"), **given)
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(["sh", "-s"], input=script, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and done.stderr == "Error: why not\n"


def test_the_crontab_gets_one_line_and_keeps_all_others(home: Path) -> None:
    root = "/farms/50% off/it's"
    line = services.cron_line("serve", "--root", root, "--detach")
    assert line == r"""@reboot serve --root '/farms/50\% off/it'"'"'s' --detach >/dev/null 2>&1"""
    mark = r"""--root '/farms/50\% off/it'"'"'s' --detach"""
    table = home / ".crontab"
    own = f"# @reboot old {mark}\n0 3 * * * mine\n@reboot other --root /farms --detach\n"
    table.write_text(own)
    for new in (line, line, line.replace("serve", "newer")):
        run(home, bootstrap.CRON, mark=mark, cron=new)
        assert table.read_text() == f"{own}{new}\n"
        assert run(home, bootstrap.CRON_LINES, mark=mark) == [f"cron {new}"]
    run(home, bootstrap.CRON, mark=mark, cron="")
    assert table.read_text() == own
    table.unlink()
    run(home, bootstrap.CRON, mark=mark, cron="")
    assert not table.exists()
    run(home, bootstrap.CRON, mark=mark, cron=line)
    run(home, bootstrap.CRON, mark=mark, cron="")
    assert not table.exists()


def test_a_crontab_that_cannot_be_read_is_not_written(home: Path) -> None:
    (home / "crontab").write_text(
        f'#!/bin/sh\n[ "$1" != -l ] || {{ echo "no access" >&2; exit 1; }}\ncat >{home}/lost\n'
    )
    script = bootstrap.script(bootstrap.CRON, name="", mark="x", cron="@reboot x")
    env = {"PATH": f"{home}:{os.environ['PATH']}", "HOME": str(home)}
    done = subprocess.run(["sh", "-s"], input=script, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and done.stderr == "no access\n" and not (home / "lost").exists()
