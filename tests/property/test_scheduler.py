"""The scheduler against a model of its own: any order of grants, results, deaths, lost messages and restarts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from muster.coordinator.protocol.control import Failure, Finished, Held, Loss, Returned
from muster.coordinator.scheduler import actions as c
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.layers import SPACE_MARGIN_BYTES
from muster.coordinator.scheduler.state_machine import Scheduler
from muster.coordinator.scheduler.timing import Timing
from muster.jobs.common.ranges import RangeSet
from tests.property.scheduler_model import (
    FIRST,
    MIB,
    Agent,
    Disk,
    DiskJob,
    DiskLayer,
    Key,
    Oracle,
    pairs,
    ranges,
    report,
)

T = TypeVar("T")
TICK, LEASE = 1.0, 6.0
SILENCE = LEASE / 4  # after which what a machine has finished may be done again
TIMING = Timing(lease=LEASE, heartbeat=0.5, tick=TICK, horizon=4.0)
NAMES = ("a", "b", "c", "d")
NEVER = {"incomplete", "halted", "cancelled", "gone"}  # states of a job that is not complete, and will not be
THOROUGH = os.environ.get("MUSTER_HYPOTHESIS") == "thorough"
PAIRS = st.sampled_from([[(0, 10_000)], [(0, 2)], [(1, 2), (3, 9)], [(4, 5)], []])


@dataclass(frozen=True)
class Lie:
    """What is said of some shards of a layer by some grant; `attempt` counts from the last one there was."""

    pick: int
    boot: int  # beside the one of now
    attempt: int
    pairs: list[tuple[int, int]]
    others: list[tuple[int, int]]
    running: bool
    first: int
    own: bool  # of a grant that it has

    def layer(self, farm: Farm) -> str:
        layers = sorted({one for job in farm.disk.jobs.values() for one in job.layers})
        return layers[self.pick % len(layers)] if layers else "none"

    def grant(self, farm: Farm) -> tuple[int, int]:
        mine = [key for key, those in farm._had_by_liar() if those and key[0] == self.layer(farm)]
        if self.own and mine:
            return mine[self.pick % len(mine)][1:]
        return max(0, farm.boot + self.boot), max(0, farm.oracle.last_attempt + self.attempt)


LIES = st.builds(
    Lie, st.integers(0, 11), st.sampled_from([0, 0, 0, -1, -2, 1]), st.integers(-6, 3), PAIRS, PAIRS, st.booleans(),
    st.integers(0, 4), st.booleans(),
)  # fmt: skip
SPOKEN = (c.SendGrant, c.SendDrop, c.SendCommitted, c.SendGone, c.SendDrain)
names = st.sampled_from(NAMES)
picks = st.integers(0, 11)
mostly = st.sampled_from([True, True, True, False])
OUTCOMES = ("finish", "finish", "finish", "fail", "lose", "kill", "return")


@dataclass
class Bundle:
    """Between its acceptance and its commit."""

    sender: Agent
    lives: int  # of the sender when it sent it
    event: e.BundleCommitted


class Farm(RuleBasedStateMachine):
    """The world: a store, machines, channels that lose things. Every rule ends in `handle`, which checks everything."""

    @initialize()
    def start(self) -> None:
        self.disk, self.boot = Disk(), 1
        self.durable = self.disk.copy()
        self.now = self.alive = 100.0  # `alive`: the time in which the daemon was not stopped
        self.last_tick = (self.now, self.alive)
        self.last_session = self.last_job = 0
        self.agents = {name: Agent(name, f"{name}-1", 1 + i % 3, 1, 40 * MIB) for i, name in enumerate(NAMES)}
        self.agents["c"].budget, self.agents["d"].kernel = 2 * MIB, 2
        self.agents["b"].fingerprint = "k2"
        self.mail: dict[int, list[c.Action]] = {}
        self.past: list[tuple[str, int, Any]] = []  # every report ever made: by whom, in which session
        self.accepted: list[Bundle] = []
        self.offers: list[tuple[str, set[int]]] = []
        self.given: list[tuple[str, Key, set[int]]] = []  # the last grants there were
        self.undelivered: list[e.BundleCommitted] = []  # rows in the store that the scheduler was not told of yet
        self.marks: list[e.HighWaterStored] = []  # on their way back from the store
        self.discarding: set[str] = set()  # layers that are run whole again
        self.looks: list[str] = []  # layers whose source somebody is to look at
        self.liar = Agent("z", "z-1", 2, 1, 40 * MIB)
        self.liar_came = self.now
        self.liar_layers: set[str] = set()  # that it ever had something of
        self.lazy = False  # the store is slow: nothing is durable until `flush`
        self.free: int | None = None
        self._boot()

    def _boot(self, broken: Iterable[int] = ()) -> None:
        """`broken`: which of the jobs cannot be read back; those that could not before are mended."""
        known = sorted({**self.disk.jobs, **self.disk.damaged}.values(), key=lambda job: int(job.id.split(".")[1]))
        places = {number % len(known) for number in broken} if known else set()
        self.disk.damaged = {job.id: job for place, job in enumerate(known) if place in places}
        self.disk.jobs = {job.id: job for job in known if job.id not in self.disk.damaged}
        self.oracle = Oracle(self.boot, self.disk, LEASE)
        self.scheduler = Scheduler(self.boot, TIMING, frozenset(self.oracle.expected))
        self.merges: list[tuple[str, str, int]] = []
        for job in self.disk.jobs.values():
            for layer in job.layers.values():
                layer.begin(self.boot)
        self.durable = self.disk.copy()
        for agent in self.agents.values():
            agent.session = 0
        self.mail.clear()
        for job in known:
            if job.id in self.disk.damaged:
                self.handle(e.JobDamaged(job.id, tuple(job.layers)), [])
            else:
                self.oracle.learn(job, self.alive)
                self.handle(job.added(), [])
        self._ticked()

    # --- the one door ---

    def handle(self, event: e.Event, must: Iterable[object]) -> list[c.Action]:
        """Let the scheduler react, carry out what it says, and compare everything."""
        told: list[object] = []
        before = self.scheduler.handle(event, self.now)
        answers = [command for command in before if not self._obey(command, told)]
        wanted = list(must)
        assert sorted(map(repr, told)) == sorted(map(repr, wanted)), f"{event}: {told}, not {wanted}"
        if not self.lazy:
            self._flush()
        self._compare()
        return answers

    def unmoved(self, event: e.Event, must: Iterable[object] = ()) -> None:
        """An event that must change nothing at all."""
        before = self._snapshot()
        self.handle(event, must)
        assert self._snapshot() == before, f"{event} changed something"

    def _snapshot(self) -> object:
        state = self.scheduler.state
        layers = [
            (layer.digest, layer.state, layer.generation, str(layer.fresh), str(layer.again), str(layer.limbo),
             str(layer.committed), str(layer.quarantined), layer.high_water)
            for job in state.jobs.values() for layer in job.layers
        ]  # fmt: skip
        held = [(name, str(h)) for name, agent in state.agents.items() for h in agent.holdings.values()]
        jobs = [
            (job.id, job.state, job.why, job.succeeded, job.fingerprint, job.kernels_fixed)
            for job in state.jobs.values()
        ]
        return layers, held, jobs

    def _obey(self, command: c.Action, told: list[object]) -> bool:
        oracle = self.oracle
        if isinstance(command, c.AcceptOffer | c.RefuseOffer):
            return False
        if isinstance(command, SPOKEN):
            self._spoken(command)
        waited = isinstance(command, c.StoreJob) and self.disk.jobs[command.job].state == "waiting" != command.state
        self.disk.write(command)
        match command:
            case c.StoreJob(job) if waited:
                self._began(self.disk.jobs[job])
            case c.Reject(session, code):
                told.append(("reject", session, code))
            case c.LookAtSource(_, layer, _):
                self.looks.append(layer)
            case c.StoreFailure(job, layer, agent, failure, quarantine):
                told.append(("failure", job, layer, failure.number, agent, quarantine))
            case c.StoreQuarantine(job, layer, number):
                told.append(("quarantine", job, layer, number))
            case c.StoreSuccess(job):
                told.append(("success", job))
            case c.ForgetFailures(job, agent, shards):
                told.append(("barred", job, agent, shards) if agent else ("forgiven", job))
            case c.StoreJob(job, "halted"):
                told.append(("halted", job))
            case c.StoreJob(job, "complete" | "incomplete" as state):
                self._ended(self.disk.jobs[job], state)
            case c.StoreLayer(job, layer, state):
                self._layer_moved(job, layer, state)
            case c.DiscardLayer(job, layer):
                told.append(("discard", job, layer))
                oracle.closed(layer) if oracle.opened.get(layer) == job else None
                for by_layer in (oracle.committed, oracle.quarantined, oracle.touched):
                    by_layer[job, layer].clear()
                oracle.committed[job, layer] |= self.disk.layer(job, layer).skipped
                for by_shard in (oracle.failures, oracle.kicked):
                    for shard in [shard for shard in by_shard if shard[:2] == (job, layer)]:
                        del by_shard[shard]
            case c.RaiseHighWater(job, layer, value):
                self.marks.append(e.HighWaterStored(job, layer, value))
            case c.StartMerge(job, layer, generation):
                whole = self.disk.layer(job, layer).whole
                assert oracle.opened[layer] == job and oracle.committed[job, layer] == whole, "merged before complete"
                oracle.merging.add(layer)
                self.merges.append((job, layer, generation))
        return True

    def _before(self, job: DiskJob) -> list[str]:
        """The states of those that it is to start after."""
        return [known.state if (known := self.disk.jobs.get(name)) else "gone" for name in job.after]

    def _began(self, job: DiskJob) -> None:
        """It waited for others, and does so no more."""
        before = set(self._before(job))
        if job.state == "halted":
            assert before & NEVER and job.why, f"halted though those before it are {before}"
        elif job.state == "running":
            assert before == {"complete"}, f"started though those before it are {before}"
        else:
            assert job.state == "cancelled", f"{job.id} waited, and is {job.state}"

    def _ended(self, job: DiskJob, state: str) -> None:
        states = {"merged" if layer.empty else layer.state for layer in job.layers.values()}
        if state == "complete":
            assert states <= {"merged"}
        else:
            stuck = any(self.oracle.quarantined[job.id, layer] for layer in job.layers)
            assert stuck or "changed" in states, "incomplete without a reason"
        for digest, layer in job.layers.items():  # one of which only a retry runs more may be another job's by now
            given_up = self.oracle.quarantined[job.id, digest]
            left = layer.whole - self.oracle.committed[job.id, digest] - given_up
            assert layer.state != "waiting" or layer.empty or (given_up and not left), "ended with shards that may run"

    def _layer_moved(self, job: str, layer: str, state: str) -> None:
        oracle = self.oracle
        if state == "open":
            assert layer not in oracle.opened, "open twice"
            if not self.disk.layer(job, layer).empty:
                oracle.opened[layer] = job
                oracle.opened_after[layer] = (self.boot, oracle.last_attempt)
                self._check_space()
            return
        disk = self.disk.layer(job, layer)
        if disk.rounds:
            disk.rows |= disk.whole
            oracle.retired(job, layer, disk.whole)
        if oracle.opened.get(layer) == job:
            oracle.closed(layer)
        oracle.merging.discard(layer)  # at a start, a twin that was opened first goes back, merging or not
        oracle.touched[job, layer] |= set(range(self._mark(job, layer)))

    def _check_space(self) -> None:
        """What is open has room for its bundles and its merged arrays."""
        if self.free is None:
            return
        taken = 0
        for layer, job in self.oracle.opened.items():
            disk = self.disk.layer(job, layer)
            committed = len(self.oracle.committed[job, layer])
            if disk.rounds:
                taken += disk.out_bytes * (disk.count - committed - len(self.oracle.quarantined[job, layer]))
            else:
                taken += disk.out_bytes * (2 * disk.count - len(disk.skipped) - committed)
        assert taken + SPACE_MARGIN_BYTES <= max(self.free, 0), "opened a layer without room for it"

    def _mark(self, job: str, layer: str) -> int:
        return next(one.high_water for one in self.scheduler.state.jobs[job].layers if one.digest == layer)

    # --- what agents are told ---

    def _spoken(self, command: Any) -> None:
        name = self.oracle.sessions.get(command.session)
        assert name is not None, f"{command} to a session that has ended"
        self.mail[command.session].append(command)
        seen = self.oracle.agents[name]
        match command:
            case c.SendGrant():
                self._granted(name, command)
            case c.SendDrop(_, layer, boot, attempt, numbers):
                seen.open[layer, boot, attempt] -= set(numbers)
            case c.SendCommitted(_, layer, numbers):
                known = [self.oracle.committed[job.id, layer] for job in self.disk.jobs.values() if layer in job.layers]
                assert any(set(numbers) <= those for those in known), "told of commits that never were"
                seen.drop(layer, set(numbers))
            case c.SendGone(_, layer):
                assert layer in self.discarding or not self._is_kept(layer), "told to forget what somebody is to have"
                seen.drop(layer, set(range(10_000)))
            case c.SendDrain():
                assert seen.state == "draining"

    def _granted(self, name: str, grant: c.SendGrant) -> None:
        oracle, seen, numbers = self.oracle, self.oracle.agents[name], set(grant.numbers)
        self.liar_layers |= {grant.layer} if name == self.liar.name else set()
        job, layer = self.disk.jobs[grant.job], self.disk.layer(grant.job, grant.layer)
        shard_key = (grant.job, grant.layer)
        assert seen.state == "live" and oracle.eligible(name, job), f"{name} is not eligible for {job.id}"
        assert seen.hungry, f"{name} wants nothing"
        assert job.state == "running", f"granted though {job.id} is {job.state}"
        assert oracle.opened[grant.layer] == job.id and grant.layer not in oracle.merging, "granted of a closed layer"
        assert grant.attempt > oracle.last_attempt, "an attempt's number twice"
        oracle.last_attempt = grant.attempt
        if name in self.agents:
            self.given = [*self.given[-40:], (name, (grant.layer, self.boot, grant.attempt), numbers)]
        assert numbers and not numbers & oracle.committed[shard_key], "granted though committed"
        assert not numbers & layer.skipped, "granted though nobody wants it"
        assert job.machine in {"", name}, f"granted to {name}, not to {job.machine}"
        assert not numbers & oracle.quarantined[shard_key], "granted though quarantined"
        assert not numbers & oracle.limbo[grant.layer], "granted what may still run where it was"
        mark = self.durable.layer(*shard_key).high_water
        assert max(numbers) < mark or layer.rounds, "granted above the stored mark"
        assert min(numbers) >= layer.first, "granted of another life of the daemon"
        mine = {n for key, those in seen.open.items() if oracle.opened.get(key[0]) == job.id for n in those}
        assert job.succeeded or (len(numbers) == 1 and not mine), f"{numbers} beside {mine}, and no success yet"
        cost = layer.out_bytes * len(numbers)
        assert cost <= seen.room, f"{cost} bytes granted where {seen.room} are left"
        self._check_choice(name, grant, numbers, mine)
        seen.room -= cost
        seen.open[grant.layer, self.boot, grant.attempt] = numbers
        oracle.touched[shard_key] |= numbers
        oracle.goes_to(seen, job)

    def _check_choice(self, name: str, grant: c.SendGrant, numbers: set[int], mine: set[int]) -> None:
        """Untouched ones first, then those that ran before, each on another machine than before, then copies."""
        oracle, job = self.oracle, self.disk.jobs[grant.job]
        again = numbers & oracle.touched[grant.job, grant.layer]
        for number in again:
            holders = oracle.holders(grant.layer, number)
            done = [oracle.agents[who] for who, key in holders if number in oracle.agents[who].done[key]]
            silent = all(self.last_tick[1] - seen.heard > SILENCE for seen in done)
            assert silent, "finished by a machine that talks, and done again"
            assert len(holders) <= 1, "a third copy"
            assert not holders or (not oracle.agents[name].load and holders[0][0] != name), "a copy for a busy machine"
            shard = (grant.job, grant.layer, number)
            tried = {run[0] for runs in (oracle.failures, oracle.losses) for run in runs[shard]} | oracle.kicked[shard]
            if name in tried and not holders:
                others = [one for one in oracle.agents if one not in tried and oracle.able(one, job)]
                assert not others, f"{number} again to {name}, not to {others}"
        for layer in job.layers if again else ():
            if oracle.opened.get(layer) == job.id and layer not in oracle.merging:
                mark = range(self._mark(job.id, layer))
                untouched = oracle.pending(layer) & set(mark) - oracle.touched[job.id, layer] - numbers
                room = job.layers[layer].out_bytes <= oracle.agents[name].room - job.layers[layer].out_bytes * len(
                    again
                )
                assert not untouched or not room, f"{sorted(again)} before untouched {sorted(untouched)}"

    # --- comparing ---

    def _compare(self) -> None:
        state, oracle = self.scheduler.state, self.oracle
        state.check()
        assert {digest: layer.job for digest, layer in state.open_layers.items()} == oracle.opened
        for job in state.jobs.values():
            kernels = (oracle.kernels.get(job.id, ""), job.id in oracle.fixed)
            assert (job.fingerprint, job.kernels_fixed) == kernels, f"{job.id}: {job.fingerprint}, not {kernels}"
            assert job.state == self.disk.jobs[job.id].state and job.succeeded == self.disk.jobs[job.id].succeeded
            before = set(self._before(self.disk.jobs[job.id])) if job.state == "waiting" and state.last_tick else set()
            assert not before & NEVER and before != {"complete"}, f"{job.id} waits for ever"
            for layer in job.layers:
                shards = (job.id, layer.digest)
                assert set(layer.committed) == oracle.committed[shards], f"{shards}: committed {layer.committed}"
                assert set(layer.quarantined) == oracle.quarantined[shards], f"{shards}: quarantined"
                assert set(layer.limbo) == (oracle.limbo[layer.digest] if layer.active else set()), (
                    f"{shards}: {layer.limbo}, not {oracle.limbo}"
                )
        for name, seen in oracle.agents.items():
            agent = state.agents[name]
            assert agent.state == seen.state, f"{name} is {agent.state}, not {seen.state}"
            assert {k: set(h.open) for k, h in agent.holdings.items() if h.open} == full(seen.open), f"{name} runs"
            assert {k: set(h.finished) for k, h in agent.holdings.items() if h.finished} == full(seen.done), name
            self._no_doubles(seen.done)

    def _no_doubles(self, done: dict[Key, set[int]]) -> None:
        for (layer, _, _), numbers in done.items():
            assert not numbers & self.oracle.committed[self.oracle.opened[layer], layer] if numbers else True

    def _agree(self, agent: Agent) -> None:
        """With all mail delivered, what an agent has is what the scheduler thinks it has."""
        seen = self.oracle.agents[agent.name]
        news = full(agent.finished)
        untold = {(n.layer, n.boot, n.attempt, number) for n in agent.news for number in numbers_of(n)}
        truth = {(*key, n) for key, those in agent.running.items() for n in those}
        late = {(*key, n) for key, those in news.items() for n in those}
        think = {(*key, n) for key, those in seen.open.items() for n in those}
        assert truth <= think, f"{agent.name} runs {truth - think}, which nobody knows of"
        assert think <= truth | late | untold, f"{agent.name} is thought to run {think - truth - late - untold}"
        done = {(*key, n) for key, those in seen.done.items() for n in those}
        disk = {(*key, n) for key, those in agent.done.items() for n in those}
        anew = {
            (key[0], n) for key, those in news.items() for n in those
        }  # granted again once it was done, say by a kick
        odd = {one for one in done - disk - untold if (one[0], one[3]) not in anew}
        assert not odd, f"{agent.name} is thought to have {odd}"

    # --- people and time ---

    @precondition(lambda self: len(self.disk.jobs) + len(self.disk.damaged) < 3)
    @rule(
        counts=st.lists(st.integers(1, 9), min_size=1, max_size=3), attempts=st.integers(1, 3),
        max_failures=st.sampled_from([1, 2, 4, 1000]), cpus=st.sampled_from([1, 1, 2]), made=st.booleans(),
        priority=st.sampled_from([1, 3]), again=st.booleans(), long=st.booleans(), same=st.booleans(),
        rounds=st.booleans(), every=st.sampled_from([1, 1, 2, 3]), machine=st.sampled_from(["", "", "", "a"]),
        at_once=st.sampled_from([0, 0, 1, 3]), after=st.sets(picks, max_size=2),
    )  # fmt: skip
    def add_job(
        self, counts: list[int], attempts: int, max_failures: int, cpus: int, made: bool, priority: int, again: bool,
        long: bool, same: bool, rounds: bool, every: int, machine: str, at_once: int,
        after: Set[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.last_job += 1
        made = made and not again
        prefix = "same" if again else f"j{self.last_job}"
        long = long and not again
        counts = [0] if made else ([100 * count for count in counts[:1]] if long else counts)
        counts = [3 + i for i in range(len(counts))] if again else counts
        size = MIB // 64 if long else MIB
        layers = {f"{prefix}.{i}": DiskLayer(f"{prefix}.{i}", count, made, size) for i, count in enumerate(counts)}
        for layer in layers.values():
            layer.rounds = made and rounds
            layer.begin(self.boot)
            layer.skipped = set() if made or again else {n for n in layer.whole if n % every}
        job = DiskJob(
            f"job.{self.last_job}",
            1,
            cpus,
            attempts,
            max_failures,
            layers,
            priority,
            same_kernels=same,
            machine=machine if cpus == 1 else "",  # which has one
            at_once=0 if made or long else at_once,  # a hundred one after the other take more rounds than there are
            after=tuple({choose(pick, list(self.disk.jobs)): None for pick in sorted(after)} if self.disk.jobs else ()),
        )
        job.state = "waiting" if job.after else "running"
        self.disk.jobs[job.id] = job
        for agent in self.agents.values():
            agent.cost.update({digest: layer.out_bytes for digest, layer in layers.items()})
        self._flush()
        self.oracle.learn(job, self.alive)
        self.handle(job.added(), [])

    def _jobs(self, *states: str) -> list[DiskJob]:
        return [job for job in self.disk.jobs.values() if job.state in states]

    @precondition(lambda self: self._jobs("running"))
    @rule(pick=picks)
    def pause(self, pick: int) -> None:
        job = choose(pick, self._jobs("running"))
        job.state = "paused"
        self.handle(e.Paused(job.id), [])

    @precondition(lambda self: self._jobs("paused"))
    @rule(pick=picks)
    def resume(self, pick: int) -> None:
        self.handle(e.Resumed(choose(pick, self._jobs("paused")).id), [])

    @precondition(lambda self: self._jobs("waiting", "running", "paused", "halted"))
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        self.handle(e.Cancelled(choose(pick, self._jobs("waiting", "running", "paused", "halted")).id), [])

    @precondition(lambda self: self._jobs("complete", "incomplete", "cancelled"))
    @rule(pick=picks)
    def remove(self, pick: int) -> None:
        job = choose(pick, self._jobs("complete", "incomplete", "cancelled"))
        mine = [layer for layer in job.layers if self.oracle.opened.get(layer) == job.id]
        self._remove(job, mine)

    def _remove(self, job: DiskJob, mine: list[str]) -> None:
        commands = self.scheduler.handle(e.Removed(job.id), self.now)
        told: list[object] = []
        for command in commands:
            if isinstance(command, c.SendGone):
                self._obey(command, told)
        for layer in mine:
            self.oracle.closed(layer)
        self._forget(job)
        self.undelivered = [one for one in self.undelivered if one.job != job.id]
        self.marks = [one for one in self.marks if one.job != job.id]
        for command in commands:
            if not isinstance(command, c.SendGone):
                self._obey(command, told)
        assert not told
        self._flush()
        self._compare()

    def _forget(self, job: DiskJob) -> None:
        self.oracle.forgiven(job.id)
        self.oracle.kernels.pop(job.id, None)
        self.oracle.fixed.discard(job.id)
        del self.disk.jobs[job.id]
        for layer in job.layers:
            del self.oracle.committed[job.id, layer]

    @precondition(lambda self: self.disk.jobs)
    @rule(pick=picks)
    def set_apart(self, pick: int) -> None:
        """A job's folder turns out to be gone. Who finished something of it keeps that, and all others go on."""
        job = choose(pick, list(self.disk.jobs.values()))
        for layer in [layer for layer in job.layers if self.oracle.opened.get(layer) == job.id]:
            self.oracle.closed(layer)
        self._forget(job)
        self.disk.damaged[job.id] = job
        self.handle(e.JobDamaged(job.id, tuple(job.layers)), [])

    @precondition(lambda self: self.disk.damaged)
    @rule(pick=picks)
    def remove_damaged(self, pick: int) -> None:
        job = self.disk.damaged.pop(choose(pick, list(self.disk.damaged)))
        self.unmoved(e.Removed(job.id))

    @rule(broken=st.sets(picks, max_size=2))
    def start_again(self, broken: set[int]) -> None:
        """The daemon stops and starts; some jobs cannot be read back then, and those that could not are mended."""
        self.crash(broken)

    @precondition(lambda self: self._jobs("halted", "incomplete", "cancelled", "complete"))
    @rule(pick=picks, whole=st.booleans())
    def retry(self, pick: int, whole: bool) -> None:
        self._retry(choose(pick, self._jobs("halted", "incomplete", "cancelled", "complete")), whole)

    @precondition(lambda self: any(self.oracle.committed.values()))
    @rule(pick=picks)
    def retry_whole(self, pick: int) -> None:
        self._retry(choose(pick, list(self.disk.jobs.values())), whole=True)

    def _retry(self, job: DiskJob, whole: bool) -> None:
        made = any(layer.made for layer in job.layers.values())
        layers = list(job.layers)[:1] if whole and not made else []
        self.oracle.forgiven(job.id)
        self.discarding = set(layers)
        self.handle(e.Retried(job.id, tuple(layers)), [("forgiven", job.id), *(("discard", job.id, x) for x in layers)])
        self.discarding.clear()

    def _driven(self, rounds: bool = False) -> list[DiskJob]:
        """Those that have a driver, as one that waits for others has none."""
        jobs = [job for job in self.disk.jobs.values() if job.state != "waiting"]
        return [job for job in jobs if any(one.rounds if rounds else one.made for one in job.layers.values())]

    @precondition(lambda self: self._driven())
    @rule(pick=picks, count=st.integers(0, 5), finish=mostly, stale=st.sets(st.integers(0, FIRST), max_size=4))
    def advance(self, pick: int, count: int, finish: bool, stale: set[int]) -> None:
        self._advance(choose(pick, self._driven()), count, not finish, stale)

    @precondition(lambda self: self._driven(rounds=True))
    @rule(pick=picks, workers=st.lists(names, min_size=1, max_size=3), count=st.integers(1, 6), whole=mostly)
    def round(self, pick: int, workers: list[str], count: int, whole: bool) -> None:
        """A driver makes one and waits for it, or begins another before it is over."""
        job = choose(pick, self._driven(rounds=True))
        (layer,) = job.layers.values()
        self._advance(job, count, False, set() if whole else set(range(FIRST)))
        for name in workers:
            self._shift(self.agents[name], "finish", 10_000, True)
        self._pass(TICK)
        if job.state == "running" and job.succeeded and layer.digest in self.oracle.opened:
            idle = [name for name in self.oracle.agents if self._would_take(name, job, layer)]
            assert not self.oracle.pending(layer.digest) or not idle, f"left lying, with {idle} idle"

    def _would_take(self, name: str, job: DiskJob, layer: DiskLayer) -> bool:
        seen = self.oracle.agents[name]
        return seen.hungry and seen.idle and seen.room >= layer.out_bytes and self.oracle.eligible(name, job)

    @precondition(lambda self: self._driven(rounds=True))
    @rule(pick=picks)
    def driver_opens(self, pick: int) -> None:
        """Another driver: nothing that was made for the one before counts."""
        self._advance(choose(pick, self._driven(rounds=True)), 0, False, set(range(FIRST)))

    def _advance(self, job: DiskJob, count: int, finish: bool, stale: Iterable[int] = ()) -> None:
        """`stale`: which of the shards of rounds are retired, counted from their first."""
        (layer,) = job.layers.values()
        if layer.closed:
            return
        retired = {layer.first + n for n in stale if layer.first + n < layer.count} if layer.rounds else set()
        self.oracle.retired(job.id, layer.digest, retired)
        layer.rows |= retired
        create = tuple((layer.count + i, b"x") for i in range(count))
        layer.count, layer.closed, job.cursor = layer.count + count, finish, job.cursor + 1
        layer.payloads.update(create)
        self._flush()
        if layer.empty:
            self.oracle.closed(layer.digest)
        self.handle(e.Advanced(job.id, job.cursor, create, finish, ranges(retired)), [])

    @precondition(lambda self: self._jobs("running", "paused"))
    @rule(pick=picks)
    def driver_fails(self, pick: int) -> None:
        job = choose(pick, self._jobs("running", "paused"))
        if any(layer.made for layer in job.layers.values()):
            self.handle(e.DriverFailed(job.id, "it gets nowhere"), [("halted", job.id)])

    @rule(mib=st.sampled_from([0, 70, 80, 100, 1000]))
    def space(self, mib: int) -> None:
        self.free = mib * MIB
        self.handle(e.SpaceMeasured(self.free), [])

    @rule(count=st.integers(1, 4))
    def tick(self, count: int) -> None:
        for _ in range(count):
            self._pass(TICK)

    @rule(ticks=st.integers(5, 500), early=st.sets(names, max_size=2))
    def late_tick(self, ticks: int, early: set[str]) -> None:
        """The daemon was stopped; some agents are heard before the clock is."""
        self.now, self.alive = self.last_tick[0] + ticks * TICK, self.last_tick[1] + TICK
        for name in sorted(early):
            if self.agents[name].session in self.oracle.sessions:
                self._heard(name)
                self.handle(e.Moved(self.agents[name].session), [])
        self._ticked()

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.alive += seconds
        if self.now - self.last_tick[0] >= TICK:
            self._ticked()

    def _ticked(self) -> None:
        self.last_tick = (self.now, self.alive)
        self.oracle.ticked(self.alive)
        self.handle(e.Ticked(), [])

    def _heard(self, name: str) -> None:
        self.oracle.agents[name].heard = self.alive

    # --- agents ---

    @rule(name=names, delivered=st.booleans())
    def join(self, name: str, delivered: bool) -> None:
        self._join(self.agents[name], delivered)

    def _join(self, agent: Agent, delivered: bool = True) -> None:
        self.last_session += 1
        session = self.last_session
        event = agent.hello(session)
        self.mail[session] = []
        self._remember(agent.name, session, event.hello)
        must = self.oracle.joined(event, self.alive)
        refused = any(one[:2] == ("reject", session) for one in must if isinstance(one, tuple))
        if not refused:
            self.oracle.released(self.alive)
        self.handle(event, must)
        if delivered and not refused:
            agent.session, agent.boot = session, self.boot
            agent.answered()
            self._deliver(agent)

    def _deliver(self, agent: Agent) -> None:
        mail, self.mail[agent.session] = self.mail[agent.session], []
        for command in mail:
            agent.hear(command)
        if agent.draining:
            self._hand_back(agent)
        self._agree(agent)

    def _hand_back(self, agent: Agent) -> None:
        for key, numbers in full(agent.running).items():
            agent.news.append(Returned(*key, pairs(numbers)))
            agent.running[key].clear()

    def _remember(self, name: str, session: int, event: Any) -> None:
        reports = [*getattr(event, "finished", ()), *event.failures, *event.losses, *getattr(event, "returned", ())]
        self.past += [(name, session, one) for one in reports]
        self.past = self.past[-60:]

    def _linked(self) -> list[str]:
        return [name for name, agent in self.agents.items() if agent.session]

    @precondition(lambda self: self._linked())
    @rule(pick=picks, hungry=mostly, heard=mostly)
    def sync(self, pick: int, hungry: bool, heard: bool) -> None:
        """The reply may be lost: then the agent says hello again."""
        self._sync(self.agents[choose(pick, self._linked())], hungry, heard)

    def _sync(self, agent: Agent, hungry: bool = True, heard: bool = True) -> None:
        self._pass(0.125)
        event = agent.sync(hungry)
        self._remember(agent.name, agent.session, event)
        if agent.session not in self.oracle.sessions:
            self.unmoved(event, [("reject", agent.session, "no-session")])
            agent.session = 0
            return
        must = self._told(agent.name, event)
        self.handle(event, must)
        if not heard:
            agent.session = 0
            agent.finished.clear()
            return
        agent.answered()
        self._deliver(agent)
        if agent.draining and not any((full(agent.running), full(agent.done), full(agent.finished), agent.news)):
            self._leave(agent)

    def _told(self, name: str, event: e.Synced) -> list[object]:
        seen = self.oracle.agents[name]
        seen.heard, seen.room = self.alive, event.room
        seen.paused = event.lent == 0 if event.lent is not None else seen.paused
        must: list[object] = []
        for finished in event.finished:
            must += self.oracle.finished(name, key_of(finished), set(numbers_of(finished)))
        for failure in event.failures:
            must += self.oracle.failed(name, failure)
        for loss in event.losses:
            must += self.oracle.lost(name, loss)
        for returned in event.returned:
            self.oracle.returned(name, returned)
        seen.hungry = event.hungry and seen.state == "live"
        return must

    @precondition(lambda self: self.disk.jobs)
    @rule(name=names, outcome=st.sampled_from(OUTCOMES), count=st.integers(1, 9), pushes=st.booleans())
    def shift(self, name: str, outcome: str, count: int, pushes: bool) -> None:
        """What mostly happens: work is asked for, something becomes of it, and that is said."""
        self._shift(self.agents[name], outcome, count, pushes)

    @precondition(lambda self: self.disk.jobs)
    @rule(workers=st.lists(names, min_size=2, max_size=8), count=st.integers(1, 9))
    def day(self, workers: list[str], count: int) -> None:
        """Several agents do well."""
        for name in workers:
            self._shift(self.agents[name], "finish", count, True)

    @precondition(lambda self: self.disk.jobs)
    @rule(name=names, other=names, outcome=st.sampled_from(["fail", "kill"]), times=st.integers(2, 6))
    def bad_day(self, name: str, other: str, outcome: str, times: int) -> None:
        """All that one agent tries goes wrong, and another one's too now and then."""
        for i in range(times):
            self._shift(self.agents[other if i % 3 == 2 else name], outcome, 9, False)

    @precondition(lambda self: self._jobs("running"))
    @rule(name=names, rounds=st.integers(1, 4), talks=st.booleans(), finished=st.booleans())
    def tail(self, name: str, rounds: int, talks: bool, finished: bool) -> None:
        """One agent stands still with what it has, while the others do all the rest and ask for more."""
        if finished:
            self._shift(self.agents[name], "finish", 10_000, False)
        for _ in range(rounds):
            for other in NAMES:
                if other != name:
                    self._shift(self.agents[other], "finish", 10_000, True)
            if talks and self.agents[name].session in self.oracle.sessions:
                self._heard(name)
                self.handle(e.Moved(self.agents[name].session), [])
            self._pass(TICK)

    def _shift(self, agent: Agent, outcome: str, count: int, pushes: bool) -> None:
        if agent.session not in self.oracle.sessions:
            self._join(agent)
        if agent.session:
            self._sync(agent)
        for key in sorted(full(agent.running)):
            self._outcome(agent, key, outcome, count)
        if agent.session:
            self._sync(agent)
        for layer in sorted({key[0] for key in full(agent.done)}) if pushes and agent.session else ():
            self._push(agent, layer, count)
        while self.accepted and pushes:
            self._commit(self.accepted.pop())

    @precondition(lambda self: any(full(agent.running) for agent in self.agents.values()))
    @rule(pick=picks, outcome=st.sampled_from(OUTCOMES), count=st.integers(1, 9))
    def work(self, pick: int, outcome: str, count: int) -> None:
        """Something becomes of shards that run; the scheduler hears of it later."""
        busy = [agent for agent in self.agents.values() if full(agent.running)]
        agent = choose(pick, busy)
        key = choose(pick, sorted(full(agent.running)))
        self._outcome(agent, key, outcome, count)

    def _outcome(self, agent: Agent, key: Key, outcome: str, count: int) -> None:
        self._end(agent, key, outcome, set(sorted(agent.running[key])[: 1 if outcome in {"fail", "kill"} else count]))

    def _end(self, agent: Agent, key: Key, outcome: str, numbers: set[int]) -> None:
        agent.running[key] -= numbers
        if outcome == "finish":
            agent.done[key] |= numbers
            agent.finished[key] |= numbers
        elif outcome == "fail":
            agent.news.append(failure(key, *numbers))
        elif outcome == "return":
            agent.news.append(Returned(*key, pairs(numbers)))
        else:
            agent.news.append(Loss("", *key, pairs(numbers), outcome == "kill", "worker died"))

    @precondition(lambda self: self._runs())
    @rule(pick=picks, times=st.integers(2, 6))
    def unlucky(self, pick: int, times: int) -> None:
        """A worker dies of one shard, wherever it runs, so many times."""
        _, (layer, _, _), number = choose(pick, self._runs())
        for _ in range(times):
            for agent in self.agents.values():
                self._sync(agent) if agent.session else None
            for agent, key, running in self._runs():
                if (key[0], running) == (layer, number):
                    self._end(agent, key, "kill", {number})

    @precondition(lambda self: self._copies())
    @rule(pick=picks, outcome=st.sampled_from(OUTCOMES))
    def copy_ends(self, pick: int, outcome: str) -> None:
        """Something becomes of a shard that two agents run."""
        agent, key, number = choose(pick, self._copies())
        self._end(agent, key, outcome, {number})
        if agent.session:
            self._sync(agent)

    def _runs(self) -> list[tuple[Agent, Key, int]]:
        return [
            (agent, key, number)
            for agent in self.agents.values()
            for key, numbers in sorted(full(agent.running).items())
            for number in sorted(numbers)
        ]

    def _copies(self) -> list[tuple[Agent, Key, int]]:
        layers = self.scheduler.state.open_layers
        return [one for one in self._runs() if one[1][0] in layers and one[2] in layers[one[1][0]].copied]

    @precondition(lambda self: self._granted_anew())
    @rule(pick=picks)
    def late_failure(self, pick: int) -> None:
        """Of an attempt that is over, while a newer one has the shard."""
        name, key, number = choose(pick, self._granted_anew())
        self._replay(self.agents[name], failure(key, number))

    def _granted_anew(self) -> list[tuple[str, Key, int]]:
        return [
            (name, key, number)
            for name, key, numbers in self.given
            for number in sorted(numbers)[:3]
            if key[1] == self.boot and self.agents[name].session in self.oracle.sessions
            if self.oracle.holders(key[0], number) and (name, key) not in self.oracle.holders(key[0], number)
        ]

    @precondition(lambda self: any(full(agent.done) for agent in self.agents.values()))
    @rule(pick=picks, refused=st.booleans())
    def damage(self, pick: int, refused: bool) -> None:
        """A finished part turns out damaged, or its outputs are refused."""
        agent = choose(pick, [agent for agent in self.agents.values() if full(agent.done)])
        key, numbers = choose(pick, sorted(full(agent.done).items()))
        one = {min(numbers)} if refused else set(numbers)
        agent.done[key] -= one
        agent.news.append(failure(key, *one) if refused else Loss("", *key, pairs(one), False, "damaged"))

    @rule(name=names)
    def pause_agent(self, name: str) -> None:
        """Whoever sits there wants the machine, or is done with it; it is said with the next sync."""
        self.agents[name].paused = not self.agents[name].paused

    @rule(name=names)
    def kill(self, name: str) -> None:
        """kill -9, and started again with the same spool."""
        self.agents[name].die()

    @precondition(lambda self: self._linked())
    @rule(pick=picks)
    def hang_up(self, pick: int) -> None:
        """Its channel ends; what it has it has still, and others may be given the same of a round."""
        agent = self.agents[choose(pick, self._linked())]
        self.handle(e.HungUp(agent.session), [])

    @rule(name=names, house=st.sampled_from(range(6)))
    def identity(self, name: str, house: int) -> None:
        self._old_process(self.agents[name])
        self._impostor(name)
        if house == 0:
            self._move_house(name)

    def _old_process(self, agent: Agent) -> None:
        """The process that a new one took the name and spool of comes back."""
        if agent.lives and f"{agent.name}-{agent.spool}-{agent.lives - 1}" in self.oracle.fenced:
            old = Agent(agent.name, agent.spool, agent.cpus, agent.kernel, agent.budget, agent.lives - 1)
            self.unmoved(old.hello(10**6), [("reject", 10**6, "fenced")])

    def _impostor(self, name: str) -> None:
        """Another machine under the same name: refused while the first is there."""
        seen = self.oracle.agents.get(name)
        if seen and seen.present:
            event = Agent(name, "another", 1, 1, MIB).hello(10**6)
            self.unmoved(event, [("reject", 10**6, "name-taken")])

    def _move_house(self, name: str) -> None:
        """The name goes to a machine with an empty spool."""
        seen, old = self.oracle.agents.get(name), self.agents[name]
        if seen is None or not seen.present:
            self.agents[name] = Agent(name, old.spool + "+", old.cpus, old.kernel, old.budget, cost=old.cost)

    @precondition(lambda self: self.oracle.sessions)
    @rule(pick=picks)
    def drain(self, pick: int) -> None:
        name = choose(pick, sorted(self.oracle.sessions.values()))
        seen = self.oracle.agents[name]
        was, seen.state, seen.hungry = seen.state, "draining", False
        before = self._snapshot()
        self.handle(e.DrainAsked(name), [])
        assert self._snapshot() == before or was == "live", "a drain takes nothing away"

    @rule(name=names)
    def drop(self, name: str) -> None:
        """Somebody says that it will not come back, and may be wrong."""
        seen = self.oracle.agents.get(name)
        must = [("reject", seen.session, "no-session")] if seen and seen.present else []
        if seen and seen.present:
            self.oracle.parted(name, "gone")
        elif name in self.oracle.expected:
            self.oracle.expected.discard(name)
            self.oracle.released(self.alive)
        self.handle(e.AgentDropped(name), must)
        assert not self.disk.agents.get(name), "it is expected back"

    @precondition(lambda self: not all(seen.idle for seen in self.oracle.agents.values()))
    @rule(pick=picks)
    def kick(self, pick: int) -> None:
        """A shard is given up wherever it is thought to run, or to be finished."""
        held = sorted(
            (key[0], number)
            for seen in self.oracle.agents.values()
            for held in (seen.open, seen.done)
            for key, numbers in full(held).items()
            for number in numbers
        )
        layer, number = choose(pick, held)
        last = self.oracle.last_attempt
        self.oracle.was_kicked(layer, number)
        self.handle(e.Kicked(layer, number), [])
        assert all(key[1:] > (self.boot, last) for key in self._runs_of(layer, number)), "it stays where it was"

    @precondition(lambda self: self.oracle.opened)
    @rule(pick=picks, number=st.integers(0, 12))
    def kick_nobody(self, pick: int, number: int) -> None:
        """Of a shard that nobody has, whatever it is: it changes nothing."""
        layer = choose(pick, sorted(self.oracle.opened))
        if not self._runs_of(layer, number):
            self.unmoved(e.Kicked(layer, number))

    def _runs_of(self, layer: str, number: int) -> list[Key]:
        """The grants by which it is thought to run, or to be finished."""
        return [key for seen in self.oracle.agents.values() for key in seen.has(layer, number)]

    def _leave(self, agent: Agent) -> None:
        self.oracle.parted(agent.name, "left")
        self.handle(e.Departed(agent.session), [])
        agent.die()

    @precondition(lambda self: self._linked())
    @rule(pick=picks)
    def quit_now(self, pick: int) -> None:
        """It leaves with whatever it has."""
        agent = self.agents[choose(pick, self._linked())]
        if agent.session in self.oracle.sessions:
            self._leave(agent)

    @precondition(lambda self: self._linked())
    @rule(pick=picks)
    def changed(self, pick: int) -> None:
        """Of a layer that it has something of. What was taken back is not its own any more, heard of or not."""
        agent = self.agents[choose(pick, self._linked())]
        if agent.session not in self.oracle.sessions:
            return
        kept = full(agent.running).keys() & full(self.oracle.agents[agent.name].open).keys()
        if mine := sorted({key[0] for key in kept}):
            event = e.Synced(agent.session, agent.room, False, changed=(mine[0],))
            self.looks.clear()
            self.handle(event, self._told(agent.name, event))
            merging = mine[0] in self.oracle.merging
            assert self.looks == ([] if merging or self._is_made(mine[0]) else [mine[0]])
            self.handle(e.SourceChanged(self.oracle.opened[mine[0]], mine[0]), [])
            self._deliver(agent)

    def _is_made(self, layer: str) -> bool:
        return self.disk.layer(self.oracle.opened[layer], layer).made

    # --- an agent that lies

    @precondition(lambda self: self._jobs("running"))
    @rule(
        talk=st.lists(st.tuples(st.lists(LIES, min_size=1, max_size=3), st.booleans(), names), min_size=1, max_size=6),
        seconds=st.sampled_from([0.0, 0.5, 3.0]),
    )
    def lies(self, talk: list[tuple[list[Lie], bool, str]], seconds: float) -> None:
        """It says anything of any shard under any grant, while others work. It costs itself alone: of what it does not
        hold and did not, nothing changes, and nothing that others have. Honest work goes on around it until the end."""
        for told, hello, other in talk:
            self._shift(self.agents[other], "finish", 1, True)
            self._pass(seconds)
            if self.liar.session not in self.oracle.sessions:
                self._lie([], True)
            reports = [report for lie in told for report in self._made_up(lie)]
            wrong = [one for one in reports if isinstance(one, Failure | Loss)][1:]  # the oracle takes one at a time
            self._lie([one for one in reports if not any(one is other for other in wrong)], hello)

    def _lie(self, reports: list[Any], hello: bool) -> None:
        before, used, opened = self._others(), self._used(), dict(self.oracle.opened)
        had = {(key[0], n) for key, those in self._had_by_liar() for n in those}
        self._say(reports, hello)
        after = self._others()
        for shard in before:
            halted = self.disk.jobs[opened[shard[2]]].state == "halted"  # by failures of what it really had
            assert shard in after or shard[2:] in had or halted, f"{shard} was taken from who had it"
        most = self.liar.cpus * (self.now - self.liar_came) + 1e-6
        assert self._used() - used <= most, "it was believed to have worked longer than it was here"

    def _say(self, reports: list[Any], hello: bool) -> None:
        liar, oracle = self.liar, self.oracle
        self.looks.clear()
        self.liar_layers |= {key[0] for key, those in self._had_by_liar() if those}
        if hello:
            self.last_session += 1
            liar.session = self.last_session
            self.mail[liar.session] = []
            held, failures, losses = list(of(Held, reports)), list(of(Failure, reports)), list(of(Loss, reports))
            said = liar.hello(liar.session).hello
            said = msgspec.structs.replace(said, held=held, failures=failures, losses=losses)
            event = e.Joined(liar.session, said)
            must = oracle.joined(event, self.alive)
            oracle.released(self.alive)
            self.handle(event, must)
        else:
            news = e.Synced(
                liar.session, 40 * MIB, True, finished=of(Finished, reports), failures=of(Failure, reports),
                losses=of(Loss, reports), returned=of(Returned, reports),
                changed=tuple(sorted({one.layer for one in reports})),
            )  # fmt: skip
            self.handle(news, self._told(liar.name, news))
        assert set(self.looks) <= self.liar_layers, "looked at a source for whoever had nothing of it"
        self.liar_layers |= {key[0] for key, those in self._had_by_liar() if those}

    def _had_by_liar(self) -> list[tuple[Key, set[int]]]:
        seen = self.oracle.agents.get(self.liar.name)
        return [(k, n) for held in (seen.open, seen.done, seen.left) for k, n in held.items()] if seen else []

    def _others(self) -> set[tuple[str, tuple[int, int], str, int]]:
        """Who but the liar has what, and by which grant."""
        return {
            (name, key[1:], key[0], number)
            for name, agent in self.scheduler.state.agents.items()
            for key, holding in agent.holdings.items()
            for number in holding.everything()
            if name != self.liar.name
        }

    def _used(self) -> float:
        return sum(job.used for job in self.scheduler.state.jobs.values())

    def _made_up(self, lie: Lie) -> list[Any]:
        key, numbers = (lie.layer(self), *lie.grant(self)), lie.pairs
        return [
            Held("", *key, numbers, lie.others),
            msgspec.structs.replace(report(key, set()), numbers=numbers, compute=1e10),
            *(failure(key, number) for number in list(RangeSet(numbers))[:3]),
            Loss("", *key, numbers, lie.running, "a lie"),
            Returned(*key, numbers),
        ][lie.first :]

    # --- bundles ---

    @precondition(lambda self: any(full(agent.done) and agent.session for agent in self.agents.values()))
    @rule(pick=picks, count=st.integers(1, 9))
    def push(self, pick: int, count: int) -> None:
        ready = [agent for agent in self.agents.values() if full(agent.done) and agent.session]
        agent = choose(pick, ready)
        self._push(agent, choose(pick, sorted({key[0] for key in full(agent.done)})), count)

    def _push(self, agent: Agent, layer: str, count: int) -> None:
        numbers = sorted(n for key, those in agent.done.items() if key[0] == layer for n in those)[:count]
        self.offers = [*self.offers[-20:], (layer, set(numbers))]
        verdict = self._judged(agent, layer, set(numbers))
        if isinstance(verdict, c.AcceptOffer):
            event = e.BundleCommitted(
                verdict.job, layer, verdict.generation, agent.name, ranges(numbers), 1, agent.fingerprint
            )
            self.accepted.append(Bundle(agent, agent.lives, event))
        else:
            self._refused(agent, layer, verdict, set(numbers))

    @precondition(lambda self: self.offers and self._linked())
    @rule(pick=st.integers(0, 20), name=names)
    def offer_again(self, pick: int, name: str) -> None:
        """A bundle offered before is offered once more, by whomever; its body never comes."""
        layer, numbers = choose(pick, self.offers)
        self._judged(self.agents[name], layer, numbers)

    def _judged(self, agent: Agent, layer: str, numbers: set[int]) -> c.AcceptOffer | c.RefuseOffer:
        """Any shard that is committed refuses the bundle, by name."""
        oracle, before, session = self.oracle, self._snapshot(), agent.session
        (verdict,) = self.handle(e.Offered(session, layer, ranges(numbers), agent.fingerprint), [])
        assert isinstance(verdict, c.AcceptOffer | c.RefuseOffer) and self._snapshot() == before
        job = oracle.opened.get(layer)
        known = oracle.committed[job, layer] if job else set()
        odd = job in oracle.fixed and oracle.kernels[job] != agent.fingerprint if job else False
        if isinstance(verdict, c.AcceptOffer):
            assert session in oracle.sessions and verdict.job == job, "accepted what nobody wants"
            assert not numbers & known, "accepted what is committed already"
            assert not odd, "accepted other bits"
        elif verdict.code == "kernels":
            assert odd and set(verdict.numbers) == numbers and session in oracle.sessions
        elif verdict.code == "committed" and job:
            assert set(verdict.numbers) == numbers & known
        elif verdict.code == "committed":
            twins = [one.layers[layer] for one in self.disk.jobs.values() if layer in one.layers]
            assert any(one.empty or one.state == "merged" for one in twins)
            assert set(verdict.numbers) == numbers and not self._is_kept(layer)
        elif verdict.code == "later":
            assert self._is_kept(layer) and job is None and session in oracle.sessions, "kept, and nobody is to have it"
        else:
            assert not self._is_kept(layer) or verdict.code == "no-session", "refused what somebody is to have"
            assert verdict.code == ("gone" if session in oracle.sessions else "no-session")
            assert job is None or verdict.code == "no-session", "refused what is wanted"
        return verdict

    def _waits(self, job: DiskJob, layer: str) -> bool:
        """Whether the layer waits for its turn in a job that goes on, or may."""
        known = job.layers.get(layer)
        ended = job.state in {"complete", "incomplete", "cancelled"}
        return known is not None and known.state == "waiting" and not known.rounds and not ended

    def _is_kept(self, layer: str) -> bool:
        """Whether some job is to have it later: one that goes on, or one that is damaged and may be mended."""
        damaged = any(layer in job.layers for job in self.disk.damaged.values())
        return damaged or any(self._waits(job, layer) for job in self.disk.jobs.values())

    def _refused(self, agent: Agent, layer: str, verdict: c.RefuseOffer, offered: set[int]) -> None:
        match verdict.code:
            case "no-session":
                agent.session = 0
            case "committed":
                agent.settle(layer, set(verdict.numbers))
            case "kernels":
                agent.give_up(layer, offered)
            case "later":
                pass
            case _:
                agent.settle(layer, offered)

    @precondition(lambda self: self.accepted)
    @rule(pick=picks, arrives=mostly, told=st.booleans(), delivered=st.booleans())
    def commit(self, pick: int, arrives: bool, told: bool, delivered: bool) -> None:
        """The bundle's bytes arrive, or do not; the scheduler is told at once, or later; then perhaps the agent is."""
        bundle = self.accepted.pop(pick % len(self.accepted))
        if arrives:
            self._commit(bundle, told, delivered)

    def _commit(self, bundle: Bundle, told: bool = True, delivered: bool = True) -> None:
        event, agent = bundle.event, bundle.sender
        numbers = set(event.numbers)
        layer = self.scheduler.state.open_layers.get(event.layer)
        answers = told and delivered and agent.lives == bundle.lives
        if layer is None or layer.job != event.job or layer.generation != event.generation:
            return  # the agent offers it again
        disk = self.disk.layer(event.job, event.layer)
        if twice := disk.rows & numbers:
            assert not twice - self.oracle.committed[event.job, event.layer] or self.undelivered
            if answers:
                self.deliver()  # the store answers in order: the scheduler was told of the first before this agent is
                agent.settle(event.layer, twice)
            return
        job = self.disk.jobs[event.job]
        if job.same_kernels and job.kernels not in {"", event.fingerprint}:
            if answers:
                agent.give_up(event.layer, numbers)
            return
        job.kernels = event.fingerprint if job.same_kernels else ""
        disk.rows |= numbers
        self._flush()
        self.undelivered.append(event)
        if told or disk.rounds:
            self.deliver()
        if answers:
            agent.settle(event.layer, numbers)
            for key in [key for key in agent.running if key[0] == event.layer]:
                agent.running[key] -= numbers

    @precondition(lambda self: self.undelivered)
    @rule()
    def deliver(self) -> None:
        """The scheduler is told of all rows added."""
        while self.undelivered:
            event = self.undelivered.pop(0)
            if event.job in self.disk.damaged:
                self.unmoved(event)
            else:
                self.handle(event, self.oracle.rows_added(event))

    @precondition(lambda self: self.merges)
    @rule(pick=picks, damaged=st.booleans())
    def merge(self, pick: int, damaged: bool) -> None:
        self._merge(self.merges.pop(pick % len(self.merges)), damaged)

    def _merge(self, merge: tuple[str, str, int], damaged: bool = False) -> None:
        job, digest, generation = merge
        layer = self.scheduler.state.open_layers.get(digest)
        if layer is None or (layer.job, layer.state, layer.generation) != (job, "merging", generation):
            return
        disk = self.disk.layer(job, digest)
        numbers = {n for n in disk.rows if n % 3 == 0}
        if damaged and numbers and not disk.made:
            disk.rows -= numbers
            self._flush()
            self.oracle.committed[job, digest] -= numbers
            self.oracle.touched[job, digest] |= numbers
            self.oracle.merging.discard(digest)
            self.handle(e.Uncommitted(digest, generation, ranges(numbers)), [])
        else:
            disk.state = "merged"
            self._flush()
            self.oracle.closed(digest)
            self.handle(e.LayerMerged(job, digest, generation), [])

    # --- what comes late ---

    @precondition(lambda self: self.past)
    @rule(pick=st.integers(0, 59), dead=st.booleans())
    def replay(self, pick: int, dead: bool) -> None:
        """Any past report once more: from the session of then, or from the one of now."""
        name, session, one = choose(pick, self.past)
        agent = self.agents[name]
        if session not in self.oracle.sessions or dead:
            self._replay_dead(session, one)
        elif agent.session in self.oracle.sessions:
            self._replay(agent, one)

    def _replay_dead(self, session: int, one: Any) -> None:
        if session not in self.oracle.sessions:
            self.unmoved(synced(session, one), [("reject", session, "no-session")])

    def _replay(self, agent: Agent, one: Any) -> None:
        """At any time, of whatever opening of its layer."""
        key, seen = key_of(one), self.oracle.agents[agent.name]
        if agent.finished or agent.news or one.layer not in self.oracle.opened:
            return
        stale = key[1] == self.boot or isinstance(one, Finished)
        stale = stale and not any(n in seen.open[key] or n in seen.done[key] for n in numbers_of(one))
        event = synced(agent.session, one)
        must = self._told(agent.name, event)
        seen.hungry = False
        if stale:
            self.unmoved(event, [])
        else:
            self.handle(event, must)
        self._deliver(agent)

    @precondition(lambda self: self.oracle.opened)
    @rule(pick=picks)
    def stale_news(self, pick: int) -> None:
        """Of the store and the merger, about an earlier generation."""
        layer = choose(pick, sorted(self.oracle.opened))
        job = self.oracle.opened[layer]
        generation = self.disk.layer(job, layer).generation - 1
        one = ranges([0])
        self.unmoved(e.LayerMerged(job, layer, generation))
        self.unmoved(e.Uncommitted(layer, generation, one))
        self.unmoved(e.BundleCommitted(job, layer, generation, "a", one, 1))
        if layer not in self.oracle.merging:
            self.unmoved(e.LayerMerged(job, layer, generation + 1))

    # --- the store ---

    @rule(lazy=st.booleans())
    def pace(self, lazy: bool) -> None:
        self.lazy = lazy
        if not lazy:
            self._flush()

    def _flush(self) -> None:
        """All that was written is durable now, and the marks come back."""
        self.durable = self.disk.copy()
        while self.marks:
            mark = self.marks.pop(0)
            told: list[object] = []
            if mark.job not in self.disk.jobs:
                continue
            for command in self.scheduler.handle(mark, self.now):
                self._obey(command, told)
            assert not told
            self.durable = self.disk.copy()

    @precondition(lambda self: self.disk.jobs)
    @rule(name=names, outcome=st.sampled_from(OUTCOMES), others=st.sets(names, max_size=2))
    def crash_in_reply(self, name: str, outcome: str, others: set[str]) -> None:
        """The daemon heard an agent and died before it answered; the agent says the same again to the next one."""
        agent = self.agents[name]
        self._shift(agent, "finish", 1, False)
        for key in sorted(full(agent.running))[:1] if agent.session in self.oracle.sessions else ():
            self._outcome(agent, key, outcome, 9)
            self._sync(agent, heard=False)
        self.crash()
        for other in sorted({name, *others}):
            self._join(self.agents[other])
            if self.agents[other].session:
                self._sync(self.agents[other], hungry=False)

    @rule()
    def crash(self, broken: Iterable[int] = ()) -> None:
        """kill -9 of the daemon, and another one: only what was durable is left."""
        self.disk = self.durable.copy()
        self.boot += 1
        self.marks.clear()
        self.accepted.clear()
        self.undelivered.clear()
        self.lazy, self.free = False, None
        self._boot(broken)

    # --- the end ---

    def teardown(self) -> None:
        """With every agent fair, every job ends, and nothing is left behind."""
        if not hasattr(self, "scheduler"):
            return
        self.lazy = False
        self._flush()
        if self.disk.damaged:
            self.crash()
        self.deliver()
        for name, kernels in (("e", "k1"), ("f", "k2")):
            cost = dict(self.agents["a"].cost)
            self.agents[name] = Agent(name, f"{name}-1", 4, 1, 10_000 * MIB, cost=cost, fingerprint=kernels)
        for agent in self.agents.values():
            agent.draining = agent.paused = False
            agent.budget = max(agent.budget, 50 * MIB)
        self.space(1_000_000)
        for job in self._jobs("paused"):
            self.handle(e.Resumed(job.id), [])
        for job in list(self.disk.jobs.values()):
            if any(layer.made for layer in job.layers.values()):
                self._advance(job, 0, True)
        for _ in range(200):
            if not self._jobs("running", "waiting"):
                break
            self._round()
        self._all_ended()

    def _round(self) -> None:
        """Everybody says what is new, finishes what runs and pushes what is finished."""
        for agent in self.agents.values():
            if agent.session not in self.oracle.sessions or self.oracle.agents[agent.name].state != "live":
                agent.die()
                self._join(agent)
            self._sync(agent)
            for key in sorted(full(agent.running)):
                self._outcome(agent, key, "finish", 10_000)
            for layer in sorted({key[0] for key in full(agent.done)}):
                self._push(agent, layer, 10_000)
                while self.accepted:
                    self._commit(self.accepted.pop())
        while self.merges:
            self._merge(self.merges.pop())
        self._pass(TICK)

    def _all_ended(self) -> None:
        for job in self.scheduler.state.jobs.values():
            assert job.state in {"complete", "incomplete", "halted", "cancelled"}, f"{job.id} hangs: {job}"
            assert job.state in {"complete", "cancelled"} or job.why, f"{job.id} is {job.state} and nobody says why"
            if job.state == "complete":
                assert all(layer.state == "merged" for layer in job.layers)


