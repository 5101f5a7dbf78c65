"""Promise 2: whatever is acknowledged is found again, once, and the merged bytes are the serial run's, though a process
dies by SIGKILL before any step of the durable commit, or the disk refuses that step. strace injects both."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from muster.coordinator.api.requests import Cancel, StatusAsk
from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.api.status import Status
from muster.coordinator.protocol import transfer as m
from muster.jobs.common.errors import LinkError, SpaceError
from tests.support.farm import FarmHarness, Tracer, arrays, running, strace_obstacle, until
from tests.support.needs import skip_for
from tests.support.simulated import Cut, SimulatedAgent

SHARDS = 6

# what the push helper does, in order, with the system call that begins it
PUSH_STEPS = {
    "the header goes to the daemon": "write:signal=SIGKILL:when=1",
    "the body is asked for": "write:signal=SIGKILL:when=2",
    "the body is written": "write:signal=SIGKILL:when=3",
    "the index is written": "write:signal=SIGKILL:when=4",
    "the file is synced": "fsync:signal=SIGKILL:when=1",
    "the file is renamed": "rename:signal=SIGKILL:when=1",
    "the folder is synced": "fsync:signal=SIGKILL:when=2",
    "the daemon is told": "write:signal=SIGKILL:when=5",
    "the agent is told": "write:signal=SIGKILL:when=6",
}
COMMIT_STEPS = {
    "the rows are written": "pwrite64:signal=SIGKILL:when=1",
    "some rows are written": "pwrite64:signal=SIGKILL:when=4",
    "the rows are synced": "fdatasync:signal=SIGKILL:when=1",
    "the commit is known to the scheduler": "sendto:signal=SIGKILL:when=1",
}
# fsync 1: the layer's folder; rename 1-6: four outputs, shards.npy, the manifest; fdatasync 1: the last bundle's rows
MERGE_STEPS = {
    "the layer's folder is synced": "fsync:signal=SIGKILL:when=1",
    "the old manifest goes": "unlink:signal=SIGKILL:when=1",
    "the first output is renamed": "rename:signal=SIGKILL:when=1",
    "the third output is renamed": "rename:signal=SIGKILL:when=3",
    "the manifest is renamed": "rename:signal=SIGKILL:when=6",
    "the result is synced": "fsync:signal=SIGKILL:when=3",
    "the merged row is synced": "fdatasync:signal=SIGKILL:when=2",
    "the first bundle goes": "unlink:signal=SIGKILL:when=2",
    "the second bundle goes": "unlink:signal=SIGKILL:when=3",
    "the job's end is synced": "fdatasync:signal=SIGKILL:when=3",
}
SUBMIT_STEPS = {
    "the row is written": ("pwrite64:signal=SIGKILL:when=1", False),
    "the row is synced": ("fdatasync:signal=SIGKILL:when=1", False),
    "the folder is renamed": ("rename:signal=SIGKILL:when=1", False),
    "the new name is synced": ("fsync:signal=SIGKILL:when=2", True),
    "it is marked as ready": ("fdatasync:signal=SIGKILL:when=2", True),
}
PUSH_FAULTS = {
    "no room for the body": ("write:error=ENOSPC:when=3", "full"),
    "no room for the index": ("write:error=EDQUOT:when=4", "full"),
    "the file does not sync": ("fsync:error=EIO:when=1", "disk"),
    "no room for the new name": ("rename:error=ENOSPC:when=1", "full"),
    "the folder does not sync": ("fsync:error=EIO:when=2", "later"),
}
STORE_FAULTS = {
    "no room for the rows": "pwrite64:error=ENOSPC:when=1..2",
    "the rows do not sync": "fdatasync:error=EIO:when=1",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    """One farm for all steps: each leaves it as it was, with one more complete job."""
    skip_for(strace_obstacle())
    with running(tmp_path_factory.mktemp("commit")) as farm:
        yield farm


@pytest.fixture
def tried(shared: FarmHarness) -> Iterator[FarmHarness]:
    """The shared farm, served, with no agent and no unfinished job in it before."""
    if shared.daemon is None or shared.daemon.poll() is not None:
        shared.start()
    for job in shared.jobs():
        if job.state != "complete":
            shared.ask(Cancel(job.id), Answered)
    yield shared
    for agent in shared.agents:
        agent.die()
    shared.agents.clear()


class Trial:
    """A job all of whose shards are computed, and none pushed, by one agent."""

    def __init__(self, farm: FarmHarness) -> None:
        self.farm = farm
        self.job = farm.submit(arrays())
        self.agent = farm.agent("one")
        self.agent.join()
        until(self._all_computed, "every shard to be computed")
        self.agent.sync(hungry=False)
        self.agent.computed.clear()

    def _all_computed(self) -> bool:
        self.agent.sync(wait=0.05)
        self.agent.compute()
        return sum(len(part.numbers) for part in self.agent.parts) == SHARDS

    def push_helper(self) -> int:
        """The process of the push helper, once it has nothing to do but to wait for an offer."""
        answer = self.agent.push_link.ask(m.Offer(1, "0" * 32, [], [], b"", 0))
        assert isinstance(answer, m.Refused) and answer.code == "corrupt"
        return self.agent.push_link.pid

    def push_but_one(self) -> None:
        for part in self.agent.parts[:-1]:
            assert isinstance(self.agent.push(part), m.Settled)

    def crash_and_finish(self) -> None:
        """The daemon is killed, if it lives; what was acknowledged is there; the rest of the job's life is ordinary."""
        farm = self.farm
        if farm.daemon is not None and farm.daemon.poll() is None:
            farm.kill()
        farm.audit(self.job, self.agent)
        for layer, files in farm.merged(self.job).items():
            assert files == farm.serial(self.job)[layer], "a result that is not whole can be seen"
        self.agent.die()
        farm.start()
        self.finish(farm.agent("one"))

    def finish(self, agent: SimulatedAgent) -> None:
        farm = self.farm
        agent.work(lambda: farm.status(self.job).state == "complete")
        assert not agent.computed, "what was finished was computed again"
        farm.check_result(self.job)
        until(lambda: self._leftovers() == [], "what the merge left in tmp to go")

    def _leftovers(self) -> list[str]:
        place = self.farm.root.job(self.job).bundles
        return [path.name for path in [*place.iterdir(), *self.farm.root.tmp.glob("*/*")]]


