"""A machine taken out of the farm: what is finished first, in which order things go. Carried out on one machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.api.requests import Drain
from muster.coordinator.farm_root import ask_daemon
from muster.deploy import steps
from muster.deploy.connection import MachineConnection
from muster.deploy.inventory import Machine
from muster.deploy.rollout import POLL_SECONDS, MachineOutcome, Rollout, StepResult
from muster.jobs.common.errors import MusterError, RefusedError

Tell = Callable[[str, StepResult], None]
PATIENCE_SECONDS = 60  # that an agent has which nobody drained
STOP_SECONDS = 240.0


@dataclass(frozen=True)
class Removal:
    """How it is to be done."""

    dry: bool = False
    now: bool = False
    force: bool = False

    def of(self, rollout: Rollout, machine: Machine, tell: Tell) -> MachineOutcome:
        """Take one machine out."""
        done: list[StepResult] = []

        def note(name: str, state: str, said: str, hint: str = "") -> None:
            done.append(StepResult(name, state, said, hint))
            tell(machine.name, done[-1])

        try:
            if self.now and not self.dry:
                rollout.lock_out(machine.name)
                self._revoke(rollout, machine, note)
                self._hang_up(rollout, machine, note)
            self._take_away(rollout, rollout.connect(machine), note)
        except MusterError as error:
            note("removed", "failed", error.message, error.hint)
            return MachineOutcome(machine.name, "failed", done, error.exit_code)
        changed = "would change" if self.dry else "changed"
        return MachineOutcome(machine.name, changed if any(one.state == changed for one in done) else "ok", done)

    def _take_away(self, rollout: Rollout, connection: MachineConnection, note: Callable[..., None]) -> None:
        machine = connection.machine
        facts = rollout.look(connection)
        there = steps.is_there(facts)
        if self.dry:
            if there or facts.line:
                note("removed", "would change", "stop it, and take away its key, its files and its spool")
            return
        if not self.now and facts.runs and facts.agent in ("live", "draining"):
            self._drain(rollout, machine, note)
        if there:
            patience = 1 if self.now else PATIENCE_SECONDS
            script = steps.remove(rollout.wanted(machine), facts, patience, self.force)
            kept = steps.facts_of(connection.run(script, STOP_SECONDS)).kept
            if kept:
                parts, _, spool = kept.partition(" ")
                hint = "`deploy up` starts the agent again, which pushes them; --force deletes it all"
                why = f"it is stopped, and all else is kept: {parts} finished parts in {spool} were not pushed"
                raise RefusedError(why, hint)
            note("files", "changed", "service, key, what was installed and spool are gone")
        self._hang_up(rollout, machine, note)
        self._revoke(rollout, machine, note)

    def _hang_up(self, rollout: Rollout, machine: Machine, note: Callable[..., None]) -> None:
        if rollout.dials.remove(machine):
            note("dialled", "changed", "this server dials in no longer")

    def _revoke(self, rollout: Rollout, machine: Machine, note: Callable[..., None]) -> None:
        if rollout.authorized.put(machine.name, None):
            note("key", "changed", "its line in authorized_keys is gone")

    def _drain(self, rollout: Rollout, machine: Machine, note: Callable[..., None]) -> None:
        """Until it has left; what it computes may take its time."""
        ask_daemon.ask(rollout.root, Drain(machine.name), Answered)
        while (agent := rollout.agent(machine.name)) and agent.state in ("live", "draining"):
            time.sleep(POLL_SECONDS)
        note("drained", "changed", "it finished and pushed what it had")
