"""What people change of jobs and agents: checked here, done by the scheduler, and stored as it says."""

from __future__ import annotations

import logging

import msgspec

from muster.coordinator.api import requests as a
from muster.coordinator.api.status import SUBMIT_AGAIN
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.jobs import drivers
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import dependencies
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Job
from muster.jobs.common.errors import NotFoundError, RefusedError
from muster.jobs.common.units import counted
from muster.jobs.contract.states import SETTLED

log = logging.getLogger("muster.daemon")

NAMES_SHOWN = 3

_AS_SUBMITTED = "\nits code is what was submitted; `coordinator submit job.yaml --from {}` takes what was edited since"


def cancel(engine: Engine, asked: a.Cancel) -> a.Done:
    job = engine.job(asked.job)
    if job.ended:
        raise RefusedError(f"{job.id} is {job.state} already", "`coordinator rm` deletes it")
    engine.handle(e.Cancelled(job.id))
    return a.Done(f"{job.id} is cancelled; `coordinator retry {job.id}` would go on with it")


def pause(engine: Engine, asked: a.Pause) -> a.Done:
    job = engine.job(asked.job)
    if job.state != "running":
        raise RefusedError(f"{job.id} is {job.state}", "only a running job can be paused")
    engine.handle(e.Paused(job.id))
    return a.Done(f"{job.id} is paused; what runs on agents ends and is kept")


def resume(engine: Engine, asked: a.Resume) -> a.Done:
    job = engine.job(asked.job)
    if job.state != "paused":
        raise RefusedError(f"{job.id} is {job.state}", f"`coordinator retry {job.id}` goes on with a halted job")
    engine.handle(e.Resumed(job.id))
    awaited = _awaited(engine, job)
    return a.Done(f"{job.id} starts once {awaited} complete" if awaited else f"{job.id} runs again")


def _awaited(engine: Engine, job: Job) -> str:
    """Which others a job waits for before it starts, with their verb; "" where it waits for none."""
    waits = dependencies.waits_for(engine.state, job) if job.state == "waiting" else []
    return f"{' and '.join(waits)} {'is' if len(waits) == 1 else 'are'}" if waits else ""


def prioritise(engine: Engine, asked: a.Priority) -> a.Done:
    job = engine.job(asked.job)
    engine.handle(e.Prioritised(job.id, asked.priority))
    engine.write(lambda store: store.set_priority(job.id, asked.priority))
    return a.Done(f"{job.id} has priority {asked.priority}")


def set_job(engine: Engine, asked: a.SetJob) -> a.Done:
    """The plan's file stays as it was submitted; what is changed of it is stored beside, and told to machines that know
    the job's layers already."""
    job = engine.job(asked.job)
    if job.ended:
        raise RefusedError(f"{job.id} is {job.state} already", "submit it again with another job file")
    live = engine.jobs[job.id]
    live.change_settings(live.settings.changed(asked))
    engine.handle(e.Replanned(job.id, live.plan))
    raw = msgspec.msgpack.encode(live.settings)
    engine.write(lambda store: store.set_settings(job.id, raw))
    engine.sessions.tell_again([live.layer_info(job.id, layer.digest) for layer in job.opened])
    return a.Done(f"{job.id} has {live.settings} for shards that begin from now on")


def retry(engine: Engine, asked: a.Retry) -> a.Done:
    job, names = engine.job(asked.job), asked.layers or []
    digests = tuple(engine.layer_named(job, name).digest for name in names)
    changed = [layer.name for layer in job.layers if layer.state == "changed"]
    if not names and not _has_some_to_retry(job):
        if changed:
            why = f"nothing of {job.id} would run: the source of {', '.join(changed[:NAMES_SHOWN])} changed"
            raise RefusedError(why, SUBMIT_AGAIN.format(job.id))
        raise RefusedError(f"{job.id} is {job.state}: nothing of it failed", "name --layers to run them again")
    plan = engine.jobs[job.id].plan
    if names and plan.driven:
        raise RefusedError(f"the shards of {job.id} were made one after the other", "submit it again to start over")
    if not job.has_begun and (why := dependencies.hopeless(engine.state, job)):
        hint = "`coordinator retry` that one first, or submit this one again with others in `after`"
        raise RefusedError(f"{job.id} cannot start: {why}", hint)
    again, halted, at = job.quarantined, job.state == "halted", engine.jobs[job.id].retry()
    engine.write(lambda store: store.set_retried(job.id, at))
    engine.handle(e.Retried(job.id, digests))
    drivers.start(engine, job.id)
    if awaited := _awaited(engine, job):
        return a.Done(f"{job.id} starts once {awaited} complete")
    if names:
        return a.Done(f"{job.id}: {counted(len(names), 'layer')} to be computed anew")
    same = _AS_SUBMITTED.format(job.id) if plan.work.code is not None else ""
    if changed:
        same += f"\nthe source of {', '.join(changed[:NAMES_SHOWN])} changed: {SUBMIT_AGAIN.format(job.id)}"
    if again and not halted:
        return a.Done(f"{job.id}: {counted(again, 'shard')} given up, to be run again{same}")
    return a.Done(f"{job.id} runs again{same}")


