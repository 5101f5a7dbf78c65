"""What Ray finds around it when it starts, and what it leaves to read: environment, folders, logs. Imports no ray."""

from __future__ import annotations

import os
import re
import secrets
import ssl
from contextlib import suppress
from pathlib import Path

from muster.agent.pool import worker_environment
from muster.jobs.common.errors import UsageError

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
    "RAY_max_direct_call_object_size": str(1 << 20),  # else what is larger than 100 KB goes by its store: 1 ms more
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` it would ship the working folder to each worker
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # "1", once the default, blanks CUDA_VISIBLE_DEVICES in our workers
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_COLOR_PREFIX": "0",  # what it prints goes into a log
    "RAY_ROTATION_MAX_BYTES": str(4 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
}
CLUSTER_SETTINGS = {
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",  # by default the last digit has to be the same as well
}
TLS = ("RAY_USE_TLS", "RAY_TLS_")
TLS_FILES = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY")
TLS_HINT = f"set RAY_USE_TLS=1 here, and {', '.join(TLS_FILES)}, as its nodes have them"
LOG_TAIL_BYTES = 16384
OWN_QUESTION = "Missing authorization header"  # what it says when we ask whether it refuses who has no token
COMPLAINTS = 10  # lines of each file
COMPLAINTS_BYTES = 64 << 10
_COMPLAINT = re.compile(r"^\[[^]]* [WEF] |^\*\*\* SIG|Traceback|Error: ")
TOKEN = secrets.token_hex(32)  # one for this process: Ray reads it once, and a second start has to agree


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


def last_words(temp: Path, pid: int) -> str:
    """The signal that a worker's own handler wrote down before it died, if it could."""
    for path in rays(temp).glob(f"session_latest/logs/worker-*-{pid}.err"):
        for line in reversed(path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()):
            if line.startswith("*** SIG"):
                return "died of " + line.split()[1]
    return ""


def of_this_machine(temp: Path) -> dict[str, str]:
    """All that Ray, its driver and its workers find where we start it. The user's own settings of Ray are not among
    it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, **RAY_SETTINGS, "RAY_AUTH_TOKEN_PATH": str(temp / "token"), **worker_environment.settings()}


def of_cluster(token: Path | None) -> dict[str, str]:
    """All that a driver of somebody's cluster finds. How that encrypts is the user's to say."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name.startswith(TLS)}
    access = {"RAY_AUTH_MODE": "disabled"} if token is None else {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token.absolute())
    }  # fmt: skip
    return {**kept, **CLUSTER_SETTINGS, **access, **worker_environment.settings()}


def tls() -> ssl.SSLContext | None:
    """What a cluster is talked to by, where RAY_USE_TLS says that it has TLS: Ray shows and checks certificates both
    ways. A UsageError where those that are named cannot be used."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    authority, certificate, key = (_tls_file(name) for name in TLS_FILES)
    try:
        context.load_verify_locations(authority)
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise UsageError(f"RAY_USE_TLS is set, and its certificates cannot be used: {error}", TLS_HINT) from None
    return context


def _tls_file(name: str) -> str:
    path = os.environ.get(name)
    if not path:
        raise UsageError(f"RAY_USE_TLS is set, and {name} is not", TLS_HINT)
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise UsageError(f"{name} names {path}: {error.strerror}", TLS_HINT) from None
    return path
