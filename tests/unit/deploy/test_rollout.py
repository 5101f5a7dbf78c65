"""Work on all machines at once: answers in their order, so many at a time, ended by a bug and by Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from muster.deploy.inventory import Machine
from muster.deploy.rollout import on_all
from tests.support.farm import until

MACHINES = [Machine(name, f"me@{name}") for name in "abcde"]
INTERRUPTED = """
import sys, threading
from pathlib import Path
from muster.deploy.inventory import Machine
from muster.deploy.rollout import on_all
def work(machine):
    Path(sys.argv[1]).touch()
    threading.Event().wait()
try:
    on_all([Machine("a", "me@a"), Machine("b", "me@b")], work, 1)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("at_once", [1, 3, 99])
def test_answers_come_in_the_order_of_the_machines_and_no_more_are_at_work_than_may_be(at_once: int) -> None:
    lock, counts = threading.Lock(), [0, 0]

    def work(machine: Machine) -> str:
        with lock:
            counts[0] += 1
            counts[1] = max(counts)
        with lock:
            counts[0] -= 1
        return machine.name

    assert on_all(MACHINES, work, at_once) == list("abcde") and counts[1] <= at_once
    assert on_all([], work, at_once) == []


def test_a_bug_ends_it_while_others_are_at_work() -> None:
    def work(machine: Machine) -> None:
        if machine.name == "c":
            raise ZeroDivisionError
        threading.Event().wait()

    with pytest.raises(ZeroDivisionError):
        on_all(MACHINES, work, 3)


def test_whoever_is_at_work_is_not_waited_for_at_ctrl_c(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    one = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(begun)], cwd="/")
    try:
        until(begun.exists, "the work to begin")
        one.send_signal(signal.SIGINT)
        assert one.wait(60.0) == 130
    finally:
        one.kill()
