"""What `status`, `watch` and `agents` are told: the scheduler's state and the figures as values. Only reads."""

from __future__ import annotations

import asyncio
import time

import msgspec

from muster import VERSION
from muster.coordinator.api.figures import Figures
from muster.coordinator.api.requests import (
    AgentsAsk,
    CommitsAsk,
    FailuresAsk,
    FiguresAsk,
    Manifests,
    ManifestsAsk,
    StatusAsk,
    Usage,
)
from muster.coordinator.api.status import (
    AgentRate,
    Agents,
    AgentStatus,
    Commit,
    Commits,
    FailureRecord,
    Failures,
    JobStatus,
    LayerStatus,
    SlowShard,
    Status,
    Tally,
    Used,
    Window,
)
from muster.coordinator.api.values import bounded
from muster.coordinator.daemon.engine import LAYERS_HINT, Engine
from muster.coordinator.daemon.jobs.live import LiveJob
from muster.coordinator.daemon.measures import JobFigures, ShardsDone
from muster.coordinator.daemon.store.statements import CommitRow, FailureRow
from muster.coordinator.daemon.views.long_shards import misjudged, slow_shards
from muster.coordinator.daemon.waiting import wait_until
from muster.coordinator.scheduler import entities as s
from muster.coordinator.scheduler.dependencies import waits_for
from muster.coordinator.scheduler.layers import SPACE_MARGIN_BYTES
from muster.coordinator.scheduler.round_shares import left_out_line
from muster.coordinator.scheduler.state import State
from muster.jobs.common.errors import NotFoundError
from muster.jobs.common.units import counted, format_duration, format_size

Obstacles = dict[str, s.Obstacle | None]  # by agent
PAGE = 64  # commits in one answer: each may name thousands of ranges
WAIT_LIMIT_SECONDS = 30.0
ENDED_MOST = 200  # jobs, of a brief answer


def status_of(engine: Engine, asked: StatusAsk) -> Status:
    state = engine.state
    older = _older(engine) if asked.brief else set()
    return Status(
        now=time.time(),
        version=VERSION,
        agents=sum(1 for _ in state.present_agents()),
        jobs=[_one(engine, asked.job)] if asked.job else _all(engine, asked, older),
        notes=_full(engine),
        left_out=len(older),
    )


def _one(engine: Engine, job: str) -> JobStatus:
    return engine.damaged[job][0] if job in engine.damaged else job_status(engine, engine.job(job), with_layers=True)


def _older(engine: Engine) -> set[str]:
    """Ended jobs, but for the newest: a farm may have had any number of them."""
    ended = [job.id for job in engine.state.jobs.values() if job.ended]
    return set(sorted(ended, key=lambda job: -engine.jobs[job].created)[ENDED_MOST:])


def _all(engine: Engine, asked: StatusAsk, older: set[str]) -> list[JobStatus]:
    def told(job: s.Job) -> JobStatus:
        with_rates = not asked.brief or (asked.rates and not job.ended)
        return job_status(engine, job, with_layers=False, with_rates=with_rates, with_notes=asked.rates)

    served = [told(job) for job in engine.state.jobs.values() if job.id not in older]
    damaged = [msgspec.structs.replace(status, layers=[]) for status, _ in engine.damaged.values()]
    return sorted([*served, *damaged], key=lambda job: job.created) if damaged else served


def at_rest(status: JobStatus, why: str, notes: list[str]) -> JobStatus:
    """What was last known of a job that is damaged now: nothing of it is anywhere at work."""
    layers = [msgspec.structs.replace(layer, tally=_unheld(layer.tally)) for layer in status.layers]
    return msgspec.structs.replace(
        status, state="damaged", why=why, notes=notes, totals=_unheld(status.totals), layers=layers, agents=[], slow=[],
        recent=Window(),
    )  # fmt: skip


