"""The scheduler with a clock, a store that is always quick and agents in a line each, for its unit tests."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from muster.coordinator.protocol.control import Failure, Finished, Held, Hello, Loss, Returned
from muster.coordinator.protocol.values import PROTOCOL
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Job, Layer, Problem, Said
from muster.coordinator.scheduler.state_machine import Scheduler
from muster.coordinator.scheduler.timing import Timing
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract import plan as p
from muster.jobs.contract.plan import ArraySource, MadeSource, Stamp

KIND = "cluster"
ROOM = 1 << 40
C = TypeVar("C")
Answers = dict[Problem, Said]


def ranges(numbers: Any) -> list[tuple[int, int]]:
    return RangeSet.of(sorted(numbers)).pairs()


def seed(
    digest: str = "L", count: int = 100, in_bytes: int = 0, out_bytes: int = 0, made: bool = False,
    rounds: bool = False, only: Any = None, **stored: Any,
) -> e.LayerSeed:  # fmt: skip
    """A layer called like its digest; `stored`: what the store knows of it."""
    stamp = Stamp(0, 0, 0, 0)
    source = MadeSource("whole" if rounds else "") if made else ArraySource("x.npy", 0, "<f4", (count,), stamp)
    layer = p.Layer(digest, digest, source, count, 1, count, in_bytes, out_bytes, (), only=only and tuple(only))
    return e.LayerSeed(layer, count, out_bytes, **stored)


def plan(*layers: p.Layer, **said: Any) -> p.Plan:
    """A plan whose shards want next to nothing, but for what is `said` of it, or of its work."""
    work = {"kind": KIND, "kernel": 1, "params": {}, "code": None, "entry": None, "env": None, "cpus": 1,
            "memory": None, "timeout": None, "runs_code": False, **_of(p.Work, said)}  # fmt: skip
    values = {"attempts": 3, "max_failures": 20, "priority": 1, "driver": None, **_of(p.Plan, said)}
    return p.Plan(p.FORMAT, "j", p.Work(**work), layers, **values)


def _of(struct: type[msgspec.Struct], said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name in struct.__struct_fields__}


def added(job: str, *seeds: e.LayerSeed, **more: Any) -> e.JobAdded:
    """`more` is of the plan, of its work, or what the store knows of the job."""
    planned = plan(*(seed.plan for seed in seeds), **more)
    known = {name: more[name] for name in e.JobAdded.__dataclass_fields__ if name in more}
    return e.JobAdded(**{"job": job, "plan": planned, "priority": 1, "layers": seeds, **known})


def hello(**said: Any) -> Hello:
    """Of an agent whose version, host and process do not matter."""
    return Hello(
        **{"protocol": PROTOCOL, "version": "0", "host": "here", "pid": 1, "fingerprint": "", "python": "3.11", **said}
    )


class World:
    def __init__(
        self, boot: int = 1, expected: frozenset[str] = frozenset(), answers: Answers | None = None, **timing: float
    ) -> None:
        self.boot, self.now = boot, 0.0
        self.scheduler = Scheduler(boot, Timing(**timing), expected, answers)
        self.state = self.scheduler.state
        self.sessions: dict[str, int] = {}
        self.said: list[c.Action] = []  # all there was
        self.grants: dict[str, list[c.SendGrant]] = {}
        self.handle(e.Ticked())

    # --- events ---

    def handle(self, event: e.Event) -> list[c.Action]:
        commands = self.scheduler.handle(event, self.now)
        self.said += commands
        self.state.check()
        names = {session: name for name, session in self.sessions.items()}
        for command in commands:
            if isinstance(command, c.SendGrant):
                self.grants.setdefault(names[command.session], []).append(command)
            if isinstance(command, c.RaiseHighWater):
                commands += self.handle(e.HighWaterStored(command.job, command.layer, command.value))
        return commands

    def add(self, *layers: e.LayerSeed, job: str = "j.1", **more: Any) -> Job:
        self.handle(added(job, *(layers or (seed(),)), **more))
        return self.state.jobs[job]

    def join(
        self, name: str, cpus: int = 1, room: int = ROOM, kernel: int = 1,
        names: frozenset[str] = frozenset(), fingerprints: tuple[str, ...] = (), **more: Any,
    ) -> list[c.Action]:  # fmt: skip
        """`names` and `fingerprints` are those that its spool told of before; `more` is of its hello."""
        self.sessions[name] = session = max(self.sessions.values(), default=0) + 1
        values = {"spool": f"{name}'s", "process": f"{name}-1", "memory": 0, "in_place": True, **more}
        said = hello(name=name, cpus=cpus, disk=room, kernels={KIND: kernel}, **values)
        return self.handle(e.Joined(session, said, names, fingerprints))

    def sync(self, name: str, hungry: bool = True, room: int = ROOM, **more: Any) -> list[c.Action]:
        return self.handle(e.Synced(self.sessions[name], room, hungry, **more))

    def enter(self, *names: str, **more: Any) -> None:
        """They join and ask for work."""
        for name in names:
            self.join(name, **more)
            self.sync(name)

    def tick(self, count: int = 1) -> list[c.Action]:
        """So many seconds go by, and nobody says a word."""
        said: list[c.Action] = []
        for _ in range(count):
            self.now += self.state.timing.tick
            said += self.handle(e.Ticked())
        return said

    # --- what agents say ---

    def last(self, name: str) -> c.SendGrant:
        return self.grants[name][-1]

    def finish(self, name: str, grant: c.SendGrant | None = None, seconds: float = 0.0, **more: Any) -> list[c.Action]:
        """It finished all of a grant, by default its last one, `seconds` later."""
        grant = grant or self.last(name)
        self.now += seconds
        return self.sync(name, finished=(self.finished(grant, compute=seconds),), **more)

    def finished(self, grant: c.SendGrant, compute: float = 1.0) -> Finished:
        numbers, count = grant.numbers.pairs(), len(grant.numbers)
        return Finished(grant.job, grant.layer, self.boot, grant.attempt, numbers, count, compute, 0.0, 0, 0, 0)

    def failure(self, grant: c.SendGrant, number: int | None = None, code: str = "exit") -> Failure:
        number = grant.numbers.bottom if number is None else number
        return Failure(grant.job, grant.layer, number, self.boot, grant.attempt, code, "no", "", 1.0, 0)

    def fail(self, name: str, grant: c.SendGrant | None = None, code: str = "exit", **more: Any) -> list[c.Action]:
        """The first shard of a grant, by default its last one, failed."""
        return self.sync(name, failures=(self.failure(grant or self.last(name), code=code),), **more)

    def lose(self, name: str, running: bool = True, grant: c.SendGrant | None = None, **more: Any) -> list[c.Action]:
        """All of a grant, by default its last one, is lost."""
        grant = grant or self.last(name)
        loss = Loss(grant.job, grant.layer, self.boot, grant.attempt, grant.numbers.pairs(), running, "killed")
        return self.sync(name, losses=(loss,), **more)

    def give_back(self, name: str, grant: c.SendGrant, **more: Any) -> list[c.Action]:
        returned = Returned(grant.layer, self.boot, grant.attempt, grant.numbers.pairs())
        return self.sync(name, returned=(returned,), **more)

    def commit(self, name: str, grant: c.SendGrant) -> list[c.Action]:
        generation = self.layer(grant.layer).generation
        return self.handle(e.BundleCommitted(grant.job, grant.layer, generation, name, grant.numbers, 1))

    def held(self, grant: c.SendGrant, finished: bool = False, boot: int | None = None) -> Held:
        numbers = grant.numbers.pairs()
        running, done = ([], numbers) if finished else (numbers, [])
        return Held(grant.job, grant.layer, self.boot if boot is None else boot, grant.attempt, running, done)

    # --- questions ---

    def layer(self, digest: str = "L") -> Layer:
        return self.state.by_digest[digest][0]

    def is_open(self, name: str, grant: c.SendGrant) -> bool:
        holding = self.state.agents[name].holdings.get((grant.layer, self.boot, grant.attempt))
        return holding is not None and bool(holding.open)

    def open_of(self, name: str) -> int:
        return self.state.agents[name].open_of()


def only(kind: type[C], commands: list[c.Action]) -> C:
    """The one command of that kind among these."""
    (found,) = every(kind, commands)
    return found


def every(kind: type[C], commands: list[c.Action]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]
