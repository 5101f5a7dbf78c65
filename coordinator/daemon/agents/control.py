"""The control channel: what an agent says goes to the scheduler, what the scheduler says goes to the agent's outbox."""

from __future__ import annotations

import logging
import time
from typing import ClassVar

from muster.coordinator.daemon.agents.channel import Answers, Channel
from muster.coordinator.daemon.agents.outbox import Outbox
from muster.coordinator.daemon.connection import Wire
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.views.shard_history import What
from muster.coordinator.farm_root import printed_log
from muster.coordinator.protocol.control import (
    Bye,
    Committed,
    Drop,
    Finished,
    Grant,
    Hello,
    Leave,
    Loss,
    Rejected,
    Returned,
    Sync,
)
from muster.coordinator.protocol.fitting import fitted_hello, fitted_sync
from muster.coordinator.protocol.transfer import Attach
from muster.coordinator.protocol.values import PROTOCOL, Message
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.answers import packed
from muster.coordinator.scheduler.entities import Agent
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import counted
from muster.jobs.common.validation import one_line

log = logging.getLogger("muster.daemon")


class ControlChannel(Channel):
    def __init__(self, engine: Engine, wire: Wire, attach: Attach) -> None:
        super().__init__(engine, wire, attach)
        self._session = 0
        self._name = ""  # of whoever said hello here
        self._outbox: Outbox | None = None

    def clear_up(self) -> None:
        """Nobody will fetch this session's news."""
        if self._engine.sessions.close(self._session):
            self._engine.handle(e.HungUp(self._session))

    def _hello(self, hello: Hello) -> Message:
        engine, hello = self._engine, fitted_hello(hello)
        if hello.protocol != PROTOCOL:
            older = "agent" if hello.protocol < PROTOCOL else "coordinator"
            message = f"the agent speaks protocol {hello.protocol}, the coordinator {PROTOCOL}"
            return Rejected("protocol", message, f"upgrade muster on the {older}'s machine")
        if self._pinned and hello.name != self._pinned:
            log.warning("a key pinned to %s said hello as %s: refused", self._pinned, hello.name)
            return self.other_name()
        if (engine.root.locked_out / hello.name).exists():
            log.warning("%s said hello and is locked out: refused", hello.name)
            hint = "whoever runs the farm lets it in again with `deploy up`"
            return Rejected("not-allowed", f"{hello.name} is locked out of this farm", hint)
        if self._name not in ("", hello.name):
            return Rejected("not-allowed", f"this channel is {self._name}'s", "open another one for another name")
        self._name = hello.name
        engine.sessions.close(self._session)  # of an earlier hello here; a refusal in it has been read
        self._session, self._outbox = _join(engine, hello)
        if self._outbox.rejected:
            return self._outbox.rejected
        self.take_place(hello.name)
        log.info("%s joined from %s with %s", hello.name, one_line(hello.host), counted(hello.cpus, "cpu"))
        engine.figures.machine_event("joined", hello.name, f"joined with {counted(hello.cpus, 'cpu')}")
        timing = engine.state.timing
        return self._outbox.welcome(engine.root.farm, engine.boot, self._session, timing.lease, timing.heartbeat)

    async def _sync(self, sync: Sync) -> Message:
        outbox = self._outbox
        if outbox is None or sync.session != self._session:
            return Rejected("no-session", "this session is not of this channel", "say hello again")
        if outbox.rejected:
            return outbox.rejected
        agent = self._engine.agent_of(sync.session)
        if agent is None:
            return Rejected("no-session", "this session has ended", "say hello again")
        _hear(self._engine, agent, fitted_sync(sync))
        await outbox.wait(min(sync.wait, self._engine.state.timing.lease / 4))
        return outbox.rejected or outbox.news()

    def _leave(self, leave: Leave) -> Message:
        if leave.session == self._session:
            self._engine.handle(e.Departed(leave.session))
            self._engine.sessions.close(leave.session)
        return Bye("you left")

    answers: ClassVar[Answers] = {Hello: _hello, Sync: _sync, Leave: _leave}


