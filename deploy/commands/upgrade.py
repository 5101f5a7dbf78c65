"""`deploy upgrade`: the machines and the coordinator to the version that runs this, none before all have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from muster import VERSION
from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import JobStatus, Status
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root.paths import Root
from muster.deploy import steps
from muster.deploy.commands.options import Asked, check_option, deploy_options, finish, site, teller, wheelhouse_option
from muster.deploy.inventory import Machine
from muster.deploy.rollout import MachineOutcome, alone, on_all
from muster.deploy.server import KeptCoordinator
from muster.deploy.steps import Step
from muster.jobs.common.cli import example
from muster.jobs.common.errors import RefusedError
from muster.jobs.contract.plan import decode_plan
from muster.jobs.kinds.registry import kernels


@click.command(epilog=example("deploy upgrade --check", "deploy upgrade"))
@deploy_options
@check_option
@click.option("--now", is_flag=True, help="Do it although jobs lose or wait for something.")
@wheelhouse_option
def command(asked: Asked, dry: bool, now: bool, wheelhouse: Path | None) -> int:
    """Bring the machines and the coordinator to the version of Muster that this command belongs to.

    The new version is put beside the old one everywhere first. Only when all machines have it, the coordinator is
    started anew and each machine's link is switched. Spools are kept, and nothing is computed again. To go back,
    install the earlier version here, and type `deploy upgrade` again. Machines that were removed stay as they are.

    It is refused, and --check says so, while a training runs, which would go back to its last checkpoint, and while
    there is a job of a kind whose numerics changed, which only machines with the earlier version could finish.
    """
    tell = teller(asked.as_json)
    with site(asked, wheelhouse) as found, alone(found.rollout.root):
        found.rollout.authorized.check()
        root, machines = found.rollout.root, found.machines
        obstacles = obstacles_of(root, ask_daemon.ask(root, StatusAsk(), Status).jobs)
        if dry or now:
            for line in obstacles:
                click.echo(f"note: {line}", err=True)
        elif obstacles:
            raise RefusedError("; ".join(obstacles), "wait until they have ended; --now does it all the same")

        def bring(machine: Machine, wanted: Sequence[Step] = steps.STEPS) -> MachineOutcome:
            return found.rollout.bring(machine, dry, tell, True, wanted, anew=False)

        absent: list[MachineOutcome] = []
        if not dry:
            there = on_all(machines, lambda machine: bring(machine, steps.BESIDE), asked.at_once)
            if any(one.state == "failed" for one in there):
                click.echo("no machine was switched: all must have the new version first", err=True)
                return finish(there, asked.as_json)
            absent = [one for one in there if one.state == "absent"]
            machines = [machine for machine, one in zip(machines, there, strict=True) if one not in absent]
            if KeptCoordinator(root, found.inventory.server.service).restart():
                click.echo(f"the coordinator runs {VERSION}", err=True)
        return finish([*on_all(machines, bring, asked.at_once), *absent], asked.as_json)


def obstacles_of(root: Root, jobs: Iterable[JobStatus]) -> list[str]:
    """What jobs would lose, or wait for: whoever wants that says so."""
    running = [job for job in jobs if not job.is_over and job.state != "damaged"]
    known, found = kernels(), []
    for job in running:
        if job.progress is not None and job.state == "running":
            found.append(f"{job.id} would go back to its last checkpoint")
        work = decode_plan(root.job(job.id).plan.read_bytes()).work
        if work.kind in known and known[work.kind] != work.kernel:
            ours = f"of kind {work.kind}, this version has {known[work.kind]}"
            found.append(f"{job.id} would stand still: it was planned with version {work.kernel} {ours}")
    return found
