"""What both our clients of the system's ssh share: options that keep it to its task, the end of a far command read.

Starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SHOWN = 200  # characters of another program's words
NO_COMMAND_STATUSES = (126, 127)
QUIET = {
    "ClearAllForwardings": "yes",
    "EscapeChar": "none",
    "LogLevel": "ERROR",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ServerAliveCountMax": "3",
    "ServerAliveInterval": "15",
}
_OURS = re.compile(r"^error: (.+)\nhint: (.+)$", re.M)


def as_arguments(options: Mapping[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def our_error(words: str) -> tuple[str, str] | None:
    """The message and the hint of a command of ours that failed there."""
    found = _OURS.search(words)
    return (found[1], found[2]) if found else None


def last_line(words: str) -> str:
    """The last that is not blank, cut."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1][:SHOWN] if lines else ""