def _has_some_to_retry(job: Job) -> bool:
    """Whether a retry would change anything: shards that are given up, or a job that stands still with some left."""
    stands = job.state in {"paused", "halted", "cancelled"}
    return bool(job.quarantined) or (stands and any(layer.state not in SETTLED for layer in job.layers))


def drain(engine: Engine, asked: a.Drain) -> a.Done:
    if asked.agent not in {agent.name for agent in engine.state.present_agents()}:
        raise NotFoundError(f"no agent called {asked.agent} is here now", "`coordinator agents` lists them")
    engine.handle(e.DrainAsked(asked.agent))
    return a.Done(f"{asked.agent} finishes what runs, hands back the rest and leaves")


def drop_agent(engine: Engine, asked: a.DropAgent) -> a.Done:
    name, state = asked.agent, engine.state
    if name in state.expected:
        engine.handle(e.AgentDropped(name))
        return a.Done(f"{name} is given up: what it may have had before the restart does not wait for it any more")
    agent = state.agents.get(name)
    if agent is None or not agent.present:
        raise NotFoundError(f"no agent called {name} is here now", "`coordinator agents` lists them")
    if not (asked.force or agent.away or state.is_silent(agent)):
        hint = f"`coordinator drain {name}` lets it finish and leave; --force ends its session all the same"
        raise RefusedError(f"{name} is connected, and was heard of just now", hint)
    held = sum(len(holding.everything()) for holding in agent.holdings.values())
    finished = sum(len(holding.finished) for holding in agent.holdings.values())
    engine.handle(e.AgentDropped(name))
    what = f"the {counted(held, 'shard')} that it had, {finished} of them finished, may run elsewhere at once"
    return a.Done(f"{name} is given up: {what if held else 'it had no shards'}")


def kick(engine: Engine, asked: a.Kick) -> a.Done:
    job, number = engine.job(asked.job), asked.number
    layer = engine.layer_named(job, asked.layer)
    shard = f"{job.id}/{layer.name}/{number}"
    if number >= layer.count:
        raise NotFoundError(f"{job.id}/{layer.name} has {counted(layer.count, 'shard')}, no {number}")
    agents = sorted({h.agent for h in layer.holdings.values() if number in h.open or number in h.finished})
    if not agents:
        raise RefusedError(f"{shard} is on no machine now", f"`coordinator explain {shard}` says where it is")
    engine.shard_history.note("kicked", layer.digest, "", [(number, number + 1)])
    engine.handle(e.Kicked(layer.digest, number))
    return a.Done(f"{shard} is taken from {', '.join(agents)}, and runs elsewhere if another machine can run it")


# --- what the scheduler wants kept ----------------------------------------------------------------------------


def store_job(engine: Engine, action: c.StoreJob) -> None:
    job, state, why = action.job, action.state, action.why
    live = engine.jobs[job]
    live.change_state(state)
    engine.figures.turned(engine, job, state, why)
    log.info("%s is %s%s", job, state, f": {why}" if why else "")
    ended, untold = live.ended, live.untold
    engine.write(lambda store: store.set_job(job, state, why, ended, untold))
    if state == "running":
        drivers.start(engine, job)
    for listener in engine.job_listeners:
        listener(job, state, why)


def store_success(engine: Engine, action: c.StoreSuccess) -> None:
    engine.write(lambda store: store.set_succeeded(action.job))


def store_layer(engine: Engine, action: c.StoreLayer) -> None:
    engine.write(lambda store: store.set_layer(action.job, action.layer, action.state, action.generation))


def raise_high_water(engine: Engine, action: c.RaiseHighWater) -> None:
    engine.background(_raise_high_water(engine, action))


async def _raise_high_water(engine: Engine, action: c.RaiseHighWater) -> None:
    await engine.ask(lambda store: store.raise_high_water(action.job, action.layer, action.value))
    engine.handle(e.HighWaterStored(action.job, action.layer, action.value))
