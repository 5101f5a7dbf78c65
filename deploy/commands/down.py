"""`deploy down`: the whole farm's machines as they were before."""

from __future__ import annotations

from pathlib import Path

import click

from muster.deploy.commands import remove
from muster.deploy.commands.options import deploy_options
from muster.deploy.removal import Removal
from muster.jobs.common.cli import example


@click.command(epilog=example("deploy down --check", "deploy down"))
@deploy_options
@click.option("--check", "dry", is_flag=True, help="Say what would change, and touch nothing.")
@click.option("--now", is_flag=True, help="Take their keys away first, then stop them.")
@click.option("--force", is_flag=True, help="Delete spools too where results in them were not pushed.")
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
    """Take all machines of the inventory down, as `remove` does with one: their homes are as they were, but for what
    is named. The coordinator, its root and its jobs stay."""
    return remove.run(names, root, file, ssh_config, at_once, as_json, Removal(dry, now, force))
