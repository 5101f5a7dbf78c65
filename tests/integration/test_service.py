"""`coordinator service` and `agent service` with a stand-in for systemd's user manager."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.coordinator.farm_root import ask_daemon
from tests.support import site as sites
from tests.support.farm import FarmHarness, arrays, until

AGENT_UNIT = "muster-desk.service"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    """One whose account has a user manager."""
    made = FarmHarness(tmp_path / "farm")
    programs = tmp_path / "bin"
    programs.mkdir()
    sites.put_systemd(programs)
    made.env = {"PATH": f"{programs}:{os.environ['PATH']}", "XDG_CONFIG_HOME": ""}
    (made.folder / "home").mkdir()
    yield made
    made.close()


def units(farm: FarmHarness) -> Path:
    return farm.folder / "home/.config/systemd/user"


def service(farm: FarmHarness, action: str, *args: str) -> dict[str, object]:
    """What `coordinator service` says."""
    done = farm.coordinator("service", action, "--json", *args)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_a_coordinator_is_installed_shown_and_removed(farm: FarmHarness) -> None:
    told = service(farm, "install", "--memory", "4GiB")
    assert str(told["said"]).startswith(f"serving {farm.root.path}; muster.coordinator-")
    [unit] = units(farm).iterdir()
    text = unit.read_text().splitlines()
    assert "MemoryMax=4294967296" in text and f'"{farm.root.path}"' in next(one for one in text if "ExecStart" in one)
    assert ask_daemon.answers(farm.root)
    shown = service(farm, "show")["unit"]
    assert isinstance(shown, dict) and (shown["state"], shown["enabled"], shown["lingers"]) == ("active", True, True)
    first = shown["pid"]
    again = service(farm, "install")["unit"]  # anew, with other options
    assert isinstance(again, dict) and again["pid"] != first and "MemoryMax" not in unit.read_text()
    assert service(farm, "remove")["unit"] is None
    assert not unit.exists() and not ask_daemon.answers(farm.root)
    gone = farm.coordinator("service", "show")
    assert gone.returncode == 6 and "there is no unit" in gone.stderr


def test_a_coordinator_that_is_served_by_hand_is_not_taken_over(farm: FarmHarness) -> None:
    farm.start()
    done = farm.coordinator("service", "install")
    assert done.returncode == 7 and "served already" in done.stderr and "`coordinator stop`, then this" in done.stderr
    assert not units(farm).exists()


def test_without_a_user_manager_the_line_for_cron_is_said(farm: FarmHarness) -> None:
    Path(str(shutil.which("systemctl", path=farm.env["PATH"]))).write_text("#!/bin/sh\nexit 1\n")
    done = farm.coordinator("service", "install")
    assert done.returncode == 7 and f"@reboot {'/'}" in done.stderr and "--detach`" in done.stderr
    assert not units(farm).exists()


def test_an_agent_is_kept_as_it_last_joined(farm: FarmHarness) -> None:
    none = farm.agent_command("service", "install")
    assert none.returncode == 6 and "no join of an agent is remembered" in none.stderr
    farm.start()
    words = ["join", str(farm.root.path), "--name", "desk", "--cpus", "1", "--memory", "2GiB", "--env", "own"]
    words[-1] = f"own={sys.executable}"
    assert farm.agent_command(*words, "--detach").returncode in (0, 9)  # 9: on a busy machine it has no link yet
    until(lambda: farm.is_live("desk"), "the agent", 90.0)
    busy = farm.agent_command("service", "install")
    assert busy.returncode == 7 and "`agent leave --name desk`, then this" in busy.stderr
    assert farm.agent_command("leave").returncode == 0

    done = farm.agent_command("service", "install")
    assert done.returncode == 0 and done.stdout.startswith(f"desk works; {AGENT_UNIT}: active"), done.stderr
    text = (units(farm) / AGENT_UNIT).read_text()
    assert '"--name" "desk" "--cpus" "1" "--memory" "2GiB" "--env"' in text and "--detach" not in text
    assert f"MemoryMax={(5 << 29) + (2 << 30)}" in text
    assert 'Environment="PATH=' in text
    farm.wait(farm.submit(arrays()), seconds=60.0)
    assert "runs after each start" in farm.agent_command("service", "show", "--name", "desk").stdout

    gone = farm.agent_command("service", "remove", "--name", "desk")
    assert gone.returncode == 0 and "the agent has left" in gone.stdout, gone.stderr
    assert list(units(farm).iterdir()) == [] and farm.processes("muster.agent", "join") == []
    until(lambda: not farm.is_live("desk"), "it to be gone")


def test_a_unit_is_one_that_systemd_reads(farm: FarmHarness) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    service(farm, "install", "--memory", "4GiB")
    [unit] = units(farm).iterdir()
    verify = ["systemd-analyze", "--user", "verify", str(unit)]
    said = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False).stderr
    assert unit.name not in said, said
