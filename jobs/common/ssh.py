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
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-")


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


def quote(word: str) -> str:
    """One word to sh, csh and fish alike: `'` and `!` are not the same within quotes in all of them, nor is `\\`."""
    if word and all(letter in _PLAIN for letter in word):
        return word
    quoted, run = [], ""
    for letter in word:
        if letter in "'!\\":
            quoted += [f"'{run}'" if run else "", f"\\{letter}"]
            run = ""
        else:
            run += letter
    return "".join(quoted) + (f"'{run}'" if run or not quoted else "")
