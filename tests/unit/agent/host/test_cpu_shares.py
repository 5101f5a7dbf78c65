"""Agents of one machine that know of each other's processors, whoever dies in between."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from muster.agent.host import cpu_shares
from muster.agent.host.cpu_shares import CpuShare, Share, told

OTHER = """
import sys
from pathlib import Path
from muster.agent.host.cpu_shares import CpuShare
share = CpuShare(Path(sys.argv[1]), "other")
print(share.take("other", int(sys.argv[2]), 8)[0], flush=True)
sys.stdin.read()
"""


def other(folder: Path, cpus: int) -> subprocess.Popen[str]:
    """An agent of this machine, until it is killed."""
    command = [sys.executable, "-c", OTHER, str(folder), str(cpus)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == f"{cpus}\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_second_takes_what_the_first_leaves_and_all_once_it_is_killed(tmp_path: Path) -> None:
    first = other(tmp_path, 3)
    try:
        assert CpuShare(tmp_path, "b").take("b", None, 8) == (5, [Share("other", 3)])
    finally:
        end(first)
    assert CpuShare(tmp_path, "c").take("c", None, 8)[1] == [Share("b", 5)]
    assert not (tmp_path / "other.json").exists()


def test_one_is_left_at_least_and_what_is_asked_for_is_taken(tmp_path: Path) -> None:
    first = other(tmp_path, 8)
    try:
        assert CpuShare(tmp_path, "b").take("b", 4, 8) == (4, [Share("other", 8)])
        assert CpuShare(tmp_path, "c").take("c", None, 8)[0] == 1
    finally:
        end(first)


def test_what_an_agent_lends_later_is_what_the_next_one_sees(tmp_path: Path) -> None:
    share = CpuShare(tmp_path, "a")
    share.take("a", None, 8)
    share.change("a", 2)
    assert CpuShare(tmp_path, "b").take("b", None, 8) == (6, [Share("a", 2)])


def test_a_file_that_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{")
    assert CpuShare(tmp_path, "a").take("a", None, 8) == (8, [])


def test_where_nothing_can_be_written_an_agent_starts_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert CpuShare(tmp_path / "file" / "cpus", "a").take("a", None, 8) == (8, [])


def test_people_are_told_what_is_shared() -> None:
    assert told(8, [], 8) == ""
    assert told(5, [Share("a", 3)], 8) == "5 of this machine's 8 cores, beside a (3)"
    assert "shares this machine's 8 cores with a (8): more is lent than there is" in told(8, [Share("a", 8)], 8)


def test_one_that_lends_more_than_there_is_is_told() -> None:
    assert told(2, [], 2) == ""
    assert told(9, [], 2) == "lends 9 cpus, and this machine has 2: its shards will wait for each other"


def test_a_machine_is_the_same_to_every_user_and_not_its_hosts_name(tmp_path: Path) -> None:
    assert cpu_shares.machine() == cpu_shares.machine() and len(cpu_shares.machine()) == 32
    other = tmp_path / "boot_id"
    other.write_text("00000000-0000-4000-8000-000000000000\n")
    assert cpu_shares.machine(other) not in ("", cpu_shares.machine())
    assert cpu_shares.machine(tmp_path / "none") == ""
