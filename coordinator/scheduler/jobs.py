"""What is ordered of a job: added, cancelled, changed, retried, advanced, removed. Opens and merges no layer."""

from __future__ import annotations

from muster.coordinator.scheduler import dependencies, rounds
from muster.coordinator.scheduler.actions import (
    ForgetFailures,
    LookAtSource,
    StoreLayer,
)
from muster.coordinator.scheduler.commits import hand_back_all
from muster.coordinator.scheduler.entities import Agent, Job, Layer, Obstacle, Trouble
from muster.coordinator.scheduler.events import (
    Advanced,
    JobAdded,
    JobDamaged,
    LayerSeed,
    Retried,
    SourceChanged,
    SourceKept,
)
from muster.coordinator.scheduler.failures import unquarantine
from muster.coordinator.scheduler.job_states import set_state, settle_job
from muster.coordinator.scheduler.layers import (
    MARK_AHEAD,
    close,
    discard,
    open_again,
    raise_mark,
    send_back,
    settle_layer,
)
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet


def add(state: State, event: JobAdded, now: float) -> None:
    """A new job, or one from the store: there, what may still be held somewhere waits in limbo."""
    job = _job(state, event)
    state.jobs[job.id] = job
    if job.state == "running":
        state.running[job.id] = job
    elif job.state == "waiting":
        state.waiting[job.id] = job
    for layer in job.layers:
        state.by_digest.setdefault(layer.digest, []).append(layer)
        if layer.active:
            open_again(state, job, layer, now)
        elif layer.state == "waiting":
            job.queue.append(layer)
    for layer in list(job.opened):
        if job.state == "cancelled":
            send_back(state, job, layer)  # the daemon died while it was cancelled
        else:
            settle_layer(state, layer)
    settle_job(state, job)
    state.work_added = state.jobs_turned = True


def _job(state: State, event: JobAdded) -> Job:
    job = Job(
        id=event.job,
        plan=event.plan,
        priority=event.priority,
        state=event.state,
        why=event.why,
        succeeded=event.succeeded,
        cursor=event.cursor,
        layers=[seeded(event.job, seed) for seed in event.layers],
        fingerprint=event.kernels_fixed,
        kernels_fixed=bool(event.kernels_fixed),
    )
    state.start_even(job)
    job.left = sum(layer.left for layer in job.layers)
    job.quarantined = sum(len(layer.quarantined) for layer in job.layers)
    job.out_bytes = max((layer.out_bytes for layer in job.layers), default=0)
    job.least_cost = min((layer.plan.in_bytes + layer.out_bytes for layer in job.layers), default=0)
    job.least_output = min((layer.out_bytes for layer in job.layers), default=0)
    if event.payloads:
        settled = job.layers[0].committed
        job.layers[0].payloads = {n: raw for n, raw in event.payloads.items() if n not in settled}
    return job


def seeded(job: str, seed: LayerSeed) -> Layer:
    kind = rounds.RoundLayer if seed.plan.delivery.in_rounds else Layer
    layer = kind(
        job=job,
        plan=seed.plan,
        digest=seed.plan.digest,
        name=seed.plan.name,
        count=seed.count,
        out_bytes=seed.out_bytes,
        state=seed.state,
        generation=seed.generation,
        high_water=min(seed.high_water, seed.count),
        closed=seed.closed,
        committed=seed.committed.copy(),
        quarantined=seed.quarantined - seed.committed,
        first=seed.first,
    )
    layer.committed.update(layer.skipped)
    layer.raising = layer.high_water
    layer.troubles = {number: Trouble(set(runs)) for number, runs in seed.failures.items() if number >= seed.first}
    if seed.state == "merged":
        layer.committed = RangeSet([(0, layer.count)])
    elif seed.state != "changed":
        layer.reset_pending()
        if seed.state == "open":
            layer.limbo, layer.again = layer.again, RangeSet()
    return layer


def cancel(state: State, job: Job) -> None:
    set_state(state, job, "cancelled")
    for layer in list(job.opened):
        send_back(state, job, layer)