# --- what an agent says ---------------------------------------------------------------------------------------


def _join(engine: Engine, hello: Hello) -> tuple[int, Outbox]:
    """A new session for whoever said hello; its mailbox may hold a refusal."""
    session, outbox = engine.sessions.open()
    known = engine.sessions.agents.get(hello.name)
    state = engine.state.agents.get(hello.name)
    taken = state is not None and state.present and state.hello.spool != hello.spool
    names, fingerprints = engine.sessions.earlier_of(hello)
    if not taken:
        engine.sessions.hello(hello)
        if state is not None:
            _note_news(engine, state, hello)
    engine.handle(e.Joined(session, hello, names, fingerprints))
    if outbox.rejected:
        engine.sessions.close(session)
        engine.sessions.restore(hello.name, known)
    engine.sessions.forget_ended(engine.state.by_session)
    return session, outbox


def _hear(engine: Engine, agent: Agent, sync: Sync) -> None:
    engine.sessions.sync(agent.name, sync)
    _count_finished(engine, agent, sync)
    _note_news(engine, agent, sync)
    if sync.account is not None:
        engine.figures.account(engine, agent, sync.account)
    if sync.printed or sync.unprinted:
        _keep_printed(engine, agent.name, sync)
    engine.handle(
        e.Synced(
            session=sync.session,
            room=sync.room,
            hungry=sync.hungry,
            lent=sync.lent if sync.lent >= 0 else None,
            link_out=engine.sessions.agents[agent.name].link_out.rate,
            finished=tuple(sync.finished),
            failures=tuple(sync.failures),
            losses=tuple(sync.losses),
            returned=tuple(sync.returned),
            changed=tuple(sync.changed),
            counts=sync.counts,
        )
    )


def _count_finished(engine: Engine, agent: Agent, sync: Sync) -> None:
    """Of grants that it has, or had: a bundle may be faster than the report."""
    for report in sync.finished:
        layer, key = engine.open_layer(report.layer), (report.layer, report.boot, report.attempt)
        if layer is None or not (key in agent.holdings or key in agent.ended):
            continue
        if told := RangeSet.canonical(report.numbers) & layer.whole:
            fresh = len(told - layer.committed)
            engine.jobs[layer.job].figures.finished(agent.name, report, len(told), fresh)


def _note_news(engine: Engine, agent: Agent, news: Sync | Hello) -> None:
    """For whoever asks what became of a shard that the agent held. Failures are stored anyway."""
    said: list[tuple[What, Finished | Returned | Loss]] = [("lost", loss) for loss in news.losses]
    if isinstance(news, Sync):
        said = [*(("finished", one) for one in news.finished), *(("returned", one) for one in news.returned), *said]
    for what, one in said:
        holding = agent.holdings.get((one.layer, one.boot, one.attempt))
        numbers = RangeSet.canonical(one.numbers) & holding.open if holding else None
        if numbers:
            why = one.reason if isinstance(one, Loss) else ""
            if isinstance(one, Loss) and one.running and holding is not None:
                engine.figures.lost(holding.job, agent.name, len(numbers))
            engine.shard_history.note(what, one.layer, agent.name, numbers, one.boot, one.attempt, why)


def _keep_printed(engine: Engine, agent: str, sync: Sync) -> None:
    """What users' code printed goes to the log of each one's job."""
    by_job: dict[str, list[printed_log.Saying]] = {}
    now = time.time()
    for one in sync.printed:
        if job := _job_of(engine, one.layer):
            name = engine.jobs[job].layers[one.layer].name
            saying = printed_log.Saying(now, agent, name, one.number, one.boot, one.attempt, one.text)
            by_job.setdefault(job, []).append(saying)
    if sync.unprinted and by_job:
        next(iter(by_job.values())).append(printed_log.Saying(now, agent, left_out=sync.unprinted))
    for job, sayings in by_job.items():
        printed_log.append(engine.root.job(job).printed, sayings)


