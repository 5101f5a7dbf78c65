"""`coordinator stream`: a job's shards as they are committed, to stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coordinator import committed
from coordinator import root as roots
from coordinator.commands.options import job_argument, root_option
from jobs.group import example


@click.command(epilog=example("coordinator stream weights.1 --after 0 > shards.bin"))
@job_argument
@click.option("--after", type=click.IntRange(0, 1 << 53), default=0, help="A commit: go on behind its shards.")
@click.option("--shard", type=click.IntRange(-1, 1 << 53), default=-1, help="Of that commit, go on behind this one.")
@root_option
def command(job: str, after: int, shard: int, root: Path | None) -> None:
    """Send every shard with its bytes, in the order of the commits, until the job ends.

    Frames, each followed by the bytes it announces; one without bytes says every ten seconds that the job goes on. Used
    by coordinator.client.
    """
    found = roots.existing(root)
    out = sys.stdout.buffer
    items = committed.read(found, roots.resolve_job(found, job), committed.Cursor(after, shard))
    committed.send(items, out.write, out.flush)
