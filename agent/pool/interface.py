"""What a pool of workers is to the agent, and the events that it tells of them. `controller` opens the one there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from muster.jobs.common.errors import MusterError
from muster.jobs.workbench.batch import Batch, Outcome


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


class Pool(Protocol):
    """Slots with a worker each, on this machine. What becomes of batches comes as events."""

    def start(self) -> None:
        """Every worker is up once this returns. A PoolNotStarted if another try may do better, else a MusterError."""

    def stop(self) -> None:
        """End all that was started. Batches still running are killed without an event; drain first."""

    def submit(self, slot: int, batch: Batch) -> int:
        """Queue a batch on a slot's worker, which runs them in order; the ticket its event will carry."""

    def kill(self, slot: int) -> None:
        """SIGKILL a slot's worker and its runners. A WorkerDied with `killed_by_us` follows."""

    def grow(self, slots: int) -> None:
        """So many slots at least."""

    def worker_pid(self, slot: int) -> int | None:
        """None while the worker is starting."""
