"""What is kept of a machine: how fast its bytes move lately, for as long as it has the same copy of the source."""

from __future__ import annotations

import msgspec
import pytest

from muster.coordinator.api.values import LARGEST
from muster.coordinator.daemon.agents.sessions import Sessions
from muster.coordinator.protocol.control import Hello, Sync
from tests.support.sched import hello

MIB = 1 << 20


def far(have: str = "") -> Hello:
    return hello(name="lab3", spool="s", process="p", cpus=2, memory=1, disk=1, kernels={}, in_place=False, have=have)


def pulling(mib: int, seconds: float, spared: int = 0) -> Sync:
    return Sync(1, 0, pulled=mib * MIB, spared=spared * MIB, pull_seconds=seconds)


def test_what_its_copy_had_counts_as_brought_and_is_kept_over_a_reconnection_and_a_restart() -> None:
    sessions = Sessions(1)
    sessions.hello(far("/mnt"))
    sessions.sync("lab3", pulling(10, 2.0, spared=30))
    sessions.hello(far("/mnt"))
    again = Sessions(2)
    again.remember("lab3", *sessions.stored("lab3"))
    for known in (sessions.agents["lab3"], again.agents["lab3"]):
        assert known.link_in.rate == pytest.approx(20 * MIB)
        assert (known.pulled, known.spared, known.have) == (10 * MIB, 30 * MIB, "/mnt")


def test_a_clusters_nodes_are_those_it_said_last_and_forgotten_with_the_daemon() -> None:
    sessions = Sessions(1)
    sessions.hello(far())
    sessions.sync("lab3", Sync(1, 0, places={"left": 2, "right": 1}))
    sessions.sync("lab3", Sync(1, 0))
    assert sessions.agents["lab3"].places == {"left": 2, "right": 1}
    again = Sessions(2)
    again.remember("lab3", *sessions.stored("lab3"))
    sessions.sync("lab3", Sync(1, 0, places={}))
    assert sessions.agents["lab3"].places == again.agents["lab3"].places == {}


def test_with_another_copy_it_is_measured_anew() -> None:
    sessions = Sessions(1)
    sessions.hello(far())
    sessions.sync("lab3", pulling(10, 2.0))
    sessions.hello(far("/mnt"))
    known = sessions.agents["lab3"]
    assert (known.link_in.rate, known.pulled) == (0.0, 0)


def test_whatever_a_machine_says_can_be_stored() -> None:
    sessions = Sessions(1)
    sessions.hello(far())
    for seconds in (5e-324, 1e10, 0.0):
        for _ in range(2000):
            sessions.sync("lab3", Sync(1, 0, pulled=LARGEST, spared=LARGEST, pull_seconds=seconds))
    again = Sessions(2)
    again.remember("lab3", *sessions.stored("lab3"))
    assert again.agents["lab3"].pulled == LARGEST


def test_an_older_daemons_record_is_read() -> None:
    sessions = Sessions(1)
    older = {"host": "h", "version": "0", "fingerprint": "f", "cpus": 2, "note": "", "seen": 1.0}
    sessions.remember("old", 1.0, msgspec.msgpack.encode(older))
    assert sessions.agents["old"].in_place and sessions.agents["old"].link_in.rate == 0.0
