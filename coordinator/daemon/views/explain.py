"""What `explain` is told of a machine, a job or a shard, in lines for people. Only reads."""

from __future__ import annotations

import time

from muster.coordinator.api.requests import ExplainAgent, ExplainJob, ExplainShard
from muster.coordinator.api.status import SUBMIT_AGAIN, Explained, Happening
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.store.statements import BundleRow, FailureRow
from muster.coordinator.daemon.views.long_shards import slow_shards
from muster.coordinator.daemon.views.shard_history import HistoryEntry
from muster.coordinator.daemon.views.status import notes_of, obstacles_of, waits_line
from muster.coordinator.scheduler import entities
from muster.coordinator.scheduler import state as s
from muster.coordinator.scheduler.round_shares import left_out_line
from muster.jobs.common.errors import NotFoundError
from muster.jobs.common.units import counted, format_duration, format_size
from muster.jobs.contract.plan import Layer

HAPPENINGS_SHOWN = 200
FAILURES_SHOWN = 50
LAYERS_SHOWN = 5

_STATES = {
    "waiting": "it starts by itself once they are complete, and is halted if one of them cannot be",
    "paused": "`coordinator resume {0}` goes on",
    "halted": "`coordinator logs {0}` has the evidence; `coordinator retry {0}` goes on",
    "cancelled": "`coordinator retry {0}` would go on with it",
    "incomplete": "`coordinator logs {0} --failed` has the evidence; `coordinator retry {0}` runs those again;"
    " `coordinator result {0} --partial` has all else",
}


def _ago(seconds: float) -> str:
    return f"{format_duration(round(seconds))} ago" if seconds >= 0.5 else "just now"


# --- a machine --------------------------------------------------------------------------------------------


def explain_agent(engine: Engine, asked: ExplainAgent) -> Explained:
    """What it holds and takes, or why it takes nothing."""
    name = asked.agent
    info = engine.sessions.agents.get(name)
    if info is None:
        raise NotFoundError(f"there is no agent called {name!r}", "`coordinator agents` lists them")
    agent = engine.state.agents.get(name)
    if agent is None or not agent.present:
        ended = engine.sessions.state_of(name, agent)
        gone = "it was not heard of for a lease, its link is down, or `coordinator drop` gave it up"
        why = {"left": "it left in good order", "gone": gone}[ended]
        said = f"is not here: {why}; last heard of {_ago(time.time() - info.seen)}"
        return Explained(f"{name} ({info.host})", [said])
    return Explained(f"{name} ({info.host})", _agent_lines(engine, agent, info.note))


def _agent_lines(engine: Engine, agent: entities.Agent, note: str) -> list[str]:
    now = time.monotonic()
    has = agent.hello
    gpus = f", {counted(len(has.gpus), 'gpu')}" if has.gpus else ""
    lends = f"lends {counted(agent.cpus, 'cpu')}{gpus}, {format_size(has.memory)} of memory"
    lends += f" and {format_size(has.disk)} of disk"
    lines = [f"is {agent.state}, {lends}, heard of {_ago(now - agent.heard)}"]
    if engine.state.is_silent(agent) or agent.away:
        lines.append(f"is not connected, or stands still: `coordinator drop {agent.name}` if it will not come back")
    lines += [f"says: {note}"] if note else []
    named = [f"{name} (Python {env.python})" for name, env in sorted(has.envs.items()) if name]
    lines += [f"has the environments {', '.join(named)}"] if named else []
    lines += [_held_line(engine, holding, now) for holding in agent.holdings.values()][:HAPPENINGS_SHOWN]
    if agent.open_of() == 0:
        lines.append(f"has nothing to run: {_why_idle(engine, agent)}")
    for job in engine.state.running.values():
        lines.append(_takes_line(engine, agent, job))
    return lines


