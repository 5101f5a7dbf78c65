"""A bug in the daemon between what is stored and what it remembers: it stops, and another one starts from the store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.coordinator.api.requests import Submit, Submitted
from muster.coordinator.protocol import transfer, values
from muster.jobs.common.errors import INTERNAL_EXIT, MusterError, RefusedError
from tests.support.farm import FarmHarness, arrays, until
from tests.support.simulated import Cut, Helper, SimulatedAgent

SHARDS = 6  # of a layer
BUG = """
import sys
from muster.coordinator.scheduler.state_machine import Scheduler
handle, seen = Scheduler.handle, []
def buggy(self, event, now):
    if type(event).__name__ == {event!r}:
        seen.append(event)
        if len(seen) == {count}:
            raise RuntimeError("the bug")
    return handle(self, event, now)
Scheduler.handle = buggy
sys.argv = sys.argv[3:]
from muster.coordinator.cli import main
sys.exit(main())
"""

# a method of the daemon's that raises at its first call
BUG_IN = """
import sys
from {module} import {owner}
sound, seen = {owner}.{method}, []
def buggy(self, *args):
    seen.append(args)
    if len(seen) == 1:
        raise KeyError("the bug")
    return sound(self, *args)
{owner}.{method} = buggy
sys.argv = sys.argv[3:]
from muster.coordinator.cli import main
sys.exit(main())
"""


@pytest.fixture
def ailing(tmp_path: Path) -> Iterator[FarmHarness]:
    """A farm that nobody serves yet."""
    farm = FarmHarness(tmp_path)
    yield farm
    farm.close()


def start_with_bug(farm: FarmHarness, event: str, count: int) -> None:
    start_with(farm, BUG.format(event=event, count=count))


def start_with(farm: FarmHarness, bug: str) -> None:
    script = farm.folder / "bug.py"
    script.write_text(bug)
    farm.start(prefix=[sys.executable, str(script)])


EVENTS = [("BundleCommitted", 2), ("Synced", 5), ("LayerMerged", 1), ("Ticked", 20)]


@pytest.mark.parametrize(("event", "count"), EVENTS)
def test_a_bug_stops_the_daemon_and_the_next_one_goes_on(ailing: FarmHarness, event: str, count: int) -> None:
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


def is_dead(farm: FarmHarness) -> bool:
    assert farm.daemon is not None
    return farm.daemon.poll() is not None


def finished_shards(farm: FarmHarness) -> tuple[str, SimulatedAgent]:
    """A job all of whose shards are computed by an agent, and none pushed."""
    job, agent = farm.submit(arrays()), farm.agent()
    agent.join()
    until(
        lambda: agent.sync(wait=0.05) and agent.compute() == 0 and len(agent.computed) == SHARDS, "all to be computed"
    )
    return job, agent


def test_a_bug_before_a_commit_costs_no_finished_work(ailing: FarmHarness) -> None:
    """The store took nothing: the push ends, no file of it stays, and the part comes again."""
    start_with(
        ailing,
        BUG_IN.format(module="muster.coordinator.daemon.store.statements", owner="Store", method="commit_bundle"),
    )
    job, agent = finished_shards(ailing)
    with pytest.raises(Cut):
        agent.push(agent.parts[0])
    assert ailing.status(job).totals.committed == 0 and not is_dead(ailing)
    assert list(ailing.root.job(job).bundles.iterdir()) == []
    log = ailing.root.log.read_text()
    assert "the bug" in log and "Traceback" in log
    agent.work(lambda: ailing.status(job).state == "complete")
    assert len(agent.computed) == SHARDS, "what was finished was computed again"
    ailing.check_result(job)


def test_a_bug_after_a_commit_stops_the_daemon(ailing: FarmHarness) -> None:
    """The store knows of it, the scheduler does not: only another life of the daemon brings them together."""
    start_with(
        ailing, BUG_IN.format(module="muster.coordinator.daemon.measures", owner="JobFigures", method="committed")
    )
    job, agent = finished_shards(ailing)
    with pytest.raises(Cut):
        agent.push(agent.parts[0])
    assert ailing.await_death() == INTERNAL_EXIT
    assert "a commit was done by half" in ailing.root.log.read_text()
    agent.hang_up()
    ailing.start()
    agent.work(lambda: ailing.status(job).state == "complete")
    assert len(agent.computed) == SHARDS
    ailing.check_result(job)


def test_a_bug_in_an_answer_that_changes_nothing_ends_its_channel_alone(ailing: FarmHarness) -> None:
    start_with(ailing, BUG_IN.format(module="muster.jobs.contract.plan", owner="Layer", method="window"))
    job, agent = ailing.submit(arrays()), ailing.agent()
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.granted, "a grant")
    [(_, layer, _, _), numbers] = next(iter(agent.granted.items()))
    question = transfer.Fetch(
        agent.session, layer, numbers.bottom, start=1 << 40
    )  # the answer alone, no bytes after it
    with pytest.raises(Cut):
        fetched(ailing, question)
    log = ailing.root.log.read_text()
    assert "the bug" in log and "Traceback" in log
    assert isinstance(fetched(ailing, question), transfer.Sending)
    agent.work(lambda: ailing.status(job).state == "complete")
    ailing.check_result(job)


def fetched(farm: FarmHarness, question: transfer.Fetch) -> values.Message:
    """The answer to it on a channel of its own."""
    helper = Helper(farm.root, "pull", transfer.ToPuller, farm.environment())
    try:
        answer: values.Message = helper.ask(question)
        return answer
    finally:
        helper.close(kill=True)


def test_a_submission_without_its_plan_is_a_problem(farm: FarmHarness) -> None:
    (farm.root.tmp / "submit-0123456789abcdef").mkdir()
    with pytest.raises(RefusedError, match="no plan"):
        farm.ask(Submit("submit-0123456789abcdef"), Submitted)
    with pytest.raises(RefusedError, match="no plan"):
        farm.ask(Submit("submit-fedcba9876543210"), Submitted)
    (farm.root.tmp / "submit-0123456789abcdef" / "plan.msgpack").write_bytes(b"\xc1")
    with pytest.raises(MusterError, match="decode"):
        farm.ask(Submit("submit-0123456789abcdef"), Submitted)
    assert farm.jobs() == []
