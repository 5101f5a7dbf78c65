"""Layers and jobs: adding, opening within the root's space, merging, halting, retrying, advancing, ending."""

from __future__ import annotations

from muster.coordinator.scheduler.actions import (
    DiscardLayer,
    ForgetFailures,
    RaiseHighWater,
    SendDrop,
    SendGone,
    StartMerge,
    StoreJob,
    StoreLayer,
)
from muster.coordinator.scheduler.events import (
    Advanced,
    BundleCommitted,
    HighWaterStored,
    JobAdded,
    LayerSeed,
    MergeRefused,
    Retried,
)
from muster.coordinator.scheduler.state import Job, Layer, State, Trouble
from muster.jobs.common.ranges import RangeSet

LAYERS_AHEAD = 2  # layers of one job open with shards still to be granted, at least
SHARDS_AHEAD = 256  # shards in them, at least: many small layers open together
LAYERS_OPEN = 512  # of one job, at most, those being merged included
MARK_AHEAD = 64  # shards the high-water mark is kept ahead of the grants, at least
SPACE_MARGIN_BYTES = 64 << 20  # of the root's disk, left alone


def add(state: State, event: JobAdded, now: float) -> None:
    """A new job, or one from the store: there, what may still be held somewhere waits in limbo."""
    job = _job(state, event)
    state.jobs[job.id] = job
    if job.state == "running":
        state.running[job.id] = job
    for layer in job.layers:
        state.by_digest.setdefault(layer.digest, []).append(layer)
        if layer.active:
            _open_again(state, job, layer, now)
        elif layer.state == "waiting":
            job.queue.append(layer)
    for layer in list(job.opened):
        if job.state == "cancelled":
            _send_back(state, job, layer)  # the daemon died while it was cancelled
        else:
            settle_layer(state, layer)
    settle_job(state, job)
    state.work_added = True


def _open_again(state: State, job: Job, layer: Layer, now: float) -> None:
    if twin := state.open_layers.get(layer.digest):
        _send_back(state, state.jobs[twin.job], twin)  # opened a moment ago, before this one was read back
    state.open_layers[layer.digest] = layer
    job.opened.append(layer)
    job.supply[layer.digest] = layer
    if layer.limbo and state.limbo_until is None:
        state.limbo_until = now + state.timing.lease


def _job(state: State, event: JobAdded) -> Job:
    job = Job(
        id=event.job,
        kind=event.kind,
        kernel=event.kernel,
        cpus=event.cpus,
        memory=event.memory,
        attempts=event.attempts,
        max_failures=event.max_failures,
        priority=event.priority,
        state=event.state,
        why=event.why,
        succeeded=event.succeeded,
        cursor=event.cursor,
        needs=event.needs,
        gpus=event.gpus,
        env=event.env,
        packages=event.packages,
        model_bytes=event.model_bytes,
        layers=[_seeded(event.job, seed) for seed in event.layers],
        same_kernels=event.same_kernels,
        fingerprint=event.kernels_fixed,
        kernels_fixed=bool(event.kernels_fixed),
        used=min((job.used for job in state.running.values()), default=0.0),
    )
    job.left = sum(layer.left for layer in job.layers)
    job.quarantined = sum(len(layer.quarantined) for layer in job.layers)
    job.out_bytes = max((layer.out_bytes for layer in job.layers), default=0)
    job.least_cost = min((layer.in_bytes + layer.out_bytes for layer in job.layers), default=0)
    job.least_output = min((layer.out_bytes for layer in job.layers), default=0)
    if event.payloads:
        settled = job.layers[0].committed
        job.layers[0].payloads = {n: raw for n, raw in event.payloads.items() if n not in settled}
    return job


