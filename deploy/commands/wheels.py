"""`deploy wheels`: a folder of wheels for machines that have no index of packages, fetched where there is one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from muster.coordinator.commands.options import say, say_json
from muster.deploy import steps, wheel
from muster.deploy.commands.options import Asked, deploy_options, site
from muster.deploy.inventory import Machine
from muster.deploy.rollout import Rollout, on_all
from muster.jobs.common.cli import example
from muster.jobs.common.errors import LinkError, MusterError, RefusedError, report
from muster.jobs.common.ssh import last_line

FETCH_SECONDS = 1800.0


@click.command(epilog=example("deploy wheels --to wheels", "deploy up --wheelhouse wheels"))
@deploy_options
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for the wheels; made if missing.",
)
def command(
    asked: Asked,
    folder: Path,
) -> int:
    """Fetch what Muster depends on, for each kind of machine in the inventory, with this machine's pip and its index.

    `deploy up --wheelhouse DIR` then sends it to the machines.
    """
    with site(asked) as found:
        answers = on_all(found.machines, lambda machine: _kind(found.rollout, machine), asked.at_once)
    for answer in answers:
        if isinstance(answer, MusterError):
            report(answer)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="muster-wheel-") as made:
        ours = wheel.make(Path(made))
        kinds = sorted({answer for answer in answers if isinstance(answer, steps.WheelFit)})
        for kind in kinds:
            _fetch(ours, kind, folder)
            if not asked.as_json:
                say(f"{folder}: for Python {kind.python} on {kind.machine}")
    if asked.as_json:
        say_json({"folder": str(folder), "fits": [{"python": kind.python, "machine": kind.machine} for kind in kinds]})
    return 1 if any(isinstance(answer, MusterError) for answer in answers) else 0


def _kind(rollout: Rollout, machine: Machine) -> steps.WheelFit | MusterError:
    try:
        with rollout.connected(machine) as connection:
            facts = rollout.look(connection)
        kind = steps.kind_of(facts)
        if kind is None:
            raise RefusedError(f"{machine.name}: which wheels fit it is not known: {facts.platform or 'no Python'}")
        return kind
    except MusterError as error:
        return error


def _fetch(ours: Path, kind: steps.WheelFit, folder: Path) -> None:
    fits = [word for tag in kind.tags for word in ("--platform", tag)]
    which = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", kind.python, *fits]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command_ = [*pip, *which, "--dest", str(folder), str(ours)]
    done = subprocess.run(command_, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    if done.returncode:
        raise LinkError(f"pip cannot fetch for Python {kind.python} on {kind.machine}: {last_line(done.stderr)}")
