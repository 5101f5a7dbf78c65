"""Agents of one user wherever their spools are: seen, joined again as last time, detached with a word on failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.farm import FarmHarness, running, until

pytestmark = pytest.mark.ray


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path) as one:
        yield one


def names(farm: FarmHarness) -> list[str]:
    """Of the agents that `agent status` shows."""
    shown = farm.agent_command("status", "--json")
    return sorted(one.get("name", "") for one in msgspec.json.decode(shown.stdout.splitlines()[0]))


def test_an_agent_is_seen_wherever_its_spool_is_and_joins_as_last_time(farm: FarmHarness, tmp_path: Path) -> None:
    spool = tmp_path / "elsewhere"
    farm.env["XDG_STATE_HOME"] = str(tmp_path / "other")
    options = ("--name", "desk", "--spool", str(spool), "--cpus", "1", "--nice", "7", "--kinds", "map")
    joined = farm.agent_command("join", str(farm.root.path), *options, "--detach")
    assert joined.returncode == 0, joined.stderr
    del farm.env["XDG_STATE_HOME"]
    assert names(farm) == ["desk"]
    assert farm.agent_command("set", "nice=9").returncode == 0
    assert farm.agent_command("leave").returncode == 0
    again = farm.agent_command("join")
    assert again.returncode == 0, again.stderr
    assert "as last time: agent join" in again.stderr
    assert names(farm) == ["desk"]
    assert b'"nice":7' in (spool / "courtesy.json").read_bytes()
    status = farm.agent_status("desk")
    assert status is not None and status.cpus == 1
    assert farm.agent_command("leave", "--now").returncode == 0


def test_spools_of_farms_that_are_gone_are_named(farm: FarmHarness, tmp_path: Path) -> None:
    spool = tmp_path / "elsewhere"
    options = ("--name", "desk", "--spool", str(spool), "--cpus", "1", "--detach")
    assert farm.agent_command("join", str(farm.root.path), *options).returncode == 0
    assert farm.agent_command("leave", "--now").returncode == 0
    assert str(spool) not in farm.agent_command("status").stdout
    farm.stop()
    shutil.rmtree(farm.root.path)
    assert f"`rm -r {spool}`" in farm.agent_command("status").stdout


def test_a_spool_that_nobody_used_for_long_is_named(farm: FarmHarness, tmp_path: Path) -> None:
    spool = farm.folder / "home/.local/state/muster" / os.uname().nodename.partition(".")[0] / "old"
    spool.mkdir(parents=True)
    (spool / "uuid").write_text("0" * 32)
    assert str(spool) not in farm.agent_command("status").stdout
    os.utime(spool / "uuid", (0, 0))
    assert f"spool {spool} not used for" in farm.agent_command("status").stdout


def test_without_a_join_to_remember_where_is_asked_for(farm: FarmHarness) -> None:
    said = farm.agent_command("join")
    assert (said.returncode, "no join is remembered here" in said.stderr) == (2, True)
    assert farm.agent_command("join", "--cpus", "2").returncode == 2
    assert "joins as" in farm.agent_command("join", "--help").stdout
    until(lambda: names(farm) == [], "nobody to be there")
