"""How a machine is reached: what ssh is told for all of the way, by the system's own ssh."""

from __future__ import annotations

import subprocess
from pathlib import Path

from muster.deploy.connection import Connections, command
from muster.deploy.inventory import Machine, MachineWish

THEIRS = """
Host dmz
  ProxyJump hop@gate:2222,inner
Host gate
  ProxyJump outer
  UserKnownHostsFile /theirs/of_gate
Host *
  BatchMode no
  UserKnownHostsFile ~/theirs
  Compression yes
"""


def connections(folder: Path) -> Connections:
    (folder / "their config").write_text(THEIRS)
    return Connections(folder, folder / "100% ours", folder / "their config")


def test_the_jump_hosts_are_those_of_the_inventory_or_of_its_users_files(tmp_path: Path) -> None:
    all_ = connections(tmp_path)
    assert [str(one) for one in all_.hops(Machine("dmz", "me@dmz"))] == ["outer", "hop@gate:2222", "inner"]
    named = Machine("dmz", "me@dmz", MachineWish(jump="me@other:22"))
    assert [str(one) for one in all_.hops(named)] == ["me@other:22"]
    assert all_.hops(Machine("lab3", "me@lab3")) == []


def test_what_is_said_for_the_machine_holds_for_all_on_the_way(tmp_path: Path) -> None:
    """ssh passes on to the ssh that it starts for a jump host its configuration's file, and no option beside."""
    all_, file = connections(tmp_path), tmp_path / "conf"
    file.write_text(all_.configuration(Machine("dmz", "me@dmz"), all_.known_hosts))
    for host in ("dmz", "gate"):
        asked = command(Machine("x", f"ssh://me@{host}:9"), file, ControlPath="none")
        said = subprocess.run(
            [*asked, "-G", "--", host], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert {"batchmode yes", "stricthostkeychecking true", "compression yes", "user me", "port 9"} <= set(said)
        known = f"userknownhostsfile {tmp_path}/100% ours {Path.home()}/theirs /theirs/of_gate"
        assert known in said
