"""`deploy status`: the inventory beside how machines are."""

from __future__ import annotations

import click
import msgspec

from muster.coordinator.commands.options import say, say_json
from muster.coordinator.display.tables import table
from muster.deploy import steps
from muster.deploy.commands.options import Asked, deploy_options, site
from muster.deploy.inventory import Machine
from muster.deploy.rollout import Rollout, on_all
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


@click.command(epilog=example("deploy status", "deploy status lab3 --json"))
@deploy_options
def command(asked: Asked) -> int:
    """Compare the machines with what the inventory says; change nothing.

    DRIFT names the steps that `deploy up` would put right. The exit code is 1 if a machine cannot be reached.
    """
    with site(asked) as found:
        rows = on_all(found.machines, lambda machine: _look(found.rollout, machine), asked.at_once)
        rows += [] if asked.names else _strangers(found.rollout, {machine.name for machine in found.machines})
    if asked.as_json:
        say_json({"machines": rows})
    else:
        say(table(("MACHINE", "LINK", "VERSION", "SERVICE", "FREE", "DRIFT"), map(_row, rows), "    r"))
    return 0 if all(row.reached for row in rows) else 1


def _look(rollout: Rollout, machine: Machine) -> MachineStatus:
    agent = rollout.agent(machine.name)
    link, version = (agent.state, agent.version) if agent else ("never", "")
    try:
        with rollout.connected(machine) as connection:
            facts = rollout.look(connection)
    except MusterError as error:
        return MachineStatus(machine.name, False, version, link=link, error=error.message)
    wanted = rollout.wanted(machine)
    drift = [name for name, look in steps.STEPS if look(wanted, facts).state != "ok"]
    service = steps.survives(wanted, facts) if facts.runs else "not running"
    return MachineStatus(machine.name, True, version, service, link, facts.room, drift, facts.last if drift else "")


def _strangers(rollout: Rollout, known: set[str]) -> list[MachineStatus]:
    """Agents that came by themselves."""
    agents = [one for one in rollout.agents() if one.name not in known and one.state == "live"]
    return [
        MachineStatus(one.name, True, one.version, link=one.state, drift=["not in the inventory"]) for one in agents
    ]


def _row(found: MachineStatus) -> tuple[str, ...]:
    if not found.reached:
        return found.machine, found.link, found.version or "-", "-", "-", found.error
    drift = ", ".join(found.drift) or "-"
    more = f" ({found.error})" if found.error else ""
    return (
        found.machine,
        found.link,
        found.version or "-",
        found.service or "-",
        format_size(found.room) if found.room else "-",
        drift + more,
    )