def _unheld(tally: Tally) -> Tally:
    pending = tally.pending + tally.running + tally.finished
    return msgspec.structs.replace(tally, running=0, finished=0, pending=pending)


def _full(engine: Engine) -> list[str]:
    """That the root has no room, where it has none: no result is taken before it has."""
    notes = [f"the root's database cannot be written: {engine.store_trouble}"] if engine.store_trouble else []
    if engine.figures.trouble:
        notes.append(f"measurements are not written, jobs go on all the same: {engine.figures.trouble}")
    if engine.state.free is not None and engine.state.free < SPACE_MARGIN_BYTES:
        free, kept = format_size(engine.state.free), format_size(SPACE_MARGIN_BYTES)
        notes.append(f"the root's disk is full: {free} are free, of {kept} that are kept free; results wait for room")
    return notes


def job_status(
    engine: Engine, job: s.Job, *, with_layers: bool, with_rates: bool = True, with_notes: bool = True
) -> JobStatus:
    live = engine.jobs[job.id]
    tallies = [_tally(layer) for layer in job.layers]
    figures = live.figures
    state, is_running = engine.state, job.state == "running"
    obstacles = obstacles_of(engine, job) if with_rates or (with_notes and is_running) else {}
    full = _full(engine) if with_layers and not job.ended else []
    return JobStatus(
        id=job.id,
        kind=job.work.kind,
        state=job.state,
        why=job.why or waits_line(state, job),
        priority=job.priority,
        created=live.created,
        started=live.started,
        ended=live.ended,
        totals=_total(tallies, figures.bytes_committed),
        failures=figures.failures,
        layers=[
            LayerStatus(layer.name, layer.state, tally)
            for layer, tally in zip(job.layers, tallies, strict=True)
            if with_layers
        ],
        layers_total=len(job.layers),
        layers_merged=sum(layer.state == "merged" for layer in job.layers),
        agents=_rates(engine, job, live, obstacles) if with_rates else [],
        recent=figures.window_recent(state.timing.tick),
        whole=figures.window_whole(),
        bytes_merged=figures.bytes_merged,
        merge_seconds=figures.merge_seconds,
        progress=live.progress,
        slow=_slow(engine, job) if with_notes else [],
        notes=[*full, *notes_of(engine, job, obstacles)] if with_notes else [],
        plan=live.digest,
        owner=job.plan.owner,
        of_submitter=live.work.of_submitter,
    )


def _slow(engine: Engine, job: s.Job) -> list[SlowShard]:
    """What runs suspiciously long, where nothing will end it."""
    live = engine.jobs[job.id]
    return [] if live.work.timeout else slow_shards(engine.state, job, live.figures.median(), time.monotonic())


def waits_line(state: State, job: s.Job) -> str:
    """Of a job that starts after others: which of them are not complete."""
    return f"waits for {' and '.join(waits_for(state, job))}" if job.state == "waiting" else ""


def _tally(layer: s.Layer) -> Tally:
    plan = layer.plan
    count = layer.planned
    committed, quarantined = len(layer.committed) - (layer.count - count), len(layer.quarantined)
    rows = min(plan.rows, count * plan.shard_rows)
    running = finished = 0
    for holding in layer.holdings.values():
        running += len(holding.open)
        finished += len(holding.finished)
    limbo = len(layer.limbo)
    left = count - committed - quarantined
    finished = min(finished, left)
    running = min(running + limbo, left - finished)
    tally = Tally(
        shards=count,
        committed=committed,
        finished=finished,
        running=running,
        pending=left - finished - running,
        quarantined=quarantined,
        rows=rows,
        rows_committed=min(rows, committed * plan.shard_rows),
        bytes_in=min(plan.total_in_bytes or count * plan.in_bytes, count * plan.in_bytes),
        bytes_out=layer.out_bytes * count,
    )
    return bounded(tally)


