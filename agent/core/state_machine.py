"""The agent's decisions: what to run, say, push and delete. Events and the time in, actions out; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster.agent.core.actions import Action, Copy, Delete, Quit, Redial, Tell
from muster.agent.core.disk_budget import DiskBudget, FreeDisk
from muster.agent.core.dispatch import Dispatch
from muster.agent.core.events import (
    BatchEnded,
    DrainAsked,
    Event,
    FoundPart,
    Heard,
    Lent,
    LinkDown,
    LinkFailed,
    LinkUp,
    NotPulled,
    PartDamaged,
    PoolLost,
    PoolStarted,
    Pulled,
    PullUp,
    PushAnswered,
    PushDown,
    PushUp,
    SheetCame,
    SlotsSeen,
    SpaceSeen,
    Ticked,
    Unfollowed,
    WorkerDied,
)
from muster.agent.core.finished_parts import Part
from muster.agent.core.inputs import Inputs
from muster.agent.core.pull_policy import PullPolicy
from muster.agent.core.push_policy import PushPolicy
from muster.agent.core.round_sheets import RoundSheets
from muster.agent.core.session import ControlSession
from muster.agent.core.slots import Slots
from muster.agent.core.state import HeldShards
from muster.coordinator.protocol.control import Bye, Hello, Leave, Loss, News, Rejected, Sync, Welcome
from muster.jobs.common.errors import LinkError
from muster.jobs.common.ranges import RangeSet

STUCK_SECONDS = 60.0  # a drain that gets nothing done for so long ends without having pushed all
UNHEARD_SECONDS = 5.0  # how long a drain with nothing left here tries to say goodbye
TICK_BUSY_SECONDS = 0.1
TICK_IDLE_SECONDS = 0.2
HANG_UP_SECONDS = 0.5  # an answer that may be held longer is not waited for by an idle agent that leaves


@dataclass(frozen=True)
class Left:
    """What an earlier process left in the spool."""

    parts: Iterable[FoundPart] = ()
    losses: Iterable[Loss] = ()
    inputs: Iterable[Copy] = ()  # the one used longest ago first
    codes: Iterable[str] = ()


@dataclass(frozen=True)
class Snapshot:
    """What the process, the live line and state.json say of the core at one moment."""

    up: bool  # whether there is a control channel
    asked: bool  # whether something was said on it and not answered yet
    linked: bool  # whether there is a session
    ready: bool  # whether the pool is up
    busy: tuple[int, ...]  # slots with a batch in flight
    why_idle: str  # in a few words, for people; "" while it works
    running: int  # shards in a batch whose run of them counts
    waiting: int
    finished: int  # shards nobody has acknowledged


class AgentCore:
    """One agent process. After a Quit nothing more is ordered."""

    def __init__(self, who: Hello, left: Left | None = None) -> None:
        left = left or Left()
        self.held_shards = HeldShards(who.in_place)
        self.talk = ControlSession(who)
        self.disk = FreeDisk(who.disk)
        self.slots = Slots(who.cpus, who.memory, tuple(who.gpus))
        self.space = DiskBudget(self.held_shards, self.slots, self.disk, Inputs(left.inputs))
        self.pull_policy = PullPolicy(self.space, set(left.codes))
        self.dispatch = Dispatch(self.space, None if who.in_place else self.pull_policy.codes, who.process[:8])
        self.push_policy = PushPolicy(self.held_shards)
        self.rounds = RoundSheets(self.held_shards)
        self.ended = False
        self._draining = ""  # why; "" while not draining
        self._paused = ""  # why no processor is lent; "" while some are
        self._pool_lost = ""  # why, and what is done about it; "" until it is, and once it is there again
        self._progress_at = 0.0  # when a drain last got on
        self._orders: list[Action] = []
        for found in left.parts:
            part = Part(found.name, found.farm, found.layer, found.nbytes, found.attempts, since=0.0)
            self._orders += [] if self.held_shards.finished_parts.add(part) else [Delete(part.name)]
        for loss in left.losses:
            self.held_shards.reports.lose(loss)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take note of what happened; say what to do."""
        if self.ended:
            return []
        self._note(event, now)
        self._act(now)
        orders, self._orders = self._orders, []
        if any(isinstance(order, Quit) for order in orders):
            self.ended = True
        return orders

    # --- taking note ---

    def _note(self, event: Event, now: float) -> None:
        match event:
            case Ticked():
                pass
            case PoolStarted():
                self.dispatch.ready, self._pool_lost = True, ""
            case PoolLost(reason):
                self.dispatch.ready, self._pool_lost = False, reason
            case LinkUp(farm):
                self._link_up(farm)
            case LinkDown(reason, lasting):
                if lasting and reason != self.talk.why_down:
                    self._orders.append(
                        Tell(f"no link: {reason}; trying again each minute, going on with what is here")
                    )
                self._link_down(reason)
            case Heard(message):
                self._hear(message, now)
            case BatchEnded():
                self._progress_at = now
                self._orders += self.dispatch.ended(event, now)
            case WorkerDied():
                self._progress_at = now
                self._orders += self.dispatch.died(event, now)
            case SlotsSeen():
                self._orders += self.dispatch.seen(event, now)
            case SpaceSeen(free):
                self.disk.free = free
                self._orders += self.space.make(0)
            case DrainAsked(why):
                self._drain(why, now)
            case PartDamaged(name):
                self.held_shards.damaged(name)
            case PushUp() | PushDown() | PushAnswered():
                self._pushed(event, now)
            case PullUp() | Pulled() | NotPulled():
                self._pulled(event, now)
            case SheetCame() | Unfollowed():
                self.rounds.note(event, now)
            case LinkFailed(error):
                self._orders.append(Quit(error))
            case Lent():
                self._lend(event)

    def _link_up(self, farm: str) -> None:
        if farm:
            self.held_shards.move_to(farm)
        self.talk.opened()
        self.held_shards.reports.unanswered()

    def _link_down(self, reason: str) -> None:
        self.talk.closed(reason)
        self.held_shards.reports.unanswered()

    def _hear(self, message: Welcome | News | Rejected | Bye, now: float) -> None:
        match message:
            case Welcome():
                self.held_shards.reports.answered()
                self.talk.welcomed(message)
                self.held_shards.move_to(message.farm)
                self.push_policy.welcomed()
                self.pull_policy.welcomed()
                self._catch_up(message, now)
            case News():
                self.held_shards.reports.answered()
                self.talk.heard(message, now)
                self._catch_up(message, now)
                self._take_on(message, now)
            case Rejected():
                self.held_shards.reports.unanswered()
                self._orders += self.talk.rejected(message, now)
            case Bye():
                self._bye(message)

    def _bye(self, bye: Bye) -> None:
        """The end of a drain, or of the coordinator."""
        if self._draining and self.talk.asked and isinstance(self.talk.asked.message, Leave):
            self._orders.append(Quit(None))
            return
        self._link_down(bye.reason)
        self._orders.append(Redial(1.0))

    def _catch_up(self, said: Welcome | News, now: float) -> None:
        """What is no longer wanted. It may have been said before."""
        for layer in said.gone:
            self._delete(self.held_shards.gone(layer))
        for committed in said.committed:
            self._delete(self.held_shards.settle(committed.layer, RangeSet(committed.numbers)))
        for drop in said.drops:
            self.held_shards.drop(drop)
        self._orders += self.dispatch.kill_unwanted(now)

    def _take_on(self, news: News, now: float) -> None:
        """New work."""
        for info in news.layers:
            self.held_shards.learn(info)
        self.push_policy.granted({grant.layer for grant in news.grants})
        known = [self.held_shards.grant(grant, now) for grant in news.grants]
        if not all(known):
            self._orders.append(Tell("the coordinator granted work of an unknown layer; saying hello again"))
            self.talk.lost_track()
        if news.drain:
            self._drain("the coordinator asked for it", now)
        if self._draining or self._paused:
            self.held_shards.give_back_waiting()

    def _lend(self, event: Lent) -> None:
        """More or fewer processors, at once. Who leaves finishes what runs, paused or not."""
        if self._draining:
            return
        self.slots.lend(event.cpus)
        paused = "" if event.cpus else event.why or "paused"
        if paused and paused != self._paused:
            self._orders.append(Tell(f"{paused}: what runs is stopped where it is, the rest handed back"))
        self._paused = paused
        if paused:
            self.held_shards.give_back_waiting()

    def _drain(self, why: str, now: float) -> None:
        if self._draining:
            return
        self._draining, self._progress_at = why, now
        self._paused = ""
        self.slots.lend(self.slots.lent or len(self.slots.every))
        self.dispatch.draining_since = now
        self.held_shards.give_back_waiting()
        self._orders.append(Tell(f"leaving ({why}): finishing what runs, handing back the rest"))

    def _pushed(self, event: PushUp | PushDown | PushAnswered, now: float) -> None:
        if isinstance(event, PushAnswered):
            self._progress_at = now
            self.talk.hope(now)
        self._orders += self.push_policy.note(event, now)
        if self.talk.session and self.push_policy.dead_session == self.talk.session:
            self.talk.lost_track()
        self._delete(self.push_policy.take_emptied())

    def _pulled(self, event: PullUp | Pulled | NotPulled, now: float) -> None:
        was_stuck = self.pull_policy.stuck
        self._orders += self.pull_policy.note(event, now)
        if self.pull_policy.stuck and not was_stuck and not isinstance(event, PullUp):
            self._orders.append(Tell(f"inputs do not come: {self.pull_policy.stuck}"))
        if self.talk.session and self.pull_policy.dead_session == self.talk.session:
            self.talk.lost_track()

    def _delete(self, names: list[str]) -> None:
        """Delete parts from the disk; those in the bundle under way once it is no more."""
        for name in self.push_policy.spare(names):
            self.held_shards.finished_parts.deleted(name)
            self._orders.append(Delete(name))

    # --- acting ---

    def _stay_out(self) -> None:
        """Of kinds that this machine computes wrong: a hello tells the coordinator, and what waits of them returns."""
        for kind, why in self.held_shards.unfit.items():
            if kind not in self.talk.who.unfit:
                self._orders.append(Tell(f"takes no {kind} jobs, as it computes them wrong: {why}"))
                self.talk.unfit_for(kind, why)
        for holding in self.held_shards.holdings.values():
            if holding.info.work.kind in self.held_shards.unfit:
                self.held_shards.give_back(holding, holding.waiting.copy())

    def _act(self, now: float) -> None:
        if self.held_shards.unfit:
            self._stay_out()
        if not self.held_shards.in_place and not self._draining:
            self._orders += self.pull_policy.next(self.talk.session, now)
        if not self.held_shards.in_place:
            self._orders += self.rounds.next(self.talk.session, self.talk.heartbeat, now)
        self._orders += self.dispatch.balance(now)
        self._orders += self.dispatch.place(now)
        self._orders += self.dispatch.kill_late(now)
        push = self.push_policy.next(self.talk.session, self._in_a_hurry, now)
        if push is not None:
            self._orders.append(push)
        self._speak(now)
        if self._draining:
            self._end_drain(now)

    def _speak(self, now: float) -> None:
        if self.talk.hello_due(now):
            letter = self.held_shards.reports.post_hello()
            self._orders.append(self.talk.hello(letter, self.held_shards.held(), now))
            return
        if self.may_leave and self.talk.free and self.talk.session:
            self._orders.append(self.talk.leave(now))
            return
        note = self._note_for_people(now)
        told = self.talk.lent == self.slots.lent and not (self.talk.hungry and not self._hungry(now))
        pressing = self.held_shards.reports.next.pressing or not told
        if self.talk.sync_due(pressing, self._polling(now), not self.busy and self._hungry(now), now):
            self.talk.note = note
            wait = self.talk.wait(self._idle, self._polling(now))
            letter = self.held_shards.reports.post()
            hungry, room = self._hungry(now), self.room(now)
            counts = self.held_shards.counts() if self.talk.counts_due(now) else None
            self._orders.append(self.talk.sync(letter, room, hungry, self.slots.lent, wait, counts, now))

    @property
    def _in_a_hurry(self) -> bool:
        """Whether finished work should be pushed before there is much of it."""
        stands_still = self.held_shards.waiting and self.pull_policy.idle and not self.slots.busy
        return bool(self._draining or self._paused or stands_still or self.space.is_short)

    @property
    def may_leave(self) -> bool:
        """Whether a drain has nothing more to do."""
        done = not self.busy and not self._to_push_now and self.push_policy.under_way is None
        return bool(self._draining) and done and not self.held_shards.reports.pending

    def patience(self, now: float) -> float:
        """Seconds after which it wants to hear of the time if nothing else happens."""
        if self.held_shards.reports.next.pressing and self.talk.free and self.talk.session:
            return self.talk.gap_left(now)
        return TICK_BUSY_SECONDS if self.busy else TICK_IDLE_SECONDS

    @property
    def busy(self) -> bool:
        return bool(self.held_shards.unfinished) or self.slots.busy

    @property
    def to_push(self) -> int:
        """Finished shards nobody has acknowledged."""
        return self.held_shards.finished_parts.count(self.held_shards.farm)

    @property
    def _to_push_now(self) -> int:
        """Those of them that are not kept for a job that is damaged."""
        parts, farm = self.held_shards.finished_parts, self.held_shards.farm
        return self.to_push - sum(len(parts.live(farm, layer)) for layer in self.push_policy.put_off)

    @property
    def _idle(self) -> bool:
        """Nothing here is going to be news, so an answer may be held as long as it likes."""
        return not self.busy and not self._to_push_now

    def _hungry(self, now: float) -> bool:
        return not (self._draining or self._paused) and not self.disk.closed(now) and self.dispatch.ready

    def _polling(self, now: float) -> bool:
        """Whether a slot is short of work, and only the coordinator can help."""
        has_room = self.room(now) > 0 and self.room(now) >= self.space.least_cost
        return self._hungry(now) and has_room and self.held_shards.waiting < max(1, self.slots.idle)

    def room(self, now: float) -> int:
        """Bytes of output the coordinator may grant."""
        if self._draining or self.disk.closed(now):
            return 0
        return max(0, self.space.room)

    def _note_for_people(self, now: float) -> str:
        """Why it takes no work, in a line; "" while it does."""
        if self._draining:
            return f"leaving: {self._draining}"
        if self._paused:
            return self._paused
        if self._pool_lost:
            return self._pool_lost
        if self.disk.full:
            return f"the spool is full: {self.disk.full}"
        if self.space.too_large and not self.held_shards.unfinished:
            return self.space.too_large
        if self.push_policy.stuck:
            return self.push_policy.stuck
        if self.held_shards.waiting and not self.slots.busy and self.dispatch.ready:
            return self._why_nothing_runs()
        return "; ".join(f"takes no {kind} jobs: {why}" for kind, why in self.held_shards.unfit.items())

    def _why_nothing_runs(self) -> str:
        if self.pull_policy.stuck:
            return f"inputs do not come: {self.pull_policy.stuck}"
        return "no room in the disk budget until results are pushed" if self.pull_policy.idle else "pulling its inputs"

    # --- leaving ---

    def _end_drain(self, now: float) -> None:
        if self.may_leave and not self.talk.up and not self.talk.ever:
            self._orders.append(Quit(None))
        elif self.may_leave and self._held_up():
            self._link_down("leaving")
            self._orders.append(Redial(0.0))
        elif self._idle and now - self._progress_at > UNHEARD_SECONDS:
            self._orders.append(Quit(None))
        elif not self.slots.busy and now - self._progress_at > STUCK_SECONDS:
            self._orders.append(Quit(self._why_stuck()))

    def _held_up(self) -> bool:
        """Whether the coordinator holds an answer that an agent about to leave does not need."""
        asked = self.talk.asked
        return asked is not None and isinstance(asked.message, Sync) and asked.wait > HANG_UP_SECONDS

    def _why_stuck(self) -> LinkError:
        why = self.push_policy.stuck if self.talk.session else self.talk.why_down
        hint = "they are kept in the spool; `agent join` with the same name and spool offers them again"
        return LinkError(f"left with {self.to_push} finished shards not pushed: {why or 'no answer'}", hint)

    # --- for the process, and tests ---

    def snapshot(self) -> Snapshot:
        """What there is now."""
        return Snapshot(
            up=self.talk.up,
            asked=self.talk.asked is not None,
            linked=bool(self.talk.session),
            ready=self.dispatch.ready,
            busy=tuple(slot.number for slot in self.slots.every if slot.flights),
            why_idle=self._why_idle(),
            running=sum(len(holding.placed) for holding in self.held_shards.holdings.values()),
            waiting=self.held_shards.waiting,
            finished=self.to_push,
        )

    def _why_idle(self) -> str:
        """In a few words, for people; "" while it works."""
        if self._paused:
            return self._paused
        if not self.talk.session:
            return self.talk.why_down if not self.talk.up else "saying hello"
        if not self.dispatch.ready:
            return self._pool_lost or "starting its workers"
        if self.talk.note:
            return self.talk.note
        return "" if self.busy else "no work"

    def sanity_check(self) -> None:
        """Raise if the state contradicts itself. For tests."""
        self.held_shards.sanity_check()
        self.dispatch.sanity_check()
        self.space.sanity_check()
        self.push_policy.sanity_check()
