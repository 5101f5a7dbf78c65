"""`deploy wheels`: a folder of wheels for machines that have no index of packages, fetched where there is one."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.commands.options import say, say_json
from muster.deploy import steps, wheelhouse
from muster.deploy.commands.options import Asked, deploy_options, site
from muster.deploy.inventory import Machine
from muster.deploy.rollout import Rollout, on_all
from muster.jobs.common.cli import example
from muster.jobs.common.errors import MusterError, RefusedError, report


@click.command(epilog=example("deploy wheels --to wheels", "deploy up --wheelhouse wheels"))
@deploy_options
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for the wheels; made if missing.",
)
def command(asked: Asked, folder: Path) -> int:
    """Fetch what Muster depends on, for each kind of machine in the inventory, with this machine's pip and its index.

    `deploy up --wheelhouse DIR` then sends it to the machines.
    """
    with site(asked) as found:
        answers = on_all(found.machines, lambda machine: _kind(found.rollout, machine), asked.at_once)
    for answer in answers:
        if isinstance(answer, MusterError):
            report(answer)
    kinds = sorted({answer for answer in answers if isinstance(answer, steps.WheelFit)})
    for kind in kinds:
        wheelhouse.fetch(folder, kind)
        if not asked.as_json:
            say(f"{folder}: for Python {kind.python} on {kind.machine}")
    if asked.as_json:
        say_json({"folder": str(folder), "fits": [{"python": kind.python, "machine": kind.machine} for kind in kinds]})
    return 1 if any(isinstance(answer, MusterError) for answer in answers) else 0


def _kind(rollout: Rollout, machine: Machine) -> steps.WheelFit | MusterError:
    try:
        facts = rollout.look(rollout.connect(machine))
        kind = steps.kind_of(facts)
        if kind is None:
            raise RefusedError(f"{machine.name}: which wheels fit it is not known: {facts.platform or 'no Python'}")
        return kind
    except MusterError as error:
        return error
