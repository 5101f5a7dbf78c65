"""What a shard costs the coordinator, with a thousand agents and 10³ to 10⁶ shards.

    python -m benchmarks.scale [--agents 1000] [--shards 1000000] [--runs 2] [--plot docs/scale.png]
        [--no-peer]

Agents are simulated, in one process: each has a control and a push channel on the daemon's own socket and speaks what
`coordinator connect` speaks there. All join first. They compute nothing, and report half a second for each shard;
results are one number each, in real bundles, which the daemon commits and its helper merges as ever. Bundles are not
synced by whom the helpers are here; the daemon's transactions are.

`ours` and `peer`: processor time of the daemon and its helpers per shard, in µs, from submit to merged result, at a
tenth of the shards and at all of them; `ratio`: the first over the second, so that 1 is a cost that does not grow.
`parts`: what each shard beyond 3 in 10 of the largest job costs, the slope of the end of the curve; the time from a
sync to the grants it brings, the 99th in a hundred, while the middle half of the largest job runs at half the peak
rate, seen by more agents in a process of their own, so that it is the daemon's and not the crowd's; the daemon's
memory at most; from its kill -9 in the middle of the largest job until it answers again; shards per second of
wall-clock time. `--no-peer`: only what the first cost needs is run, up to a tenth of the shards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from benchmarks.measure import add_no_peer, machine, report, tree_seconds
from benchmarks.served import TIMING, served
from muster import VERSION
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol import control, transfer, values
from muster.coordinator.protocol.frames import HEAD, frame, payload_size
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import Index, PartEntry, encode_index, tail_of
from muster.jobs.workbench.fingerprint import fingerprint
from tests.support.farm import FarmHarness

WORK = "def same(rows):\n    return rows\n"
OUTPUTS = (Output("out", "rows", "<f4", (1,)),)
SHARD_SECONDS = 0.5  # what a simulated shard is said to have taken
BUNDLE_SHARDS = 8192
VALUE = bytes(4)
VALUE_DIGEST = xxhash.xxh3_128_digest(VALUE)
CUT = (OSError, asyncio.IncompleteReadError)
PROBES = 200
LINE_LIMIT = 1 << 26
AT_ONCE = 64  # agents that say hello at the same time
KERNELS = {"map": 1}


class Line:
    """One connection to the daemon, as a helper has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, types: object) -> None:
        self._reader, self._writer = reader, writer
        self._decode = values.Decoder(types)

    @classmethod
    async def to(cls, root: Root, role: str, types: object) -> Line:
        with roots.address(root.socket) as where:
            reader, writer = await asyncio.open_unix_connection(where)
        line = cls(reader, writer, types)
        line._writer.write(frame(values.encode(transfer.Attach(role))))
        return line

    async def ask(self, message: values.Message) -> Any:
        self._writer.write(frame(values.encode(message)))
        await self._writer.drain()
        size = payload_size(await self._reader.readexactly(HEAD.size))
        return self._decode(await self._reader.readexactly(size))

    def close(self) -> None:
        self._writer.close()


@dataclass
class Pace:
    """What all agents share: how fast they may go on, and how long grants took."""

    rate: float | None = None  # shards per second, of all together; None is as fast as they can
    waits: list[tuple[float, float]] = field(default_factory=list)  # when, and seconds from a sync to what it brought
    _next: float = 0.0

    async def take(self, shards: int) -> None:
        """Until so many more may be computed."""
        if self.rate is None:
            return
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now) + shards / self.rate
        await asyncio.sleep(self._next - now)


