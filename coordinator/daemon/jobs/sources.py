"""Looking at a layer's source where an agent says that it changed: nobody's word ends a layer. Plans nothing."""

from __future__ import annotations

import asyncio
import logging
from math import inf

from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.jobs.damage import has_folder
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.jobs.sources.as_planned import difference

log = logging.getLogger("muster.daemon")

LOOK_AGAIN_SECONDS = 10.0


def look(engine: Engine, action: c.LookAtSource) -> None:
    """One look at a time at each layer, and none soon after one that found it as planned."""
    live, now = engine.jobs[action.job], asyncio.get_running_loop().time()
    if live.looked_at(action.layer) + LOOK_AGAIN_SECONDS <= now:
        live.looks_at(action.layer, inf)
        engine.background(_look(engine, action))


async def _look(engine: Engine, action: c.LookAtSource) -> None:
    live = engine.jobs[action.job]
    layer = live.layers[action.layer]
    why = await asyncio.to_thread(difference, layer, engine.root.job(action.job).items)
    live.looks_at(action.layer, asyncio.get_running_loop().time())
    if action.job not in engine.jobs or not has_folder(engine, action.job):
        return  # a source that went with its job's folder did not change
    what = f"the source of {action.job}/{layer.name}"
    if why:
        log.warning("%s changed: %s", what, why)
        live.source_changed(action.layer, f"{action.agent}: {why}")
        engine.handle(e.SourceChanged(action.job, action.layer))
    else:
        log.warning("%s is as planned, whatever %s says", what, action.agent)
        engine.handle(e.SourceKept(action.job, action.layer, action.agent))
