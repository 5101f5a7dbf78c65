"""One world: its machines and jobs, what goes wrong, and what must be true of it at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from muster.coordinator.scheduler import events as e
from tests.property.scheduler_model import MIB
from tests.simulator.clock import Clock
from tests.simulator.faults import Faults
from tests.simulator.machine import Machine, Make
from tests.simulator.server import Server
from tests.simulator.work import Jobs

TROUBLED_SECONDS = 40.0
IDLE_SECONDS = 1.0  # of it, at most, in which nothing is under way
PROVEN_SHARE = 0.25  # of worlds: those in which each machine must show in the end that it still works
FAIR_SECONDS = 600.0  # after which every job must have ended
CALM_SECONDS = 80.0  # after that, in which all that nobody needs is deleted: what was put off is tried each minute
MEANT = {  # to have finished work thrown away
    "job_cancelled", "job_tried_anew", "job_retried", "layers_retried", "job_removed", "kicked", "bundle_damaged",
}  # fmt: skip
ENDED = {"complete", "incomplete", "cancelled", "halted"}


class Broken(AssertionError):
    """A promise is."""


@dataclass(frozen=True)
class Verdict:
    """What came of a world in which nothing was broken."""

    faults: dict[str, int]
    jobs: dict[str, int]  # how many ended how
    committed: int
    ran: int
    events: int


class World:
    """The same seed, the same story."""

    def __init__(self, seed: int) -> None:
        self.clock = Clock(seed)
        random = self.clock.random
        self.jobs = Jobs(random)
        self.server = Server(self.clock, self.jobs)
        self.machines = [self._machine(number) for number in range(random.choice([1, 1, 2, 3]))]
        self.faults = Faults(self)
        self._to_come: list[tuple[float, Callable[[], object]]] = []  # submissions and faults, the next one last

    def _machine(self, number: int) -> Machine:
        random = self.clock.random
        make = Make(
            f"m{number}", random.choice([1, 2, 4]), random.choice([6 * MIB, 100 * MIB]), random.random() < 0.5,
            random.choice(["k1", "k1", "k2"]), random.choice([1.0, 1.0, 8.0]), random.choice([0.001, 0.05, 0.3]),
            random.random() < 0.7,
        )  # fmt: skip
        return Machine(self.clock, self.server, make, self._deletes)

    def run(self) -> Verdict:
        random = self.clock.random
        self.server.start()
        for machine in self.machines:
            self.clock.after(random.choice([0.0, 0.0, 10.0]), machine.start)
        for _ in range(random.choice([1, 2, 4, 6])):
            self.plan(self.clock.between(0.0, 15.0), lambda: self.server.do(self.server.submit_next))
        for _ in range(random.choice([0, 1, 2, 4, 8])):
            self.plan(self.clock.between(0.1, TROUBLED_SECONDS), self.faults.strike)
        self.clock.run_until(self.clock.now + TROUBLED_SECONDS, self._is_over)
        self._to_come.clear()
        self._make_fair()
        if not self.clock.run_until(self.clock.now + FAIR_SECONDS, self._all_ended):
            raise Broken(f"wedged: {self._unended()}")
        self.clock.run_until(self.clock.now + CALM_SECONDS, self._all_tidy)
        self._judge()
        ran = sum(machine.ran for machine in self.machines)
        states: list[str] = [job.state for job in self.server.disk.jobs.values()]
        ends = {state: states.count(state) for state in set(states)}
        return Verdict(dict(self.faults.done), ends, self.server.tally.committed, ran, self.clock.events)

    def plan(self, seconds: float, happens: Callable[[], object]) -> None:
        self._to_come.append((self.clock.now + seconds, happens))
        self._to_come.sort(key=lambda one: -one[0])
        self.clock.after(seconds, self._come)

    def _come(self) -> None:
        """Whatever is due."""
        while self._to_come and self._to_come[-1][0] <= self.clock.now:
            self._to_come.pop()[1]()

    def _is_over(self) -> bool:
        """Whether what is left of its troubled time would be an idle farm's. One that is idle before that is not so for
        long: the next of what is to come comes sooner."""
        if not self._all_ended() or not self._to_come:
            return self._all_ended()
        at, happens = self._to_come[-1]
        if at > self.clock.now + IDLE_SECONDS:
            self._to_come.pop()
            self.plan(IDLE_SECONDS, happens)
        return False

    def _make_fair(self) -> None:
        """From now on nothing goes wrong, and one machine can run everything. Of the others it may be asked to show
        that no trouble left them of no use for good."""
        server = self.server
        server.slow, server.store_full, server.free = 0.01, False, 1 << 40
        server.stop(False)
        server.start()
        for machine in self.machines if self.clock.chance(PROVEN_SHARE) else ():
            if not machine.lost_for_good:
                server.submit(self.jobs.proof(machine.make.name))
        for fingerprint in ("k1", "k2"):
            make = Make(f"fair-{fingerprint}", 2, 1000 * MIB, True, fingerprint, 1.0, 0.01)
            self.machines.append(Machine(self.clock, server, make, self._deletes))
        for machine in self.machines:
            machine.unreachable = machine.full = False
            machine.stop(False)
        self._keep_fair()

    def _keep_fair(self) -> None:
        """Whoever left comes back, whoever is paused goes on."""
        self.server.start()
        self.server.stop(False)
        self.server.store_full, self.server.free = False, 1 << 40
        for machine in self.machines:
            machine.start()
            machine.full = machine.unreachable = False
            machine.lend(machine.make.cpus)
        for job in list(self.server.scheduler.state.jobs.values()):
            if job.state == "paused":
                self.server.handle(e.Resumed(job.id))
        self.clock.after(5.0, self._keep_fair)

    # --- what must be true -------------------------------------------------------------------------------

    def _all_ended(self) -> bool:
        jobs = self.server.scheduler.state.jobs
        return self.server.up and all(job.state in ENDED for job in jobs.values())

    def _all_tidy(self) -> bool:
        return not (self.server.writing or any(self._kept_for_nobody()))

    def _kept_for_nobody(self) -> Iterator[str]:
        """Parts that no job is to have: one that is halted may be retried."""
        state = self.server.scheduler.state
        for machine in self.machines:
            for part in machine.spool.parts.values() if not machine.lost_for_good else ():
                if not state.is_kept(part.layer):
                    yield f"{machine.make.name} keeps {part}"

    def _unended(self) -> str:
        state = self.server.scheduler.state
        stuck = [
            f"{job.id} {job.state} ({job.why}) {layer.digest} {layer.state} fresh {layer.fresh} again {layer.again}"
            f" limbo {layer.limbo} mark {layer.high_water} of {layer.count},"
            f" held {[(h.agent, str(h.open), str(h.finished)) for h in layer.holdings.values()]}"
            for job in state.jobs.values() if job.state not in ENDED
            for layer in job.layers if layer.state not in {"merged", "changed"}
        ]  # fmt: skip
        return "; ".join(stuck)

    def _judge(self) -> None:
        state, disk = self.server.scheduler.state, self.server.disk
        if self.server.tally.doubts:
            raise Broken(f"doubted: {self.server.tally.doubts}")
        for job in state.jobs.values():
            stored = disk.jobs[job.id]
            if (job.state, job.why, job.succeeded) != (stored.state, stored.why, stored.succeeded):
                raise Broken(f"{job.id} is {job.state} ({job.why}), stored as {stored.state} ({stored.why})")
            if job.state in {"incomplete", "halted"} and not job.why:
                raise Broken(f"{job.id} is {job.state} and nobody says why")
            for layer in stored.layers.values() if job.state == "complete" else ():
                if not layer.made and (layer.state, layer.rows) != ("merged", layer.whole):
                    raise Broken(f"{job.id} is complete without {layer.whole - layer.rows} of {layer.digest}")
        for kept in self._kept_for_nobody():
            raise Broken(f"{kept}, and all jobs have ended")

    def _deletes(self, machine: Machine, name: str) -> None:
        """What was finished may go once it is committed, or nobody wants it. A job that wants one machine's kernels may
        have others' results thrown away that another job, which waits for the layer, could have had: not judged."""
        part = machine.spool.parts[name]
        others = [
            one for every in self.machines for key, one in every.spool.parts.items()
            if key != name and one.layer == part.layer
        ]  # fmt: skip
        kept = {number for one in others for those in one.attempts.values() for number in those}
        numbers = {number for those in part.attempts.values() for number in those} - kept
        numbers -= self.jobs.natures[part.layer].odd
        for job in self.server.disk.jobs.values():
            layer = job.layers.get(part.layer)
            if layer is not None and (layer.state in {"merged", "changed"} or numbers <= layer.rows):
                return
        wanted = [job for job in self.server.disk.jobs.values() if part.layer in job.layers]
        picky = any(job.same_kernels for job in wanted)
        if (
            numbers
            and wanted
            and not picky
            and not MEANT & self.faults.done.keys()
            and not part.layer.startswith("rounds")
        ):
            raise Broken(f"{machine.make.name} deletes {sorted(numbers)} of {part.layer}, which nobody committed")
