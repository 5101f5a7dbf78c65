"""`deploy logs`: what a machine's agent logged."""

from __future__ import annotations

import click

from muster.deploy import steps
from muster.deploy.commands.options import Asked, deploy_options, site
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.ssh import quote


@click.command(epilog=example("deploy logs lab3", "deploy logs lab3 -f"))
@deploy_options
@click.option("-n", "lines", type=click.IntRange(0, 1_000_000), default=50, help="How many lines to show.")
@click.option("-f", "--follow", is_flag=True, help="Show what comes as well.")
def command(
    asked: Asked,
    lines: int,
    follow: bool,
) -> int:
    """Show the end of the log of a machine's agent."""
    if len(asked.names) != 1:
        raise UsageError("logs wants the name of one machine", "deploy logs lab3")
    with site(asked) as found:
        [machine] = found.machines
        with found.rollout.connected(machine) as connection:
            facts = found.rollout.look(connection)
            script = steps.logs(found.rollout.wanted(machine), facts, lines, follow)
            return connection.follow(f"sh -c {quote(script)}")
