"""`deploy status`: the inventory beside how machines are."""

from __future__ import annotations

import click
import msgspec

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.commands.options import say, say_json
from muster.coordinator.display.colours import state
from muster.coordinator.display.tables import table
from muster.coordinator.farm_root import ask_daemon
from muster.deploy import steps
from muster.deploy.commands.options import Asked, DeploySite, deploy_options, site
from muster.deploy.inventory import Machine
from muster.deploy.rollout import Rollout, on_all
from muster.deploy.server import SERVER, KeptCoordinator
from muster.jobs.common.cli import example
from muster.jobs.common.errors import MusterError
from muster.jobs.common.units import format_size


class MachineStatus(msgspec.Struct, frozen=True):
    """One machine as it is."""

    machine: str
    reached: bool
    version: str = ""  # of its agent, as the coordinator knows it
    service: str = ""
    link: str = ""  # its agent's state
    room: int = 0  # bytes free in its home
    drift: list[str] = []  # steps that `up` would put right
    error: str = ""
    fingerprint: str = ""  # of its kernels, as the coordinator knows it


@click.command(epilog=example("deploy status", "deploy status lab3 --json"))
@deploy_options
def command(asked: Asked) -> int:
    """Compare the machines with what the inventory says; change nothing.

    DRIFT names the steps that `deploy up` would put right. Where machines differ in their kernels, which decide bits
    of results, these are named below. The exit code is 1 if a machine cannot be reached.
    """
    with site(asked) as found:
        rows = on_all(found.machines, lambda machine: _look(found.rollout, machine), asked.at_once)
        if not asked.names:
            rows = [*_server(found), *rows, *_strangers(found.rollout, {machine.name for machine in found.machines})]
    if asked.as_json:
        say_json({"machines": rows})
    else:
        say(table(("MACHINE", "LINK", "VERSION", "SERVICE", "FREE", "DRIFT"), map(_row, rows), "    r"))
        for line in _kernels(rows):
            say(line)
    return 0 if all(row.reached for row in rows) else 1


def _look(rollout: Rollout, machine: Machine) -> MachineStatus:
    agent = rollout.agent(machine.name)
    link, version, kernels = (agent.state, agent.version, agent.fingerprint) if agent else ("never", "", "")
    try:
        facts = rollout.look(rollout.connect(machine))
    except MusterError as error:
        return MachineStatus(machine.name, False, version, link=link, error=error.message, fingerprint=kernels)
    wanted = rollout.wanted(machine)
    drift = [name for name, look in steps.STEPS if look(wanted, facts).state != "ok"]
    service = steps.survives(wanted, facts) if facts.runs else "not running"
    last = facts.last if drift else ""
    return MachineStatus(machine.name, True, version, service, link, facts.room, drift, last, kernels)


def _server(found: DeploySite) -> list[MachineStatus]:
    """The coordinator here, where the inventory says what keeps it."""
    coordinator = KeptCoordinator(found.rollout.root, found.inventory.server.service)
    if not coordinator.by:
        return []
    version = ask_daemon.ask(found.rollout.root, StatusAsk(), Status).version
    drift = ["coordinator"] if coordinator.wrong() else []
    return [MachineStatus(SERVER, True, version, coordinator.by, "live", drift=drift)]


def _strangers(rollout: Rollout, known: set[str]) -> list[MachineStatus]:
    """Agents that came by themselves."""
    agents = [one for one in rollout.agents() if one.name not in known and one.state == "live"]
    return [
        MachineStatus(
            one.name, True, one.version, link=one.state, drift=["not in the inventory"], fingerprint=one.fingerprint
        )
        for one in agents
    ]


def _kernels(rows: list[MachineStatus]) -> list[str]:
    """Who computes with which, where they are not all the same."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.fingerprint:
            names.setdefault(row.fingerprint, []).append(row.machine)
    return [f"{', '.join(who)}: {kernels}" for kernels, who in names.items()] if len(names) > 1 else []


def _row(found: MachineStatus) -> tuple[str, ...]:
    if not found.reached:
        return found.machine, state(found.link), found.version or "-", "-", "-", found.error
    drift = ", ".join(found.drift) or "-"
    more = f" ({found.error})" if found.error else ""
    return (
        found.machine,
        state(found.link),
        found.version or "-",
        found.service or "-",
        format_size(found.room) if found.room else "-",
        drift + more,
    )
