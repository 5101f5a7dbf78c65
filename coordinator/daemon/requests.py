"""Who answers what commands and drivers ask: one table, a handler a question. Answers nothing itself but `stop`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from inspect import isawaitable
from typing import Any

import msgspec

from muster.coordinator.api import driver
from muster.coordinator.api import requests as a
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.jobs import drivers, lifecycle
from muster.coordinator.daemon.jobs.remove import remove
from muster.coordinator.daemon.jobs.submit import submit
from muster.coordinator.daemon.views import explain, shard_map, status
from muster.coordinator.protocol.values import Message, encode
from muster.jobs.common.durable import is_full
from muster.jobs.common.errors import INTERNAL_EXIT, MusterError, RefusedError, SpaceError

log = logging.getLogger("muster.daemon")


async def look(engine: Engine, asked: a.Look) -> a.Looked:
    """Counts whatever this process does until the answer is there, what the store's thread has to read and the encoding
    too. Where it waits for others that may be more than it took."""
    began = time.process_time()
    said = msgspec.Raw(encode(await answer(engine, asked.question, None)))
    took = time.process_time() - began
    left = engine.looking.answered(took, time.monotonic(), time.process_time())
    return a.Looked(said, took, left.rate, left.owed)


def stop(engine: Engine, _: a.Stop) -> a.Done:
    asyncio.get_running_loop().call_later(0.05, engine.stop.set)
    return a.Done("stopping; jobs go on when it is started again")


Answer = Message | Awaitable[Message]
QUESTIONS: Mapping[type[Message], Callable[[Engine, Any], Answer]] = {  # that change nothing
    a.StatusAsk: status.status_of,
    a.AgentsAsk: status.agents_of,
    a.FailuresAsk: status.failures,
    a.CommitsAsk: status.commits,
    a.ManifestsAsk: status.manifests,
    a.Usage: status.usage,
    a.FiguresAsk: status.figures,
    a.MapAsk: shard_map.shard_map,
    a.Look: look,
    a.ExplainAgent: explain.explain_agent,
    a.ExplainJob: explain.explain_job,
    a.ExplainShard: explain.explain_shard,
    driver.DriveWait: drivers.wait,
}
CHANGES: Mapping[type[Message], Callable[[Engine, Any], Answer]] = {
    a.Submit: submit,
    a.Remove: remove,
    a.Cancel: lifecycle.cancel,
    a.Pause: lifecycle.pause,
    a.Resume: lifecycle.resume,
    a.Priority: lifecycle.prioritise,
    a.SetJob: lifecycle.set_job,
    a.Retry: lifecycle.retry,
    a.Drain: lifecycle.drain,
    a.DropAgent: lifecycle.drop_agent,
    a.Kick: lifecycle.kick,
    a.Stop: stop,
}
DRIVES: Mapping[type[Message], Callable[[Engine, Any, object], Answer]] = {  # of a job's one driver: a connection's
    driver.DriveOpen: drivers.open_job,
    driver.DriveDamaged: drivers.damaged,
    driver.DriveFailed: drivers.failed,
    driver.DriveGivenUp: drivers.give_up,
    driver.Advance: drivers.advance,
}


async def answer(engine: Engine, question: Message, connection: object) -> Message:
    """The answer to one question; an error of the asker's is an answer too."""
    reads = type(question) in QUESTIONS
    try:
        with nullcontext() if reads else engine.changing(type(question).__name__):
            said = _handled(engine, question, connection)
            return await said if isawaitable(said) else said
    except MusterError as error:
        return a.problem_of(error)
    except OSError as error:
        log.error("a question was not answered: %s", error)
        return a.problem_of(_trouble(error))
    except Exception:
        if not reads:
            raise
        log.exception("a question was not answered")  # it changed nothing: no reason to stop
        return a.Problem("the coordinator cannot tell", "a bug: daemon.log has its traceback", INTERNAL_EXIT)


def _handled(engine: Engine, question: Message, connection: object) -> Answer:
    if drives := DRIVES.get(type(question)):
        return drives(engine, question, connection)
    handler = QUESTIONS.get(type(question)) or CHANGES.get(type(question))
    if handler is None:
        raise RefusedError(f"nobody here answers {type(question).__name__}")
    return handler(engine, question)


def _trouble(error: OSError) -> MusterError:
    """What the root's disk would not do."""
    why = f"{error.filename}: {error.strerror}"
    return SpaceError(why) if is_full(error) else RefusedError(why, "see what ails the root's disk, then ask again")
