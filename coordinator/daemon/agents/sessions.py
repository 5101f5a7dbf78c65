"""Which sessions there are, what each is to be told, and what agents say of themselves. Decides nothing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Container

import msgspec

from muster.coordinator.api.values import LARGEST
from muster.coordinator.daemon.agents.outbox import Outbox
from muster.coordinator.daemon.measures import TransferRate
from muster.coordinator.protocol.control import Hello, LayerInfo, Sync
from muster.coordinator.scheduler.entities import Agent
from muster.jobs.contract.states import AgentState
from muster.jobs.contract.text_limits import MESSAGE_BYTES, kept_line

SESSIONS_PER_BOOT = 1 << 32  # session numbers of two boots never meet, and nobody guesses another's
HOST_BYTES = 256  # of what a machine or a version is called


class AgentInfo(msgspec.Struct):
    """What an agent's last hello and sync said that no decision hangs on."""

    host: str
    version: str
    fingerprint: str
    cpus: int
    note: str = ""
    seen: float = 0.0  # wall clock
    kinds: list[str] = []  # as `Hello` has them
    no_code: bool = False
    spool: str = ""  # its uuid, which no other agent knows
    fingerprints: list[str] = []  # that parts of that spool may have, the newest last
    left: bool = False  # in good order, and not back since
    in_place: bool = True
    have: str = ""  # as `Hello` has it
    link_in: TransferRate = msgspec.field(default_factory=TransferRate)  # of inputs, from its copy or over its link
    link_out: TransferRate = msgspec.field(default_factory=TransferRate)  # of results
    pulled: int = 0  # bytes of input over its link, for as long as it has had this copy, or none
    spared: int = 0  # bytes that its copy had instead
    machine: str = ""  # as `Hello` has it
    cores: int = 0
    narrowed: dict[str, str] = {}  # job → why fewer of its shards run there than are lent
    places: dict[str, int] = {}  # of a cluster, as it said last


class Sessions:
    """One per daemon."""

    def __init__(self, boot: int) -> None:
        self.agents: dict[str, AgentInfo] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._first = boot * SESSIONS_PER_BOOT

    def open(self) -> tuple[int, Outbox]:
        """Its number is all that the other channels of an agent show: it is drawn, not counted."""
        session = self._first + secrets.randbelow(SESSIONS_PER_BOOT)
        outbox = self._outboxes[session] = Outbox()
        return session, outbox

    def outbox(self, session: int) -> Outbox | None:
        """None for a session that is over: it needs no news."""
        return self._outboxes.get(session)

    def tell_again(self, infos: list[LayerInfo]) -> None:
        """Whoever knows these layers hears of them as they are now."""
        for outbox in self._outboxes.values():
            outbox.tell_again(infos)

    def close(self, session: int) -> bool:
        """True if it was open."""
        return self._outboxes.pop(session, None) is not None

    def forget_ended(self, live: Container[int]) -> None:
        """Mailboxes of sessions that are over; a fenced one keeps its refusal until it is read."""
        for session in [s for s, box in self._outboxes.items() if s not in live and not box.rejected]:
            del self._outboxes[session]

    # --- what agents say of themselves --------------------------------------------------------------------

    def hello(self, hello: Hello) -> None:
        said = (hello.host, hello.version, hello.fingerprint, hello.cpus)
        info = AgentInfo(*said, "", time.time(), hello.kinds, hello.no_code, hello.spool)
        info.in_place, info.have, info.machine, info.cores = hello.in_place, hello.have, hello.machine, hello.cores
        if (known := self.agents.get(hello.name)) and (known.in_place, known.have) == (info.in_place, info.have):
            info.link_in, info.link_out = known.link_in, known.link_out
            info.pulled, info.spared = known.pulled, known.spared
        self.agents[hello.name] = info

    def earlier_of(self, hello: Hello) -> tuple[frozenset[str], tuple[str, ...]]:
        """Names and fingerprints that its spool has been heard of under: finished parts there may have them."""
        same = {
            name: info
            for name, info in self.agents.items()
            if info.spool == hello.spool or (name == hello.name and not info.spool)  # of a daemon that kept no spool
        }
        told = [one for info in same.values() for one in info.fingerprints or [info.fingerprint]]
        return frozenset(same), tuple(dict.fromkeys(told))

    def sync(self, agent: str, sync: Sync) -> None:
        info = self.agents[agent]
        info.seen, info.note, info.cpus = time.time(), sync.note, sync.lent if sync.lent > 0 else info.cpus
        info.narrowed = sync.narrowed
        info.link_in.moved(sync.pulled + sync.spared, sync.pull_seconds)
        info.link_out.moved(sync.pushed, sync.push_seconds)
        info.pulled, info.spared = min(info.pulled + sync.pulled, LARGEST), min(info.spared + sync.spared, LARGEST)
        info.places = info.places if sync.places is None else sync.places

    def state_of(self, name: str, agent: Agent | None) -> AgentState:
        """What its agent is; None in place of one that did not come since the daemon's start."""
        if agent is not None:
            return agent.state
        return "left" if self.agents[name].left else "gone"

    def restore(self, agent: str, info: AgentInfo | None) -> None:
        """What was known of it before, if anything was."""
        if info is not None:
            self.agents[agent] = info

    def remember(self, agent: str, seen: float, raw: bytes) -> None:
        """What an earlier life of the daemon had stored."""
        info = self.agents[agent] = msgspec.msgpack.decode(raw, type=AgentInfo)
        info.seen, info.note = seen, kept_line(info.note)
        info.host, info.version = kept_line(info.host, HOST_BYTES), kept_line(info.version, HOST_BYTES)
        info.fingerprint, info.have = kept_line(info.fingerprint, MESSAGE_BYTES), kept_line(info.have, HOST_BYTES)
        info.places = {}

    def stored(self, agent: str) -> tuple[float, bytes]:
        """When it was heard of, and what the store has of it."""
        info = self.agents[agent]
        return info.seen, msgspec.msgpack.encode(info)