def _total(tallies: list[Tally], bytes_committed: int) -> Tally:
    def add(field: str) -> int:
        return sum(getattr(tally, field) for tally in tallies)

    counted = ("shards", "committed", "finished", "running", "pending", "quarantined", "rows", "rows_committed")
    sums = {field: add(field) for field in (*counted, "bytes_in", "bytes_out")}
    return bounded(Tally(**sums, bytes_committed=bytes_committed))


def _rates(engine: Engine, job: s.Job, live: LiveJob, obstacles: Obstacles) -> list[AgentRate]:
    state = engine.state
    names = sorted(live.figures.by_agent.keys() | {agent.name for agent in state.present_agents()})
    done = live.figures.by_agent
    return [_rate(engine, job, name, done.get(name, ShardsDone()), obstacles.get(name)) for name in names]


def _rate(engine: Engine, job: s.Job, name: str, done: ShardsDone, obstacle: s.Obstacle | None) -> AgentRate:
    agent = engine.state.agents.get(name)
    running = finished = 0
    for holding in agent.holdings.values() if agent else ():
        if holding.job == job.id:
            running, finished = running + len(holding.open), finished + len(holding.finished)
    rate = AgentRate(
        name=name,
        live=agent is not None and agent.takes_work and obstacle is None,
        slots=agent.slots(job) if agent and agent.present else 0,
        running=running,
        finished=finished,
        shards=done.shards,
        rows=done.rows,
        bytes_in=done.bytes_in,
        bytes_out=done.bytes_out,
        seconds=done.seconds,
        busy=done.busy,
    )
    return bounded(rate)


def obstacles_of(engine: Engine, job: s.Job) -> Obstacles:
    """Present agent → why it may run nothing of the job, None where it may."""
    state = engine.state
    return {agent.name: state.obstacle(agent, job) for agent in state.present_agents()}


def notes_of(engine: Engine, job: s.Job, obstacles: Obstacles, machines: bool = True) -> list[str]:
    """What keeps a running job from running, and what its user should know; `machines`: why each takes nothing, too."""
    state = engine.state
    changed = [layer for layer in job.layers if layer.state == "changed"][:5]
    changes = engine.jobs[job.id].changes
    notes = [f"source of layer {layer.name} changed" for layer in changed]
    notes += [changes[layer.digest] for layer in changed if layer.digest in changes]
    notes += _unmerged(engine, job)[:5]
    notes += _memory_line(engine.jobs[job.id].figures)
    if job.state != "running":
        return notes
    live = engine.jobs[job.id]
    notes += live.plan.notes
    if long := misjudged(state, job, live.plan, live.figures.per_row(), time.monotonic()):
        notes.append(long)
    notes += _machine_notes(engine, job, obstacles, machines) if obstacles else ["no agent has joined"]
    return notes + _limbo(state)


def _machine_notes(engine: Engine, job: s.Job, obstacles: Obstacles, machines: bool) -> list[str]:
    """Of those that are here: why nothing of the job runs on them, or not all that could."""
    state, present = engine.state, list(engine.state.present_agents())
    silent = (agent for agent in present if state.is_silent(agent))
    notes = [_silent_line(agent, held) for agent in silent if (held := _held(agent, job))][:5]
    told = ((agent.name, engine.sessions.agents[agent.name].narrowed.get(job.id)) for agent in present)
    notes += [f"{name}: {why}" for name, why in told if why][:5]
    slow = sorted((agent for agent in present if agent.is_left_out(job.id)), key=lambda one: one.name)
    notes += [f"{agent.name} is {left_out_line(agent, job)}" for agent in slow if machines][:5]
    if all(obstacles.values()):
        notes += [f"{name} {why}" for name, why in sorted(obstacles.items()) if machines][:5]
    elif all(agent.paused for agent in present):
        notes += [f"{agent.name} is {engine.sessions.agents[agent.name].note}" for agent in present][:5]
    elif not any(layer.holdings for layer in job.opened):
        idle = ((agent.name, agent.idle_because) for agent in present)
        short = [(name, str(why)) for name, why in idle if why and (why.code, why.job) == ("room", job.id)]
        notes += [f"{name} is idle: {why}" for name, why in sorted(short)][:5]
    else:  # whoever has finished all that it has of it, and does not get it handed in
        done = [agent.name for agent in present if (held := _held(agent, job)) and not any(one.open for one in held)]
        notes += [f"{name}: {note}" for name in done if (note := engine.sessions.agents[name].note)][:5]
    return notes