def _seeded(job: str, seed: LayerSeed) -> Layer:
    layer = Layer(
        job=job,
        digest=seed.digest,
        name=seed.name,
        count=seed.count,
        in_bytes=seed.in_bytes,
        out_bytes=seed.out_bytes,
        made=seed.made,
        state=seed.state,
        generation=seed.generation,
        high_water=min(seed.high_water, seed.count),
        closed=seed.closed,
        committed=seed.committed.copy(),
        quarantined=seed.quarantined - seed.committed,
        rounds=seed.rounds,
        first=seed.first,
    )
    if layer.rounds:
        layer.count = layer.high_water = seed.first
        layer.committed, layer.quarantined = RangeSet([(0, seed.first)]), RangeSet()
    layer.raising = layer.high_water
    layer.troubles = {number: Trouble(set(runs)) for number, runs in seed.failures.items() if number >= seed.first}
    if seed.state == "merged":
        layer.committed = RangeSet([(0, layer.count)])
    elif seed.state != "changed":
        _reset_pending(layer)
        if seed.state == "open":
            layer.limbo, layer.again = layer.again, RangeSet()
    return layer


def _reset_pending(layer: Layer) -> None:
    """All that is not settled is pending: fresh above the mark, run before perhaps below it."""
    settled = layer.committed | layer.quarantined
    layer.fresh = RangeSet([(layer.high_water, layer.count)]) - settled
    layer.again = RangeSet([(0, layer.high_water)]) - settled
    layer.limbo, layer.copied = RangeSet(), RangeSet()


def open_some(state: State) -> None:
    """Open as many layers as keep the machines fed, where the root has room for what they will give."""
    for job in sorted(state.running.values(), key=lambda job: job.used):
        while job.state == "running" and job.queue and not _supplied(job) and _open_next(state, job):
            pass


def _supplied(job: Job) -> bool:
    """Whether what is open keeps the machines fed until more is."""
    busy = ahead = 0
    for layer in job.supply.values():
        busy += bool(layer.pending or layer.limbo)
        ahead += layer.pending
        if busy >= LAYERS_AHEAD and ahead >= SHARDS_AHEAD:
            return True
    return len(job.opened) - job.quarantined >= LAYERS_OPEN  # those with quarantined shards may be stuck


def _open_next(state: State, job: Job) -> bool:
    layer = next((layer for layer in job.queue if _may_open(state, layer)), None)
    if layer is None or not _fits(state, job, layer):
        return False
    job.queue.remove(layer)
    job.opened.append(layer)
    layer.state = "open"
    layer.opened_after = (state.boot, state.last_attempt)
    state.open_layers[layer.digest] = layer
    state.emit(StoreLayer(job.id, layer.digest, "open", layer.generation))
    raise_mark(state, layer, MARK_AHEAD)
    state.supplied(layer)
    settle_layer(state, layer)
    return True


def _may_open(state: State, layer: Layer) -> bool:
    """Only one layer with a digest is open at a time: another job's goes first, unless that job stands still."""
    twin = state.open_layers.get(layer.digest)
    if twin and twin.state == "open" and state.jobs[twin.job].state != "running":
        _send_back(state, state.jobs[twin.job], twin)
        return True
    return twin is None


def reserved(layer: Layer) -> int:
    """Bytes of the root that an open layer may still take: its bundles to come, and its merged arrays."""
    if layer.rounds:
        return layer.out_bytes * layer.left
    return layer.out_bytes * (2 * layer.count - len(layer.committed))


def _fits(state: State, job: Job, layer: Layer) -> bool:
    if state.free is None:
        return True
    layer.out_bytes = layer.out_bytes or job.out_bytes
    taken = sum(reserved(other) for other in state.open_layers.values())
    room = state.free - taken - SPACE_MARGIN_BYTES
    fits = reserved(layer) <= room
    why = "" if fits else f"layer {layer.name} needs {reserved(layer)} bytes in the root, {max(room, 0)} are left"
    if why != job.why and job.state == "running":
        job.why = why
        state.emit(StoreJob(job.id, job.state, why))
    return fits


def raise_mark(state: State, layer: Layer, ahead: int) -> None:
    """Keep the stored mark `ahead` of what may be granted next."""
    low = next(iter(layer.fresh.pairs()), (layer.count, 0))[0]
    wanted = min(layer.count, low + ahead)
    if wanted > layer.raising:
        layer.raising = min(layer.count, low + 2 * ahead)
        state.emit(RaiseHighWater(layer.job, layer.digest, layer.raising))


