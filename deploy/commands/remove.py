"""`deploy remove` and `deploy down`: machines as they were before, one after its work is done or all at once."""

from __future__ import annotations

from pathlib import Path

import click

from muster.deploy.commands.options import deploy_options, finish, site, teller
from muster.deploy.removal import Removal
from muster.deploy.rollout import alone, on_all
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError


@click.command(epilog=example("deploy remove lab3", "deploy remove lab3 --now"))
@deploy_options
@click.option("--check", "dry", is_flag=True, help="Say what would change, and touch nothing.")
@click.option("--now", is_flag=True, help="Take its key away first, then stop it: a lock-out.")
@click.option("--force", is_flag=True, help="Delete its spool too where results in it were not pushed.")
def command(
    names: tuple[str, ...],
    root: Path | None,
    file: Path | None,
    ssh_config: Path | None,
    at_once: int,
    as_json: bool,
    dry: bool,
    now: bool,
    force: bool,
) -> int:
    """Take machines out of the farm: they finish what runs and push it, then the service, the key, what was installed
    and the spool go.

    Other machines work on. The inventory is yours: take the machine out of it, or the next `up` brings it back.
    """
    if not names:
        raise UsageError("remove wants the names of machines", "`deploy down` takes all of them down")
    return run(names, root, file, ssh_config, at_once, as_json, Removal(dry, now, force))


def run(
    names: tuple[str, ...],
    root: Path | None,
    file: Path | None,
    ssh_config: Path | None,
    at_once: int,
    as_json: bool,
    removal: Removal,
) -> int:
    """The exit code of a removal."""
    tell = teller(as_json)
    with site(root, file, names, ssh_config) as found, alone(found.rollout.root):
        outcomes = on_all(found.machines, lambda machine: removal.of(found.rollout, machine, tell), at_once)
    return finish(outcomes, as_json)
