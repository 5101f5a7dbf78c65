"""What whoever sits at a machine may wish of its agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from muster.agent.host import lending, priority
from muster.agent.host.lending import Courtesy, changed, checked, lent
from muster.jobs.common import processes
from muster.jobs.common.errors import UsageError

NOON, NIGHT = 12 * 60, 23 * 60 + 30  # of a Monday
DAY = 24 * 60


@pytest.mark.parametrize(
    ("wish", "minute", "cpus"),
    [
        (Courtesy(), NOON, 6),
        (Courtesy(cpus=2), NOON, 2),
        (Courtesy(cpus=12), NOON, 12),
        (Courtesy(leave_cores=1), NOON, 6),
        (Courtesy(leave_cores=5), NOON, 3),
        (Courtesy(cpus=2, leave_cores=5), NOON, 2),
        (Courtesy(leave_cores=8), NOON, 1),
        (Courtesy(paused=True, cpus=2), NOON, 0),
        (Courtesy(hours="20:00-08:00"), NOON, 0),
        (Courtesy(hours="20:00-08:00"), NIGHT, 6),
        (Courtesy(hours="20:00-08:00"), 8 * 60 - 1, 6),
        (Courtesy(hours="20:00-08:00"), 8 * 60, 0),
        (Courtesy(hours="20:00-8:00,12:00-13:00"), NOON, 6),
        (Courtesy(hours="18:00-24:00"), NIGHT, 6),
        (Courtesy(hours="18:00-24:00"), 0, 0),
        (Courtesy(hours="20:00-08:00"), 6 * DAY + NIGHT, 6),
        (Courtesy(hours="Mon-Fri 20:00-08:00"), 4 * DAY + NIGHT, 6),
        (Courtesy(hours="Mon-Fri 20:00-08:00"), 5 * DAY + 7 * 60, 6),  # begun on a Friday
        (Courtesy(hours="Mon-Fri 20:00-08:00"), 5 * DAY + NIGHT, 0),
        (Courtesy(hours="Mon-Fri 20:00-08:00"), 7 * 60, 0),  # Sunday's night is not lent
        (Courtesy(hours="Sun 20:00-08:00"), 7 * 60, 6),
        (Courtesy(hours="Mon-Fri 20:00-08:00, Sat-Sun 00:00-24:00"), 5 * DAY + NOON, 6),
        (Courtesy(hours="Fri-Mon 12:00-13:00"), 6 * DAY + NOON, 6),
        (Courtesy(hours="Fri-Mon 12:00-13:00"), 1 * DAY + NOON, 0),
    ],
)
def test_how_many_processors_are_lent(wish: Courtesy, minute: int, cpus: int) -> None:
    found, why = lent(checked(wish) if wish.leave_cores is None else wish, 6, 8, minute)
    assert found == cpus and bool(why) == (cpus == 0)


def test_settings_are_changed_one_by_one_and_taken_back() -> None:
    wish = changed(Courtesy(paused=True), {"cpus": "4", "hours": "20:00-08:00"})
    assert wish == Courtesy(paused=True, cpus=4, hours="20:00-08:00")
    assert changed(wish, {"hours": "", "nice": "19"}) == Courtesy(paused=True, cpus=4, nice=19)


@pytest.mark.parametrize(
    "words",
    [
        {"cpus": "0"}, {"cpus": "many"}, {"nice": "20"}, {"nice": "-1"}, {"leave-cores": "100000"}, {"ionice": "best"},
        {"hours": "20-8"}, {"hours": "25:00-08:00"}, {"hours": "08:00-08:00"}, {"hours": "20:00-24:30"}, {"disk": "1"},
        {"hours": "00:00-24:00"}, {"hours": "Mo 20:00-08:00"}, {"hours": "Mon-Fri"}, {"hours": "Sat 24:00-00:00"},
        {"paused": "true"},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(words: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        changed(Courtesy(), words)


def test_a_wish_is_known_by_its_stamp(tmp_path: Path) -> None:
    assert lending.read(tmp_path) == Courtesy() and lending.stamp(tmp_path) == 0
    first = lending.write(tmp_path, Courtesy(cpus=2))
    assert lending.read(tmp_path) == Courtesy(cpus=2) and lending.stamp(tmp_path) == first
    assert lending.write(tmp_path, Courtesy(cpus=3)) != first
    (tmp_path / lending.FILE).write_bytes(b"{")
    assert lending.read(tmp_path) == Courtesy()


def test_kindness_reaches_what_is_started_while_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is there, and no look at the processes had it yet."""
    looks, trees = [1], processes.trees

    def missing(roots: list[int]) -> dict[int, list[int]]:
        return {roots[0]: roots} if looks and looks.pop() else trees(roots)

    monkeypatch.setattr(processes, "trees", missing)
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline()
        priority.be_kind(process.pid, 7, None)
        assert [one.nice() for one in psutil.Process(process.pid).children()] == [7]
    finally:
        process.communicate(b"\n")


def test_kindness_reaches_what_a_process_has_started() -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline()
        priority.be_kind(process.pid, 7, "idle")
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
        assert [one.nice() for one in tree] == [7, 7]
        if hasattr(psutil.Process, "ionice"):
            assert {one.ionice().ioclass for one in tree} == {psutil.IOPRIO_CLASS_IDLE}
    finally:
        process.communicate(b"\n")
    priority.be_kind(process.pid, 1, "normal")  # it is gone
    assert os.getpriority(os.PRIO_PROCESS, 0) != 7


@pytest.mark.parametrize("words", [{"nice": "19"}, {"ionice": "idle"}, {"leave-cores": "1"}])
def test_what_is_of_one_machine_is_refused_where_shards_run_on_those_of_a_cluster(words: dict[str, str]) -> None:
    [name] = words
    with pytest.raises(UsageError, match=f"{name} is of this machine, and the shards of a cluster's agent run on oth"):
        changed(Courtesy(elsewhere=True), words)
    assert changed(Courtesy(elsewhere=True), {name: "", "cpus": "64"}) == Courtesy(elsewhere=True, cpus=64)
    with pytest.raises(UsageError, match="there is no setting 'elsewhere'"):
        changed(Courtesy(), {"elsewhere": "1"})
