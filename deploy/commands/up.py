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
from muster.jobs.common.errors import MusterError, RefusedError


@click.command(epilog=example("deploy up", "deploy up lab3 gpu1 --check", "deploy up --inventory lab.yaml -j 4"))
@deploy_options
@check_option
@fingerprints_option
@wheelhouse_option
def command(asked: Asked, dry: bool, fingerprints: Path | None, wheelhouse: Path | None) -> int:
    """Bring machines to what the inventory says, all at once: Muster is installed, a key is made there and
    confined here, and the agent is started and kept at work.

    What is right already is left alone: a second run changes nothing. A failure stops only its own machine.
    """
    with site(asked, wheelhouse, makes="trial" if dry else "farm") as found, alone(found.rollout.root):
        return bring(found, asked, dry, fingerprints)


def bring(found: DeploySite, asked: Asked, dry: bool, fingerprints: Path | None) -> int:
    """The exit code, once all is done and told."""
    found.rollout.authorized.check()  # before anything is made on any machine
    kept = _keep_coordinator(found, asked, dry)
    if not (dry and kept):
        ask_daemon.connect(found.rollout.root).close()  # before any machine is blamed for it
    elif not ask_daemon.answers(found.rollout.root):
        found.rollout.is_served = False
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
    """A machine whose host key is not known yet, or that of a host on its way, is tried again once somebody vouched for
    that key."""
    tell, known = teller(asked.as_json), found.connections
    outcomes: dict[str, MachineOutcome] = {}
    vouched: list[ShownKeys] = []
    left = found.machines

    def attempt(machine: Machine) -> MachineOutcome | ShownKeys:
        try:
            return found.rollout.bring(machine, dry, tell)
        except UnknownHostError:
            shown = host_keys.shown_by(known, machine)
            return shown if isinstance(shown, ShownKeys) else fail(machine, shown)

    def fail(machine: Machine, why: MusterError) -> MachineOutcome:
        done = StepResult("login", "failed", why.message, why.hint)
        tell(machine.name, done)
        return MachineOutcome(machine.name, "failed", [done], why.exit_code)

    while left:
        answers = on_all(left, attempt, asked.at_once)
        strangers = [one for one in answers if isinstance(one, ShownKeys) and one not in vouched]
        good = host_keys.vouched(strangers, fingerprints, lambda question: click.confirm(question, err=True))
        host_keys.keep(known.known_now if dry else known.known_hosts, good)
        vouched += good
        for machine, answer in zip(left, answers, strict=True):
            if isinstance(answer, MachineOutcome):
                outcomes[machine.name] = answer
            elif answer not in good:
                outcomes[machine.name] = fail(machine, answer.refusal())
        left = [one.machine for one in good]
    return [outcomes[machine.name] for machine in found.machines]
