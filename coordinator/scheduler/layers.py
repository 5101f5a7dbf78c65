"""Layers: opening them within the room of the root, their marks, merging and closing. Decides nothing of whole jobs."""

from __future__ import annotations

from muster.coordinator.scheduler.actions import (
    DiscardLayer,
    RaiseHighWater,
    SendDrop,
    SendGone,
    StartMerge,
    StoreJob,
    StoreLayer,
)
from muster.coordinator.scheduler.entities import Job, Layer
from muster.coordinator.scheduler.events import (
    BundleCommitted,
    HighWaterStored,
    MergeRefused,
)
from muster.coordinator.scheduler.job_states import halt, settle_job
from muster.coordinator.scheduler.state import State
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import shortage

LAYERS_AHEAD = 2  # layers of one job open with shards still to be granted, at least
SHARDS_AHEAD = 256  # shards in them, at least: many small layers open together
LAYERS_OPEN = 512  # of one job, at most, those being merged included
MARK_AHEAD = 64  # shards the high-water mark is kept ahead of the grants, at least
SPACE_MARGIN_BYTES = 64 << 20  # of the root's disk, left alone


def open_again(state: State, job: Job, layer: Layer, now: float) -> None:
    if twin := state.open_layers.get(layer.digest):
        send_back(state, state.jobs[twin.job], twin)  # opened a moment ago, before this one was read back
    state.open_layers[layer.digest] = layer
    job.opened.append(layer)
    job.supply[layer.digest] = layer
    if layer.limbo and state.limbo_until is None:
        state.limbo_until = now + state.timing.lease


def open_some(state: State) -> None:
    """Open as many layers as keep the machines fed, where the root has room for what they will give."""
    for job in sorted(state.running.values(), key=state.turn):
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
    """Only one layer with a digest is open at a time: another job's goes first, unless that job stands still, or waits
    for a retry there: it may itself wait for what this one's job has open."""
    twin = state.open_layers.get(layer.digest)
    still = twin and (state.jobs[twin.job].state != "running" or (twin.stuck and not layer.stuck))
    if twin and twin.state == "open" and still:
        send_back(state, state.jobs[twin.job], twin)
        return True
    return twin is None


def _fits(state: State, job: Job, layer: Layer) -> bool:
    if state.free is None:
        return True
    layer.out_bytes = layer.out_bytes or job.out_bytes
    taken = sum(other.reserved for other in state.open_layers.values())
    room = state.free - taken - SPACE_MARGIN_BYTES
    fits = layer.reserved <= room
    what = f"layer {layer.name}"
    why = "" if fits else shortage(what, layer.reserved, room, "in the root", SPACE_MARGIN_BYTES)
    if why != job.why and job.state == "running":
        job.why = why
        state.emit(StoreJob(job.id, job.state, why))
    return fits


def raise_mark(state: State, layer: Layer, ahead: int) -> None:
    """Keep the stored mark `ahead` of what may be granted next. Where some are skipped it is beyond all at once: those
    that are left lie apart."""
    low = layer.count if layer.skipped else next(iter(layer.fresh.pairs()), (layer.count, 0))[0]
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
        if layer.count and layer.stored:
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
    close(state, layer)
    settle_job(state, state.jobs[job_id])


def merge_refused(state: State, event: MergeRefused) -> None:
    """Its job stands still until somebody does something about it; a retry merges again, or computes anew."""
    layer = state.open_layers.get(event.layer)
    if layer is None or (layer.job, layer.generation, layer.state) != (event.job, event.generation, "merging"):
        return
    layer.state = "open"
    halt(state, state.jobs[event.job], event.why)


def close(state: State, layer: Layer, discarded: bool = False) -> None:
    """The layer is no longer open: nobody holds any of it. Agents keep what they finished of it where some job is still
    to have it, unless it is `discarded`."""
    kept = not discarded and state.is_kept(layer.digest)
    del state.open_layers[layer.digest]
    state.jobs[layer.job].opened.remove(layer)
    state.jobs[layer.job].supply.pop(layer.digest, None)
    for holding in layer.holdings.values():
        agent = state.agents[holding.agent]
        agent.holdings.pop(holding.key, None)
        if layer.state == "merged":
            continue
        if not kept:
            state.emit(SendGone(agent.session, layer.digest))
        elif holding.open:
            state.emit(SendDrop(agent.session, layer.digest, holding.boot, holding.attempt, holding.open))
    layer.holdings.clear()
    layer.limbo = RangeSet()
    state.work_added = True


def send_back(state: State, job: Job, layer: Layer) -> None:
    """From open to waiting: what is committed stays, the rest is pending once it opens again."""
    layer.state = "waiting"
    close(state, layer)
    layer.raising = layer.high_water  # a mark on its way will find the layer closed
    with state.counting(layer):
        layer.reset_pending()
    job.queue.append(layer)
    state.emit(StoreLayer(job.id, layer.digest, "waiting", layer.generation))


def discard(state: State, job: Job, layer: Layer) -> None:
    if layer.active:
        layer.state = "waiting"
        close(state, layer, discarded=True)
    elif layer.state == "waiting":
        job.queue.remove(layer)
    with state.counting(layer):
        layer.state, layer.generation = "waiting", layer.generation + 1
        layer.committed, layer.quarantined = layer.skipped.copy(), RangeSet()
    layer.high_water = layer.raising = 0
    layer.troubles.clear()
    layer.reset_pending()
    job.queue.append(layer)
    state.emit(DiscardLayer(job.id, layer.digest, layer.generation))
