"""A bug in the daemon between what is stored and what it remembers: it stops, and another one starts from the store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.admin import Submit, Submitted
from jobs.errors import INTERNAL_EXIT, MusterError, RefusedError
from tests.farm import Farm, arrays

BUG = """
import sys
from coordinator.scheduler.core import Scheduler
handle, seen = Scheduler.handle, []
def buggy(self, event, now):
    if type(event).__name__ == {event!r}:
        seen.append(event)
        if len(seen) == {count}:
            raise RuntimeError("the bug")
    return handle(self, event, now)
Scheduler.handle = buggy
sys.argv = sys.argv[3:]
from coordinator.cli import main
sys.exit(main())
"""


@pytest.fixture
def ailing(tmp_path: Path) -> Iterator[Farm]:
    """A farm that nobody serves yet."""
    farm = Farm(tmp_path)
    yield farm
    farm.close()


def start_with_bug(farm: Farm, event: str, count: int) -> None:
    script = farm.folder / "bug.py"
    script.write_text(BUG.format(event=event, count=count))
    farm.start(prefix=[sys.executable, str(script)])


EVENTS = [("BundleCommitted", 2), ("Synced", 5), ("LayerMerged", 1), ("Ticked", 20)]


@pytest.mark.parametrize(("event", "count"), EVENTS)
def test_a_bug_stops_the_daemon_and_the_next_one_goes_on(ailing: Farm, event: str, count: int) -> None:
    start_with_bug(ailing, event, count)
    job = ailing.submit(arrays(2))
    agent = ailing.agent()
    agent.work(lambda: is_dead(ailing))
    assert ailing.await_death() == INTERNAL_EXIT
    log = ailing.root.log.read_text()
    assert "the bug" in log and f"{event} was handled by half" in log and "coordinator serve" in log
    ailing.audit(job, agent)
    ailing.start()
    agent.work(lambda: ailing.status(job).state == "complete")
    ailing.check_result(job)


def is_dead(farm: Farm) -> bool:
    assert farm.daemon is not None
    return farm.daemon.poll() is not None


def test_a_submission_without_its_plan_is_a_problem(farm: Farm) -> None:
    (farm.root.tmp / "submit-0123456789abcdef").mkdir()
    with pytest.raises(RefusedError, match="no plan"):
        farm.ask(Submit("submit-0123456789abcdef"), Submitted)
    with pytest.raises(RefusedError, match="no plan"):
        farm.ask(Submit("submit-fedcba9876543210"), Submitted)
    (farm.root.tmp / "submit-0123456789abcdef" / "plan.msgpack").write_bytes(b"\xc1")
    with pytest.raises(MusterError, match="decode"):
        farm.ask(Submit("submit-0123456789abcdef"), Submitted)
    assert farm.jobs() == []
