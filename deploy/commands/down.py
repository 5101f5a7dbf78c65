"""`deploy down`: the whole farm's machines as they were before."""

from __future__ import annotations

import click

from muster.deploy.commands import remove
from muster.deploy.commands.options import Asked, check_option, deploy_options
from muster.deploy.removal import Removal
from muster.jobs.common.cli import example


@click.command(epilog=example("deploy down --check", "deploy down"))
@deploy_options
@check_option
@click.option("--now", is_flag=True, help="Take the machines' keys away first, then stop their agents.")
@click.option("--force", is_flag=True, help="Delete spools even if results in them were not pushed.")
def command(asked: Asked, dry: bool, now: bool, force: bool) -> int:
    """Take all machines of the inventory out of the farm, as `remove` does with one. Their homes are then as they were,
    except for what is named. The coordinator, its root and its jobs are kept."""
    return remove.run(asked, Removal(dry, now, force))
