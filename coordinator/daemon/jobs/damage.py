"""Jobs whose folder or rows cannot be used: each is set apart with the evidence, and everything else goes on.

Nothing of it is stored. Once the cause is mended and the daemon started again, such a job goes on from where it was.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from muster.coordinator.api.status import JobStatus
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.views.status import at_rest, job_status
from muster.coordinator.scheduler import events as e
from muster.jobs.common.durable import is_full
from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.text_limits import MESSAGE_CHARS

log = logging.getLogger("muster.daemon")

MEND = "put back what is missing, from a backup say, then start the coordinator again; or `coordinator rm {0}`"


def damaged(engine: Engine, job: str, why: str) -> None:
    """A job that is served turned out so."""
    if job not in engine.jobs:
        return
    status = job_status(engine, engine.state.jobs[job], with_layers=True)
    for listener in engine.job_listeners:
        listener(job, "damaged", why)
    live = engine.jobs[job]
    set_apart(engine, status, DamagedError(why, MEND.format(job)), tuple(live.layers))
    del engine.jobs[job]
    live.moved.give()


def set_apart(engine: Engine, status: JobStatus, error: DamagedError, layers: tuple[str, ...]) -> None:
    """`status`: what is known of it; `layers`: the digests of its layers."""
    why = error.message[:MESSAGE_CHARS]
    log.error("%s is damaged and set apart, all else goes on: %s; %s", status.id, why, error.hint)
    engine.damaged[status.id] = at_rest(status, why, [error.hint]), error
    engine.handle(e.JobDamaged(status.id, layers))


def has_folder(engine: Engine, job: str) -> bool:
    """Whether the folder of a job that is served is there, as far as one can see; without it the job is damaged."""
    place = engine.root.job(job)
    for folder in (place.path, place.bundles):
        if fault := _fault_of(folder):
            damaged(engine, job, fault)
            return False
    return True


def _fault_of(folder: Path) -> str:
    try:
        os.scandir(folder).close()
    except OSError as error:
        return "" if is_full(error) else f"{folder}: {error.strerror}"
    return ""
