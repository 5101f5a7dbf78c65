"""Jobs deleted, and what killed submitters left: rows, folders, and files that no other job wants."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil

from muster.coordinator.api import requests as a
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.jobs.submit import lists_of
from muster.coordinator.farm_root import uploads
from muster.coordinator.farm_root.submission_folders import sweep
from muster.coordinator.scheduler import events as e
from muster.jobs.common.errors import RefusedError
from muster.jobs.contract.plan import Plan

log = logging.getLogger("muster.daemon")

UPLOADS_SWEEP_SECONDS = 3600.0
SWEEP_TICKS = 10  # between two looks for what killed submitters left


async def remove(engine: Engine, asked: a.Remove) -> a.Done:
    """Order: the scheduler forgets it → its rows go → its folder and its uploads go. A folder without a row is an
    orphan, an upload without a job is swept. Of a damaged job no file that jobs share goes."""
    if asked.job in engine.damaged:
        del engine.damaged[asked.job]
        engine.handle(e.Removed(asked.job))
        await _forget(engine, asked.job, None)
        return a.Done(f"{asked.job} is deleted")
    job = engine.job(asked.job)
    if not job.ended:
        raise RefusedError(f"{job.id} is {job.state}", f"`coordinator cancel {job.id}` first")
    engine.handle(e.Removed(job.id))
    plan = engine.jobs.pop(job.id).plan
    await _forget(engine, job.id, plan)
    _forget_files(engine, plan)
    return a.Done(f"{job.id} is deleted")


async def _forget(engine: Engine, job: str, plan: Plan | None) -> None:
    """Its rows, and its folder with the uploads that no other job needs."""
    await engine.ask(lambda store: store.remove_job(job))
    await engine.figures.forget(job)
    unneeded: set[str] = set()
    if plan is not None and not engine.damaged:
        unneeded = uploads.needed_by(engine.root, plan) - _needed_uploads(engine)
    place = engine.root.job(job).path
    doomed = engine.tmp / f"removed-{job}"
    if os.path.lexists(place):
        place.rename(doomed)
        uploads.discard(engine.root, unneeded, doomed)
        if doomed.is_dir() and not doomed.is_symlink():
            await asyncio.to_thread(shutil.rmtree, doomed, True)
        else:
            doomed.unlink()


def _forget_files(engine: Engine, plan: Plan) -> None:
    """Code, model and list of a job that is gone, unless another one wants them."""
    if engine.taking or engine.damaged:  # those may want them; the files stay, which is the lesser evil
        return
    plans = [live.plan for live in engine.jobs.values()]
    code, model = plan.work.code, plan.work.model
    if code and all(other.work.code != code for other in plans):
        engine.root.pack(code).unlink(missing_ok=True)
    if model and all(other.work.model is None or other.work.model.digest != model.digest for other in plans):
        engine.root.model(model.digest).unlink(missing_ok=True)
    for digest in lists_of(plan).difference(*map(lists_of, plans)):
        engine.root.items(digest).unlink(missing_ok=True)


def _needed_uploads(engine: Engine) -> set[str]:
    plans = [*(live.plan for live in engine.jobs.values()), *filter(None, engine.taking.values())]
    return set().union(*(uploads.needed_by(engine.root, plan) for plan in plans))


async def sweep_forever(engine: Engine) -> None:
    """Delete what killed submitters left behind."""
    loop, uploads_due = asyncio.get_running_loop(), 0.0
    while True:
        try:
            left = sweep(engine.root.tmp, engine.tmp, set(engine.taking))
            if loop.time() >= uploads_due and not engine.damaged:
                uploads_due = loop.time() + UPLOADS_SWEEP_SECONDS
                uploads.sweep(engine.root, _needed_uploads(engine))
        except OSError as error:
            log.warning("what killed submitters left is not swept: %s", error)
            left = []
        for folder in left:
            log.info("%s is deleted: its submitter is gone", folder.name)
            await asyncio.to_thread(shutil.rmtree, folder, True)
        await asyncio.sleep(SWEEP_TICKS * engine.state.timing.tick)
