"""Agents of one user wherever their spools are: seen, joined again as last time, detached with a word on failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from muster.coordinator.protocol.control import Greeting
from muster.coordinator.protocol.frames import frame
from muster.coordinator.protocol.values import PROTOCOL, encode
from tests.support.farm import FarmHarness, running, until


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path) as one:
        yield one


def names(farm: FarmHarness) -> list[str]:
    """Of the agents that `agent status` shows."""
    shown = farm.agent_command("status", "--json")
    return sorted(one.get("name", "") for one in msgspec.json.decode(shown.stdout)["agents"])


def test_an_agent_is_seen_wherever_its_spool_is_and_joins_as_last_time(farm: FarmHarness, tmp_path: Path) -> None:
    spool = tmp_path / "elsewhere"
    farm.env["XDG_STATE_HOME"] = str(tmp_path / "other")
    options = ("--name", "desk", "--spool", str(spool), "--cpus", "1", "--nice", "7", "--kinds", "map", "--pool")
    farm.env["MUSTER_POOL"] = "ray"  # which is what it would be, were the option not remembered
    joined = farm.agent_command("join", str(farm.root.path), *options, "processes", "--detach")
    assert joined.returncode == 0, joined.stderr
    del farm.env["XDG_STATE_HOME"]
    assert names(farm) == ["desk"]
    assert farm.agent_command("set", "nice=9").returncode == 0
    assert farm.agent_command("leave").returncode == 0
    again = farm.agent_command("join")
    assert again.returncode == 0, again.stderr
    assert "as last time: agent join" in again.stderr
    assert names(farm) == ["desk"]
    assert farm.processes("muster.agent.pool.worker") and not farm.processes("ray_host")
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


def test_a_detached_agent_tells_of_another_protocol_and_is_gone(farm: FarmHarness, tmp_path: Path) -> None:
    """It was told to have started late, and a process was left."""
    greeting = tmp_path / "greeting"
    greeting.write_bytes(frame(encode(Greeting(PROTOCOL + 1, "9.9", farm.root.farm))))
    (tmp_path / "ssh").write_text(f"#!/bin/sh\ncase $* in *-G*) exit 1;; esac\ncat {greeting}; exec sleep 60\n")
    (tmp_path / "ssh").chmod(0o755)
    farm.env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    said = farm.agent_command("join", "server", "--ssh", "openssh", "--name", "far", "--detach")
    assert said.returncode == 14, said.stderr
    assert "upgrade muster on this machine" in said.stderr
    assert names(farm) == []
    assert farm.processes("join", "far") == []


def test_a_detached_agent_tells_why_it_has_no_link_and_goes_on(farm: FarmHarness, tmp_path: Path) -> None:
    refused = "ssh: connect to host server port 22: Connection refused"
    (tmp_path / "ssh").write_text(f"#!/bin/sh\necho '{refused}' >&2; exit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    farm.env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    said = farm.agent_command("join", "server", "--ssh", "openssh", "--name", "far", "--detach")
    assert said.returncode == 9, said.stderr
    assert "far has no link yet: nothing listens at server" in said.stderr
    assert farm.agent_command("leave", "--now").returncode in (0, 11)
