"""What was committed of a job, in that order, told to who follows it. Reads the store; changes nothing."""

from __future__ import annotations

import asyncio

from muster.coordinator.api.requests import CommitsAsk
from muster.coordinator.api.status import Commit, Commits
from muster.coordinator.daemon.engine import Engine
from muster.coordinator.daemon.store.statements import CommitRow
from muster.coordinator.scheduler.entities import Job
from muster.jobs.common.errors import NotFoundError

PAGE = 64  # commits in one answer: each may name thousands of ranges
WAIT_LIMIT_SECONDS = 30.0


async def commits(engine: Engine, job: Job, question: CommitsAsk) -> Commits:
    """The next page, as soon as there is something to say."""
    deadline = asyncio.get_running_loop().time() + min(question.wait, WAIT_LIMIT_SECONDS)
    while True:
        news, over = engine.something_for_drivers, job.ended or job.state == "halted"  # before the store is asked
        rows = await engine.ask(lambda store: store.commits_after(job.id, question.after, PAGE))
        if job.id not in engine.jobs:
            raise NotFoundError(f"{job.id} was removed")
        left = deadline - asyncio.get_running_loop().time()
        if rows or over or left <= 0:
            return Commits([_commit(engine, job.id, row) for row in rows], over and len(rows) < PAGE)
        try:
            await asyncio.wait_for(news.wait(), left)
        except (TimeoutError, asyncio.TimeoutError):
            continue


def _commit(engine: Engine, job: str, row: CommitRow) -> Commit:
    return Commit(row.seq, engine.jobs[job].layers[row.layer].name, row.file, row.numbers)
