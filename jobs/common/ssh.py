"""What our clients of the system's ssh share: options that keep it to its task, what it makes of the configuration, the
end of a far command read. Connects nowhere.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from muster.jobs.common.locations import Host

FAILED = 255  # its own exit status, beside those of the command
FACTS_SECONDS = 30.0
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


def where(host: Host) -> list[str]:
    """The words of a command line that name the host."""
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    return [*port, *user, "--", host.host.strip("[]")]


def ask_effective(host: Host, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What ssh would do for this host, by its own account: a line for each option. What all jump through does not jump
    itself."""
    asking = ["ssh", *(["-F", str(config)] if config else []), "-G"]
    said = run([*asking, *where(host)])
    return run([*asking, "-o", "ProxyJump=none", *where(host)]) if "jumphost loop" in said.stderr else said


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """An ssh that may not ask, by a deadline."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=FACTS_SECONDS, check=False, start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return subprocess.CompletedProcess(command, FAILED, "", "")


def public_line(path: Path) -> str:
    """A key's line for authorized_keys, from the file beside the private one; "" without one."""
    try:
        return path.with_name(path.name + ".pub").read_text(errors="replace").strip().partition("\n")[0]
    except OSError:
        return ""


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