def _why_idle(engine: Engine, agent: entities.Agent) -> str:
    if agent.state == "draining":
        return "it is leaving"
    if agent.paused:
        return "it is paused"
    if not engine.state.running:
        return "no job is running"
    if not agent.hungry:
        return "it asks for no work now"
    return str(agent.idle_because or "it will be given some with its next question")


def _held_line(engine: Engine, holding: entities.Holding, now: float) -> str:
    layer = engine.jobs[holding.job].layers[holding.layer]
    parts = []
    if holding.open:
        which = "" if layer.delivery.in_rounds else f", the first {holding.open.bottom}"
        parts.append(f"{counted(len(holding.open), 'shard')} to run{which}")
    if holding.finished:
        parts.append(f"{len(holding.finished):,} finished, to be pushed")
    run = f"{holding.boot}.{holding.attempt}"
    granted = _ago(now - holding.granted)
    return f"of {holding.job}/{layer.name} it has {' and '.join(parts)} (grant {run}, {granted})"


def _takes_line(engine: Engine, agent: entities.Agent, job: entities.Job) -> str:
    obstacle = engine.state.obstacle(agent, job)
    if obstacle:
        return f"takes nothing of {job.id}: {obstacle}"
    rate = agent.rate(job.id)
    pace = f", lately {rate:.3g} a second" if rate else ""
    return f"may run {counted(agent.slots(job), 'shard')} of {job.id} at once{pace}"


# --- a job ------------------------------------------------------------------------------------------------


def explain_job(engine: Engine, asked: ExplainJob) -> Explained:
    """Why nothing of it runs, or what does."""
    if asked.job in engine.damaged:
        _, error = engine.damaged[asked.job]
        return Explained(asked.job, [f"is damaged: {error.message}", error.hint])
    job = engine.job(asked.job)
    why = job.why or waits_line(engine.state, job)
    lines = [f"is {job.state}" + (f": {why}" if why else "") + f"; {_left(engine, job)}"]
    if job.state in _STATES and (job.quarantined or job.state != "incomplete"):
        lines.append(_STATES[job.state].format(job.id))
    if changed := [layer.name for layer in job.layers if layer.state == "changed"]:
        lines.append(f"the source of {', '.join(changed[:LAYERS_SHOWN])} changed: {SUBMIT_AGAIN.format(job.id)}")
    if job.quarantined:
        lines.append(f"{counted(job.quarantined, 'shard')} given up: `coordinator logs {job.id} --failed`")
    if job.state == "running":
        lines += _running_lines(engine, job)
    return Explained(job.id, lines)


def _left(engine: Engine, job: entities.Job) -> str:
    """Shards, or what its driver counts in their place."""
    if progress := engine.jobs[job.id].progress:
        return f"{progress.done:,} of {counted(progress.total, progress.unit)} done"
    return f"{job.left:,} of {counted(sum(layer.planned for layer in job.layers), 'shard')} left"


def _running_lines(engine: Engine, job: entities.Job) -> list[str]:
    state = engine.state
    lines = []
    if not job.succeeded:
        lines.append("none of its shards has succeeded yet: until one has, each machine runs one at a time")
    lines += [_waiting_line(state, layer) for layer in job.queue][:LAYERS_SHOWN]
    if len(job.queue) > LAYERS_SHOWN:
        lines.append(f"and {counted(len(job.queue) - LAYERS_SHOWN, 'more layer')} wait")
    lines += [f"layer {layer.name} is complete and being merged" for layer in job.opened if layer.state == "merging"]
    lines += notes_of(engine, job, obstacles_of(engine, job), machines=False)  # these are below, one by one
    lines += [_agent_line(engine, agent, job) for agent in state.present_agents()]
    for slow in slow_shards(state, job, engine.jobs[job.id].figures.median(), time.monotonic()):
        took = format_duration(round(slow.seconds))
        lines.append(f"{slow.layer}/{slow.number} runs for {took} on {slow.agent}: `coordinator kick` moves it")
    return lines


