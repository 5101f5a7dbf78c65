"""The server: the real scheduler over a store that is late, with what the daemon does around it, and kill -9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from muster.agent.core.actions import Pull, Push
from muster.coordinator.daemon.agents.outbox import Outbox
from muster.coordinator.protocol.control import (
    Bye,
    Committed,
    Drop,
    Grant,
    Hello,
    Leave,
    News,
    Rejected,
    Sync,
    Welcome,
)
from muster.coordinator.protocol.transfer import Refused, Settled
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Agent, Job
from muster.coordinator.scheduler.state_machine import Scheduler
from muster.coordinator.scheduler.timing import Timing
from muster.jobs.common.ranges import RangeSet
from tests.property.scheduler_model import Disk, DiskJob
from tests.simulator.clock import Clock
from tests.simulator.driver import Driver
from tests.simulator.links import Channel
from tests.simulator.work import Jobs

FARM = "f" * 32
TIMING = Timing(lease=20.0, heartbeat=2.0, tick=1.0)
TIED_SHARE = 0.2  # of jobs: those that start after another one
Answer = Callable[[Any], None]


@dataclass
class Question:
    """A sync whose answer is held."""

    channel: Channel
    box: Outbox
    until: float
    answer: Answer


@dataclass
class Tally:
    """What came of a world, for whoever judges it."""

    committed: int = 0
    again: int = 0  # committed after they were once, by damage or a retry
    doubts: list[str] = field(default_factory=list)
    merged: int = 0


class Server:
    """One root, and the lives of the daemon that serves it. `disk` is what is durable."""

    def __init__(self, clock: Clock, jobs: Jobs) -> None:
        self.clock, self.jobs = clock, jobs
        self.disk = Disk()
        self.tally = Tally()
        self.life = self.boot = 0
        self.up = self.stopped = False
        self.slow = 0.01  # seconds that the store takes at most
        self.store_full = False
        self.free = 1 << 40
        self.scheduler = Scheduler(0)
        self.drivers: dict[str, Driver] = {}
        self._backlog: list[Callable[[], None]] = []
        self._channels: list[Channel] = []
        self._boxes: dict[int, Outbox] = {}
        self._questions: list[Question] = []
        self._writes: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._sessions = 0
        self._damage = 0  # bundles that are to be found damaged
        self._ties = Random(f"ties {clock.seed}")  # of its own: what a seed's jobs compute does not hang on it

    # --- lives -------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.up:
            return
        self.boot += 1
        self.life += 1
        self.up, self.stopped = True, False
        expected = frozenset(name for name, live in self.disk.agents.items() if live)
        self.scheduler = Scheduler(self.boot, TIMING, expected)
        for job in self.disk.jobs.values():
            for layer in job.layers.values():
                layer.begin(self.boot)
        for job in list(self.disk.jobs.values()):
            self._serve(job)
        self._tick(self.life)

    def kill(self) -> None:
        """By kill -9: what the store had not written is gone."""
        if not self.up:
            return
        self.up = self.stopped = False
        self.life += 1
        self._backlog.clear()
        self._boxes.clear()
        self._questions.clear()
        self._writes.clear()
        self.drivers.clear()
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.cut(0.01, 0.01)

    def do(self, what: Callable[[], None]) -> None:
        """Now, or once it is not stopped any more."""
        if self.stopped:
            self._backlog.append(what)
        elif self.up:
            what()

    def stop(self, stopped: bool) -> None:
        """By SIGSTOP, and on again."""
        self.stopped = stopped and self.up
        backlog, self._backlog = self._backlog, []
        for what in backlog:
            self.do(what)

    def _tick(self, life: int) -> None:
        if life != self.life:
            return
        self.do(self._ticked)
        self.clock.after(TIMING.tick, lambda: self._tick(life))

    def _ticked(self) -> None:
        self.handle(e.SpaceMeasured(self.free))
        self.handle(e.Ticked())
        self._answer_held()

    # --- events in, actions out --------------------------------------------------------------------------

    def handle(self, event: e.Event) -> list[c.Action]:
        said = self.scheduler.handle(event, self.clock.now)
        self.scheduler.state.check()
        verdicts = [action for action in said if not self._obey(action)]
        if self._questions:
            self._answer_held()
        return verdicts

    def _obey(self, action: c.Action) -> bool:
        match action:
            case c.AcceptOffer() | c.RefuseOffer():
                return False
            case c.StartMerge():
                self.clock.after(self.clock.between(0.05, 1.0), lambda life=self.life: self._merge(life, action))  # type: ignore[misc]
            case c.RaiseHighWater(job, layer, value):
                self._write(lambda: self._stored(action), lambda _: self._raised(job, layer, value))
            case c.LookAtSource():
                self.clock.after(self.clock.between(0.0, 0.5), lambda life=self.life: self._look(life, action))  # type: ignore[misc]
            case c.NoteMissing():
                self.tally.doubts.append(str(action))
            case c.SendGrant() | c.SendDrop() | c.SendCommitted() | c.SendGone() | c.SendDrain() | c.Reject():
                if box := self._boxes.get(action.session):
                    self._say(box, action)
            case _:
                self._write(lambda: self._stored(action))
        return True

    def _say(self, box: Outbox, action: c.Action) -> None:
        match action:
            case c.SendGrant(_, job, layer, attempt, numbers):
                stored = self.disk.layer(job, layer)
                below = stored.rounds or numbers.top <= stored.high_water
                assert below, f"{layer}: {numbers} is granted above the mark"
                payloads = self.scheduler.state.open_layers[layer].payloads
                wanted = {number: payloads[number] for number in numbers} if payloads else {}
                sheets = self.drivers[job].sheets_of(numbers) if job in self.drivers else {}
                grant = Grant(job, layer, self.boot, attempt, numbers.pairs(), wanted, sheets)
                box.grant(grant, self.jobs.natures[layer].info(job))
            case c.SendDrop(_, layer, boot, attempt, numbers, retired):
                box.drop(Drop(layer, boot, attempt, numbers.pairs(), retired))
            case c.SendCommitted(_, layer, numbers):
                box.committed(Committed(layer, numbers.pairs()))
            case c.SendGone(_, layer):
                box.gone(layer)
            case c.SendDrain():
                box.ask_to_drain()
            case c.Reject(_, code, message, hint):
                box.reject(Rejected(code, message, hint))

    # --- the store ---------------------------------------------------------------------------------------

    def _write(self, do: Callable[[], Any], then: Callable[[Any], None] = lambda _: None) -> None:
        """Durable some time from now, in order; then `then`."""
        self._writes.append((do, then))
        if len(self._writes) == 1:
            self.clock.after(self.clock.between(0.0, self.slow), lambda life=self.life: self._flush(life))  # type: ignore[misc]

    @property
    def writing(self) -> bool:
        return bool(self._writes)

    def _flush(self, life: int) -> None:
        if life != self.life:
            return
        if self.store_full:
            self.clock.after(0.5, lambda: self._flush(life))
            return
        writes, self._writes = self._writes, []
        for then, result in [(then, do()) for do, then in writes]:
            self.do(lambda then=then, result=result: then(result))  # type: ignore[misc]

    def _stored(self, action: c.Action) -> None:
        if getattr(action, "job", None) in {None, *self.disk.jobs}:
            self.disk.write(action)

    def _raised(self, job: str, layer: str, value: int) -> None:
        self.handle(e.HighWaterStored(job, layer, value))

    # --- jobs --------------------------------------------------------------------------------------------

    def submit_next(self) -> None:
        job = self.jobs.next()
        if self.disk.jobs and self._ties.random() < TIED_SHARE and not any(one.made for one in job.layers.values()):
            job.after, job.state = (self._ties.choice(list(self.disk.jobs)),), "waiting"
        self.submit(job)

    def submit(self, job: DiskJob) -> None:
        for layer in job.layers.values():
            layer.begin(self.boot)
        self.disk.jobs[job.id] = job
        self._serve(job)

    def _serve(self, job: DiskJob) -> None:
        self.handle(job.added())
        self.drive(job)

    def drive(self, job: DiskJob) -> None:
        """A driver for it, where it wants one and has none."""
        if any(layer.made for layer in job.layers.values()) and job.id not in self.drivers:
            self.drivers[job.id] = Driver(self, job)

    def job(self, job: str) -> Job | None:
        return self.scheduler.state.jobs.get(job)

    def remove(self, job: str) -> None:
        self.handle(e.Removed(job))
        self.drivers.pop(job, None)
        del self.disk.jobs[job]

    def keep(self, change: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """A driver wants something stored."""
        self._write(change, then)

    def _look(self, life: int, action: c.LookAtSource) -> None:
        if life != self.life:
            return
        changed = self.jobs.natures[action.layer].changed
        kept = e.SourceKept(action.job, action.layer, action.agent)
        self.do(lambda: self._looked(e.SourceChanged(action.job, action.layer) if changed else kept))

    def _looked(self, event: e.SourceChanged | e.SourceKept) -> None:
        if event.job in self.disk.jobs:
            self.handle(event)

    # --- merging -----------------------------------------------------------------------------------------

    def damage_a_bundle(self) -> None:
        """The next merge finds one that cannot be read."""
        self._damage += 1

    def _merge(self, life: int, action: c.StartMerge) -> None:
        if life == self.life:
            self.do(lambda: self._merge_now(action))

    def _merge_now(self, action: c.StartMerge) -> None:
        job, digest, generation = action.job, action.layer, action.generation
        layer = self.scheduler.state.open_layers.get(digest)
        if layer is None or (layer.job, layer.state, layer.generation) != (job, "merging", generation):
            return
        disk = self.disk.layer(job, digest)
        assert disk.rows == disk.whole, f"{job}/{digest} is merged, and {disk.whole - disk.rows} are not committed"
        if self._damage and len(disk.rows) > 1:
            self._damage -= 1
            numbers = set(list(disk.rows)[::2])
            self._write(lambda: disk.rows.difference_update(numbers), lambda _: self._found_damaged(action, numbers))
            return
        self._write(lambda: self._merged(job, digest, generation), lambda done: self._published(action, done))

    def _found_damaged(self, action: c.StartMerge, numbers: set[int]) -> None:
        ranges = RangeSet.of(sorted(numbers))
        payloads = dict.fromkeys(numbers, b"x") if self.jobs.natures[action.layer].made else {}
        self.tally.again += len(numbers)
        self.handle(e.Uncommitted(action.layer, action.generation, ranges, payloads))

    def _merged(self, job: str, digest: str, generation: int) -> bool:
        if job not in self.disk.jobs or self.disk.layer(job, digest).generation != generation:
            return False
        self.disk.layer(job, digest).state = "merged"
        self.tally.merged += 1
        return True

    def _published(self, action: c.StartMerge, done: bool) -> None:
        if done:
            self.handle(e.LayerMerged(action.job, action.layer, action.generation))

    # --- channels ----------------------------------------------------------------------------------------

    def attach(self, channel: Channel) -> None:
        self._channels.append(channel)

    def lost(self, channel: Channel) -> None:
        if channel in self._channels:
            self._channels.remove(channel)
        self._questions = [one for one in self._questions if one.channel is not channel]
        if channel.session and self._boxes.pop(channel.session, None) is not None:
            self.handle(e.HungUp(channel.session))

    def hear(self, channel: Channel, message: Hello | Sync | Leave, answer: Answer) -> None:
        """What an agent says on its control channel."""
        match message:
            case Hello():
                self._boxes.pop(channel.session, None)
                answer(self._join(channel, message))
            case Leave():
                self.handle(e.Departed(message.session))
                self._boxes.pop(message.session, None)
                answer(Bye("you left"))
            case Sync():
                self._sync(channel, message, answer)

    def _join(self, channel: Channel, hello: Hello) -> Welcome | Rejected:
        self._sessions += 1
        session = self.boot << 32 | self._sessions
        box = self._boxes[session] = Outbox()
        self.handle(e.Joined(session, hello))
        if box.rejected:
            del self._boxes[session]
            return box.rejected
        channel.session = session
        return box.welcome(FARM, self.boot, session, TIMING.lease, TIMING.heartbeat)

    def _sync(self, channel: Channel, sync: Sync, answer: Answer) -> None:
        box = self._boxes.get(sync.session)
        if box is None or sync.session != channel.session:
            answer(Rejected("no-session", "this session is not of this channel", "say hello again"))
            return
        if box.rejected or sync.session not in self.scheduler.state.by_session:
            answer(box.rejected or Rejected("no-session", "this session has ended", "say hello again"))
            return
        self.handle(
            e.Synced(
                sync.session, sync.room, sync.hungry, sync.lent if sync.lent >= 0 else None, tuple(sync.finished),
                tuple(sync.failures), tuple(sync.losses), tuple(sync.returned), tuple(sync.changed), sync.counts,
            )
        )  # fmt: skip
        until = self.clock.now + min(sync.wait, TIMING.lease / 4)
        self._questions.append(Question(channel, box, until, answer))
        self.clock.after(min(sync.wait, TIMING.lease / 4) + 1e-6, lambda life=self.life: self._due(life))  # type: ignore[misc]
        self._answer_held()

    def _due(self, life: int) -> None:
        if life == self.life:
            self.do(self._answer_held)

    def _answer_held(self) -> None:
        """Whoever there is something for, or who has waited long enough."""
        now = self.clock.now
        ready = [one for one in self._questions if one.until <= now or one.box.has_news]
        for one in ready:
            self._questions.remove(one)
            said: News | Rejected = one.box.rejected or one.box.news()
            one.answer(said)

    # --- what is carried ---------------------------------------------------------------------------------

    def _agent(self, session: int) -> Agent | None:
        return self.scheduler.state.by_session.get(session)

    def offered(self, push: Push, seconds: float, channel: Channel, answer: Answer) -> None:
        """A bundle is judged; its bytes come, if they are wanted; then it is committed."""
        agent = self._agent(push.session)
        if agent is None:
            answer(Refused("no-session", [], "this session has ended"))
            return
        numbers = RangeSet.of(sorted(number for _, those in push.pieces for number in those))
        (verdict,) = self.handle(e.Offered(push.session, push.layer, numbers, agent.hello.fingerprint))
        if isinstance(verdict, c.RefuseOffer):
            answer(Refused(verdict.code, verdict.numbers.pairs()))
        elif self.free < 1 << 20:
            answer(Refused("full", [], "the root is full"))
        else:
            assert isinstance(verdict, c.AcceptOffer)
            event = e.BundleCommitted(
                verdict.job, push.layer, verdict.generation, agent.name, numbers, len(numbers), agent.hello.fingerprint
            )
            odd = event.numbers & RangeSet.of(sorted(self.jobs.natures[push.layer].odd))
            if odd and len(self.jobs.natures[push.layer].odd) < self.jobs.natures[push.layer].count:
                answer(Refused("outputs", odd.pairs(), "an output of another form"))
                return
            self.clock.after(seconds, lambda: channel.ask(lambda: self._commit(event, answer)))

    def _commit(self, event: e.BundleCommitted, answer: Answer) -> None:
        layer = self.scheduler.state.open_layers.get(event.layer)
        if layer is None or layer.job != event.job or layer.generation != event.generation:
            wanted = (layer is not None and layer.job != event.job) or self.scheduler.state.is_kept(event.layer)
            answer(Refused("later" if wanted else "gone", []))
        elif not layer.stored:
            if twice := event.numbers & layer.committed:
                answer(Refused("committed", twice.pairs()))
            else:
                self._told(event, answer)
        else:
            self._write(lambda: self._rows(event), lambda refused: self._told(event, answer, refused))

    def _rows(self, event: e.BundleCommitted) -> Refused | None:
        """One transaction, under the one key."""
        if event.job not in self.disk.jobs:
            return Refused("gone", [], "the job was removed meanwhile")
        job, numbers = self.disk.jobs[event.job], set(event.numbers)
        layer = job.layers[event.layer]
        if twice := numbers & layer.rows:
            return Refused("committed", RangeSet.of(sorted(twice)).pairs())
        if job.same_kernels and job.kernels not in {"", event.fingerprint}:
            return Refused("kernels", event.numbers.pairs(), "other kernels")
        if job.same_kernels:
            job.kernels = event.fingerprint
        if layer.generation == event.generation:
            layer.rows |= numbers
            layer.quarantined -= numbers
        return None

    def _told(self, event: e.BundleCommitted, answer: Answer, refused: Refused | None = None) -> None:
        if refused is not None:
            answer(refused)
            return
        self.tally.committed += len(event.numbers)
        if event.job in self.disk.jobs:
            self.handle(event)
        answer(Settled(event.numbers.pairs()))

    def fetched(self, pull: Pull) -> Refused | None:
        """Whether an agent may have a shard's input."""
        agent, layer = self._agent(pull.session), self.scheduler.state.open_layers.get(pull.layer)
        if agent is None:
            return Refused("no-session", [], "this session has ended")
        held = [h for h in agent.holdings.values() if h.layer == pull.layer and pull.number in h.open]
        if layer is None or not held:
            return Refused("gone", [], "this shard is not yours to run")
        return Refused("changed", [], "its size") if self.jobs.natures[pull.layer].changed else None

    def sheet_for(self, session: int, layer: str, have: set[str]) -> str | None:
        """What a follower is to have next: "" for nothing yet, None where there is nothing to be followed."""
        agent, found = self._agent(session), self.scheduler.state.open_layers.get(layer)
        if agent is None or found is None or found.job not in self.drivers:
            return None
        held = [number for h in agent.holdings.values() if h.layer == layer for number in h.open]
        sheets = self.drivers[found.job].sheets
        return next((sheets[number] for number in held if number in sheets and sheets[number] not in have), "")
