"""`deploy remove` and `deploy down`: machines as they were before, one after its work is done or all at once."""

from __future__ import annotations

import click

from muster.deploy import host_keys
from muster.deploy.commands.options import Asked, check_option, deploy_options, finish, site, teller
from muster.deploy.removal import Removal
from muster.deploy.rollout import alone, on_all
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError


@click.command(epilog=example("deploy remove lab3", "deploy remove lab3 --now"))
@deploy_options
@check_option
@click.option("--now", is_flag=True, help="Take the machine's key away first, then stop the agent: a lock-out.")
@click.option("--force", is_flag=True, help="Delete the spool even if results in it were not pushed.")
def command(asked: Asked, dry: bool, now: bool, force: bool) -> int:
    """Take machines out of the farm: they finish what runs and push it; then the service, the key, what was
    installed and the spool are deleted.

    Other machines work on. Take the machine out of the inventory as well, or the next `deploy up` brings it back.
    """
    if not asked.names:
        raise UsageError("remove wants the names of machines", "`deploy down` takes all of them down")
    return run(asked, Removal(dry, now, force))


def run(asked: Asked, removal: Removal) -> int:
    """The exit code of a removal."""
    tell = teller(asked.as_json)
    with site(asked) as found, alone(found.rollout.root):
        found.rollout.authorized.check()
        outcomes = on_all(found.machines, lambda machine: removal.of(found.rollout, machine, tell), asked.at_once)
        if not removal.dry:
            done = {one.machine for one in outcomes if one.state != "failed"}
            gone = [one for one in found.machines if one.name in done]
            stay = [one for one in found.inventory.machines if one.name not in done]
            host_keys.forget(found.connections.known_hosts, gone, stay)
    return finish(outcomes, asked.as_json)
