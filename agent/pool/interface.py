"""What a pool tells of its workers: events, in the core's terms. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from muster.jobs.common.errors import MusterError
from muster.jobs.workbench.batch import Outcome


@dataclass(frozen=True)
class BatchDone:
    """A batch ran to its end, whatever became of its shards."""

    slot: int
    ticket: int
    outcome: Outcome


@dataclass(frozen=True)
class WorkerDied:
    """A slot's worker is gone; of its batches the first was running. Told before another runs anything in that slot."""

    slot: int
    tickets: tuple[int, ...]
    reason: str
    killed_by_us: bool


@dataclass(frozen=True)
class PoolLost:
    """Ray itself is gone; a WorkerDied for each slot that had batches came before. `stop` it; `start` begins anew."""

    reason: str


class PoolNotStarted(MusterError):
    """Ray did not come up, or went while it did. Another start may do."""

    default_hint = "check free memory, /dev/shm, `ulimit -u` and /tmp; agent.log may say more"


PoolEvent: TypeAlias = BatchDone | WorkerDied | PoolLost