def mark_raised(state: State, event: HighWaterStored) -> None:
    """One asked for by another generation of the layer, or another job, says nothing of this one."""
    layer = state.open_layers.get(event.layer)
    if layer and layer.job == event.job and layer.high_water < event.value <= layer.raising:
        layer.high_water = event.value
        state.work_added = True


def settle_layer(state: State, layer: Layer) -> None:
    """If nothing of it is left to do: merge it, or, with shards quarantined, leave it."""
    if layer.state != "open" or not layer.exhausted:
        return
    if not layer.quarantined:
        layer.state = "merging"
        if layer.count and not layer.rounds:
            state.emit(StartMerge(layer.job, layer.digest, layer.generation))
        else:
            merged(state, layer.job, layer.digest, layer.generation)
    settle_job(state, state.jobs[layer.job])


def commit_closed(state: State, event: BundleCommitted) -> None:
    """Rows that reached the store while their layer was sent back: it will find them when it opens again."""
    for layer in state.by_digest.get(event.layer, ()):
        if (layer.job, layer.generation, layer.state) == (event.job, event.generation, "waiting"):
            with state.counting(layer):
                layer.settle(event.numbers)


def merged(state: State, job_id: str, digest: str, generation: int) -> None:
    layer = state.open_layers.get(digest)
    if layer is None or (layer.job, layer.generation, layer.state) != (job_id, generation, "merging"):
        return
    layer.state = "merged"
    _close(state, layer)
    settle_job(state, state.jobs[job_id])


def merge_refused(state: State, event: MergeRefused) -> None:
    """Its job stands still until somebody does something about it; a retry merges again, or computes anew."""
    layer = state.open_layers.get(event.layer)
    if layer is None or (layer.job, layer.generation, layer.state) != (event.job, event.generation, "merging"):
        return
    layer.state = "open"
    halt(state, state.jobs[event.job], event.why)


def _close(state: State, layer: Layer) -> None:
    """The layer is no longer open: nobody holds any of it."""
    del state.open_layers[layer.digest]
    state.jobs[layer.job].opened.remove(layer)
    state.jobs[layer.job].supply.pop(layer.digest, None)
    for holding in layer.holdings.values():
        agent = state.agents[holding.agent]
        agent.holdings.pop(holding.key, None)
        if layer.state != "merged":
            state.emit(SendGone(agent.session, layer.digest))
    layer.holdings.clear()
    layer.limbo = RangeSet()
    state.work_added = True


def settle_job(state: State, job: Job) -> None:
    """A job ends when each layer is merged, or can get no further."""
    if job.state == "cancelled" or job.queue:
        return
    if any(not layer.stuck for layer in job.opened):
        return
    changed = [layer.name for layer in job.layers if layer.state == "changed"]
    if job.opened or changed:
        why = f"{job.quarantined} shards quarantined" if job.quarantined else ""
        more = f"source changed: {', '.join(changed[:3])}" if changed else ""
        _end(state, job, "incomplete", "; ".join(part for part in (why, more) if part))
    else:
        _end(state, job, "complete", "")


def _end(state: State, job: Job, as_state: str, why: str) -> None:
    if job.state == "halted" and as_state == "incomplete":
        return  # a halt says more
    if (job.state, job.why) != (as_state, why):
        set_state(state, job, as_state, why)


def set_state(state: State, job: Job, as_state: str, why: str = "") -> None:
    job.state, job.why = as_state, why
    state.running.pop(job.id, None)
    if as_state == "running":  # with no credit for the time it stood still
        job.used = max(job.used, min((other.used for other in state.running.values()), default=0.0))
        state.running[job.id] = job
    state.emit(StoreJob(job.id, as_state, why))
    state.work_added = True


def halt(state: State, job: Job, why: str) -> None:
    """No more is granted, and what is unfinished is taken back: it must not go on failing. A retry goes on."""
    if job.state in {"running", "paused"}:
        set_state(state, job, "halted", why)
        for layer in job.opened:
            _revoke(state, layer)