def _job_of(engine: Engine, layer: str) -> str:
    """Whose shards of it run, or ran last; "" for what nobody knows."""
    known = [found] if (found := engine.open_layer(layer)) else engine.state.by_digest.get(layer, [])
    return known[-1].job if known else ""


# --- what the scheduler says ----------------------------------------------------------------------------------


def send_grant(engine: Engine, action: c.SendGrant) -> None:
    _note_run(engine, "granted", action, engine.boot)
    if outbox := engine.sessions.outbox(action.session):
        outbox.grant(_grant(engine, action), engine.jobs[action.job].layer_info(action.job, action.layer))


def _grant(engine: Engine, action: c.SendGrant) -> Grant:
    live = engine.jobs[action.job]
    if live.start():
        engine.figures.began(action.job)
        engine.write(lambda store: store.set_started(action.job, time.time()))
    payloads = engine.state.open_layers[action.layer].payloads
    if sheets := live.sheets_of(action.numbers):
        live.sheets_granted.give()
    return Grant(
        job=action.job,
        layer=action.layer,
        boot=engine.boot,
        attempt=action.attempt,
        numbers=action.numbers.pairs(),
        payloads={n: payloads[n] for n in action.numbers} if payloads else {},
        sheets=sheets,
    )


def send_drop(engine: Engine, action: c.SendDrop) -> None:
    _note_run(engine, "dropped", action, action.boot)
    if outbox := engine.sessions.outbox(action.session):
        outbox.drop(Drop(action.layer, action.boot, action.attempt, action.numbers.pairs(), action.retired))


def _note_run(engine: Engine, what: What, action: c.SendGrant | c.SendDrop, boot: int) -> None:
    agent = engine.agent_of(action.session)
    engine.shard_history.note(what, action.layer, agent.name if agent else "", action.numbers, boot, action.attempt)


def send_committed(engine: Engine, action: c.SendCommitted) -> None:
    if outbox := engine.sessions.outbox(action.session):
        outbox.committed(Committed(action.layer, action.numbers.pairs()))


def send_gone(engine: Engine, action: c.SendGone) -> None:
    if outbox := engine.sessions.outbox(action.session):
        outbox.gone(action.layer)


def send_drain(engine: Engine, action: c.SendDrain) -> None:
    if outbox := engine.sessions.outbox(action.session):
        outbox.ask_to_drain()


def reject(engine: Engine, action: c.Reject) -> None:
    if outbox := engine.sessions.outbox(action.session):
        outbox.reject(Rejected(action.code, action.message, action.hint))


def note_missing(engine: Engine, action: c.NoteMissing) -> None:
    what = "%s has %d shards of %s by what we know and %d by its own count, a bug of ours: it has to say hello"
    log.warning(what, action.agent, action.believed, action.layer, action.said)


def _how_it_went(engine: Engine, agent: Agent) -> str:
    if agent.state == "left":
        return "left"
    lease = engine.state.timing.lease
    return f"is gone: not heard of for {lease:.0f} s" if time.monotonic() - agent.heard >= lease else "is given up"


def store_agent(engine: Engine, action: c.StoreAgent) -> None:
    if not action.live and (agent := engine.state.agents.get(action.agent)):
        engine.shard_history.note_parting(action.agent, agent.state)
        held = counted(sum(map(len, agent.left.values())), "shard")
        how = _how_it_went(engine, agent)
        log.info("%s %s; %s that it held wait again", action.agent, how, held)
        engine.figures.parted(engine, "left" if agent.state == "left" else "gone", action.agent, how)
    engine.keep_agent(action.agent, action.live)


def send_differs(engine: Engine, action: c.SendDiffers) -> None:
    if (agent := engine.agent_of(action.session)) and action.kinds:
        log.warning("%s gets no shards of some kinds: %s", agent.name, "; ".join(action.kinds.values()))
    if outbox := engine.sessions.outbox(action.session):
        outbox.differ(action.kinds)


def store_answers(engine: Engine, _: c.StoreAnswers) -> None:
    raw = packed(engine.state.answers)
    engine.write(lambda store: store.set_answers(raw))