class Peer:
    """One simulated agent."""

    def __init__(self, root: Root, name: str, pace: Pace) -> None:
        self.root, self.name, self.pace = root, name, pace
        self.spool, self.process = uuid.uuid4().hex, uuid.uuid4().hex
        self._granted: list[control.Grant] = []
        self._finished: list[control.Finished] = []
        self._session = 0
        self._began, self._accounted_at = time.monotonic(), float("-inf")
        self._own = control.JobAccount("")  # of the job that it works for

    async def join(self) -> None:
        self._control = await Line.to(self.root, "control", control.ToAgent)
        self._push = await Line.to(
            self.root, "push", transfer.Take | transfer.Settled | transfer.Refused | control.Rejected | control.Bye
        )
        welcome = await self._control.ask(self._hello())
        if not isinstance(welcome, control.Welcome):
            raise SystemExit(f"{self.name} may not join: {welcome}")
        self._session = welcome.session

    def _hello(self) -> control.Hello:
        return control.Hello(
            protocol=values.PROTOCOL, version=VERSION,
            name=self.name, spool=self.spool, process=self.process, host="here",
            pid=os.getpid(), cpus=2, memory=1 << 33, disk=1 << 40, kernels=KERNELS, fingerprint=fingerprint(),
            python="3", in_place=True, envs={},
        )  # fmt: skip

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            await self._sync(wait=TIMING["heartbeat"])
            while self._granted:
                await self._run(self._granted.pop())

    async def _sync(self, wait: float) -> None:
        finished, self._finished = self._finished, []
        began = time.monotonic()
        told = control.Sync(self._session, 1 << 40, wait, hungry=True, finished=finished, account=self._account(began))
        news = await self._control.ask(told)
        if not isinstance(news, control.News):
            raise ConnectionResetError(str(news))
        if news.grants and finished:  # others were held until there was work
            self.pace.waits.append((began, time.monotonic() - began))
        self._granted += news.grants

    def _account(self, now: float) -> control.MachineAccount | None:
        """Where its time went, once a heartbeat: the cores that it lends were busy all the time."""
        if now < self._accounted_at + TIMING["heartbeat"]:
            return None
        self._accounted_at, seconds = now, now - self._began
        return control.MachineAccount(
            seconds=seconds, busy=2 * seconds, memory_now=1 << 30, disk_now=1 << 20, processor=2 * seconds,
            out_bytes=self._own.out_bytes, jobs=[self._own] if self._own.job else [],
        )  # fmt: skip

    async def _run(self, grant: control.Grant) -> None:
        """Compute, report, push; what the report brings comes after it."""
        numbers = RangeSet(grant.numbers)
        while numbers:
            some = numbers.take(BUNDLE_SHARDS)
            await self.pace.take(len(some))
            self._finished.append(self._report(grant, some))
            await self._sync(wait=0.0)
            await self._offer(grant, some)

    def _report(self, grant: control.Grant, some: RangeSet) -> control.Finished:
        count = len(some)
        return control.Finished(
            grant.job, grant.layer, grant.boot, grant.attempt, some.pairs(), count, SHARD_SECONDS * count, 0.0,
            len(VALUE) * count, len(VALUE) * count, 1 << 20,
        )  # fmt: skip

    def _worked(self, job: str, shards: int, nbytes: int) -> None:
        """What the job took of this machine, in total."""
        before = self._own if self._own.job == job else control.JobAccount(job)
        spent = before.busy + SHARD_SECONDS * shards
        self._own = control.JobAccount(job, busy=spent, processor=spent, out_bytes=before.out_bytes + nbytes)

    async def _offer(self, grant: control.Grant, some: RangeSet) -> None:
        now = time.time()
        entries = tuple(
            PartEntry(number, 1, grant.boot, grant.attempt, self.name, now, SHARD_SECONDS, len(VALUE), VALUE_DIGEST, 0,
                  (len(VALUE),), VALUE_DIGEST)
            for number in some
        )  # fmt: skip
        body = len(VALUE) * len(entries)
        raw = encode_index(Index(self.root.farm, grant.layer, OUTPUTS, fingerprint(), entries))
        offer = transfer.Offer(self._session, grant.layer, some.pairs(), list(OUTPUTS), b"", body, fingerprint())
        self._worked(grant.job, len(some), body)
        answer = await self._push.ask(offer)
        if isinstance(answer, transfer.Take):
            tail = tail_of(raw)
            tmp = Path(answer.tmp)
            tmp.write_bytes(VALUE * len(entries) + tail)
            tmp.rename(answer.file)
            answer = await self._push.ask(transfer.Stored(answer.token, body + len(tail)))
        if not isinstance(answer, transfer.Settled | transfer.Refused):
            raise ConnectionResetError(str(answer))

    def close(self) -> None:
        self._control.close()
        self._push.close()


