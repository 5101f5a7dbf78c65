"""`coordinator session`: the line to a session's driver, over stdin and stdout."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import click

from muster.coordinator.commands.options import job_argument, root_option
from muster.coordinator.farm_root import calls_line
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import LinkError

START_SECONDS = 10.0  # for a driver to come up: a login more would take longer
PAUSE_SECONDS = 0.05
PIECE_BYTES = 1 << 18


@click.command(epilog=example("coordinator session calls.1 < said > heard"))
@job_argument
@root_option
def command(job: str, root: Path | None) -> None:
    """Pass on what a session's client and its driver say to each other.

    It ends when either of them hangs up. This command is run by muster.coordinator.client.
    """
    found = roots.existing(root)
    with _connected(found, roots.resolve_job(found, job)) as sock:
        threading.Thread(target=_pass_on, args=(sock,), daemon=True).start()
        while piece := sock.recv(PIECE_BYTES):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


def _connected(root: Root, job: str) -> socket.socket:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return calls_line.connect(root, job)
        except LinkError:
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def _pass_on(sock: socket.socket) -> None:
    """What the client says. At its end the driver is told, and hangs up."""
    with suppress(OSError):
        while piece := os.read(sys.stdin.fileno(), PIECE_BYTES):
            sock.sendall(piece)
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
