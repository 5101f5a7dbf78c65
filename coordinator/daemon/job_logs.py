"""What failed, where, and the evidence: in the store, and in the job's failures.log for people, which nothing reads."""

from __future__ import annotations

import logging
import os
import time
from datetime import datetime
from pathlib import Path

from muster.coordinator.api.driver import GivenUp
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.protocol.control import Failure
from muster.coordinator.scheduler import actions as c
from muster.jobs.common.printable import harmless, joined
from muster.jobs.common.units import format_duration, format_size
from muster.jobs.contract.failure_codes import JobCode
from muster.jobs.contract.text_limits import LOG_BYTES

log = logging.getLogger("muster.daemon")


def store_failure(engine: Engine, action: c.StoreFailure) -> None:
    failure = action.failure
    _store(engine, action.job, action.agent, _host_of(engine, action.agent), failure, action.quarantine)
    if action.quarantine:
        why = f"{failure.code}: {failure.message}"
        _tell_driver(engine, action.job, GivenUp(failure.number, why, failure.evidence, failure.code, action.agent))


def store_failure_told(engine: Engine, job: str, agent: str, failure: Failure) -> None:
    """What failed on a machine and was a shard's result: the shard itself did not fail."""
    _store(engine, job, agent, _host_of(engine, agent), failure, False, counts=False)


def _host_of(engine: Engine, agent: str) -> str:
    agents = engine.sessions.agents
    return agents[agent].host if agent in agents else ""


def store_own_failure(
    engine: Engine, job: str, layer: str, number: int, code: JobCode, message: str, evidence: str
) -> None:
    """What failed here, on the server."""
    failure = Failure(job, layer, number, engine.boot, 0, code, message, evidence, 0.0, 0)
    _store(engine, job, "coordinator", "", failure, False, counts=False)


def _store(
    engine: Engine, job: str, agent: str, host: str, failure: Failure, quarantine: bool, counts: bool = True
) -> None:
    live, at = engine.jobs[job], time.time()
    live.figures.failed(agent, failure)
    if counts:
        engine.figures.failed(job, agent, live.layers[failure.layer].name, failure)
    engine.write(lambda store: store.add_failure(job, agent, at, failure, quarantine, counts=counts))
    shard = f"{job}/{live.name_of(failure.layer, failure.number)}"
    _append_failure(engine.root.job(job).failures, shard, agent, host, failure, quarantine)


def store_quarantine(engine: Engine, action: c.StoreQuarantine) -> None:
    job, layer, number, why = action.job, action.layer, action.number, action.why
    engine.write(lambda store: store.add_quarantine(job, layer, number, why))
    shard = f"{job}/{engine.jobs[job].name_of(layer, number)}"
    _append(engine.root.job(job).failures, [f"{_now()} {shard} given up: {joined(why)}"])
    _tell_driver(engine, job, GivenUp(number, why))


def _tell_driver(engine: Engine, job: str, shard: GivenUp) -> None:
    if engine.state.jobs[job].goes_on:
        engine.jobs[job].give_up(shard)


def forget_failures(engine: Engine, action: c.ForgetFailures) -> None:
    engine.write(lambda store: store.forget_failures(action.job, action.agent, action.shards))


def _append_failure(path: Path, shard: str, agent: str, host: str, failure: Failure, quarantined: bool) -> None:
    """One failed attempt: a headline, then the evidence, indented."""
    where = f"{agent} ({host})" if host else agent
    head = (
        f"{_now()} {shard} {failure.code} on {where}, attempt {failure.boot}.{failure.attempt}, after"
        f" {format_duration(failure.seconds)}, peak {format_size(failure.peak)}: {joined(failure.message)}"
    )
    lines = [head, *(f"    {line}" for line in harmless(failure.evidence).splitlines())]
    if quarantined:
        lines.append(f"{_now()} {shard} given up: that was its last attempt")
    _append(path, lines)


def _now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S%z")


def _append(path: Path, lines: list[str]) -> None:
    """Evidence must never stop the daemon: a full disk costs the text, which the store has too."""
    try:
        if path.exists() and path.stat().st_size > LOG_BYTES:
            return
        with open(path, "a", opener=_private) as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
