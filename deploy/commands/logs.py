"""`deploy logs`: what a machine's agent logged."""

from __future__ import annotations

import click

from muster.deploy import steps
from muster.deploy.commands.options import Asked, machine_options, site
from muster.jobs.common.cli import example
from muster.jobs.common.errors import NotFoundError, UsageError
from muster.jobs.common.ssh import quote


@click.command(epilog=example("deploy logs lab3", "deploy logs lab3 -f"))
@machine_options
@click.option("-n", "lines", type=click.IntRange(0, 1_000_000), default=50, help="How many lines to show.")
@click.option("-f", "--follow", is_flag=True, help="Show what comes as well.")
def command(asked: Asked, lines: int, follow: bool) -> int:
    """Show the end of the log of a machine's agent."""
    if len(asked.names) != 1:
        raise UsageError("logs wants the name of one machine", "deploy logs lab3")
    with site(asked) as found:
        [machine] = found.machines
        connection = found.rollout.connect(machine)
        facts = found.rollout.look(connection)
        if not steps.is_there(facts):
            raise NotFoundError(f"{machine.name} has no agent of this farm", f"`deploy up {machine.name}` brings one")
        script = steps.logs(found.rollout.wanted(machine), facts, lines, follow)
        return connection.follow(f"sh -c {quote(script)}")
