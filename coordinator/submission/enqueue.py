"""A configuration that somebody adds to a search while it runs: held to the search's space, and kept for its driver."""

from __future__ import annotations

import msgspec

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.farm_root import ask_daemon, plans
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.errors import UsageError
from muster.jobs.common.names import check_name
from muster.jobs.contract.states import ENDED
from muster.jobs.kinds.tune import Tune
from muster.jobs.tuning.params import TuneParams
from muster.jobs.tuning.queue import Queue, Queued
from muster.jobs.tuning.space import Config, Space


def enqueue(root: Root, job: str, config: Config, name: str) -> int:
    """Its place among all that were added, once it is durable. `name`: what is sent again under it counts once."""
    check_name(name, "configuration")
    work = plans.load(root.job(job)).work
    if work.kind != Tune.name:
        raise UsageError(f"{job} is of the kind `{work.kind}`, and not a search", "name a job of `kind: tune`")
    Space(msgspec.convert(work.params, TuneParams).space).check_within(config, job)
    state = ask_daemon.ask(root, StatusAsk(job), Status).jobs[0].state
    return Queue(root.job(job).checkpoints).add(Queued(name, config), is_over=state in ENDED)
