"""A key confined by `command="coordinator connect --as NAME"`, a machine's, or `--submit-as NAME`, a second person's:
what it asked for is read as data, never run by a shell.

sshd puts what the client asked for into SSH_ORIGINAL_COMMAND. Of a machine's the role is honoured; a root only if it is
the one the key is for. What is honoured of a person's is decided by whoever calls us. Everything else is refused and
logged.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from muster.jobs.common.errors import RefusedError, UsageError

PROGRAMS = frozenset({"coordinator", "connect"})  # by whatever path: it is not looked at further
ASKED_LIMIT = 4096  # bytes
SHOWN = 300
LOG_BYTES = 1 << 20  # then the log starts anew, with one older kept
LOG = "refused.log"
_HINT = "this key is for `agent join` alone; use another one for a shell, files or forwarding"


def words_of(original: str) -> list[str]:
    """The arguments of the `coordinator connect` that was asked for; a RefusedError if it was something else."""
    try:
        if len(original) > ASKED_LIMIT:
            raise ValueError("too long")
        program, connect, *rest = shlex.split(original)
        if program.rpartition("/")[2] not in PROGRAMS or connect != "connect":
            raise ValueError("another program")
    except ValueError:
        raise RefusedError("this key may run `coordinator connect` and nothing else", _HINT) from None
    return rest


def command_of(original: str | None) -> tuple[str, list[str]]:
    """The `coordinator` command that a person's key asked for, and its arguments; a RefusedError for anything else."""
    try:
        if original is None or len(original) > ASKED_LIMIT:
            raise ValueError("a shell, or too long")
        words = shlex.split(original)
        if words[:1] == ["env"]:  # our own client says so that no configuration there is for it
            words = [word for word in words[1:] if word != "MUSTER_CONFIG="]
        program, name, *rest = words
        if program.rpartition("/")[2] != "coordinator":
            raise ValueError("another program")
    except ValueError:
        why = "this key may run some `coordinator` commands and nothing else"
        raise RefusedError(why, "use it by `muster … --at me@server`, or `Farm` in Python") from None
    return name, rest


def check(name: str, role: str, root: Path, asked: Mapping[str, str], same_root: bool) -> None:
    """Refuse what the key was not made for."""
    if asked["pinned"]:
        raise RefusedError(f"this key speaks as {name} and names nobody itself", f"leave --as out; use --name {name}")
    if asked.get("files"):
        raise RefusedError("this key hands no files over", _HINT)
    if not same_root:
        raise RefusedError(f"this key is for the root {root} alone", "leave the root out of WHERE")
    if role and asked["role"] != role:
        raise RefusedError(f"this key is for --role {role} alone", _HINT)


def refuse(root: Path, name: str, original: str | None, error: RefusedError | UsageError) -> RefusedError:
    """Log it, if there is a root to log it in; the error to end with."""
    line = " ".join(
        [
            time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            f"key of {name}",
            f"from {os.environ.get('SSH_CONNECTION', 'nowhere').split(' ')[0]}",
            "asked for a shell" if original is None else f"asked for {original[:SHOWN]!r}",
            f"refused: {error.message}",
        ]
    )
    _log(root / LOG, line)
    return RefusedError(error.message, error.hint)


def _log(file: Path, line: str) -> None:
    """One write: several refusals may come at once. A log that cannot be written refuses all the same."""
    try:
        if file.exists() and file.stat().st_size > LOG_BYTES:
            file.replace(file.with_name(f"{file.name}.1"))
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(fd, line.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        return
    finally:
        os.close(fd)
