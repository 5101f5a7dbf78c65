"""Carries steps out on all machines at once: looks, puts right, looks again. What stops a machine stops no other.

What a step is and what it wants are `steps`; this knows neither machines nor scripts, only how orders are carried out.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from muster import VERSION
from muster.coordinator.api.requests import AgentsAsk, Done, DropAgent
from muster.coordinator.api.status import Agents, AgentStatus
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root.paths import Root
from muster.deploy import bootstrap, keys, steps, wheel, wheelhouse
from muster.deploy.connection import Connections, MachineConnection, UnknownHostError
from muster.deploy.dials import Dials
from muster.deploy.inventory import Inventory, Machine
from muster.deploy.steps import Authorize, Await, Dial, MachineFacts, Order, Step, WantedMachine
from muster.jobs.common.durable import make_folder, write_durably
from muster.jobs.common.errors import LinkError, MusterError, NotFoundError, RefusedError

JOINED_SECONDS = 120.0
DIALLED_SECONDS = 60.0
POLL_SECONDS = 0.1
LOCK = "deploy-lock"
KNOWN_HOSTS = "deploy-known_hosts"
PLAIN = "plain processes"  # as the step says it

_T = TypeVar("_T")


class StepResult(msgspec.Struct, frozen=True):
    """One step of one machine, as it is told."""

    name: str
    state: str  # ok, changed, would change, failed
    said: str
    hint: str = ""


class MachineOutcome(msgspec.Struct, frozen=True):
    """What came of one machine."""

    machine: str
    state: str  # ok, changed, would change, failed, absent
    steps: list[StepResult]
    exit_code: int = 0

    @property
    def said(self) -> str:
        """It all in a line."""
        if self.state in ("failed", "absent"):
            return f"{self.steps[-1].name}: {self.steps[-1].said}"
        done = ", ".join(step.name for step in self.steps if step.state == self.state) if self.state != "ok" else ""
        workers = [step.said for step in self.steps if step.name == "pool" and step.said.startswith(PLAIN)]
        return "; ".join(filter(None, [done, *workers])) or "-"


class Rollout:
    """One call of a command: the inventory, the farm, and the connections to its machines."""

    def __init__(
        self, root: Root, inventory: Inventory, connections: Connections, wheels: Path | None, folder: Path
    ) -> None:
        self.root = root
        self.is_served = True  # so that there are agents to be asked for
        self._connections = connections
        self._wheels_in = wheels
        self.authorized = keys.AuthorizedKeys(inventory.server.authorized_keys, root.farm)
        self._server = inventory.server
        self._known_hosts = keys.known_hosts(inventory.server)
        self._stamp = wheel.stamp()
        self._folder = folder  # for the wheel
        self._making = threading.Lock()
        self.dials = Dials(connections, inventory.server)

    def wanted(self, machine: Machine) -> WantedMachine:
        return WantedMachine(
            machine, VERSION, self._stamp, wheel.NAME, self._server.address, self._known_hosts,
            self._wheels_in is not None,
            lambda public, name: keys.confined(public, name, self.root.launcher),
            wheel.requirements(without="ray"), wheel.build(self._stamp),
        )  # fmt: skip

    def connect(self, machine: Machine) -> MachineConnection:
        return self._connections.to(machine)

    def look(self, connection: MachineConnection, more: Sequence[str] = ()) -> MachineFacts:
        """How a machine is now; `more`: what scripts said since."""
        machine = connection.machine
        lines = [*connection.run(steps.probe(self.wanted(machine))), *more]
        agent = self.agent(machine.name)
        facts = steps.facts_of(lines, self.authorized.line_of(machine.name), agent.state if agent else "")
        locked_out = (self.root.locked_out / machine.name).exists()
        dials = self.dials.look(self.wanted(machine), facts)
        return msgspec.structs.replace(facts, dials=dials, locked_out=locked_out)

    def agent(self, name: str) -> AgentStatus | None:
        """What the coordinator knows of it."""
        return next((one for one in self.agents() if one.name == name), None)

    def agents(self) -> list[AgentStatus]:
        return ask_daemon.ask(self.root, AgentsAsk(), Agents).agents if self.is_served else []

    def lock_out(self, name: str) -> None:
        """Whatever the machine does, it is no agent of this farm from now on: its key would open no new connection, but
        one that it has open can open channels."""
        make_folder(self.root.locked_out, 0o700)
        write_durably(self.root.locked_out / name, b"", mode=0o600)
        with suppress(NotFoundError):
            ask_daemon.ask(self.root, DropAgent(name, force=True), Done)

    # --- one machine ---

    def bring(
        self,
        machine: Machine,
        dry: bool,
        tell: Callable[[str, StepResult], None],
        vouched: bool = False,
        wanted_steps: Sequence[Step] = steps.STEPS,
        anew: bool = True,
    ) -> MachineOutcome:
        """The machine as the inventory wants it; `dry`: what would be changed. An UnknownHostError where nobody knows
        its host key yet, unless somebody `vouched` for it. `anew`: also where nothing of this farm's is."""
        done: list[StepResult] = []
        at = steps.STEPS[0][0]

        def note(state: str, said: str, hint: str = "") -> None:
            done.append(StepResult(at, state, said, hint))
            tell(machine.name, done[-1])

        connection = self.connect(machine)
        try:
            facts = self.look(connection)
            if not (anew or steps.is_there(facts)):
                note("absent", "it has no agent of this farm", f"`deploy up {machine.name}` brings one")
                return MachineOutcome(machine.name, "absent", done)
            for at, look in wanted_steps:  # noqa: B007 note() says it
                facts = self._step(connection, facts, look, dry, note)
        except MusterError as error:
            if isinstance(error, UnknownHostError) and not vouched:
                raise
            note("failed", error.message, error.hint)
            return MachineOutcome(machine.name, "failed", done, error.exit_code)
        changed = "would change" if dry else "changed"
        return MachineOutcome(machine.name, changed if any(one.state == changed for one in done) else "ok", done)

    def _step(
        self,
        connection: MachineConnection,
        facts: MachineFacts,
        look: Callable[[WantedMachine, MachineFacts], steps.Look],
        dry: bool,
        note: Callable[[str, str], None],
    ) -> MachineFacts:
        """One step put right; the facts afterwards."""
        wanted = self.wanted(connection.machine)
        tried: list[str] = []
        while True:
            seen = look(wanted, facts)
            if seen.state == "fail":
                raise RefusedError(seen.said, seen.hint)
            if seen.state == "ok":
                note("changed" if tried else "ok", f"{', '.join(tried)} ({seen.said})" if tried else seen.said)
                return facts
            if dry:
                note("would change", seen.said)
                return facts
            if seen.said in tried or seen.order is None:
                raise RefusedError(f"{seen.said}: it was done, and is as before", "see what that machine's disk says")
            tried.append(seen.said)
            facts = self.look(connection, self._carry_out(connection, seen.order, facts))

    def _carry_out(self, connection: MachineConnection, order: Order, facts: MachineFacts) -> list[str]:
        name = connection.machine.name
        if isinstance(order, Authorize):
            self.authorized.put(name, order.line)
            (self.root.locked_out / name).unlink(missing_ok=True)
            return []
        if isinstance(order, Dial):
            if order.hang_up:
                self.dials.remove(connection.machine)
                return []
            self.dials.put(self.wanted(connection.machine), facts)
            return self._await_way(connection)
        if isinstance(order, Await):
            self.await_agent(name, facts)
            return []
        if order.brings:
            connection.send([self._wheel(), *self._wheels(facts)], bootstrap.INCOMING)
        return connection.run(order.script, order.seconds)

    def _await_way(self, connection: MachineConnection) -> list[str]:
        """Until the server's ssh has made a socket there."""
        deadline = time.monotonic() + DIALLED_SECONDS
        while time.monotonic() < deadline:
            lines = connection.run(steps.probe(self.wanted(connection.machine)))
            if steps.facts_of(lines).way:
                return []
            time.sleep(POLL_SECONDS)
        said = self.dials.last_words(connection.machine)
        hint = f"`ssh {connection.machine.ssh} true` must work here without a question and without your ssh agent"
        raise LinkError(f"this server's ssh did not make a way in within {DIALLED_SECONDS:.0f} s: {said}", hint)

    def await_agent(self, name: str, facts: MachineFacts) -> None:
        deadline = time.monotonic() + JOINED_SECONDS
        while time.monotonic() < deadline:
            agent = self.agent(name)
            if agent and agent.state in ("live", "draining"):
                return
            time.sleep(POLL_SECONDS)
        said = f": {facts.last}" if facts.last else ""
        hint = f"`deploy logs {name}` has what it said; `up` goes on from here"
        raise LinkError(f"the coordinator did not hear of it within {JOINED_SECONDS:.0f} s{said}", hint)

    def _wheel(self) -> Path:
        """Made once, for the first machine that wants it."""
        with self._making:
            made = self._folder / wheel.NAME
            return made if made.exists() else wheel.make(self._folder)

    def _wheels(self, facts: MachineFacts) -> list[Path]:
        """Those of the wheelhouse that fit the machine; all of them where that cannot be told."""
        if self._wheels_in is None:
            return []
        kind = steps.kind_of(facts)
        found = sorted(file for file in self._wheels_in.glob("*.whl") if not file.name.startswith("muster_farm-"))
        return found if kind is None else wheelhouse.fitting(found, kind.python, kind.tags)


def on_all(machines: Sequence[Machine], work: Callable[[Machine], _T], at_once: int) -> list[_T]:
    """What `work` makes of each, in the order of the machines; so many at a time. A bug ends it, and so does Ctrl-C:
    who is at work then is not waited for, and stops with the connections."""
    answers: list[Future[_T]] = [Future() for _ in machines]
    left = deque(zip(machines, answers, strict=True))

    def take() -> None:
        with suppress(IndexError):
            while True:
                machine, answer = left.popleft()
                try:
                    answer.set_result(work(machine))
                except BaseException as error:
                    answer.set_exception(error)

    for _ in range(min(at_once, len(machines))):
        threading.Thread(target=take, daemon=True).start()
    try:
        for answer in as_completed(answers):
            answer.result()
    finally:
        left.clear()
    return [answer.result() for answer in answers]


@contextmanager
def alone(root: Root) -> Iterator[None]:
    """Nobody else changes machines of this farm meanwhile; a RefusedError where somebody does."""
    fd = os.open(root.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise RefusedError("another `deploy` is at work on this farm", "wait until it has ended") from None
    try:
        yield
    finally:
        os.close(fd)