def _limbo(state: State) -> list[str]:
    """What a job may have to wait for, after the daemon's restart."""
    if state.limbo_until is None:
        return []
    waiting = ", ".join(sorted(state.expected)[:5])
    hint = ": `coordinator drop AGENT` gives up one that will not come back" if waiting else ""
    return [f"after a restart, shards that may still be running wait for {waiting or 'their agents'}{hint}"]


def _memory_line(figures: JobFigures) -> list[str]:
    """What was too large for a machine, once, with what it took as the last such failure has it."""
    if not figures.memory_failures:
        return []
    failed = f"{counted(figures.memory_failures, 'attempt')} failed for want of memory"
    return [f"{failed}, {'the last ' if figures.memory_failures > 1 else ''}on {figures.memory_said}"]


def _held(agent: s.Agent, job: s.Job) -> list[s.Holding]:
    return [holding for holding in agent.holdings.values() if holding.job == job.id]


def _silent_line(agent: s.Agent, held: list[s.Holding]) -> str:
    """What a job has to wait for, of a machine that may be gone for good."""
    count, finished = sum(len(h.everything()) for h in held), sum(len(h.finished) for h in held)
    ago = format_duration(round(time.monotonic() - agent.heard))
    has = f"{counted(count, 'shard')} of it, {finished} of them finished"
    what_next = f"`coordinator drop {agent.name}` if it will not come back"
    return f"{agent.name} was last heard of {ago} ago and has {has}: {what_next}"


def _unmerged(engine: Engine, job: s.Job) -> list[str]:
    """Layers that are complete and did not merge yet, each with what went wrong last."""
    troubles = [
        (layer, engine.merging.trouble(job.id, layer.digest)) for layer in job.opened if layer.state == "merging"
    ]
    return [f"layer {layer.name} is not merged yet: {why}; it is tried again" for layer, why in troubles if why]


def agents_of(engine: Engine, asked: AgentsAsk) -> Agents:
    known = engine.sessions.agents
    names = sorted(known) if asked.agent is None else [asked.agent] if asked.agent in known else []
    return Agents(now=time.time(), agents=[_agent_status(engine, name, asked.brief) for name in names])


def _agent_status(engine: Engine, name: str, brief: bool) -> AgentStatus:
    state = engine.state
    info = engine.sessions.agents[name]
    agent = state.agents.get(name)
    done = [live.figures.by_agent[name] for live in engine.jobs.values() if name in live.figures.by_agent]
    lately = engine.figures.lately(name) if agent and agent.present else None
    rates, last = (lately.rates(), lately.last) if lately else (None, None)
    running = agent.open_of() if agent else 0
    idles = agent is not None and agent.present and not running and bool(state.running)
    idle = str(agent.idle_because or "") if agent and idles else ""
    status = AgentStatus(
        name=name,
        host=info.host,
        state=engine.sessions.state_of(name, agent),
        last_seen=info.seen if agent is None else max(info.seen, time.time() - (time.monotonic() - agent.heard)),
        cpus=info.cpus,
        running=running,
        finished=sum(len(holding.finished) for holding in agent.holdings.values()) if agent else 0,
        done=sum(one.committed for one in done),
        bytes_in=sum(one.bytes_in for one in done),
        bytes_out=sum(one.bytes_out for one in done),
        fingerprint="" if brief else info.fingerprint,
        version=info.version,
        note=info.note or idle,
        ineligible=_obstacles(state, agent) if agent and agent.present and not (brief and running) else {},
        kinds=info.kinds,
        no_code=info.no_code,
        in_place=info.in_place,
        have=info.have,
        bytes_pulled=info.pulled,
        bytes_spared=info.spared,
        link_in=info.link_in.rate,
        link_out=info.link_out.rate,
        machine=info.machine,
        cores=info.cores,
        silent=time.monotonic() - agent.heard if agent and agent.present and state.is_silent(agent) else 0.0,
        busy=rates.busy if rates else None,
        processor=rates.processor if rates else None,
        in_rate=rates.input if rates else None,
        out_rate=rates.output if rates else None,
        memory_now=last.memory_now if last else None,
        memory_budget=agent.hello.memory if agent else 0,
        disk_now=last.disk_now if last else None,
        places=info.places if agent is not None and agent.present and not brief else {},
    )
    return bounded(status)


