"""What a process may take of memory, from what the kernel says under /proc and its groups' folders."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from muster.agent.host import memory
from muster.jobs.common import cgroups

V1 = "5:memory:/unit/agent\n1:cpu:/other\n0::/\n"
V1_MOUNT = "30 20 0:26 {0} /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
V2 = "0::/user.slice/muster.service\n"
V2_MOUNT = "30 20 0:26 {0} /sys/fs/cgroup rw shared:1 - cgroup2 cgroup2 rw\n"


def machine(root: Path, group: str, mount: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(group)
    (root / "proc/self/mountinfo").write_text(mount)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_limit_of_the_process_s_own_group_counts(tmp_path: Path) -> None:
    files = {"user.slice/muster.service/memory.max": "1610612736\n", "user.slice/memory.max": "max\n"}
    assert cgroups.memory_limit(machine(tmp_path, V2, V2_MOUNT.format("/"), files)) == 3 << 29


def test_the_least_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    none = str((1 << 63) - 4096)
    files = {"memory/unit/agent/memory.limit_in_bytes": none, "memory/unit/memory.limit_in_bytes": "77"}
    assert cgroups.memory_limit(machine(tmp_path, V1, V1_MOUNT.format("/"), files)) == 77


@pytest.mark.parametrize("mounted", ["/docker/abc", "/user.slice/muster.service"])
def test_a_container_s_group_is_where_its_mount_is(tmp_path: Path, mounted: str) -> None:
    assert cgroups.memory_limit(machine(tmp_path, V2, V2_MOUNT.format(mounted), {"memory.max": "88"})) == 88


def test_no_limit_is_none_and_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    assert cgroups.memory_limit(machine(tmp_path, V2, V2_MOUNT.format("/"), {"memory.max": "odd"})) is None
    assert cgroups.memory_limit(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("group", "mount", "file"),
    [
        (V2, V2_MOUNT, "user.slice/muster.service/memory.events"),
        (V1, V1_MOUNT, "memory/unit/agent/memory.oom_control"),
    ],
)
def test_processes_that_the_kernel_took_are_counted(tmp_path: Path, group: str, mount: str, file: str) -> None:
    root = machine(tmp_path, group, mount.format("/"), {file: "low 0\noom 1\noom_kill 3\n"})
    assert cgroups.oom_kills(root) == 3
    assert cgroups.oom_kills(tmp_path / "nothing") == 0


def test_a_death_is_the_killer_s_where_it_took_more_than_at_the_last_look(tmp_path: Path) -> None:
    def taken(count: int) -> None:
        (root / "sys/fs/cgroup" / file).write_text(f"oom_kill {count}\n")

    file, now = "user.slice/muster.service/memory.events", [0.0]
    root = machine(tmp_path, V2, V2_MOUNT.format("/"), {file: "oom_kill 3\n"})
    kills = cgroups.OomKills(root, lambda: now[0])
    assert kills.said(0) == ""
    taken(4)
    kills.look()  # so soon after the last one, it does not
    assert "before its size was seen" in kills.said(0)
    assert kills.said(5 << 20) == "", "it was told once"
    taken(5)
    now[0] += cgroups.LOOK_SECONDS
    kills.look()
    assert kills.said(5 << 20) == "", "this one was somebody else"
    taken(6)
    assert "5 MiB or more" in kills.said(5 << 20)


def test_the_address_space_of_a_process_is_a_limit_too() -> None:
    code = "from muster.agent.host import memory; print(memory.total())"
    limit = 2 << 30
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert int(said.stdout) == min(limit, memory.total())
