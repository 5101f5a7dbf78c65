"""`deploy upgrade`: the machines and the coordinator to the version that runs this, none before all have it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import click

from muster import VERSION
from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import JobStatus, Status
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.deploy import steps
from muster.deploy.commands.options import Asked, check_option, deploy_options, finish, site, teller, wheelhouse_option
from muster.deploy.rollout import alone, on_all
from muster.jobs.common.cli import example
from muster.jobs.common.errors import LinkError, RefusedError

RESTART_SECONDS = 180.0


@click.command(epilog=example("deploy upgrade --check", "deploy upgrade"))
@deploy_options
@check_option
@click.option("--now", is_flag=True, help="Do it also during a training, which then goes on from its last checkpoint.")
@wheelhouse_option
def command(
    asked: Asked,
    dry: bool,
    now: bool,
    wheelhouse: Path | None,
) -> int:
    """Bring the machines and the coordinator to the version of Muster that this command belongs to.

    The new version is put beside the old one everywhere first. Only when all machines have it, the coordinator is
    started anew and each machine's link is switched. Spools are kept, and nothing is computed again. To go back,
    install the earlier version here, and type `deploy upgrade` again.
    """
    tell = teller(asked.as_json)
    with site(asked, wheelhouse) as found, alone(found.rollout.root):
        bring = found.rollout.bring
        if not dry and not now:
            _refuse_during(ask_daemon.ask(found.rollout.root, StatusAsk(), Status).jobs)
        if not dry:
            there = on_all(found.machines, lambda one: bring(one, dry, tell, True, steps.BESIDE), asked.at_once)
            if any(one.state == "failed" for one in there):
                click.echo("no machine was switched: all must have the new version first", err=True)
                return finish(there, asked.as_json)
            _restart(found.rollout.root)
        return finish(on_all(found.machines, lambda one: bring(one, dry, tell, True), asked.at_once), asked.as_json)


def _refuse_during(jobs: Iterable[JobStatus]) -> None:
    """A training loses what it did since its last checkpoint: whoever wants that says so."""
    running = [job.id for job in jobs if job.progress is not None and job.state == "running"]
    if running:
        hint = f"wait for its end, or `coordinator pause {running[0]}`; --now does it all the same"
        raise RefusedError(f"{', '.join(running)} would go back to its last checkpoint", hint)


def _restart(root: Root) -> None:
    """The coordinator as this version, if it is another."""
    if ask_daemon.ask(root, StatusAsk(), Status).version == VERSION:
        return
    for command_ in (roots.command("stop", root.path), [*roots.command("serve", root.path), "--detach"]):
        done = subprocess.run(
            command_, capture_output=True, text=True, timeout=RESTART_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise LinkError(f"the coordinator cannot be started anew: {done.stderr.strip()}", f"see {root.log}")
    click.echo(f"the coordinator runs {VERSION}", err=True)
