"""What Ray finds around it when it starts: environment, folders, signal handlers, log. Does not import ray."""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from muster.agent.pool import worker_environment

# Read by Ray at its import and by its processes. The user's own RAY_ variables are out of sight meanwhile.
RAY_SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on loopback only
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else a call after the end starts another Ray, with none of these settings
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_process_group_cleanup_enabled": "1",  # also gives each worker its own group: Ctrl-C stays with the agent
    "RAY_memory_monitor_refresh_ms": "0",  # the agent weighs its runners itself
    "RAY_task_events_report_interval_ms": "0",  # else the GCS keeps a record of every batch
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` it would ship the working folder to each worker
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # "1", once the default, blanks CUDA_VISIBLE_DEVICES in our workers
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_ROTATION_MAX_BYTES": str(4 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
}
OWN_QUESTION = "Missing authorization header"  # what it says when we ask whether it refuses who has no token
COMPLAINTS = 10  # lines of each file
COMPLAINTS_BYTES = 64 << 10
_COMPLAINT = re.compile(r"^\[[^]]* [WEF] |^\*\*\* SIG|Traceback|Error: ")
TOKEN = secrets.token_hex(32)  # one for this process: Ray reads it once, and a second start has to agree


def quiet() -> None:
    """Ray's warnings go where all that is logged goes. It prints the death of a worker on stdout, for which it has no
    other switch."""
    rays = logging.getLogger("ray")
    rays.propagate = True
    rays.setLevel(logging.WARNING)
    for handler in rays.handlers[:]:
        rays.removeHandler(handler)
        handler.close()
    worker = sys.modules.get("ray._private.worker")
    if worker is not None:
        worker.__dict__["_worker_logs_enabled"] = False


def furnish(temp: Path) -> None:
    """Put the token without which nobody may talk to Ray into a folder for us alone, and Ray's own folder.

    Ray opens its folder to everybody, to write and to delete: so it is never the one that keeps others out.
    """
    rays(temp).mkdir(mode=0o700)
    token = temp / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)


def rays(temp: Path) -> Path:
    """Where Ray has its sockets and logs. Short, as sockets' paths must be."""
    return temp / "r"


def complaints(temp: Path) -> list[str]:
    """The last warnings and errors that Ray's servers wrote into its own folder, which goes with it."""
    found = []
    for file in sorted(rays(temp).glob("session_latest/logs/*")):
        if file.name.startswith(("raylet.", "gcs_server.")):
            with suppress(OSError):
                lines = file.read_bytes()[-COMPLAINTS_BYTES:].decode(errors="replace").splitlines()
                found += [
                    f"{file.name}: {line}" for line in lines if _COMPLAINT.search(line) and OWN_QUESTION not in line
                ][-COMPLAINTS:]
    return found


@contextmanager
def environment(temp: Path) -> Iterator[None]:
    """What Ray reads while it starts. Put back afterwards: other children of ours must not look like the pool's."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update(RAY_SETTINGS, RAY_AUTH_TOKEN_PATH=str(temp / "token"), **worker_environment.settings())
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
