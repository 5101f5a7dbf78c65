"""The agent core's door: event and time in, actions out; what to say, and when to leave. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.agent.core import disk_budget, dispatch, pull_policy, push_policy, round_sheets
from muster.agent.core.account import Cores
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
    Needs,
    NotPulled,
    PackagesCame,
    PartDamaged,
    PlaceRefused,
    PoolFellBack,
    PoolLost,
    PoolOpened,
    Pulled,
    PullUp,
    PushAnswered,
    PushDown,
    PushUp,
    SheetCame,
    SlotGone,
    SlotsSeen,
    SlotUp,
    SpaceSeen,
    Ticked,
    Unfollowed,
    WorkerDied,
)
from muster.agent.core.finished_parts import Part
from muster.agent.core.state import State
from muster.coordinator.protocol.control import (
    Bye,
    Hello,
    Leave,
    Loss,
    MachineAccount,
    News,
    Rejected,
    Sync,
    Welcome,
)
from muster.jobs.common.errors import LinkError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import counted, format_size

STUCK_SECONDS = 60.0  # a drain that gets nothing done for so long ends without having pushed all
UNHEARD_SECONDS = 5.0  # how long a drain with nothing left here tries to say goodbye
TICK_BUSY_SECONDS = 0.1
TICK_IDLE_SECONDS = 0.2
NARROWED_TOLD = 16  # jobs of which a sync says that fewer shards run than are lent for them
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
    lasting: bool  # whether there is none until a person does something about it
    ready: bool  # whether a slot is up
    busy: tuple[int, ...]  # slots with a batch in flight
    demand: Mapping[Needs, int]  # what workers there is work for, and how many
    why_idle: str  # in a few words, for people; "" while it works
    running: int  # shards in a batch whose run of them counts
    waiting: int
    finished: int  # shards nobody has acknowledged


class AgentCore:
    """One agent process. After a Quit nothing more is ordered."""

    def __init__(self, who: Hello, left: Left | None = None) -> None:
        left = left or Left()
        self.state = state = State(who, left.inputs, left.codes)
        self.ended = False
        for found in left.parts:
            part = Part(found.name, found.farm, found.layer, found.nbytes, found.attempts, since=0.0)
            if not state.finished_parts.add(part):
                state.emit(Delete(part.name))
        for loss in left.losses:
            state.reports.lose(loss)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take note of what happened; say what to do."""
        if self.ended:
            return []
        self.state.account.advance(_cores(self.state), now)
        _note(self.state, event, now)
        _act(self.state, now)
        actions, self.state.actions = self.state.actions, []
        self.ended = any(isinstance(action, Quit) for action in actions)
        return actions

    def patience(self, now: float) -> float:
        """Seconds after which it wants to hear of the time if nothing else happens."""
        state = self.state
        if state.reports.next.pressing and state.talk.free and state.talk.session:
            return state.talk.gap_left(now)
        return TICK_BUSY_SECONDS if state.busy else TICK_IDLE_SECONDS

    def snapshot(self) -> Snapshot:
        """What there is now."""
        state = self.state
        return Snapshot(
            up=state.talk.up,
            asked=state.talk.asked is not None,
            linked=bool(state.talk.session),
            lasting=state.talk.lasting and not state.talk.up,
            ready=state.slots.ready,
            busy=tuple(slot.number for slot in state.slots.every if slot.flights),
            demand=dispatch.demand(state) if state.slots.on_demand else {},
            why_idle=_why_idle(state),
            running=sum(len(holding.placed) for holding in state.holdings.values()),
            waiting=state.waiting,
            finished=state.to_push,
        )


# --- taking note ---