def _waiting_line(state: s.State, layer: entities.Layer) -> str:
    twin = state.open_layers.get(layer.digest)
    if twin:
        return f"layer {layer.name} waits for {twin.job}, which computes the same one"
    return f"layer {layer.name} waits for earlier ones"


def _agent_line(engine: Engine, agent: entities.Agent, job: entities.Job) -> str:
    obstacle = engine.state.obstacle(agent, job)
    mine = [h for h in agent.holdings.values() if h.job == job.id]
    held, finished = sum(len(h.open) for h in mine), sum(len(h.finished) for h in mine)
    if held or finished:
        whole = "this round" if job.has_rounds else "it"
        return f"{agent.name} has {counted(held, 'shard')} of {whole} to run, {finished:,} to push"
    if agent.state != "live":
        return f"{agent.name} is leaving"
    if obstacle:
        return f"{agent.name} takes nothing of it: {obstacle}"
    if agent.open_of():
        return f"{agent.name} works for another job"
    if agent.is_left_out(job.id):
        return f"{agent.name} is {left_out_line(agent, job)}"
    if job.has_rounds and agent.hungry and not agent.paused:
        return f"{agent.name} waits for the next round"
    return f"{agent.name} is idle: {_why_idle(engine, agent)}"


# --- a shard ----------------------------------------------------------------------------------------------


async def explain_shard(engine: Engine, asked: ExplainShard) -> Explained:
    """Where it is now, and all that became of it so far."""
    job, name, number = engine.job(asked.job), asked.layer, asked.number
    layer = next((layer for layer in job.layers if layer.name == name), None)
    if layer is None:
        raise NotFoundError(f"{job.id} has no layer {name!r}", f"`coordinator status {job.id}` lists them")
    if number >= layer.count:
        raise NotFoundError(f"{job.id}/{name} has {counted(layer.count, 'shard')}, no {number}")
    lines = [_where_line(engine, job, layer, number), *_trouble_lines(job, layer, number)]
    plan = layer.plan
    if plan.rows:
        lines.append(_rows_line(plan, number))
    _, rows = await engine.ask(lambda store: store.failures(job.id, layer.digest, number, False, FAILURES_SHOWN))
    bundle = await engine.ask(lambda store: store.bundle_of(job.id, layer.digest, number))
    return Explained(
        about=f"{job.id}/{name}/{number}",
        lines=lines,
        happenings=_story(engine, layer.digest, number, rows, bundle)[-HAPPENINGS_SHOWN:],
        since=engine.shard_history.since,
        merged=layer.state == "merged",
    )


def _where_line(engine: Engine, job: entities.Job, layer: entities.Layer, number: int) -> str:
    if layer.state == "changed":
        return "is not run: the source of its layer changed; only a new submit runs it"
    if not layer.stored and number in layer.committed:
        return "was part of a round that is over: nothing is kept of it but what it came to"
    if number in layer.skipped:
        return "is not run: only some shards of its layer are wanted"
    if number in layer.committed:
        return f"is committed; its layer is {layer.state}"
    if number in layer.quarantined:
        return f"is given up; `coordinator retry {job.id}` runs it again"
    holders = [h for h in layer.holdings.values() if number in h.open or number in h.finished]
    if holders:
        return "; ".join(_holder_line(holding, number) for holding in holders)
    if number in layer.limbo:
        return "may still be at work on an agent that has not come back since the coordinator's restart"
    return f"waits: {_why_waiting(engine, job, layer, number)}"


def _holder_line(holding: entities.Holding, number: int) -> str:
    run = f"attempt {holding.boot}.{holding.attempt}"
    if number in holding.finished:
        return f"is finished on {holding.agent} ({run}), and waits to be pushed"
    first = holding.open.bottom == number
    what = "at work, or next," if first else f"behind {counted(_before(holding, number), 'other')}"
    return f"is {what} on {holding.agent} ({run}, granted {_ago(time.monotonic() - holding.granted)})"