@pytest.fixture
def merging(tried: FarmHarness) -> int:
    """The process of the merge helper, which runs already: a tracer of the daemon does not follow it."""
    if not tried.processes("muster.coordinator.daemon.merge.merge_process"):
        trial = Trial(tried)
        trial.finish(trial.agent)
        trial.agent.die()
    [helper] = tried.processes("muster.coordinator.daemon.merge.merge_process")
    return helper


@pytest.mark.parametrize("step", PUSH_STEPS)
def test_the_push_helper_dies_before(tried: FarmHarness, step: str) -> None:
    trial = Trial(tried)
    with Tracer(tried, trial.push_helper(), PUSH_STEPS[step]), pytest.raises(Cut):
        trial.agent.push(trial.agent.parts[0])
    assert not trial.agent.acknowledged
    trial.crash_and_finish()


def test_a_helper_that_died_leaves_nothing_with_the_living_daemon(tried: FarmHarness) -> None:
    trial = Trial(tried)
    for step in ("the file is synced", "the folder is synced", "the agent is told"):
        with Tracer(tried, trial.push_helper(), PUSH_STEPS[step]), pytest.raises(Cut):
            trial.agent.push(trial.agent.parts[0])
        trial.agent.hang_up()
        trial.agent.join()
    until(lambda: not list(tried.root.tmp.glob("*/push-*")), "the dead helper's tmp file to go")
    bundles = tried.root.job(trial.job).bundles
    until(lambda: len(list(bundles.iterdir())) == 1, "the bundle without a row to go, the one with rows to stay")
    trial.agent.work(lambda: tried.status(trial.job).state == "complete")
    tried.check_result(trial.job)


@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_the_daemon_dies_before(tried: FarmHarness, step: str) -> None:
    trial = Trial(tried)
    assert tried.daemon is not None
    _push_while(trial, Tracer(tried, tried.daemon.pid, COMMIT_STEPS[step]))


def test_the_daemon_dies_before_the_acknowledgement(tried: FarmHarness) -> None:
    """Committed and not acknowledged: the second offer is refused by name, and nothing is done twice."""
    trial = Trial(tried)
    assert tried.daemon is not None
    _push_while(trial, Tracer(tried, tried.daemon.pid, "sendto:signal=SIGKILL:when=2", alone=True))


def _push_while(trial: Trial, tracer: Tracer) -> None:
    with tracer:
        with pytest.raises(Cut):
            trial.agent.push(trial.agent.parts[0])
        trial.farm.await_death()
    assert not trial.agent.acknowledged
    trial.crash_and_finish()


