"""`agent set`: what an agent may use of this machine, changed while it runs."""

from __future__ import annotations

from pathlib import Path

import click

from muster.agent.commands.options import agent_options, say_done, wish
from muster.agent.host import lending
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.units import counted


@click.command(epilog=example("agent set cpus=4", "agent set hours=20:00-08:00 nice=19", "agent set hours="))
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@agent_options
def command(settings: tuple[str, ...], name: str | None, spool: Path | None, as_json: bool) -> int:
    """Change what an agent of this machine may use, at once and without losing anything.

    NAME=VALUE is cpus=N, leave-cores=N, hours=20:00-08:00, nice=0..19 or ionice=normal|idle, each as with `agent join`;
    an empty value takes a change back. With fewer cpus, code that runs on the others is stopped where it is until there
    is room, and on a Ray cluster ends first. The change holds until the agent ends. `coordinator set` changes what the
    shards of a job may use.
    """
    words = dict(_word(text) for text in settings)
    state = wish(spool, name, lambda known: lending.changed(known, words))
    said = f"{state.name} lends {counted(state.cpus, 'cpu')}" if state.cpus else f"{state.name}: {state.why_idle}"
    if state.cpus > lending.cores() and not state.elsewhere:
        said += f", and this machine has {lending.cores()}: its shards will wait for each other"
    say_done(state, said, as_json)
    return 0


def _word(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r}: expected NAME=VALUE", "agent set cpus=4")
    return name, value
