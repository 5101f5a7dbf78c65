"""`coordinator uploads`: which arrays clients have sent."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.commands.options import farm_option, json_option, say, say_json
from muster.coordinator.display import tables
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root import uploads as there
from muster.jobs.common.cli import example
from muster.jobs.common.units import format_size


@click.command(epilog=example("coordinator uploads"))
@farm_option
@json_option
def command(root: Path | None, as_json: bool) -> None:
    """List the arrays that clients have sent, and how much of each is here.

    An array is deleted with the last job that needs it, or a day after it came if no job ever did.
    """
    found = there.listed(roots.existing(root))
    if as_json:
        say_json({"uploads": found})
    elif found:
        rows = [(one.digest, format_size(one.bytes), "whole" if one.complete else "partial") for one in found]
        say(tables.table(("DIGEST", "BYTES", "STATE"), rows, " r "))
    else:
        say("no uploads")