@pytest.mark.usefixtures("merging")
@pytest.mark.parametrize("step", MERGE_STEPS)
def test_the_daemon_dies_merging_before(tried: FarmHarness, step: str) -> None:
    trial = Trial(tried)
    trial.push_but_one()
    assert tried.daemon is not None
    with Tracer(tried, tried.daemon.pid, MERGE_STEPS[step]):
        trial.agent.push(trial.agent.parts[0])
        tried.await_death()
    trial.crash_and_finish()


def test_the_merge_helper_dies_and_another_merges(tried: FarmHarness, merging: int) -> None:
    trial = Trial(tried)
    with Tracer(tried, merging, "fsync:signal=SIGKILL:when=3"):
        trial.agent.work(lambda: tried.status(trial.job).state == "complete")
    assert merging not in tried.processes("muster.coordinator.daemon.merge.merge_process")
    tried.check_result(trial.job)


@pytest.mark.parametrize("step", SUBMIT_STEPS)
def test_the_daemon_dies_at_a_submit_before(tried: FarmHarness, step: str) -> None:
    """Afterwards the job is there, whole, or was never heard of."""
    fault, there = SUBMIT_STEPS[step]
    before = set(tried.stored())
    assert tried.daemon is not None
    with Tracer(tried, tried.daemon.pid, fault):
        with pytest.raises(LinkError):
            tried.submit(arrays(), name="fresh")
        tried.await_death()
    tried.start()
    new = set(tried.stored()) - before
    assert len(new) == there
    job = new.pop() if there else tried.submit(arrays(), name="fresh")
    agent = tried.agent("one")
    agent.work(lambda: tried.status(job).state == "complete")
    tried.check_result(job)


# --- the disk says no ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", PUSH_FAULTS)
def test_the_disk_refuses_a_bundle(tried: FarmHarness, fault: str) -> None:
    """No acknowledgement, a reason, and the same channel goes on."""
    trial = Trial(tried)
    injected, code = PUSH_FAULTS[fault]
    with Tracer(tried, trial.push_helper(), injected):
        answer = trial.agent.push(trial.agent.parts[0])
    assert isinstance(answer, m.Refused) and answer.code == code and str(tried.root.path) in answer.message
    assert not trial.agent.acknowledged
    assert answer.message in tried.said()
    assert list(tried.root.job(trial.job).bundles.iterdir()) == []
    trial.finish(trial.agent)


@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_the_disk_refuses_the_rows(tried: FarmHarness, fault: str) -> None:
    """The acknowledgement waits until they are durable; meanwhile `status` says why."""
    trial = Trial(tried)
    assert tried.daemon is not None
    answers: list[Any] = []
    pushing = Thread(target=lambda: answers.append(trial.agent.push(trial.agent.parts[0])))
    with Tracer(tried, tried.daemon.pid, STORE_FAULTS[fault]):
        pushing.start()
        until(lambda: _notes(tried), "a note that the database cannot be written")
        assert not answers, "acknowledged before it was durable"
        pushing.join()
    assert isinstance(answers[0], m.Settled)
    assert "cannot be written" in tried.said()
    trial.finish(trial.agent)


def _notes(farm: FarmHarness) -> list[str]:
    notes: list[str] = farm.ask(StatusAsk(), Status).notes
    return notes


def test_the_disk_refuses_a_submit(tried: FarmHarness) -> None:
    assert tried.daemon is not None
    no_room = pytest.raises(SpaceError, match="No space left")
    with Tracer(tried, tried.daemon.pid, "rename:error=ENOSPC:when=1"), no_room:
        tried.submit(arrays())
    trial = Trial(tried)
    trial.finish(trial.agent)


@pytest.mark.usefixtures("merging")
@pytest.mark.parametrize("fault", ["rename:error=ENOSPC:when=3", "fsync:error=EIO:when=3"])
def test_the_disk_refuses_a_result(tried: FarmHarness, fault: str) -> None:
    """It is merged again once the disk takes it."""
    trial = Trial(tried)
    assert tried.daemon is not None
    with Tracer(tried, tried.daemon.pid, fault):
        trial.finish(trial.agent)
    assert "is not merged" in tried.said()


def test_the_disk_refuses_the_merge_helper(tried: FarmHarness, merging: int) -> None:
    trial = Trial(tried)
    with Tracer(tried, merging, "write:error=ENOSPC:when=1"):
        trial.finish(trial.agent)
    assert "No space left" in tried.said()
