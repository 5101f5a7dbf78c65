"""A job's failures.log: what failed, where, and the evidence, for people. Appends; nothing reads it back."""

from __future__ import annotations

import logging
import os
from datetime import datetime
from pathlib import Path

from muster.coordinator.protocol.control import Failure
from muster.jobs.common.units import format_duration, format_size
from muster.jobs.contract.text_limits import LOG_BYTES

log = logging.getLogger("muster.daemon")


def append_failure(path: Path, shard: str, agent: str, host: str, failure: Failure, quarantined: bool) -> None:
    """One failed attempt: a headline, then the evidence, indented."""
    where = f"{agent} ({host})" if host else agent
    head = (
        f"{_now()} {shard} {failure.code} on {where}, attempt {failure.boot}.{failure.attempt}, after"
        f" {format_duration(failure.seconds)}, peak {format_size(failure.peak)}: {_one_line(failure.message)}"
    )
    lines = [head, *(f"    {line}" for line in failure.evidence.splitlines())]
    if quarantined:
        lines.append(f"{_now()} {shard} quarantined: that was its last attempt")
    _append(path, lines)


def append_quarantine(path: Path, shard: str, why: str) -> None:
    _append(path, [f"{_now()} {shard} quarantined: {_one_line(why)}"])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S%z")


def _append(path: Path, lines: list[str]) -> None:
    """Evidence must never stop the daemon: a full disk costs the text, which the store has too."""
    try:
        if path.exists() and path.stat().st_size > LOG_BYTES:
            return
        with open(path, "a", opener=_private) as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