def _before(holding: entities.Holding, number: int) -> int:
    return sum(min(high, number) - low for low, high in holding.open.pairs() if low < number)


def _why_waiting(engine: Engine, job: entities.Job, layer: entities.Layer, number: int) -> str:
    state = engine.state
    if job.state != "running":
        return f"its job is {job.state}"
    if layer.state == "waiting":
        return _waiting_line(state, layer)
    obstacles = obstacles_of(engine, job)
    if not obstacles:
        return "no agent has joined"
    if all(obstacles.values()):
        return "; ".join(f"{name} {why}" for name, why in sorted(obstacles.items()))
    if number in layer.again and layer.fresh:
        return f"it ran before, and goes behind {counted(len(layer.fresh), 'shard')} that never did"
    tried = layer.troubles[number].machines() if number in layer.troubles else set()
    elsewhere = f"; not again on {', '.join(sorted(tried))} while another machine is there" if tried else ""
    return f"a machine takes it when it has a slot to spare{elsewhere}"


def _trouble_lines(job: entities.Job, layer: entities.Layer, number: int) -> list[str]:
    trouble = layer.troubles.get(number)
    if trouble is None:
        return []
    lines = []
    if trouble.failures:
        lines.append(f"failed {counted(len(trouble.failures), 'time')} of {job.plan.attempts} that it may")
    if trouble.losses:
        lines.append(f"was lost {counted(len(trouble.losses), 'time')} while it ran")
    if trouble.kicked:
        lines.append(f"was kicked off {', '.join(sorted(trouble.kicked))}")
    return lines


def _rows_line(plan: Layer, number: int) -> str:
    first, count = plan.first_row(number), plan.rows_of(number)
    return f"is rows {first:,} to {first + count - 1:,} of {plan.rows:,}"


def _story(
    engine: Engine, layer: str, number: int, failures: list[FailureRow], bundle: BundleRow | None
) -> list[Happening]:
    entries = engine.shard_history.of(layer, number)
    story = [Happening(entry.when, _said(entry)) for entry in entries]
    story += [
        Happening(row.at, f"failed on {row.agent} ({row.boot}.{row.attempt}): {row.code}: {row.message}", row.evidence)
        for row in failures
        if row.agent
    ]
    story += [Happening(row.at, f"given up: {row.message}") for row in failures if not row.agent and row.at]
    for agent in {entry.agent for entry in entries if entry.what == "granted"}:
        first = min(entry.when for entry in entries if entry.agent == agent)
        story += [_parted(agent, when.state, when.when) for when in engine.shard_history.partings(agent, first)]
    if bundle and not any(entry.what == "committed" for entry in entries):
        story.append(Happening(bundle.committed, f"committed, computed by {bundle.agent}"))
    return sorted(story, key=lambda one: one.when)


def _parted(agent: str, state: str, when: float) -> Happening:
    how = "left" if state == "left" else "was gone: not heard of for a lease, or given up by `coordinator drop`"
    return Happening(when, f"{agent} {how}; what it held went back")


def _said(entry: HistoryEntry) -> str:
    run = f" ({entry.boot}.{entry.attempt})" if entry.attempt else ""
    others = sum(high - low for low, high in entry.pairs) - 1
    beside = f", with {counted(others, 'other')}" if others and entry.what in {"granted", "committed"} else ""
    why = f": {entry.why}" if entry.why else ""
    words = {
        "granted": f"granted to {entry.agent}{run}{beside}",
        "finished": f"finished on {entry.agent}{run}",
        "lost": f"lost on {entry.agent}{run}{why}",
        "returned": f"handed back unstarted by {entry.agent}{run}",
        "dropped": f"taken from {entry.agent}{run}",
        "kicked": "kicked",
        "committed": f"committed, computed by {entry.agent}{beside}",
        "uncommitted": "its committed bytes turned out damaged or missing; it runs again",
    }
    return words[entry.what]
