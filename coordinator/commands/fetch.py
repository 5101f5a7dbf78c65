"""`coordinator fetch`: files of a merged result, to stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from muster.coordinator.commands.options import job_argument, root_option
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root import plans
from muster.coordinator.result_downloads.file_server import Wanted, answer
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError

LINE_LIMIT = 8_192  # bytes of one request


@click.command(epilog=example("coordinator fetch weights.1 < requests > files"))
@job_argument
@click.option("--partial", is_flag=True, help="Send files that `result --partial` made.")
@root_option
def command(job: str, partial: bool, root: Path | None) -> None:
    """Send files of merged layers, as asked for on stdin, one after the other.

    A request is a line of JSON, {"layer": "conv1", "file": "manifest.json"}. The file is the layer's manifest or one
    that it names; "start" may say at which byte to begin. The answer is a frame that says how many bytes follow, and
    these bytes. This command is run by muster.coordinator.client.
    """
    found = roots.existing(root)
    folder = found.job(roots.resolve_job(found, job))
    layers = {layer.name for layer in plans.load(folder).layers}
    out = sys.stdout.buffer
    for wanted in requests(sys.stdin.buffer):
        answer(folder, layers, wanted, out.write, out.flush, partial)


def requests(lines: BinaryIO) -> Iterator[Wanted]:
    while line := lines.readline(LINE_LIMIT):
        try:
            yield msgspec.json.decode(line, type=Wanted)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            hint = 'write {"layer": "conv1", "file": "centers.npy", "start": 0}'
            raise UsageError(f"a request that cannot be read: {error}", hint) from None