def _obstacles(state: State, agent: s.Agent) -> dict[str, str]:
    return {job.id: why.text for job in state.running.values() if (why := state.obstacle(agent, job))}


def usage(engine: Engine, _: Usage) -> Used:
    """What the daemon has promised of the root's disk."""
    return Used(engine.free_bytes(), sum(layer.reserved for layer in engine.state.open_layers.values()))


async def failures(engine: Engine, asked: FailuresAsk) -> Failures:
    job = engine.job(asked.job)
    layer = engine.layer_named(job, asked.layer) if asked.layer is not None else None
    number, digest = asked.number, layer.digest if layer else None
    if digest and number is not None and number >= engine.jobs[job.id].layers[digest].count:
        raise NotFoundError(f"{job.id}/{asked.layer} has no shard {number}", LAYERS_HINT.format(job.id))
    total, rows = await engine.ask(lambda store: store.failures(job.id, digest, number, asked.quarantined, asked.limit))
    items = [_record(row, engine.jobs[job.id].layers[row.layer].name) for row in rows]
    bare = [msgspec.structs.replace(one, evidence="") for one in items[asked.evidence_of :]]
    return Failures(total, [*items[: asked.evidence_of], *bare])


def _record(row: FailureRow, layer: str) -> FailureRecord:
    fields = {name: getattr(row, name) for name in FailureRecord.__struct_fields__ if name not in {"layer", "when"}}
    return FailureRecord(layer=layer, when=row.at, **fields)


async def commits(engine: Engine, question: CommitsAsk) -> Commits:
    """The next page, as soon as there is something to say."""
    deadline = asyncio.get_running_loop().time() + min(question.wait, WAIT_LIMIT_SECONDS)
    job = engine.job(question.job)
    moved = engine.jobs[job.id].moved
    while True:
        news, over = moved.next, job.ended or job.state == "halted"  # before the store is asked
        rows = await engine.ask(lambda store: store.commits_after(job.id, question.after, PAGE))
        engine.job(job.id)  # it may have been removed meanwhile
        left = deadline - asyncio.get_running_loop().time()
        if rows or over or left <= 0:
            return Commits([_commit(engine, job.id, row) for row in rows], over and len(rows) < PAGE)
        await wait_until(news, left)


async def figures(engine: Engine, asked: FiguresAsk) -> Figures:
    if asked.job not in engine.damaged:
        engine.job(asked.job)
    found = await engine.figures.figures_of(engine, asked.job)
    if found.job is not None and asked.job in engine.damaged:
        found.job.state, found.job.why = "damaged", engine.damaged[asked.job][1].message
    return found


async def manifests(engine: Engine, asked: ManifestsAsk) -> Manifests:
    job = engine.job(asked.job).id
    return Manifests(await engine.ask(lambda store: store.manifests_of(job)))


def _commit(engine: Engine, job: str, row: CommitRow) -> Commit:
    return Commit(row.seq, engine.jobs[job].layers[row.layer].name, row.file, row.numbers)
