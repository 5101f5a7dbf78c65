"""`deploy up`: machines as the inventory wants them."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.farm_root import ask_daemon
from muster.deploy import host_keys
from muster.deploy.commands.options import (
    Asked,
    DeploySite,
    check_option,
    deploy_options,
    fingerprints_option,
    finish,
    site,
    teller,
    wheelhouse_option,
)
from muster.deploy.connection import UnknownHostError
from muster.deploy.host_keys import ShownKeys
from muster.deploy.inventory import Machine
from muster.deploy.rollout import MachineOutcome, StepResult, alone, on_all
from muster.deploy.server import SERVER, KeptCoordinator
from muster.jobs.common.cli import example
from muster.jobs.common.errors import AccessError, RefusedError


@click.command(epilog=example("deploy up", "deploy up lab3 gpu1 --check", "deploy up --inventory lab.yaml -j 4"))
@deploy_options
@check_option
@fingerprints_option
@wheelhouse_option
def command(
    asked: Asked,
    dry: bool,
    fingerprints: Path | None,
    wheelhouse: Path | None,
) -> int:
    """Bring machines to what the inventory says, all at once: Muster is installed, a key is made there and
    confined here, and the agent is started and kept at work.

    What is right already is left alone: a second run changes nothing. A failure stops only its own machine.
    """
    with site(asked, wheelhouse, makes=not dry) as found, alone(found.rollout.root):
        return bring(found, asked, dry, fingerprints)


def bring(found: DeploySite, asked: Asked, dry: bool, fingerprints: Path | None) -> int:
    """The exit code, once all is done and told."""
    kept = _keep_coordinator(found, asked, dry)
    ask_daemon.connect(found.rollout.root).close()  # before any machine is blamed for it
    return finish([*kept, *_bring(found, asked, dry, fingerprints)], asked.as_json)


def _keep_coordinator(found: DeploySite, asked: Asked, dry: bool) -> list[MachineOutcome]:
    """What came of the coordinator here, if the inventory says what keeps it; an error where it cannot be kept so."""
    coordinator = KeptCoordinator(found.rollout.root, found.inventory.server.service)
    if not coordinator.by:
        return []
    wrong = coordinator.wrong()
    if wrong and not dry:
        coordinator.put_right()
        if coordinator.wrong():
            raise RefusedError(f"{wrong}: it was done, and is as before", f"see {found.rollout.root.log}")
    state = ("would change" if dry else "changed") if wrong else "ok"
    done = StepResult("coordinator", state, wrong or f"{coordinator.by} keeps it at work")
    teller(asked.as_json)(SERVER, done)
    return [MachineOutcome(SERVER, state, [done])]


def _bring(found: DeploySite, asked: Asked, dry: bool, fingerprints: Path | None) -> list[MachineOutcome]:
    tell, at_once = teller(asked.as_json), asked.at_once

    def attempt(machine: Machine) -> MachineOutcome | Machine:
        try:
            return found.rollout.bring(machine, dry, tell)
        except UnknownHostError:
            return machine

    outcomes = on_all(found.machines, attempt, at_once)
    strangers = [one for one in outcomes if isinstance(one, Machine)]
    failed = {one.name: why for one, why in _introduce(found, strangers, at_once, fingerprints)}

    def again(machine: Machine) -> MachineOutcome:
        if machine.name not in failed:
            return found.rollout.bring(machine, dry, tell, vouched=True)
        done = StepResult("login", "failed", failed[machine.name].message, failed[machine.name].hint)
        tell(machine.name, done)
        return MachineOutcome(machine.name, "failed", [done], failed[machine.name].exit_code)

    second = iter(on_all(strangers, again, at_once))
    return [next(second) if isinstance(one, Machine) else one for one in outcomes]


def _introduce(
    found: DeploySite, strangers: list[Machine], at_once: int, file: Path | None
) -> list[tuple[Machine, AccessError]]:
    """Let the machines that somebody vouches for be known; those that stay unknown, and why."""
    if not strangers:
        return []
    answers = on_all(strangers, lambda machine: host_keys.shown_by(found.connections, machine), at_once)
    shown = [one for one in answers if isinstance(one, ShownKeys)]
    good = host_keys.vouched(shown, file, lambda question: click.confirm(question, err=True))
    host_keys.keep(found.connections.known_hosts, good)
    named = {one.machine.name for one in good}
    left: list[tuple[Machine, AccessError]] = []
    for machine, answer in zip(strangers, answers, strict=True):
        if machine.name not in named:
            marks = ", ".join(answer.fingerprints) if isinstance(answer, ShownKeys) else answer.message
            hint = f"compare it with `ssh-keygen -lf` there, then `ssh {machine.ssh}` once, or --fingerprints FILE"
            left.append((machine, AccessError(f"its host key is not known here: {marks}", hint)))
    return left
