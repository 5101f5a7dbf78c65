"""The scheduler's door: one event in, the commands it calls for out. Dispatches; decides nothing itself."""

from __future__ import annotations

from muster.coordinator.scheduler import commits, dependencies, failures, grants, job_states, jobs, layers, sessions
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.actions import Action
from muster.coordinator.scheduler.entities import Problem, Said
from muster.coordinator.scheduler.state import State
from muster.coordinator.scheduler.timing import Timing

LATE_TICKS = 3  # a tick later than so many is the daemon's own doing


class Scheduler:
    """Pure: the same events at the same times give the same commands."""

    def __init__(
        self,
        boot: int,
        timing: Timing | None = None,
        expected: frozenset[str] = frozenset(),
        answers: dict[Problem, Said] | None = None,
    ) -> None:
        self.state = State(boot, timing or Timing(), expected, answers)

    def handle(self, event: e.Event, now: float) -> list[Action]:
        state = self.state
        self._react(event, now)
        while state.jobs_turned or state.work_added or state.layers_wanted:
            if state.jobs_turned:
                state.jobs_turned = False
                dependencies.look(state)
            added, state.work_added, state.layers_wanted = state.work_added, False, False
            layers.open_some(state)
            if added or state.work_added:
                state.work_added = False
                grants.feed_all(state, now)
        commands, state.commands = state.commands, []
        return commands

    def _react(self, event: e.Event, now: float) -> None:
        state = self.state
        match event:
            case e.Synced():
                self._synced(event, now)
            case e.Moved():
                if agent := state.by_session.get(event.session):
                    agent.hear(now)
            case e.Offered():
                commits.judge(state, event)
            case e.BundleCommitted():
                commits.commit(state, event, now)
            case e.HighWaterStored():
                layers.mark_raised(state, event)
            case e.Ticked():
                self._ticked(now)
            case e.Joined():
                sessions.join(state, event, now)
            case e.HungUp():
                grants.go_on_without(state, event.session, now)
            case e.Departed():
                if agent := state.by_session.get(event.session):
                    sessions.part(state, agent, "left")
            case e.Uncommitted():
                commits.uncommit(state, event)
            case e.SourceChanged():
                jobs.change(state, event)
            case e.SourceKept():
                jobs.keep(state, event)
            case e.LayerMerged():
                layers.merged(state, event.job, event.layer, event.generation)
            case e.SpaceMeasured():
                state.free = event.free
                layers.open_some(state)
            case _:
                self._react_to_people(event, now)

    def _react_to_people(self, event: e.Event, now: float) -> None:
        """What users and drivers ask for. The daemon has checked that the job or agent exists."""
        state = self.state
        match event:
            case e.JobAdded():
                jobs.add(state, event, now)
            case e.JobDamaged():
                jobs.damage(state, event)
            case e.Advanced():
                jobs.advance(state, event, now)
                grants.give_near(state, event, now)
            case e.DriverOpened():
                state.jobs[event.job].goes_on = event.goes_on
            case e.DriverFailed():
                job_states.halt(state, state.jobs[event.job], event.why)
            case e.MergeRefused():
                layers.merge_refused(state, event)
            case e.Cancelled():
                jobs.cancel(state, state.jobs[event.job])
            case e.Paused():
                job_states.set_state(state, state.jobs[event.job], "paused")
            case e.Resumed():
                dependencies.begin(state, state.jobs[event.job])
            case e.Prioritised():
                state.jobs[event.job].priority = event.priority
            case e.Replanned():
                state.jobs[event.job].plan = event.plan
                state.work_added = True  # who was too small for it may suit now
            case e.Removed():
                jobs.remove(state, event.job)
            case e.Retried():
                jobs.retry(state, event)
            case e.DrainAsked():
                sessions.drain(state, state.agents[event.agent])
            case e.AgentDropped():
                sessions.give_up(state, event.agent, now)
            case e.Kicked():
                failures.kick(state, event)
            case _:
                raise AssertionError(f"an event the scheduler does not know: {event!r}")

    def _synced(self, event: e.Synced, now: float) -> None:
        state = self.state
        agent = state.by_session.get(event.session)
        if agent is None:
            sessions.reject_unknown(state, event.session)
            return
        agent.hear(now)
        agent.room, agent.link_out = event.room, event.link_out
        told, agent.told = agent.told, state.last_attempt  # it wrote this knowing what the last one was answered
        if event.lent is not None:
            agent.paused, agent.cpus = event.lent == 0, event.lent or agent.cpus
        if event.finished or event.failures or event.losses:
            agent.progressed = now
        for digest in event.changed:
            jobs.doubt_source(state, agent, digest)
        for finished in event.finished:
            commits.finish(state, agent, finished, now)
        for failure in event.failures:
            failures.fail(state, agent, failure)
        for loss in event.losses:
            failures.lose(state, agent, loss)
        for returned in event.returned:
            failures.give_back(state, agent, returned)
        if event.counts is not None and sessions.doubt(state, agent, event.counts, told, now):
            return
        agent.hungry = event.hungry and agent.state == "live"
        grants.feed(state, agent, now)

    def _ticked(self, now: float) -> None:
        state = self.state
        if state.last_tick is not None:
            late = now - state.last_tick - state.timing.tick
            if late > LATE_TICKS * state.timing.tick:
                sessions.pardon(state, late, now)
        else:
            state.jobs_turned = True  # all that the store has is there by now
        state.last_tick = now
        sessions.expire(state, now)
        sessions.release_limbo_if_due(state, now)
        sessions.free_kernels(state)
        grants.refresh(state)
        grants.help_rounds(state, now)
