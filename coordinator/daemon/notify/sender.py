"""A helper process: runs a user's command with an event as JSON on its stdin, and tries again. Knows no daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

RUN_SECONDS = 60.0
PAUSES = (0.0, 5.0, 60.0)  # before each try
LOG_LIMIT = 1 << 20  # bytes
SAID_LIMIT = 4_000  # of what it printed


class NotifyOrder(msgspec.Struct, frozen=True):
    command: str  # for /bin/sh
    folder: str  # that it starts in
    log: str
    event: dict[str, Any]


def main() -> int:
    """The exit code says whether it was told."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=NotifyOrder)
    for pause in PAUSES:
        time.sleep(pause)
        if _run(order):
            return 0
    return 1


def _run(order: NotifyOrder) -> bool:
    raw = msgspec.json.encode(order.event) + b"\n"
    folder = order.folder if Path(order.folder).is_dir() else "/"  # that of a damaged job may be gone
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", order.command], cwd=folder, input=raw, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=RUN_SECONDS, check=False,
        )  # fmt: skip
        what, said = f"exit code {done.returncode}", done.stdout.decode(errors="replace")[-SAID_LIMIT:]
        good = done.returncode == 0
    except (OSError, subprocess.SubprocessError) as error:
        what, said, good = str(error), "", False
    _note(Path(order.log), f"{order.event['event']}: {order.command}: {what}", said)
    return good


def _note(log: Path, line: str, said: str) -> None:
    """What became of it, for who wonders why it is so quiet."""
    try:
        if log.exists() and log.stat().st_size > LOG_LIMIT:
            return
        with log.open("a") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S%z} {line}\n")
            file.writelines(f"    {one}\n" for one in said.splitlines())
    except OSError:
        return
