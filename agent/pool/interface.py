"""A pool's two ports: `Pool`, what the agent asks of slots; `Workers`, how worker processes come to be.

`pool` stands between them and is the one implementation of the upper; `controller` chooses one of the lower. What is
told of slots are events of the agent's core, and has no types of its own here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args

from muster.agent.core.events import Needs, PlaceRefused
from muster.jobs.common.errors import MusterError
from muster.jobs.common.processes import ProcessId
from muster.jobs.workbench.batch import Batch

PoolKind = Literal["ray", "processes"]
POOL_KINDS: tuple[PoolKind, ...] = get_args(PoolKind)
LOST_HINT = "check free memory, /dev/shm, `ulimit -u` and /tmp; agent.log may say more"  # of a PoolLost with no error


# --- the upper port: slots ------------------------------------------------------------------------------


class Pool(Protocol):
    """Slots with a worker each. What becomes of slots and batches comes as events of the core's, one at a time."""

    def start(self) -> None:
        """Begin to start workers, and return at once. A SlotUp follows for each slot, or a PoolLost: after that `stop`
        it, and `start` begins anew."""

    def want(self, slots: int) -> None:
        """So many slots at least."""

    def ask(self, wanted: Mapping[Needs, int]) -> None:
        """So many workers of each sort, where they are started as work asks for them. Those beyond end without one."""

    def submit(self, slot: int, ticket: int, batch: Batch, needs: Needs) -> None:
        """Queue a batch on a slot's worker, which runs them in order; one event will carry the caller's ticket. To a
        slot that is not up nobody submits, but the news of that may be under way: then it waits for the next worker."""

    def kill(self, slot: int) -> None:
        """SIGKILL a slot's worker and its runners. A WorkerDied that is `ours` follows."""

    def worker_pid(self, slot: int) -> int | None:
        """Of a worker on this machine; None while there is none."""

    def stop(self) -> None:
        """End all that was started. Batches still running are killed without an event; drain first."""


# --- the lower port: worker processes -------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """Workers may be started."""


@dataclass(frozen=True)
class WorkerUp:
    """The first word of a worker."""

    seat: str
    place: str = ""  # the name of the machine it is on; "" for this one
    process: ProcessId | None = None  # None where it is not on this machine


@dataclass(frozen=True)
class WorkerSaid:
    """The encoded outcome of a batch, whole; or, with `broken`, why there is none: that worker runs nothing more."""

    seat: str
    ticket: int
    outcome: bytes
    broken: str = ""


@dataclass(frozen=True)
class WorkerGone:
    """The last word about a worker, told once: all that it said is told, and nothing of it runs any more here."""

    seat: str
    why: str


@dataclass(frozen=True)
class Closed:
    """No worker is left and none can be started, because of `why`; the last word of all, if it is not by `close`. With
    `hopeless`, opening it again would end the same way; or it never was open, and cannot be."""

    why: str
    hopeless: MusterError | None = None


Word: TypeAlias = Opened | PlaceRefused | WorkerUp | WorkerSaid | WorkerGone | Closed


class Workers(Protocol):
    """Worker processes by seat. A seat is a name that one worker has, and none after it. What becomes of them is told
    by `tell`, from any thread, by one that holds no lock; the pool handles words one at a time, in the order told.

    The seat of a worker is in its first environment, as MUSTER_SEAT, and so in that of all it starts on this machine.
    """

    on_demand: bool  # whether workers are started as work asks for them, on whatever machine has room
    heeds_needs: bool  # whether `start` heeds them: a worker of other needs is then replaced before it runs a batch
    room: Needs | None  # what all workers together may need, where one that waits for room waits without end

    def open(self, temp: Path, tell: Callable[[Word], None]) -> None:
        """Begin, and return at once: an Opened follows, or a Closed. `temp` is a folder of ours alone, which is removed
        after the end; whatever is started names it, or a seat, which begins with its name, in its command line or
        first environment, so that it is found even after a kill -9 of us."""

    def start(self, seat: str, needs: Needs) -> None:
        """Begin to start a worker: a WorkerUp follows, and in any case a WorkerGone, once."""

    def send(self, seat: str, ticket: int, batch: bytes, name: str, in_rounds: bool) -> None:
        """Have a worker that is up run an encoded batch after those it has. One that is gone lets it be. `name` says
        what it is, for people; `in_rounds`, that others wait for it."""

    def kill(self, seat: str) -> None:
        """SIGKILL a worker and what it runs, up or not, if it is not gone yet. Its WorkerGone follows."""

    def close(self) -> None:
        """End all of them without a word, and return once no word comes any more."""
