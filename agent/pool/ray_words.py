"""What the agent orders of Ray's driver, and what that says. Values alone."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class RayWord(msgspec.Struct, frozen=True, array_like=True):
    """One frame, either way."""


# --- of the agent ---------------------------------------------------------------------------------------


class StartRay(RayWord, frozen=True, tag="start-ray"):
    """First: start a Ray of this machine alone, with so much for all its workers."""

    temp: str
    cpus: int
    gpus: tuple[str, ...]  # labels
    memory: int  # bytes
    worker: str  # "module:class" of what runs batches
    log: str  # "" for none
    token: str


class JoinRay(RayWord, frozen=True, tag="join-ray"):
    """First: be a driver of a cluster that is there."""

    address: str  # host:port
    modules: str  # folder with our package, as its nodes are to have it
    worker: str
    log: str
    token: str  # "" for none


class StartSeat(RayWord, frozen=True, tag="start-seat"):
    """Make an actor of that name, with so much for itself."""

    seat: str
    cpus: int
    gpus: int
    memory: int  # bytes; 0: as it comes


class CallSeat(RayWord, frozen=True, tag="call-seat"):
    """Have it run a batch. `name` is what people see of the call."""

    seat: str
    ticket: int
    batch: bytes
    name: str


class AttendSeat(RayWord, frozen=True, tag="attend-seat"):
    """Have it take batches from a socket until that is closed."""

    seat: str
    address: str


class KillSeat(RayWord, frozen=True, tag="kill-seat"):
    """End it, with what it runs."""

    seat: str


class EndSeat(RayWord, frozen=True, tag="end-seat"):
    """Its process has ended: no more calls come, and those that are out say why."""

    seat: str


# --- to the agent ---------------------------------------------------------------------------------------


class RayUp(RayWord, frozen=True, tag="ray-up"):
    """Actors may be asked for. Of a cluster, what it has now."""

    version: str = ""  # Ray's
    nodes: int = 0
    cpus: int = 0
    gpus: int = 0
    memory: int = 0  # bytes


class RayDown(RayWord, frozen=True, tag="ray-down"):
    """Ray did not start, or is gone: the last word. With a `hint`, another try would change nothing."""

    why: str
    hint: str = ""


class NodeRefused(RayWord, frozen=True, tag="node-refused"):
    """Nothing is run on a node of the cluster."""

    place: str
    why: str


class SeatUp(RayWord, frozen=True, tag="seat-up"):
    """An actor's first word."""

    seat: str
    ready: bytes
    place: str = ""  # the name of its node; "" for this machine


class SeatSaid(RayWord, frozen=True, tag="seat-said"):
    """What came of a batch."""

    seat: str
    done: bytes


class SeatGone(RayWord, frozen=True, tag="seat-gone"):
    """An actor is no more. All that it said was told before."""

    seat: str
    why: str


FirstOrder: TypeAlias = StartRay | JoinRay
SeatOrder: TypeAlias = StartSeat | CallSeat | AttendSeat | KillSeat | EndSeat
HostWord: TypeAlias = RayUp | RayDown | NodeRefused | SeatUp | SeatSaid | SeatGone
