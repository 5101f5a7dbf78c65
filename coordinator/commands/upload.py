"""`coordinator upload`: take an array in from stdin."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from muster.coordinator.commands.options import json_option, root_option, say, say_json
from muster.coordinator.farm_root import ask_daemon, people, uploads
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.units import format_size


@click.command(
    epilog=example("coordinator upload 99aa06d3014798d86001c324468d497f --size 4096 < rows.npy", "coordinator uploads")
)
@click.argument("digest", metavar="DIGEST")
@click.option("--size", type=click.IntRange(1, uploads.BYTES_LIMIT), required=True, help="Bytes of the whole file.")
@click.option(
    "--from", "start", type=click.IntRange(0, uploads.BYTES_LIMIT), default=0, help="Bytes that are there already."
)
@click.option("--owner", hidden=True, help="The second person who sends it.")
@root_option
@json_option
def command(digest: str, size: int, start: int, owner: str | None, root: Path | None, as_json: bool) -> None:
    """Take a .npy in from stdin, for jobs that clients submit.

    DIGEST is the xxh3_128 of the whole file, in hex; nothing else is kept under it. What came before an interruption
    is kept, and `--from` goes on after it. This command is run by muster.coordinator.client.
    """
    found = roots.existing(root)
    uploads.check_room(size - start, ask_daemon.room(found))
    if owner is None:
        made = uploads.receive(found, digest, size, start, sys.stdin.buffer.read)
    else:
        made = people.receive(found, owner, digest, size, start, sys.stdin.buffer.read)
    if as_json:
        say_json(made)
    else:
        say(f"{made.digest} is here, {format_size(made.bytes)}")