def doubt_source(state: State, agent: Agent, digest: str) -> None:
    """An agent says of a layer that it has, or had, that its source changed: somebody has to look."""
    layer = state.open_layers.get(digest)
    if layer is not None and layer.state == "open" and not layer.plan.made and agent.had(digest):
        state.emit(LookAtSource(layer.job, digest, agent.name))


def keep(state: State, event: SourceKept) -> None:
    """The agent cannot read the source as it is, or says so: it gets no more of the job until a retry."""
    agent, job = state.agents.get(event.agent), state.jobs.get(event.job)
    if agent is not None and job is not None:
        agent.ineligible[job.id] = Obstacle("barred", "says that the source changed, which is as planned")
        hand_back_all(state, agent, job.id)


def change(state: State, event: SourceChanged) -> None:
    """The layer's source is not what was planned: it stops, and only a new submit runs it."""
    digest = event.layer
    layer = state.open_layers.get(digest)
    if layer is None or (layer.job, layer.state) != (event.job, "open") or layer.plan.made:
        return  # where all is committed, all of it came from the source as planned; what is made has none
    with state.counting(layer):
        layer.state = "changed"
    close(state, layer)
    state.emit(StoreLayer(layer.job, digest, "changed", layer.generation))
    settle_job(state, state.jobs[layer.job])


def retry(state: State, event: Retried) -> None:
    """Clear the counts and go on; with layers, discard those and run them whole."""
    job = state.jobs[event.job]
    job.first_failures.clear()
    for agent in state.agents.values():
        agent.ineligible.pop(job.id, None)
        agent.strikes.pop(job.id, None)
    state.emit(ForgetFailures(job.id, None))
    dependencies.begin(state, job)
    for layer in list(job.layers):
        if layer.digest in event.layers:
            discard(state, job, layer)
        else:
            _forgive(state, layer)
    for layer in list(job.opened):
        settle_layer(state, layer)
    settle_job(state, job)


def _forgive(state: State, layer: Layer) -> None:
    layer.troubles.clear()
    unquarantine(state, layer, layer.quarantined.copy())


def damage(state: State, event: JobDamaged) -> None:
    """What agents have of it unfinished is taken back, what they finished is theirs to keep. Nothing of this is stored:
    once it is mended, the job goes on from where it was."""
    state.jobs_turned = True
    state.damaged[event.job] = frozenset(event.layers)
    if job := state.jobs.get(event.job):
        _forget(state, job)


def remove(state: State, job: str) -> None:
    state.damaged.pop(job, None)
    state.jobs_turned = True
    if known := state.jobs.get(job):
        _forget(state, known)


def _forget(state: State, job: Job) -> None:
    for layer in list(job.opened):
        layer.state = "waiting"
        close(state, layer)
    for layer in job.layers:
        state.by_digest[layer.digest].remove(layer)
        if not state.by_digest[layer.digest]:
            del state.by_digest[layer.digest]
    del state.jobs[job.id]
    state.running.pop(job.id, None)
    state.waiting.pop(job.id, None)
    for agent in state.agents.values():
        for by_job in (agent.rates, agent.paces, agent.strikes, agent.ineligible, agent.env_obstacles, agent.prints):
            by_job.pop(job.id, None)
        agent.round_costs.pop(job.id, None)


def advance(state: State, event: Advanced, now: float) -> None:
    """A driver made shards, or said there will be no more."""
    job = state.jobs[event.job]
    layer = job.layers[0]
    if job.has_rounds:
        rounds.turn(state, job, event, now)
    job.cursor = event.to_seq
    for number, payload in event.create:
        layer.payloads[number] = payload
    top = max((number + 1 for number, _ in event.create), default=layer.count)
    with state.counting(layer):
        layer.extend(top, event.aside)
    layer.closed = layer.closed or event.finish
    if layer.active:
        raise_mark(state, layer, MARK_AHEAD)
        state.supplied(layer)
        settle_layer(state, layer)
    state.work_added = True
