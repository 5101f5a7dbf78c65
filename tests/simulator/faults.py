"""What goes wrong in a world, what people do in it, and that all of it is over in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.coordinator.scheduler import events as e
from tests.simulator.machine import Machine

if TYPE_CHECKING:
    from tests.simulator.world import World

MOMENTS = (0.0, 0.2, 2.0, 8.0, 30.0)  # seconds that a trouble lasts, the last longer than a lease


class Faults:
    """Each is a method; its name is what is counted."""

    def __init__(self, world: World) -> None:
        self.world, self.clock, self.server = world, world.clock, world.server
        self.done: Counter[str] = Counter()
        self._all: list[Callable[[], object]] = [
            self.daemon_killed, self.daemon_killed, self.daemon_stopped, self.driver_killed, self.store_slow,
            self.store_full, self.root_full, self.bundle_damaged, self.agent_killed, self.agent_killed,
            self.agent_stopped, self.agent_unreachable, self.control_cut, self.control_cut, self.push_cut,
            self.push_cut, self.pull_cut, self.worker_killed, self.worker_killed, self.pool_killed, self.part_damaged,
            self.spool_full, self.processors_lent, self.drained, self.left, self.both_killed, self.impostor, self.rival,
            self.machine_lost, self.dropped,
            self.job_cancelled, self.job_tried_anew, self.job_tried_anew, self.job_paused, self.job_retried,
            self.layers_retried, self.job_removed, self.kicked, self.prioritised,
        ]  # fmt: skip

    def strike(self) -> None:
        """Something, anywhere."""
        fault = self.clock.random.choice(self._all)
        if fault() is not False:
            self.done[fault.__name__] += 1

    def _lasts(self) -> float:
        return self.clock.random.choice(MOMENTS)

    def _machine(self) -> Machine:
        return self.clock.random.choice(self.world.machines)

    # --- the server --------------------------------------------------------------------------------------

    def daemon_killed(self) -> None:
        self.server.kill()
        self.clock.after(self._lasts() + 0.5, self.server.start)

    def daemon_stopped(self) -> None:
        self.server.stop(True)
        self.clock.after(self._lasts(), lambda: self.server.stop(False))

    def driver_killed(self) -> bool:
        drivers = list(self.server.drivers.values())
        if drivers:
            self.clock.random.choice(drivers).crash()
        return bool(drivers)

    def store_slow(self) -> None:
        self.server.slow = self.clock.random.choice([0.5, 5.0])
        self.clock.after(10.0, lambda: setattr(self.server, "slow", 0.01))

    def store_full(self) -> None:
        self.server.store_full = True
        self.clock.after(self._lasts(), lambda: setattr(self.server, "store_full", False))

    def root_full(self) -> None:
        self.server.free = self.clock.random.choice([0, 70 << 20])
        self.clock.after(self._lasts(), lambda: setattr(self.server, "free", 1 << 40))

    def bundle_damaged(self) -> None:
        self.server.damage_a_bundle()

    # --- machines ----------------------------------------------------------------------------------------

    def agent_killed(self) -> None:
        machine = self._machine()
        machine.kill()
        self.clock.after(self._lasts() + 0.5, machine.start)

    def machine_lost(self) -> None:
        """With all that is on it; nobody hears of its links' ends."""
        machine = self._machine()
        machine.lost_for_good = True
        for role in ("control", "push", "pull"):
            machine.cut(role, 0.0, 1e6)
        machine.kill()

    def both_killed(self) -> None:
        self.daemon_killed()
        self.agent_killed()

    def agent_stopped(self) -> None:
        machine = self._machine()
        machine.stop(True)
        self.clock.after(self._lasts(), lambda: machine.stop(False))

    def agent_unreachable(self) -> None:
        machine, lasts = self._machine(), self._lasts()
        machine.unreachable = True
        for role in ("control", "push", "pull"):
            machine.cut(role, self.clock.between(0.0, 15.0), self.clock.between(0.0, 30.0))
        self.clock.after(lasts, lambda: setattr(machine, "unreachable", False))

    def control_cut(self) -> None:
        self._machine().cut("control", self._a_while(), self._a_while())

    def push_cut(self) -> None:
        self._machine().cut("push", self._a_while(), self._a_while())

    def pull_cut(self) -> None:
        self._machine().cut("pull", self._a_while(), self._a_while())

    def _a_while(self) -> float:
        return self.clock.random.choice([0.01, 0.01, 5.0, 25.0])

    def worker_killed(self) -> None:
        machine = self._machine()
        slot = self.clock.random.randrange(machine.make.cpus)
        if machine.up:
            machine.do(lambda: machine.worker_dies(slot))

    def pool_killed(self) -> None:
        machine = self._machine()
        machine.do(machine.pool_dies)

    def part_damaged(self) -> None:
        machine = self._machine()
        machine.do(machine.damage_a_part)

    def spool_full(self) -> None:
        machine = self._machine()
        machine.full = True
        self.clock.after(self._lasts(), lambda: setattr(machine, "full", False))

    def processors_lent(self) -> None:
        machine = self._machine()
        machine.lend(self.clock.random.randint(0, machine.make.cpus))
        self.clock.after(self._lasts(), lambda: machine.lend(machine.make.cpus))

    def left(self) -> None:
        """By SIGTERM: it drains, leaves and comes back."""
        self._machine().drain()

    def impostor(self) -> None:
        """The same name and spool on a second process: the first is fenced off."""
        machine = self._machine()
        if machine.up:
            machine.kill()
            machine.start()

    def rival(self) -> None:
        self._machine().rival()

    # --- people ------------------------------------------------------------------------------------------

    def drained(self) -> None:
        agents = [agent.name for agent in self.server.scheduler.state.present_agents()]
        if agents and self.server.up:
            name = self.clock.random.choice(agents)
            self.server.do(lambda: self._drain(name))

    def _drain(self, name: str) -> None:
        if any(agent.name == name for agent in self.server.scheduler.state.present_agents()):
            self.server.handle(e.DrainAsked(name))

    def dropped(self) -> None:
        """Somebody takes a machine for dead, whatever it is."""
        name = self._machine().make.name
        self.server.do(lambda: self._drop(name))

    def _drop(self, name: str) -> None:
        self.server.handle(e.AgentDropped(name))

    def _person(self, states: set[str], does: Callable[[str], object]) -> bool:
        if not self.server.up or self.server.stopped:
            return False
        jobs = [job.id for job in self.server.scheduler.state.jobs.values() if job.state in states]
        if jobs:
            does(self.clock.random.choice(jobs))
        return bool(jobs)

    def job_cancelled(self) -> bool:
        return self._person(
            {"waiting", "running", "paused", "halted"}, lambda job: self.server.handle(e.Cancelled(job))
        )

    def job_tried_anew(self) -> bool:
        """Somebody cancels a job, and thinks better of it: what is finished of it, or on its way, meets itself."""
        return self._person({"running", "paused", "halted"}, self._cancel_and_retry)

    def _cancel_and_retry(self, job: str) -> None:
        self.server.handle(e.Cancelled(job))
        self.world.plan(self._lasts(), lambda: self.server.do(lambda: self._think_better_of(job)))

    def _think_better_of(self, job: str) -> None:
        found = self.server.job(job)
        if found is not None and found.state == "cancelled":
            self._retry(job, False)

    def job_paused(self) -> bool:
        return self._person({"running"}, lambda job: self.server.handle(e.Paused(job)))

    def job_retried(self) -> bool:
        return self._person({"halted", "incomplete", "cancelled"}, lambda job: self._retry(job, False))

    def layers_retried(self) -> bool:
        return self._person({"running", "halted", "incomplete", "complete"}, lambda job: self._retry(job, True))

    def _retry(self, job: str, whole: bool) -> None:
        disk = self.server.disk.jobs[job]
        layers = [] if any(one.made for one in disk.layers.values()) or not whole else list(disk.layers)[:1]
        self.server.handle(e.Retried(job, tuple(layers)))

    def job_removed(self) -> bool:
        return self._person({"complete", "incomplete", "cancelled"}, self.server.remove)

    def prioritised(self) -> bool:
        return self._person({"running"}, lambda job: self.server.handle(e.Prioritised(job, 5)))

    def kicked(self) -> bool:
        if not self.server.up or self.server.stopped:
            return False
        held = [
            (layer.digest, number)
            for layer in self.server.scheduler.state.open_layers.values()
            for holding in layer.holdings.values()
            for number in holding.everything()
        ]
        if held:
            self.server.handle(e.Kicked(*self.clock.random.choice(held)))
        return bool(held)