def _note(state: State, event: Event, now: float) -> None:
    match event:
        case Ticked():
            pass
        case SlotUp(slot, place, given):
            state.slots.up(slot, place, given)
            state.pool_lost = ""
        case PoolOpened():
            state.slots.on_demand, state.pool_lost = True, ""
        case PlaceRefused(place, why):
            state.refused[place] = why
            state.emit(Tell(f"nothing is run on node {place}: {why}"))
        case SlotGone():
            dispatch.gone(state, event, now)
        case PoolFellBack(why):
            state.emit(Tell(f"works in plain processes: {why}"))
        case PoolLost(reason, error):
            state.slots.down()
            state.pool_lost = reason
            if error is not None:
                state.emit(Quit(error))
        case LinkUp(farm):
            _link_up(state, farm)
        case LinkDown(reason, lasting):
            if lasting and reason != state.talk.why_down:
                state.emit(Tell(f"no link: {reason}; trying again each minute, going on with what is here"))
            _link_down(state, reason)
            state.talk.lasting = lasting
        case Heard(message):
            _hear(state, message, now)
        case BatchEnded():
            state.progress_at = now
            dispatch.ended(state, event, now)
        case PackagesCame(packages, envs):
            state.talk.learnt(list(packages), dict(envs))
        case WorkerDied():
            state.progress_at = now
            dispatch.died(state, event, now)
        case SlotsSeen():
            dispatch.seen(state, event, now)
        case SpaceSeen(free):
            state.disk.free = free
            disk_budget.make(state, 0)
        case DrainAsked(why):
            _drain(state, why, now)
        case PartDamaged(name):
            state.damaged(name)
        case PushUp() | PushDown() | PushAnswered():
            _pushed(state, event, now)
        case PullUp() | Pulled() | NotPulled():
            _pulled(state, event, now)
        case SheetCame() | Unfollowed():
            round_sheets.note(state, event, now)
        case LinkFailed(error):
            state.emit(Quit(error))
        case Lent():
            _lend(state, event)


def _link_up(state: State, farm: str) -> None:
    if farm:
        state.move_to(farm)
    state.talk.opened()
    _unanswered(state)


def _link_down(state: State, reason: str) -> None:
    state.talk.closed(reason)
    _unanswered(state)


def _unanswered(state: State) -> None:
    state.reports.unanswered()
    state.account.say_again()


def _hear(state: State, message: Welcome | News | Rejected | Bye, now: float) -> None:
    match message:
        case Welcome():
            state.reports.answered()
            state.talk.welcomed(message)
            state.move_to(message.farm)
            push_policy.welcomed(state)
            pull_policy.welcomed(state)
            _catch_up(state, message, now)
        case News():
            state.reports.answered()
            state.talk.heard(message, now)
            _catch_up(state, message, now)
            _take_on(state, message, now)
        case Rejected():
            _unanswered(state)
            state.actions += state.talk.rejected(message, now)
        case Bye():
            _bye(state, message)


def _bye(state: State, bye: Bye) -> None:
    """The end of a drain, or of the coordinator."""
    if state.draining and state.talk.asked and isinstance(state.talk.asked.message, Leave):
        state.emit(Quit(None))
        return
    _link_down(state, bye.reason)
    state.emit(Redial(1.0))


def _catch_up(state: State, said: Welcome | News, now: float) -> None:
    """What is no longer wanted. It may have been said before."""
    for layer in said.gone:
        push_policy.delete(state, state.gone(layer))
    for committed in said.committed:
        push_policy.delete(state, state.settle(committed.layer, RangeSet(committed.numbers)))
    for drop in said.drops:
        state.drop(drop)
    if said.differs is not None:
        _differ(state, said.differs)
    dispatch.kill_unwanted(state, now)


def _differ(state: State, kinds: dict[str, str]) -> None:
    """Say what is new of the kinds that nothing is granted of, because bits found here are not those of others."""
    for kind in state.differs.keys() - kinds.keys():
        state.emit(Tell(f"takes {kind} jobs again"))
    for kind, why in kinds.items():
        if state.differs.get(kind) != why:
            state.emit(Tell(f"takes no {kind} jobs: {why}"))
    state.differs = kinds


def _take_on(state: State, news: News, now: float) -> None:
    """New work."""
    for info in news.layers:
        state.learn(info)
    push_policy.granted(state, {grant.layer for grant in news.grants})
    known = [state.grant(grant, now) for grant in news.grants]
    if not all(known):
        state.emit(Tell("the coordinator granted work of an unknown layer; saying hello again"))
        state.talk.lost_track()
    if news.drain:
        _drain(state, "the coordinator asked for it", now)
    if state.draining or state.paused:
        state.give_back_waiting()


def _lend(state: State, event: Lent) -> None:
    """More or fewer processors, at once. Who leaves finishes what runs, paused or not."""
    if state.draining:
        return
    state.slots.lend(event.cpus)
    paused = "" if event.cpus else event.why or "paused"
    if paused and paused != state.paused:
        becomes = "ends" if state.slots.on_demand else "is stopped where it is"
        state.emit(Tell(f"{paused}: what runs {becomes}, the rest handed back"))
    state.paused = paused
    if paused:
        state.give_back_waiting()


def _drain(state: State, why: str, now: float) -> None:
    if state.draining:
        return
    state.draining, state.draining_since, state.progress_at = why, now, now
    state.paused = ""
    state.slots.lend(state.slots.lent or len(state.slots.every))
    state.give_back_waiting()
    state.emit(Tell(f"leaving ({why}): finishing what runs, handing back the rest"))


