"""What a hostile agent costs the coordinator: processor time of its worst frame, decoded, cut and handled; and, as
`daemon MiB`, by how much a daemon grows while one with a key of its own sends such frames as fast as they are taken."""

from __future__ import annotations

import argparse
import gc
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil
from msgspec.structs import replace

from benchmarks.measure import machine, report
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol.control import (
    Failure,
    Finished,
    FromAgent,
    Held,
    Hello,
    Loss,
    Returned,
    Sync,
    ToAgent,
    Welcome,
)
from muster.coordinator.protocol.fitting import fitted
from muster.coordinator.protocol.frames import AGENT_LIMIT, FrameReader, frame
from muster.coordinator.protocol.transfer import Attach
from muster.coordinator.protocol.values import Decoder, Message, encode
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Holding
from muster.coordinator.scheduler.state_machine import Scheduler
from muster.jobs.common.errors import ProtocolError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import FORMAT, ArraySource, Environment, Layer, Plan, Stamp, Work
from tests.support.farm import FarmHarness, running

WANTED_MS = 50.0
PACKAGES = {f"p{n}": "1" for n in range(8_000)}
LAYER, COUNT, SESSION = "a" * 32, 1 << 20, 1
HELLO = Hello(1, "", "bad", "s", "p", "", 1, 4096, 0, 1 << 50, {"cluster": 1}, "", "", in_place=True)
SHARDS = 4_096
GROWTH_SECONDS = 20.0
_decode, _hear = Decoder(FromAgent), Decoder(ToAgent)


def scheduler() -> Scheduler:
    """One job, and one agent that holds every other shard of a large grant."""
    made = Scheduler(1)
    layer = Layer("x", LAYER, ArraySource("x.npy", 0, "<f4", (COUNT,), Stamp(0, 0, 0, 0)), COUNT, 1, COUNT, 0, 0, ())
    plan = Plan(FORMAT, "job", Work("cluster", 1, {}, None, None, None, 1, None, None), (layer,), 3, 20, 1, None)
    made.handle(e.JobAdded("job.1", plan, 1, (e.LayerSeed(layer, COUNT, 0),), succeeded=True), 0.0)
    made.handle(e.Joined(SESSION, HELLO), 0.0)
    numbers = RangeSet.canonical(odd(0, 32_768))
    made.state.open_layers[LAYER].fresh.remove(numbers)
    made.state.add_holding(Holding("bad", "job.1", LAYER, 1, 1, 0.0, numbers))
    made.state.last_attempt = 1
    return made


def odd(low: int, count: int) -> list[tuple[int, int]]:
    return [(n, n + 1) for n in range(low, low + 2 * count, 2)]


def frames(made: Scheduler) -> Iterator[tuple[str, Message]]:
    """The largest that the decoder takes, of each kind of list."""
    held = max(made.state.agents["bad"].holdings.values(), key=lambda holding: len(holding.open))
    low, attempt = held.open.bottom, held.attempt
    each, runs = odd(low, 4_096), odd(low, 60_000)
    yield "finished", Sync(SESSION, 0, finished=[Finished("j", LAYER, 1, attempt, each, 0, 1e10, 0.0, 0, 0, 0)])
    yield "finished, all", Sync(SESSION, 0, finished=[Finished("j", LAYER, 1, attempt, runs, 0, 1e10, 0.0, 0, 0, 0)])
    one = Finished("j", LAYER, 1, attempt, [(low, low + 1)], 0, 1e10, 0.0, 0, 0, 0)
    yield "finished, many", Sync(SESSION, 0, finished=[one] * 5_500)
    yield "lost", Sync(SESSION, 0, losses=[Loss("j", LAYER, 1, attempt, odd(low + 9_000, 4_096), True, "\x1b" * 9_000)])
    yield "returned", Sync(SESSION, 0, returned=[Returned(LAYER, 1, attempt, odd(low + 18_000, 4_096))])
    bad = Failure("j", LAYER, low + 30_001, 1, attempt, "exit", "\x1b" * 1_000, "\x1b\n" * 1_000, 0.0, 0)
    yield "failures", Sync(SESSION, 0, failures=[bad] * 300)
    yield "changed", Sync(SESSION, 0, changed=[LAYER] * 30_000, change="\x1b" * 9_000)
    yield "counts", Sync(SESSION, 0, counts={f"{n:032x}": 0 for n in range(27_000)})
    claims = [Held("j", LAYER, 1, n, each[n % 9 :: 9], []) for n in range(170)]
    yield "held", replace(HELLO, held=claims)
    yield "kernels and packages", replace(HELLO, packages=["p"] * 1_024, envs={"": Environment("3", PACKAGES)})