def choose(pick: int, among: Sequence[T]) -> T:
    return among[pick % len(among)]


def full(held: dict[Key, set[int]]) -> dict[Key, set[int]]:
    return {key: numbers for key, numbers in held.items() if numbers}


def of(kind: type[T], reports: list[Any]) -> tuple[T, ...]:
    return tuple(one for one in reports if isinstance(one, kind))


def key_of(one: Any) -> Key:
    return one.layer, one.boot, one.attempt


def numbers_of(one: Any) -> list[int]:
    return [one.number] if isinstance(one, Failure) else list(RangeSet(one.numbers))


def failure(key: Key, number: int) -> Failure:
    layer, boot, attempt = key
    code = "data" if number % 4 == 3 else "exit"
    return Failure("", layer, number, boot, attempt, code, "it failed", "", 1.0, 0)


def synced(session: int, one: Any) -> e.Synced:
    kinds: dict[type, str] = {Finished: "finished", Failure: "failures", Loss: "losses", Returned: "returned"}
    news: dict[str, Any] = {kinds[type(one)]: (one,)}
    return e.Synced(session, 40 * MIB, False, **news)


SETTINGS = settings(
    max_examples=2000 if THOROUGH else 60,
    stateful_step_count=120 if THOROUGH else 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_no_order_of_events_breaks_a_promise() -> None:
    run_state_machine_as_test(Farm, settings=SETTINGS)


def shared(farm: Farm) -> None:
    """Another job of two small layers, the same as any such job's."""
    farm.add_job(
        counts=[1, 1], attempts=1, max_failures=1000, cpus=1, made=False, priority=1, again=True, long=False,
        same=False, rounds=False, every=1, machine="", at_once=0,
    )  # fmt: skip


def test_the_model_hears_of_a_bundle_before_its_sender_hears_that_it_came_twice() -> None:
    farm = Farm()
    farm.start()
    shared(farm)
    agent = farm.agents["b"]
    farm._shift(agent, "finish", 1, False)
    for _ in range(2):
        farm._push(agent, "same.0", 1)
    farm._commit(farm.accepted.pop(), told=False)
    farm._commit(farm.accepted.pop())
    farm._sync(agent)
    assert not full(agent.done) and farm.oracle.committed["job.1", "same.0"] == {0}


def test_the_model_lets_a_job_end_whose_failed_layer_is_another_jobs_by_then() -> None:
    farm = Farm()
    farm.start()
    shared(farm)
    for outcome in ("finish", "fail", "finish", "finish"):
        farm._shift(farm.agents["a"], outcome, 1, True)
    shared(farm)
    farm.teardown()
    first, second = farm.scheduler.state.jobs.values()
    assert (first.state, second.state) == ("incomplete", "complete") and "waiting" in {
        one.state for one in first.layers
    }


def test_the_model_awaits_no_look_at_a_source_for_a_grant_that_went_with_its_layer() -> None:
    """A job is cancelled, another has the same layer open at once, and the first one's machine has not heard of it."""
    farm = Farm()
    farm.start()
    shared(farm)
    shared(farm)
    agent = farm.agents["a"]
    farm._join(agent)
    for hungry in (True, True, False):
        farm._sync(agent, hungry)
        farm._pass(TICK)
    assert full(agent.running)
    farm.cancel(0)
    assert farm.oracle.opened["same.0"] == "job.2" and full(agent.running)
    farm.unmoved(e.Synced(agent.session, agent.room, False, changed=("same.0",)))
    farm.changed(0)
    assert not farm.looks
    farm.teardown()