def _pushed(state: State, event: PushUp | PushDown | PushAnswered, now: float) -> None:
    if isinstance(event, PushAnswered):
        state.progress_at = now
        state.talk.hope(now)
    push_policy.note(state, event, now)
    if state.talk.session and state.push.dead_session == state.talk.session:
        state.talk.lost_track()


def _pulled(state: State, event: PullUp | Pulled | NotPulled, now: float) -> None:
    was_stuck = state.pull.stuck
    pull_policy.note(state, event, now)
    if state.pull.stuck and not was_stuck and not isinstance(event, PullUp):
        state.emit(Tell(f"inputs do not come: {state.pull.stuck}"))
    if state.talk.session and state.pull.dead_session == state.talk.session:
        state.talk.lost_track()


# --- acting ---


def _stay_out(state: State) -> None:
    """Of kinds that this machine computes wrong: a hello tells the coordinator, and what waits of them returns."""
    for kind, why in state.unfit.items():
        if kind not in state.talk.who.unfit:
            state.emit(Tell(f"takes no {kind} jobs, as it computes them wrong: {why}"))
            state.talk.unfit_for(kind, why)
    for holding in state.holdings.values():
        if holding.info.work.kind in state.unfit:
            state.give_back(holding, holding.waiting.copy())


def _act(state: State, now: float) -> None:
    if state.unfit:
        _stay_out(state)
    if not state.slots.ready:  # nobody here will run what waits; others may
        state.give_back_waiting()
    if not state.in_place and not state.draining:
        pull_policy.ask(state, now)
    if not state.in_place:
        round_sheets.follow(state, now)
    dispatch.balance(state, now)
    dispatch.place(state, now)
    dispatch.kill_late(state, now)
    if session := push_policy.offers_in(state, now):
        push_policy.next_bundle(state, session, _in_a_hurry(state), now)
    _speak(state, now)
    if state.draining:
        _end_drain(state, now)


def _speak(state: State, now: float) -> None:
    if not state.talk.free:
        return
    if state.talk.hello_due(now):
        letter = state.reports.post_hello()
        state.emit(state.talk.hello(letter, state.held(), now))
    elif state.talk.session and may_leave(state):
        state.emit(state.talk.leave(now))
    else:
        _sync(state, now)


def _sync(state: State, now: float) -> None:
    """Tell what is new, and ask for work, once it is time for either."""
    talk, hungry = state.talk, _hungry(state, now)
    if not talk.may_sync(hungry and not state.busy, now):
        return
    space = room(state, now)
    told = talk.lent == state.slots.lent and not (talk.hungry and not hungry)
    polling = hungry and _polling(state, space)
    if talk.sync_due(state.reports.next.pressing or not told, polling, now):
        talk.note = _note_for_people(state)
        talk.narrowed = dict.fromkeys(sorted(state.slots.narrow_for)[:NARROWED_TOLD], state.narrowed)
        wait = talk.wait(_idle(state), polling)
        due = talk.counts_due(now)
        counts, places = state.counts() if due else None, state.slots.places if due and state.slots.on_demand else None
        letter = state.reports.post()
        account = _account(state) if talk.account_due(state.account.pressing or not state.busy, now) else None
        state.emit(talk.sync(letter, space, hungry, state.slots.lent, wait, counts, account, places, now))


def _account(state: State) -> MachineAccount:
    state.account.disk_now = state.finished_parts.nbytes + state.inputs.nbytes
    return state.account.told()


def _in_a_hurry(state: State) -> bool:
    """Whether finished work should be pushed before there is much of it."""
    stands_still = state.waiting and pull_policy.idle(state) and not state.slots.busy
    return bool(state.draining or state.paused or stands_still or disk_budget.is_short(state))


def may_leave(state: State) -> bool:
    """Whether a drain has nothing more to do."""
    return bool(state.draining) and _idle(state) and state.push.under_way is None and not state.reports.pending


def _to_push_now(state: State) -> int:
    """Finished shards nobody has acknowledged, but for those that are kept for a job that is damaged."""
    parts, farm = state.finished_parts, state.farm
    return state.to_push - sum(len(parts.live(farm, layer)) for layer in state.push.put_off)


def _idle(state: State) -> bool:
    """Nothing here is going to be news, so an answer may be held as long as it likes."""
    return not state.busy and not _to_push_now(state)


def _hungry(state: State, now: float) -> bool:
    """Whether it takes work."""
    return not (state.draining or state.paused) and not state.disk.closed(now) and state.slots.ready


def _polling(state: State, space: int) -> bool:
    """Whether a slot is short of work, and only the coordinator can help."""
    return space >= max(1, disk_budget.least_cost(state)) and state.waiting < max(1, state.slots.idle)