def handled(made: Scheduler, message: Message) -> None:
    """As the daemon does, whose door cuts each message."""
    said = fitted(message)
    if isinstance(said, Sync):
        event: e.Event = e.Synced(
            SESSION, 0, True, None, tuple(said.finished), tuple(said.failures), tuple(said.losses),
            tuple(said.returned), tuple(said.changed), said.counts,
        )  # fmt: skip
    else:
        assert isinstance(said, Hello)
        event = e.Joined(SESSION, said)
    made.handle(event, 100.0)


def cost(message: Message) -> float:
    """Processor milliseconds of one frame, in a farm where its sender holds much."""
    made, raw = scheduler(), encode(message)
    assert len(raw) <= AGENT_LIMIT, f"a frame of {len(raw)} bytes"
    gc.collect()
    began = time.process_time()
    with suppress(ProtocolError):
        handled(made, _decode(raw))
    return 1000 * (time.process_time() - began)


class Talker:
    """A control channel of an agent whose key allows it one name."""

    def __init__(self, farm: FarmHarness) -> None:
        self._farm = farm
        self._layer = farm.plan(farm.submit({"a": np.zeros((SHARDS, 8), "f4")}, 1)).layers[0].digest
        self._open()

    def _open(self) -> None:
        self._reader, self._socket = FrameReader(), socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        with roots.address(self._farm.root.socket) as where:
            self._socket.connect(where)
        self._socket.sendall(frame(encode(Attach("control", HELLO.name))))

    def ask(self, message: Message) -> Message | None:
        """The answer; None where the daemon ended the channel, which is then open anew."""
        with suppress(OSError):
            self._socket.sendall(frame(encode(message).replace(LAYER.encode(), self._layer.encode())))
            while raw := self._socket.recv(1 << 16):
                for payload in self._reader.feed(raw):
                    return _hear(payload)
        self._socket.close()
        self._open()
        return None

    def close(self) -> None:
        self._socket.close()


def growth() -> tuple[float, int]:
    """MiB by which a daemon grew at most, and how many frames it was sent."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as farm, closing(Talker(farm)) as talker:
        worst = [message for _, message in frames(scheduler())]
        assert farm.daemon is not None
        daemon, sent, until = psutil.Process(farm.daemon.pid), 0, time.monotonic() + GROWTH_SECONDS
        before = most = daemon.memory_info().rss
        while time.monotonic() < until:
            welcome = talker.ask(HELLO)
            session = welcome.session if isinstance(welcome, Welcome) else 0
            talker.ask(Sync(session, 1 << 40, hungry=True))
            for message in worst:
                talker.ask(replace(message, session=session) if isinstance(message, Sync) else message)
                sent += 1
                most = max(most, daemon.memory_info().rss)
    return (most - before) / (1 << 20), sent


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__).parse_args()
    print(machine(), flush=True)
    grown, sent = growth()
    print(f"  a daemon that was sent {sent:,} of them in {GROWTH_SECONDS:.0f} s grew by {grown:.1f} MiB", flush=True)
    costs = {name: min(cost(message) for _ in range(3)) for name, message in frames(scheduler())}
    for name, milliseconds in costs.items():
        print(f"  {name}: {milliseconds:.1f} ms", flush=True)
    report(
        WANTED_MS,
        max(costs.values()),
        {**{name: round(one, 1) for name, one in costs.items()}, "daemon MiB": round(grown, 1)},
    )


if __name__ == "__main__":
    main()
