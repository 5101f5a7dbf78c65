"""`coordinator stream`: a job's shards as they are committed, to stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from muster.coordinator.commands.options import job_argument, root_option
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.result_downloads import shard_stream
from muster.jobs.common.cli import example


@click.command(epilog=example("coordinator stream weights.1 --after 0 > shards.bin"))
@job_argument
@click.option("--after", type=click.IntRange(0, 1 << 53), default=0, help="Go on after the shards of this commit.")
@click.option("--shard", type=click.IntRange(-1, 1 << 53), default=-1, help="Go on after this shard of that commit.")
@root_option
def command(job: str, after: int, shard: int, root: Path | None) -> None:
    """Send every shard with its bytes, in the order of the commits, until the job ends.

    It sends frames, each followed by the bytes that it announces. Every ten seconds one without bytes says that the job
    goes on. This command is run by muster.coordinator.client.
    """
    found = roots.existing(root)
    out = sys.stdout.buffer
    items = shard_stream.read(found, roots.resolve_job(found, job), shard_stream.Cursor(after, shard))
    shard_stream.send(items, out.write, out.flush)