def room(state: State, now: float) -> int:
    """Bytes of output the coordinator may grant."""
    if state.draining or state.disk.closed(now):
        return 0
    return max(0, disk_budget.room(state))


# --- leaving ---


def _end_drain(state: State, now: float) -> None:
    if may_leave(state) and not state.talk.up and not state.talk.ever:
        state.emit(Quit(None))
    elif may_leave(state) and _held_up(state):
        _link_down(state, "leaving")
        state.emit(Redial(0.0))
    elif _idle(state) and now - state.progress_at > UNHEARD_SECONDS:
        state.emit(Quit(None))
    elif not state.slots.busy and now - state.progress_at > STUCK_SECONDS:
        state.emit(Quit(_why_stuck(state)))


def _held_up(state: State) -> bool:
    """Whether the coordinator holds an answer that an agent about to leave does not need."""
    asked = state.talk.asked
    return asked is not None and isinstance(asked.message, Sync) and asked.wait > HANG_UP_SECONDS


def _why_stuck(state: State) -> LinkError:
    why = state.push.stuck if state.talk.session else state.talk.why_down
    hint = "they are kept in the spool; `agent join` with the same name and spool offers them again"
    return LinkError(f"left with {counted(state.to_push, 'finished shard')} not pushed: {why or 'no answer'}", hint)


# --- where the time goes ---


def _cores(state: State) -> Cores:
    """What the cores are at until something happens."""
    slots, used = state.slots, dict[str, int]()
    for slot in slots.every:
        if slot.flights and slot.frozen_since is None:
            used[slot.job] = used.get(slot.job, 0) + slot.cpus
    return Cores(state.talk.who.cpus, slots.lent, slots.lent - slots.allowed, used, _otherwise(state))


def _otherwise(state: State) -> str:
    """What those are at that run nothing."""
    waits = any(holding.waiting for holding in state.holdings.values())
    if not waits:
        return (
            "no_work" if state.talk.session and state.slots.ready else "starting" if state.talk.session else "cut_off"
        )
    if not state.slots.ready:
        return "starting"
    if not pull_policy.idle(state) or state.pull.stuck:
        return "input"
    return "room" if state.disk.full or not state.slots.busy else "no_work"


# --- for people ---


def _note_for_people(state: State) -> str:
    """Why it takes no work, or less than it lends, in a line; "" while all is well."""
    if state.draining:
        return f"leaving: {state.draining}"
    if state.paused:
        return state.paused
    if state.pool_lost:
        return state.pool_lost
    if state.disk.full:
        return f"the spool is full: {state.disk.full}"
    if state.too_large and not state.unfinished:
        return state.too_large
    if state.push.stuck:
        return state.push.stuck
    asked_for = _asked_for(state)
    if state.waiting and not state.slots.busy and state.slots.ready and not asked_for:
        return _why_nothing_runs(state)
    no_room = [f"the cluster has no room yet: asked for {asked_for}"] if asked_for else []
    unfit = [f"takes no {kind} jobs: {why}" for kind, why in {**state.differs, **state.unfit}.items()]
    unlike = [f"nothing is run on node {place}: {why}" for place, why in state.refused.items()]
    return "; ".join([*no_room, *unfit, *unlike, *([state.narrowed] if state.slots.narrow_for else [])])


def _why_nothing_runs(state: State) -> str:
    if state.pull.stuck:
        return f"inputs do not come: {state.pull.stuck}"
    return "no room in the disk budget until results are pushed" if pull_policy.idle(state) else "pulling its inputs"


def _asked_for(state: State) -> str:
    """The workers that are to come, of sorts that there are none of yet; "" where none are waited for."""
    there = {slot.given for slot in state.slots.every if slot.worker == "up"}
    wanted = dispatch.demand(state) if state.slots.on_demand else {}
    texts = []
    for needs, count in wanted.items():
        if needs in there:
            continue
        each = [
            counted(needs.cpus, "cpu"),
            *([counted(needs.gpus, "gpu")] if needs.gpus else []),
            *([format_size(needs.memory)] if needs.memory else []),
        ]
        texts.append(f"{counted(count, 'worker')} with {' and '.join(each)}")
    return ", ".join(texts)


def _why_idle(state: State) -> str:
    """In a few words, for people; "" while it works."""
    if state.paused:
        return state.paused
    if not state.talk.session:
        return state.talk.why_down if not state.talk.up else "saying hello"
    if not state.slots.ready:
        return state.pool_lost or "starting its workers"
    if state.talk.note:
        return state.talk.note
    return "" if state.busy else "no work"
