"""A machine: the real agent's core, and what the process around it does with a spool, a pool and four channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from muster.agent.core import actions as a
from muster.agent.core import events as e
from muster.agent.core.state_machine import AgentCore, Left
from muster.coordinator.protocol.control import Hello, Loss, Sync
from muster.coordinator.protocol.transfer import Refused
from muster.jobs.common.ranges import RangeSet
from muster.jobs.workbench.batch import Mishap, Outcome
from tests.property.scheduler_model import KIND
from tests.simulator.clock import Clock
from tests.simulator.links import Channel
from tests.simulator.server import FARM, Server
from tests.support.sched import hello

DIAL_SECONDS = (0.2, 3.0)  # between a link's end and the next try
HICCUP_SHARE, HICCUP_SECONDS = 0.01, (0.3, 3.0)  # of messages: those that are late for no reason, and by how much
TICK_SECONDS = (0.5, 1.5)
LATE_SHARE, LATE_SECONDS = 0.05, (0.1, 1.0)  # of batches: those whose part is there before the agent hears of it


@dataclass
class Spool:
    """What survives a kill -9."""

    parts: dict[str, e.FoundPart] = field(default_factory=dict)
    inputs: dict[str, a.Copy] = field(default_factory=dict)
    codes: set[str] = field(default_factory=set)


@dataclass
class Worker:
    """A slot's worker, and the batches it was given."""

    runs: list[a.Run] = field(default_factory=list)
    life: int = 0  # of the worker: what an earlier one was to say is not heard
    frozen: bool = False
    working: bool = False  # on the first of them
    kept: e.Kept | None = None  # of the first of them, which is done, and nobody heard of it
    up: bool = False


@dataclass(frozen=True)
class Make:
    """What a machine is."""

    name: str
    cpus: int
    disk: int
    in_place: bool
    fingerprint: str
    slowness: float  # how many times slower than others
    latency: float
    counts: bool = True  # whether its agent counts out what it has: older ones do not


