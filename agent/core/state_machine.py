"""The agent's decisions: what to run, say, push and delete. Events and the time in, actions out; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster.agent.core import disk_budget, dispatch, pull_policy, push_policy, round_sheets
from muster.agent.core.actions import Action, Copy, Delete, Quit, Redial, Tell
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
from muster.agent.core.state import State
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
        self.state = State(who, left.inputs, left.codes)
        self.ended = False
        self._paused = ""  # why no processor is lent; "" while some are
        self._pool_lost = ""  # why, and what is done about it; "" until it is, and once it is there again
        self._progress_at = 0.0  # when a drain last got on
        for found in left.parts:
            part = Part(found.name, found.farm, found.layer, found.nbytes, found.attempts, since=0.0)
            if not self.state.finished_parts.add(part):
                self.state.emit(Delete(part.name))
        for loss in left.losses:
            self.state.reports.lose(loss)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take note of what happened; say what to do."""
        if self.ended:
            return []
        self._note(event, now)
        self._act(now)
        orders, self.state.actions = self.state.actions, []
        if any(isinstance(order, Quit) for order in orders):
            self.ended = True
        return orders

    # --- taking note ---

    def _note(self, event: Event, now: float) -> None:
        match event:
            case Ticked():
                pass
            case PoolStarted():
                self.state.ready, self._pool_lost = True, ""
            case PoolLost(reason):
                self.state.ready, self._pool_lost = False, reason
            case LinkUp(farm):
                self._link_up(farm)
            case LinkDown(reason, lasting):
                if lasting and reason != self.state.talk.why_down:
                    self.state.emit(Tell(f"no link: {reason}; trying again each minute, going on with what is here"))
                self._link_down(reason)
            case Heard(message):
                self._hear(message, now)
            case BatchEnded():
                self._progress_at = now
                dispatch.ended(self.state, event, now)
            case WorkerDied():
                self._progress_at = now
                dispatch.died(self.state, event, now)
            case SlotsSeen():
                dispatch.seen(self.state, event, now)
            case SpaceSeen(free):
                self.state.disk.free = free
                disk_budget.make(self.state, 0)
            case DrainAsked(why):
                self._drain(why, now)
            case PartDamaged(name):
                self.state.damaged(name)
            case PushUp() | PushDown() | PushAnswered():
                self._pushed(event, now)
            case PullUp() | Pulled() | NotPulled():
                self._pulled(event, now)
            case SheetCame() | Unfollowed():
                round_sheets.note(self.state, event, now)
            case LinkFailed(error):
                self.state.emit(Quit(error))
            case Lent():
                self._lend(event)

    def _link_up(self, farm: str) -> None:
        if farm:
            self.state.move_to(farm)
        self.state.talk.opened()
        self.state.reports.unanswered()

    def _link_down(self, reason: str) -> None:
        self.state.talk.closed(reason)
        self.state.reports.unanswered()

    def _hear(self, message: Welcome | News | Rejected | Bye, now: float) -> None:
        match message:
            case Welcome():
                self.state.reports.answered()
                self.state.talk.welcomed(message)
                self.state.move_to(message.farm)
                push_policy.welcomed(self.state)
                pull_policy.welcomed(self.state)
                self._catch_up(message, now)
            case News():
                self.state.reports.answered()
                self.state.talk.heard(message, now)
                self._catch_up(message, now)
                self._take_on(message, now)
            case Rejected():
                self.state.reports.unanswered()
                self.state.actions += self.state.talk.rejected(message, now)
            case Bye():
                self._bye(message)

    def _bye(self, bye: Bye) -> None:
        """The end of a drain, or of the coordinator."""
        if self.state.draining and self.state.talk.asked and isinstance(self.state.talk.asked.message, Leave):
            self.state.emit(Quit(None))
            return
        self._link_down(bye.reason)
        self.state.emit(Redial(1.0))

    def _catch_up(self, said: Welcome | News, now: float) -> None:
        """What is no longer wanted. It may have been said before."""
        for layer in said.gone:
            push_policy.delete(self.state, self.state.gone(layer))
        for committed in said.committed:
            push_policy.delete(self.state, self.state.settle(committed.layer, RangeSet(committed.numbers)))
        for drop in said.drops:
            self.state.drop(drop)
        dispatch.kill_unwanted(self.state, now)

    def _take_on(self, news: News, now: float) -> None:
        """New work."""
        for info in news.layers:
            self.state.learn(info)
        push_policy.granted(self.state, {grant.layer for grant in news.grants})
        known = [self.state.grant(grant, now) for grant in news.grants]
        if not all(known):
            self.state.emit(Tell("the coordinator granted work of an unknown layer; saying hello again"))
            self.state.talk.lost_track()
        if news.drain:
            self._drain("the coordinator asked for it", now)
        if self.state.draining or self._paused:
            self.state.give_back_waiting()

    def _lend(self, event: Lent) -> None:
        """More or fewer processors, at once. Who leaves finishes what runs, paused or not."""
        if self.state.draining:
            return
        self.state.slots.lend(event.cpus)
        paused = "" if event.cpus else event.why or "paused"
        if paused and paused != self._paused:
            self.state.emit(Tell(f"{paused}: what runs is stopped where it is, the rest handed back"))
        self._paused = paused
        if paused:
            self.state.give_back_waiting()

    def _drain(self, why: str, now: float) -> None:
        if self.state.draining:
            return
        self.state.draining, self.state.draining_since, self._progress_at = why, now, now
        self._paused = ""
        self.state.slots.lend(self.state.slots.lent or len(self.state.slots.every))
        self.state.give_back_waiting()
        self.state.emit(Tell(f"leaving ({why}): finishing what runs, handing back the rest"))

    def _pushed(self, event: PushUp | PushDown | PushAnswered, now: float) -> None:
        if isinstance(event, PushAnswered):
            self._progress_at = now
            self.state.talk.hope(now)
        push_policy.note(self.state, event, now)
        if self.state.talk.session and self.state.push.dead_session == self.state.talk.session:
            self.state.talk.lost_track()

    def _pulled(self, event: PullUp | Pulled | NotPulled, now: float) -> None:
        was_stuck = self.state.pull.stuck
        pull_policy.note(self.state, event, now)
        if self.state.pull.stuck and not was_stuck and not isinstance(event, PullUp):
            self.state.emit(Tell(f"inputs do not come: {self.state.pull.stuck}"))
        if self.state.talk.session and self.state.pull.dead_session == self.state.talk.session:
            self.state.talk.lost_track()

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
        if not self.state.in_place and not self.state.draining:
            pull_policy.ask(self.state, now)
        if not self.state.in_place:
            round_sheets.follow(self.state, now)
        dispatch.balance(self.state, now)
        dispatch.place(self.state, now)
        dispatch.kill_late(self.state, now)
        push_policy.next_bundle(self.state, self._in_a_hurry, now)
        self._speak(now)
        if self.state.draining:
            self._end_drain(now)

    def _speak(self, now: float) -> None:
        if self.state.talk.hello_due(now):
            letter = self.state.reports.post_hello()
            self.state.emit(self.state.talk.hello(letter, self.state.held(), now))
            return
        if self.may_leave and self.state.talk.free and self.state.talk.session:
            self.state.emit(self.state.talk.leave(now))
            return
        note = self._note_for_people(now)
        told = self.state.talk.lent == self.state.slots.lent and not (self.state.talk.hungry and not self._hungry(now))
        pressing = self.state.reports.next.pressing or not told
        if self.state.talk.sync_due(pressing, self._polling(now), not self.busy and self._hungry(now), now):
            self.state.talk.note = note
            wait = self.state.talk.wait(self._idle, self._polling(now))
            letter = self.state.reports.post()
            hungry, room = self._hungry(now), self.room(now)
            counts = self.state.counts() if self.state.talk.counts_due(now) else None
            self.state.emit(self.state.talk.sync(letter, room, hungry, self.state.slots.lent, wait, counts, now))

    @property
    def _in_a_hurry(self) -> bool:
        """Whether finished work should be pushed before there is much of it."""
        stands_still = self.state.waiting and pull_policy.idle(self.state) and not self.state.slots.busy
        return bool(self.state.draining or self._paused or stands_still or disk_budget.is_short(self.state))

    @property
    def may_leave(self) -> bool:
        """Whether a drain has nothing more to do."""
        done = not self.busy and not self._to_push_now and self.state.push.under_way is None
        return bool(self.state.draining) and done and not self.state.reports.pending

    def patience(self, now: float) -> float:
        """Seconds after which it wants to hear of the time if nothing else happens."""
        if self.state.reports.next.pressing and self.state.talk.free and self.state.talk.session:
            return self.state.talk.gap_left(now)
        return TICK_BUSY_SECONDS if self.busy else TICK_IDLE_SECONDS

    @property
    def busy(self) -> bool:
        return bool(self.state.unfinished) or self.state.slots.busy

    @property
    def to_push(self) -> int:
        """Finished shards nobody has acknowledged."""
        return self.state.finished_parts.count(self.state.farm)

    @property
    def _to_push_now(self) -> int:
        """Those of them that are not kept for a job that is damaged."""
        parts, farm = self.state.finished_parts, self.state.farm
        return self.to_push - sum(len(parts.live(farm, layer)) for layer in self.state.push.put_off)

    @property
    def _idle(self) -> bool:
        """Nothing here is going to be news, so an answer may be held as long as it likes."""
        return not self.busy and not self._to_push_now

    def _hungry(self, now: float) -> bool:
        return not (self.state.draining or self._paused) and not self.state.disk.closed(now) and self.state.ready

    def _polling(self, now: float) -> bool:
        """Whether a slot is short of work, and only the coordinator can help."""
        has_room = self.room(now) > 0 and self.room(now) >= disk_budget.least_cost(self.state)
        return self._hungry(now) and has_room and self.state.waiting < max(1, self.state.slots.idle)

    def room(self, now: float) -> int:
        """Bytes of output the coordinator may grant."""
        if self.state.draining or self.state.disk.closed(now):
            return 0
        return max(0, disk_budget.room(self.state))

    def _note_for_people(self, now: float) -> str:
        """Why it takes no work, in a line; "" while it does."""
        if self.state.draining:
            return f"leaving: {self.state.draining}"
        if self._paused:
            return self._paused
        if self._pool_lost:
            return self._pool_lost
        if self.state.disk.full:
            return f"the spool is full: {self.state.disk.full}"
        if self.state.too_large and not self.state.unfinished:
            return self.state.too_large
        if self.state.push.stuck:
            return self.state.push.stuck
        if self.state.waiting and not self.state.slots.busy and self.state.ready:
            return self._why_nothing_runs()
        return "; ".join(f"takes no {kind} jobs: {why}" for kind, why in self.held_shards.unfit.items())

    def _why_nothing_runs(self) -> str:
        if self.state.pull.stuck:
            return f"inputs do not come: {self.state.pull.stuck}"
        return (
            "no room in the disk budget until results are pushed"
            if pull_policy.idle(self.state)
            else "pulling its inputs"
        )

    # --- leaving ---

    def _end_drain(self, now: float) -> None:
        if self.may_leave and not self.state.talk.up and not self.state.talk.ever:
            self.state.emit(Quit(None))
        elif self.may_leave and self._held_up():
            self._link_down("leaving")
            self.state.emit(Redial(0.0))
        elif self._idle and now - self._progress_at > UNHEARD_SECONDS:
            self.state.emit(Quit(None))
        elif not self.state.slots.busy and now - self._progress_at > STUCK_SECONDS:
            self.state.emit(Quit(self._why_stuck()))

    def _held_up(self) -> bool:
        """Whether the coordinator holds an answer that an agent about to leave does not need."""
        asked = self.state.talk.asked
        return asked is not None and isinstance(asked.message, Sync) and asked.wait > HANG_UP_SECONDS

    def _why_stuck(self) -> LinkError:
        why = self.state.push.stuck if self.state.talk.session else self.state.talk.why_down
        hint = "they are kept in the spool; `agent join` with the same name and spool offers them again"
        return LinkError(f"left with {self.to_push} finished shards not pushed: {why or 'no answer'}", hint)

    # --- for the process, and tests ---

    def snapshot(self) -> Snapshot:
        """What there is now."""
        return Snapshot(
            up=self.state.talk.up,
            asked=self.state.talk.asked is not None,
            linked=bool(self.state.talk.session),
            ready=self.state.ready,
            busy=tuple(slot.number for slot in self.state.slots.every if slot.flights),
            why_idle=self._why_idle(),
            running=sum(len(holding.placed) for holding in self.state.holdings.values()),
            waiting=self.state.waiting,
            finished=self.to_push,
        )

    def _why_idle(self) -> str:
        """In a few words, for people; "" while it works."""
        if self._paused:
            return self._paused
        if not self.state.talk.session:
            return self.state.talk.why_down if not self.state.talk.up else "saying hello"
        if not self.state.ready:
            return self._pool_lost or "starting its workers"
        if self.state.talk.note:
            return self.state.talk.note
        return "" if self.busy else "no work"