# --- a farm of them ----------------------------------------------------------------------------------------------


class Crowd:
    """All the agents, which join anew when the daemon was killed."""

    def __init__(self, root: Root, count: int, name: str = "agent", rate: float | None = None) -> None:
        self.pace = Pace(rate)
        self._peers = [Peer(root, f"{name}{number:04}", self.pace) for number in range(count)]
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(peer: Peer) -> None:
            async with gate:
                await peer.join()

        await asyncio.gather(*map(one, self._peers))
        self._tasks = [asyncio.create_task(peer.work()) for peer in self._peers]

    def __len__(self) -> int:
        return len(self._peers)

    async def until(self, done: Callable[[], Awaitable[bool]]) -> None:
        """Work until `done`; an agent that breaks breaks the benchmark."""
        while not await done():
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self._peers:
            peer.close()
        self._tasks = []


async def probe(root: Root, rate: float) -> None:
    """A few agents that go on until their input ends, and then print when they waited, and how long."""
    crowd = Crowd(root, PROBES, "probe", rate)
    await crowd.join()
    print(flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await crowd.leave()
    print(json.dumps(crowd.pace.waits), flush=True)


@dataclass(frozen=True)
class Found:
    """Of one job."""

    shards: int
    cost: float  # µs of processor time per shard
    rate: float  # shards per second


class Field:
    """The farm, and what is asked of it from outside the loop of the agents."""

    def __init__(self, farm: FarmHarness) -> None:
        self.farm = farm

    def _pid(self) -> int:
        assert self.farm.daemon is not None
        return self.farm.daemon.pid

    def submit(self, shards: int) -> str:
        rows = np.zeros((shards, 1), "f4")
        return self.farm.submit({"rows": rows}, 1, WORK, kind="map", code="work.py:same", name="scale")

    async def state(self, job: str) -> str:
        return (await asyncio.to_thread(self.farm.status, job)).state

    async def run(self, crowd: Crowd, shards: int) -> Found:
        """One job, from submit to merged result."""
        spent, began = tree_seconds(self._pid()), time.monotonic()
        job = await asyncio.to_thread(self.submit, shards)
        await crowd.until(lambda: self._is_done(job))
        seconds, spent = time.monotonic() - began, tree_seconds(self._pid()) - spent
        await asyncio.to_thread(self.farm.coordinator, "rm", job)
        found = Found(shards, spent / shards * 1e6, shards / seconds)
        print(f"  {shards:>9,} shards: {found.cost:6.1f} µs each, {found.rate:9,.0f} a second", flush=True)
        return found

    async def waits(self, crowd: Crowd, shards: int, rate: float) -> list[float]:
        """Seconds from a sync to its grants, in the middle half of a job that goes on at this rate."""
        crowd.pace.rate = rate
        words = ["-m", "benchmarks.scale", "--probe", str(self.farm.root.path), str(rate * PROBES / len(crowd))]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT
        )
        assert process.stdin is not None and process.stdout is not None
        await process.stdout.readline()  # they have joined
        job = await asyncio.to_thread(self.submit, shards)
        await crowd.until(lambda: self._has_done(job, shards // 4))
        began = time.monotonic()
        await crowd.until(lambda: self._has_done(job, shards * 3 // 4))
        ended = time.monotonic()
        process.stdin.close()
        found = json.loads(await process.stdout.readline())
        await process.wait()
        await asyncio.to_thread(self.farm.coordinator, "cancel", job)
        crowd.pace.rate = None
        return [seconds for at, seconds in found if began <= at <= ended]

    async def _is_done(self, job: str) -> bool:
        return await self.state(job) == "complete"

    async def restart(self, crowd: Crowd, shards: int) -> float:
        """Seconds from a kill -9 in the middle of a job until the daemon answers; the job then runs to its end."""
        job = await asyncio.to_thread(self.submit, shards)
        await crowd.until(lambda: self._has_done(job, shards // 2))
        await crowd.leave()
        self.farm.kill()
        began = time.monotonic()
        await asyncio.to_thread(self.farm.start)
        seconds = time.monotonic() - began
        print(f"  answers {seconds:.2f} s after a kill -9 with {shards:,} shards", flush=True)
        await crowd.join()
        await crowd.until(lambda: self._is_done(job))
        return seconds

    async def _has_done(self, job: str, shards: int) -> bool:
        status = await asyncio.to_thread(self.farm.status, job)
        return sum(layer.tally.committed for layer in status.layers) >= shards

    def memory(self) -> float:
        """MB, the most the daemon ever had."""
        lines = Path(f"/proc/{self._pid()}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


@asynccontextmanager
async def crowd_of(root: Root, count: int) -> AsyncIterator[Crowd]:
    crowd = Crowd(root, count)
    await crowd.join()
    try:
        yield crowd
    finally:
        await crowd.leave()


async def measure(farm: FarmHarness, given: argparse.Namespace) -> tuple[list[Found], dict[str, Any]]:
    field = Field(farm)
    sizes = [10**power for power in range(3, 8) if 10**power <= given.shards]
    sizes.insert(-1, 3 * sizes[-1] // 10)
    async with crowd_of(farm.root, given.agents) as crowd:
        await field.run(crowd, sizes[0])  # so that nothing is done for the first time
        if given.no_peer:
            found = await _best(field, crowd, sizes[-3], given.runs)
            return [found], {"shards/s": round(found.rate), "agents": given.agents}
        curve = [await _best(field, crowd, size, given.runs) for size in sizes]
        waits = await field.waits(crowd, sizes[-1], max(found.rate for found in curve) / 2)
        memory = field.memory()
        ready = await field.restart(crowd, sizes[-1])
    parts = {
        "slope": round(slope(curve[-2], curve[-1]), 1),
        "grant p99 ms": round(float(np.percentile(waits, 99)) * 1e3, 1),
        "grants": len(waits),
        "memory MB": round(max(memory, field.memory())),
        "kill -9 to ready s": round(ready, 2),
        "shards/s": round(curve[-1].rate),
        "agents": given.agents,
    }
    return curve, parts


def slope(less: Found, more: Found) -> float:
    """µs for each shard that the larger job has more."""
    return (more.cost * more.shards - less.cost * less.shards) / (more.shards - less.shards)


async def _best(field: Field, crowd: Crowd, shards: int, runs: int) -> Found:
    return min([await field.run(crowd, shards) for _ in range(runs)], key=lambda found: found.cost)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--agents", type=int, default=1000)
    options.add_argument("--shards", type=int, default=1_000_000, help="of the largest job; at least 10,000")
    options.add_argument("--runs", type=int, default=2)
    options.add_argument("--plot", type=Path, help="write the curve as a picture")
    add_no_peer(options)
    options.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.probe:
        asyncio.run(probe(roots.existing(Path(given.probe[0])), float(given.probe[1])))
        return
    print(machine(), flush=True)
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-"))
    try:
        with served(folder / "farm") as farm:
            curve, parts = asyncio.run(measure(farm, given))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.no_peer:
        report(curve[0].cost, None, parts)
        return
    if given.plot:
        plot(curve, given.plot)
    report(curve[-3].cost, curve[-1].cost, parts)


def plot(curve: list[Found], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.plot([found.shards for found in curve], [found.cost for found in curve], marker="o")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("shards of the job")
    axes.set_ylabel("processor time of the coordinator per shard, µs")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
