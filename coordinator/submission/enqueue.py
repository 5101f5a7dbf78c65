"""What somebody says to a search while it runs: a configuration, held to the search's space, or that it is to end. Kept
for its driver."""

from __future__ import annotations

import msgspec

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.farm_root import ask_daemon, plans
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.errors import UsageError
from muster.jobs.common.names import check_name
from muster.jobs.contract.states import ENDED, JobState
from muster.jobs.kinds.tune import Tune
from muster.jobs.tuning.params import TuneParams
from muster.jobs.tuning.queue import Queue, Queued
from muster.jobs.tuning.space import Config, Space


def enqueue(root: Root, job: str, config: Config, name: str) -> int:
    """Its place among all that were added, once it is durable. `name`: what is sent again under it counts once."""
    check_name(name, "configuration")
    Space(_params(root, job).space).check_within(config, job)
    return _queue(root, job).add(Queued(name, config), is_over=_state(root, job) in ENDED)


def end(root: Root, job: str) -> JobState | None:
    """Have a search end with what it has: the state in which it hears of that. None where it has ended, or is to."""
    _params(root, job)
    state = _state(root, job)
    return state if state not in ENDED and _queue(root, job).end() else None


def _params(root: Root, job: str) -> TuneParams:
    work = plans.load(root.job(job)).work
    if work.kind != Tune.name:
        raise UsageError(f"{job} is of the kind `{work.kind}`, and not a search", "name a job of `kind: tune`")
    return msgspec.convert(work.params, TuneParams)


def _queue(root: Root, job: str) -> Queue:
    return Queue(root.job(job).checkpoints)


def _state(root: Root, job: str) -> JobState:
    return ask_daemon.ask(root, StatusAsk(job), Status).jobs[0].state
