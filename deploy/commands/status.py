"""`deploy status`: the inventory beside how machines are."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from muster.coordinator.commands.options import say, say_json
from muster.coordinator.display.tables import table
from muster.deploy import steps
from muster.deploy.commands.options import deploy_options, site
from muster.deploy.inventory import Machine
from muster.deploy.rollout import Rollout, on_all
from muster.jobs.common.cli import example
from muster.jobs.common.errors import MusterError
from muster.jobs.common.units import format_size


class Found(msgspec.Struct, frozen=True):
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
def command(
    names: tuple[str, ...], root: Path | None, file: Path | None, ssh_config: Path | None, at_once: int, as_json: bool
) -> int:
    """Show machines as the inventory wants them beside how they are; changes nothing.

    DRIFT names the steps that `deploy up` would put right. The exit code is 1 if a machine cannot be reached.
    """
    with site(root, file, names, ssh_config) as found:
        rows = on_all(found.machines, lambda machine: _look(found.rollout, machine), at_once)
    if as_json:
        say_json({"machines": rows})
    else:
        say(table(("MACHINE", "LINK", "VERSION", "SERVICE", "FREE", "DRIFT"), map(_row, rows), "    r"))
    return 0 if all(row.reached for row in rows) else 1


def _look(rollout: Rollout, machine: Machine) -> Found:
    agent = rollout.agent(machine.name)
    link, version = (agent.state, agent.version) if agent else ("never", "")
    try:
        with rollout.connected(machine) as connection:
            facts = rollout.look(connection)
    except MusterError as error:
        return Found(machine.name, False, version, link=link, error=error.message)
    wanted = rollout.wanted(machine)
    drift = [name for name, look in steps.STEPS if look(wanted, facts).state != "ok"]
    service = steps.survives(wanted, facts) if facts.runs else "not running"
    return Found(machine.name, True, version, service, link, facts.room, drift, facts.last if drift else "")


def _row(found: Found) -> tuple[str, ...]:
    if not found.reached:
        return found.machine, found.link, found.version or "-", "-", "-", found.error
    drift = ", ".join(found.drift) or "-"
    more = f" ({found.error})" if found.error else ""
    return found.machine, found.link, found.version or "-", found.service, format_size(found.room), drift + more