def _revoke(state: State, layer: Layer) -> None:
    for holding in list(layer.holdings.values()):
        numbers = holding.open.copy()
        if numbers:
            session = state.agents[holding.agent].session
            state.emit(SendDrop(session, layer.digest, holding.boot, holding.attempt, numbers))
            holding.open = RangeSet()
            state.prune(holding)
            state.release(layer, numbers)


def cancel(state: State, job: Job) -> None:
    set_state(state, job, "cancelled")
    for layer in list(job.opened):
        _send_back(state, job, layer)


def _send_back(state: State, job: Job, layer: Layer) -> None:
    """From open to waiting: what is committed stays, the rest is pending once it opens again."""
    layer.state = "waiting"
    _close(state, layer)
    layer.raising = layer.high_water  # a mark on its way will find the layer closed
    if layer.rounds:  # they end with their driver, and that with its job
        with state.counting(layer):
            layer.settle(layer.whole - layer.committed)
    _reset_pending(layer)
    job.queue.append(layer)
    state.emit(StoreLayer(job.id, layer.digest, "waiting", layer.generation))


def change(state: State, digest: str) -> None:
    """The layer's source is not what was planned: it stops, and only a new submit runs it."""
    layer = state.open_layers.get(digest)
    if layer is None or layer.state != "open" or layer.made:
        return  # where all is committed, all of it came from the source as planned; what is made has none
    with state.counting(layer):
        layer.state = "changed"
    _close(state, layer)
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
    set_state(state, job, "running")
    for layer in list(job.layers):
        if layer.digest in event.layers:
            _discard(state, job, layer)
        else:
            _forgive(state, layer)
    for layer in list(job.opened):
        settle_layer(state, layer)
    settle_job(state, job)


def _forgive(state: State, layer: Layer) -> None:
    layer.troubles.clear()
    unquarantine(state, layer, layer.quarantined.copy())


def unquarantine(state: State, layer: Layer, numbers: RangeSet) -> None:
    with state.counting(layer):
        layer.quarantined.remove(numbers)
    if layer.active:
        state.release(layer, numbers)
    elif layer.state == "waiting":
        layer.again.update(numbers)


def _discard(state: State, job: Job, layer: Layer) -> None:
    if layer.active:
        layer.state = "waiting"
        _close(state, layer)
    elif layer.state == "waiting":
        job.queue.remove(layer)
    with state.counting(layer):
        layer.state, layer.generation = "waiting", layer.generation + 1
        layer.committed, layer.quarantined = RangeSet(), RangeSet()
    layer.high_water = layer.raising = 0
    layer.troubles.clear()
    _reset_pending(layer)
    job.queue.append(layer)
    state.emit(DiscardLayer(job.id, layer.digest, layer.generation))


def remove(state: State, job: Job) -> None:
    for layer in list(job.opened):
        layer.state = "waiting"
        _close(state, layer)
    for layer in job.layers:
        state.by_digest[layer.digest].remove(layer)
        if not state.by_digest[layer.digest]:
            del state.by_digest[layer.digest]
    del state.jobs[job.id]
    state.running.pop(job.id, None)
    for agent in state.agents.values():
        for by_job in (agent.rates, agent.paces, agent.strikes, agent.ineligible, agent.env_obstacles):
            by_job.pop(job.id, None)


def advance(state: State, event: Advanced) -> None:
    """A driver made shards, or said there will be no more."""
    job = state.jobs[event.job]
    layer = job.layers[0]
    job.cursor = event.to_seq
    for number, payload in event.create:
        layer.payloads[number] = payload
    top = max((number + 1 for number, _ in event.create), default=layer.count)
    if event.aside:
        layer.aside = layer.aside - layer.committed | RangeSet([(layer.count, top)])
    with state.counting(layer):
        layer.fresh.add(layer.count, top)
        layer.count = top
    if layer.rounds:
        layer.high_water = layer.raising = top  # no other life grants them, and none is asked for them
        state.short.update({agent.name: agent for agent in state.by_session.values() if agent.hungry})
    layer.closed = layer.closed or event.finish
    if layer.active:
        raise_mark(state, layer, MARK_AHEAD)
        state.supplied(layer)
        settle_layer(state, layer)
    state.work_added = True