class Machine:
    """One name and one spool, and the lives of the agent on it."""

    def __init__(
        self, clock: Clock, server: Server, make: Make, deleted: Callable[[Machine, str], None], spool: str = ""
    ) -> None:
        self.clock, self.server, self.make = clock, server, make
        self.spool = Spool()
        self._spool_name = spool or f"{make.name}'s spool"
        self.life = 0
        self.up = self.stopped = False
        self.unreachable = self.lost_for_good = False
        self.full = False
        self.ran = 0  # shards that ran to their end
        self._deleted = deleted  # is asked what to think of a part that goes
        self._fresh: set[str] = set()  # parts that the core was not told of yet, and may not want at all
        self._backlog: list[Callable[[], None]] = []
        self._channels: dict[str, Channel] = {}
        self._workers: list[Worker] = []
        self._followed: dict[str, int] = {}
        self._sheets: dict[str, set[str]] = {}  # of layers that are followed

    # --- lives -------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.up or self.lost_for_good:
            return
        self.life += 1
        self.up, self.stopped = True, False
        losses, self._workers = self._losses(), [Worker() for _ in range(self.make.cpus)]
        self._followed, self._sheets = {}, {}
        left = Left(list(self.spool.parts.values()), losses, list(self.spool.inputs.values()), self.spool.codes)
        self.core = AgentCore(self._who(), left)
        self._start_pool(0.5, 3.0)
        for role in ("control", "push", "pull"):
            self._dial(role, 0.01)
        self._tick(self.life)

    def _start_pool(self, soonest: float, latest: float) -> None:
        """Its slots come up one after the other."""
        for slot in range(len(self._workers)):
            self._comes_up(slot, self.clock.between(soonest, latest))

    def _comes_up(self, slot: int, seconds: float) -> None:
        """Unless it dies again, or the pool does, before that."""
        worker = self._workers[slot]
        life = worker.life
        self.clock.after(seconds, self._if_alive(lambda: self._is_up(slot) if worker.life == life else None))

    def _is_up(self, slot: int) -> None:
        self._workers[slot].up = True
        self.tell(e.SlotUp(slot))
        self._work(slot)

    def kill(self) -> None:
        """By kill -9: the spool is left."""
        if not self.up:
            return
        self.up = self.stopped = False
        self.life += 1
        self._backlog.clear()
        for channel in list(self._channels.values()):
            channel.cut(0.01, self.clock.random.choice([0.01, 0.01, 30.0]))
        self._channels.clear()

    def stop(self, stopped: bool) -> None:
        """By SIGSTOP, and on again. Its workers go on."""
        self.stopped = stopped and self.up
        backlog, self._backlog = self._backlog, []
        for what in backlog:
            self.do(what)

    def do(self, what: Callable[[], None]) -> None:
        if self.stopped:
            self._backlog.append(what)
        elif self.up:
            what()

    def latency(self) -> float:
        late = self.clock.between(*HICCUP_SECONDS) if self.clock.chance(HICCUP_SHARE) else 0.0
        return self.clock.between(0.5, 1.5) * self.make.latency + late

    def _if_alive(self, do: Callable[[], None]) -> Callable[[], None]:
        life = self.life
        return lambda: self.do(do) if self.life == life else None

    def _who(self) -> Hello:
        make = self.make
        return hello(
            name=make.name, spool=self._spool_name, process=f"{self.life}-{self._spool_name}", cpus=make.cpus,
            memory=1 << 30, disk=make.disk, kernels={KIND: 1}, fingerprint=make.fingerprint, in_place=make.in_place,
        )  # fmt: skip

    def _losses(self) -> list[Loss]:
        """What its workers' marks say was running when it was killed."""
        losses = []
        for worker in self._workers:
            if worker.working and worker.kept is None:
                run = worker.runs[0]
                fatal = [item for item in run.items if item[0] in self._nature(run).fatal]
                number, boot, attempt = fatal[0] if fatal else run.items[0]
                layer = run.info.layer.digest
                losses.append(Loss(run.info.job, layer, boot, attempt, [(number, number + 1)], True, "killed"))
        return losses

    def _tick(self, life: int) -> None:
        if life == self.life:
            self.do(self._look)
            self.clock.after(self.clock.between(*TICK_SECONDS), lambda: self._tick(life))

    def _look(self) -> None:
        if self.full or self.core.state.disk.free is not None:
            self.tell(e.SpaceSeen(0 if self.full else 1 << 40))
        self.tell(e.Ticked())

    # --- events in, actions out --------------------------------------------------------------------------

    def tell(self, event: e.Event) -> None:
        actions = self.core.handle(event, self.clock.now)
        self.core.state.check()
        for action in actions:
            self._obey(action)
        self._fresh.clear()

    def _obey(self, action: a.Action) -> None:
        match action:
            case a.Say():
                message = action.message
                if isinstance(message, Sync) and not self.make.counts:
                    message = msgspec.structs.replace(message, counts=None)
                self._ask("control", lambda ch: self.server.hear(ch, message, self._answers(ch, e.Heard)))
            case a.Redial(pause):
                self._hang_up("control", pause)
            case a.Run(slot=slot):
                assert {copy.name for copy in action.inputs.values()} <= self.spool.inputs.keys(), "run without input"
                assert self._workers[slot].up, "run in a slot that has no worker"
                here = self._sheets.get(action.info.layer.digest, set())
                assert self.make.in_place or {*action.sheets.values()} <= here, "run without its sheet"
                self._workers[slot].runs.append(action)
                self._work(slot)
            case a.Kill(slot):
                self.clock.after(0.1, self._if_alive(lambda: self.worker_dies(slot, ours=True)))
            case a.Freeze(slot) | a.Thaw(slot):
                self._workers[slot].frozen = isinstance(action, a.Freeze)
                self._work(slot)
            case a.Push():
                self._push(action)
            case a.Pull() | a.PullCode():
                self._pull(action)
            case a.Delete(name):
                if name in self.spool.parts and name not in self._fresh:
                    self._deleted(self, name)
                self.spool.parts.pop(name, None)
            case a.Discard(name):
                self.spool.inputs.pop(name, None)
            case a.FollowRounds():
                self._followed[action.info.layer.digest] = self.life
                self._follow(action, [])
            case a.StopFollowing(layer):
                self._followed.pop(layer, None)
                self._sheets.pop(layer, None)
            case a.DropSheet(layer, sheet):
                self._sheets[layer].discard(sheet)
            case a.Quit():
                self.up = False
                self.life += 1
                for role in list(self._channels):
                    self._channels.pop(role).cut(0.01, 0.01)

    # --- channels ----------------------------------------------------------------------------------------

    def _dial(self, role: str, seconds: float) -> None:
        self.clock.after(seconds, self._if_alive(lambda: self._dialled(role)))

    def _dialled(self, role: str) -> None:
        if self.unreachable or not self.server.up:
            if role == "control":
                self.tell(e.LinkDown("nobody answers"))
            self._dial(role, self.clock.between(*DIAL_SECONDS))
            return
        channel = self._channels[role] = Channel(self.clock, self, self.server, role)
        self.server.attach(channel)
        ready: dict[str, e.Event] = {"control": e.LinkUp(FARM), "push": e.PushUp(), "pull": e.PullUp()}
        self.tell(ready[role])

    def lost(self, channel: Channel) -> None:
        """A channel ended."""
        if self._channels.get(channel.role) is not channel:
            return
        del self._channels[channel.role]
        match channel.role:
            case "control":
                self.tell(e.LinkDown("cut"))
            case "push":
                self.tell(e.PushDown("cut"))
            case "pull":
                for name in [*self.core.state.inputs.coming, *self.core.state.pull.codes_coming]:
                    self.tell(e.NotPulled(name, "cut", "cut"))
        self._dial(channel.role, self.clock.between(*DIAL_SECONDS))

    def cut(self, role: str, here: float, there: float) -> None:
        if role in self._channels:
            self._channels[role].cut(here, there)

    def _hang_up(self, role: str, pause: float) -> None:
        if (channel := self._channels.pop(role, None)) is not None:
            channel.cut(0.0, 0.05)
        self.tell(e.LinkDown("hung up"))
        self._dial(role, max(pause, 0.01))

    def _ask(self, role: str, do: Callable[[Channel], None]) -> None:
        if (channel := self._channels.get(role)) is not None:
            channel.ask(lambda: do(channel))

    def _answers(self, channel: Channel, event: Callable[[Any], e.Event]) -> Callable[[Any], None]:
        return lambda said: channel.answer(lambda: self.tell(event(said)))

    # --- bundles and inputs ------------------------------------------------------------------------------

    def _push(self, push: a.Push) -> None:
        sent = RangeSet.of(sorted(number for _, those in push.pieces for number in those))
        seconds = self.clock.between(0.0, 1.0)
        life = self.life

        def sent_whole() -> None:
            for name, _ in push.pieces:
                assert self.life != life or name in self.spool.parts, f"{name} is pushed and was deleted"

        sent_whole()

        def answered(said: Any) -> e.Event:
            sent_whole()
            return e.PushAnswered(said, sent, len(sent), seconds)

        self._ask("push", lambda ch: self.server.offered(push, seconds, ch, self._answers(ch, answered)))

    def _pull(self, pull: a.Pull | a.PullCode) -> None:
        if "pull" not in self._channels:
            self.clock.after(0.01, self._if_alive(lambda: self._pull_late(pull)))
            return

        def asked(channel: Channel) -> None:
            refused = self.server.fetched(pull) if isinstance(pull, a.Pull) else None
            self.clock.after(self.clock.between(0.0, 0.5), lambda: channel.answer(lambda: self._pulled(pull, refused)))

        self._ask("pull", asked)

    def _pull_late(self, pull: a.Pull | a.PullCode) -> None:
        """Over a new channel, or not at all: what a channel's end cut off is never told after the next is up."""
        if "pull" in self._channels:
            self._pull(pull)
        else:
            self.tell(e.NotPulled(pull.name, "cut", "no channel"))

    def _pulled(self, pull: a.Pull | a.PullCode, refused: Refused | None) -> None:
        if refused is not None:
            self.tell(e.NotPulled(pull.name, refused.code, refused.message))  # type: ignore[arg-type]
        elif isinstance(pull, a.PullCode):
            self.spool.codes.add(pull.name)
            self.tell(e.Pulled(pull.name, b"", 1, 0.1))
        elif self.full:
            self.tell(e.NotPulled(pull.name, "full", "no space left on device"))
        else:
            self.spool.inputs[pull.name] = a.Copy(pull.name, pull.nbytes, b"d")
            self.tell(e.Pulled(pull.name, b"d", pull.nbytes, 0.1))

    def _follow(self, order: a.FollowRounds, have: list[str]) -> None:
        """Ask for what a round laid out, again and again; the channel is the pull channel's twin."""
        layer = order.info.layer.digest
        if self._followed.get(layer) != self.life or not self.up:
            return
        again = self._if_alive(lambda: self._follow(order, have))
        found = None if self.unreachable or not self.server.up else self.server.sheet_for(order.session, layer, {*have})
        if found is None:
            del self._followed[layer]
            self._sheets.pop(layer, None)
            self.tell(e.Unfollowed(layer, "no more"))
        elif found:
            have.append(found)
            self._sheets.setdefault(layer, set()).add(found)
            self.tell(e.SheetCame(layer, found, 100))
            self.clock.after(0.05, again)
        else:
            self.clock.after(0.5, again)

    # --- workers -----------------------------------------------------------------------------------------

    def _work(self, slot: int) -> None:
        worker = self._workers[slot]
        if worker.runs and worker.up and not worker.working and not worker.frozen:
            worker.working = True
            run, life = worker.runs[0], worker.life
            nature = self._nature(run)
            seconds = nature.seconds * len(run.items) * self.make.slowness
            seconds += nature.agony if any(number in nature.deadly for number, _, _ in run.items) else 0.0
            self.clock.after(seconds + 0.001, self._if_alive(lambda: self._ran(slot, life, run)))

    def _nature(self, run: a.Run) -> Any:
        return self.server.jobs.natures[run.info.layer.digest]

    def _ran(self, slot: int, life: int, run: a.Run) -> None:
        worker = self._workers[slot]
        if worker.life != life:
            return
        if worker.frozen:
            self.clock.after(0.5, self._if_alive(lambda: self._ran(slot, life, run)))
            return
        nature = self._nature(run)
        if nature.changed and self.make.in_place:
            self._ended(slot, run, Outcome((), 0, 0, 0, 0.1, 0, (), changed=True, change="its size"))
        elif self.full:
            self._ended(slot, run, Outcome((), 0, 0, 0, 0.1, 0, (), full="no space left on device"))
        elif any(item[0] in nature.fatal for item in run.items):
            self.kill()
            self.clock.after(self.clock.between(1.0, 5.0), self.start)
        elif deadly := [item for item in run.items if item[0] in nature.deadly]:
            self.worker_dies(slot, at=deadly[0])
        else:
            numbers = [number for number, _, _ in run.items]
            failed = {n for n in numbers if n in nature.poison or self.clock.chance(nature.unlucky)}
            done = tuple(number for number in numbers if number not in failed)
            self._keep(run, done)
            mishaps = tuple(Mishap(number, "exit", "it failed", "", 0.1, 1) for number in sorted(failed))
            nbytes = nature.out_bytes * len(done)
            seconds = nature.seconds * self.make.slowness * len(numbers)
            outcome = Outcome(done, len(done), nbytes, 8 * len(done), seconds, 1, mishaps)
            if done and self.clock.chance(LATE_SHARE):
                worker.kept = e.Kept(done, len(done), nbytes)
                late = self.clock.between(*LATE_SECONDS)
                self.clock.after(late, self._if_alive(lambda: self._told(slot, life, run, outcome)))
            else:
                self._ended(slot, run, outcome)

    def _told(self, slot: int, life: int, run: a.Run, outcome: Outcome) -> None:
        """What a worker said a moment ago is heard, unless it is known to be dead by now."""
        if self._workers[slot].life == life:
            self._workers[slot].kept = None
            self._fresh.add(run.part)
            self._ended(slot, run, outcome)

    def _keep(self, run: a.Run, numbers: tuple[int, ...]) -> None:
        """The local commit."""
        if not numbers:
            return
        self.ran += len(numbers)
        attempts: dict[e.Attempt, RangeSet] = {}
        for number, boot, attempt in run.items:
            if number in numbers:
                attempts.setdefault((boot, attempt), RangeSet()).add(number, number + 1)
        nbytes = len(numbers) * self._nature(run).out_bytes
        self._fresh.add(run.part)
        self.spool.parts[run.part] = e.FoundPart(run.part, FARM, run.info.layer.digest, nbytes, attempts)

    def _ended(self, slot: int, run: a.Run, outcome: Outcome) -> None:
        worker = self._workers[slot]
        worker.runs.remove(run)
        worker.working = False
        self.tell(e.BatchEnded(run.ticket, outcome))
        self._work(slot)

    def worker_dies(self, slot: int, ours: bool = False, at: tuple[int, int, int] | None = None) -> None:
        """A slot's worker is killed, by us or by whatever it ran; the next takes its place after a moment, or, where
        machines come and go, the slot has none for a while."""
        worker = self._workers[slot]
        up, worker.up = worker.up, False
        runs, worker.runs, working = worker.runs, [], worker.working
        worker.life, worker.working, worker.frozen = worker.life + 1, False, False
        kept: dict[int, e.Kept] = {}
        running = None
        if worker.kept is not None:
            kept[runs[0].ticket], worker.kept = worker.kept, None
            self._fresh.add(runs[0].part)
        elif runs and working:
            run = runs[0]
            running = at or self.clock.random.choice(run.items)
            before = tuple(number for number, _, _ in run.items if number < running[0])
            nature = self._nature(run)
            bad = nature.poison | nature.deadly | nature.fatal
            before = tuple(n for n in before if n not in bad and not nature.changed)
            if before and not self.full:
                self._keep(run, before)
                kept[run.ticket] = e.Kept(before, len(before), len(before) * nature.out_bytes)
        tickets = tuple(run.ticket for run in runs)
        if runs or ours or up:
            self.tell(e.WorkerDied(slot, tickets, "killed by signal 9", ours, running, kept))
        seconds = self.clock.between(0.05, 0.6)
        if up and self.clock.chance(0.1):
            self.tell(e.SlotGone(slot, "its node went"))
            seconds += self.clock.between(1.0, 20.0)
        self._comes_up(slot, seconds)

    def pool_dies(self) -> None:
        """Ray itself; it is started again."""
        if not self.up:
            return
        while busy := [slot for slot, worker in enumerate(self._workers) if worker.runs]:
            self.worker_dies(busy[0])
        for worker in self._workers:
            worker.up, worker.life = False, worker.life + 1
        self.tell(e.PoolLost("raylet died"))
        self._start_pool(1.0, 4.0)

    def damage_a_part(self) -> None:
        """The bytes of a part that the core knows of rot; it is noticed, and deleted."""
        known = self.core.state.finished_parts.parts
        live = [name for name in self.spool.parts if name in known and not self._is_under_way(name)]
        if live and self.up:
            name = self.clock.random.choice(live)
            del self.spool.parts[name]
            self.tell(e.PartDamaged(name))

    def _is_under_way(self, name: str) -> bool:
        push = self.core.state.push.under_way
        return push is not None and name in {part for part, _ in push.pieces}

    def rival(self) -> None:
        """Another spool under the same name: whoever comes second is sent away."""
        if self.up and "control" in self._channels:
            make = replace(self.make, in_place=True)
            rival = Machine(self.clock, self.server, make, self._deleted, spool=f"{make.name}'s rival")
            rival.start()
            self.clock.after(self.clock.between(1.0, 10.0), rival.kill)

    def drain(self) -> None:
        """By SIGTERM."""
        if self.up:
            self.do(lambda: self.tell(e.DrainAsked("SIGTERM")))

    def lend(self, cpus: int) -> None:
        """Whoever sits there wants the machine, or some of it."""
        if self.up:
            self.do(lambda: self.tell(e.Lent(cpus, "" if cpus else "paused")))
