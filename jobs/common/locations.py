"""WHERE a farm is, a folder on this machine or a host reached by ssh, and what `~` means. Connects to nothing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from muster.jobs.common.errors import NoDaemonError, RefusedError, UsageError

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.%a-z]{2,64}\]", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@$-]{0,63}", re.ASCII)
_HINT = "WHERE is a folder (`./farm`, `/data/farm`), host, user@host, user@host:/root or ssh://user@host:port/root"


@dataclass(frozen=True)
class Folder:
    """The root itself, on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Host:
    """A machine behind ssh. `None`: what the user's ssh configuration, or the server's default, says."""

    host: str
    user: str | None = None
    port: int | None = None
    root: str | None = None

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"{user}{self.host}{port}{':' + self.root if self.root else ''}"


def expand(path: str | Path) -> Path:
    """A path with its `~` as a home folder. A UsageError where there is no such user, so that none makes a `./~ana`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{path}: there is no such user on this machine", "write out the folder's path") from None


def located(base: Path, text: str) -> Path:
    """What a job file in `base` names, links resolved. Where there is no such user, `~ana` is a folder's name."""
    return Path(os.path.realpath(base / os.path.expanduser(text)))  # noqa: PTH111 Path's own raises for ~nobody


def parse(text: str) -> Folder | Host:
    """What WHERE means: a folder if it has a `/` before any `:`, or starts with `.` or `~`."""
    if text.startswith("ssh://"):
        return _url(text)
    if text.startswith((".", "~")) or "/" in text.partition(":")[0]:
        return Folder(expand(text).resolve())
    return _scp_like(text)


def _url(text: str) -> Host:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not an ssh:// address: {error}", _HINT) from None
    host = f"[{url.hostname}]" if url.hostname and ":" in url.hostname else url.hostname or ""
    return _checked(text, Host(host, url.username, port, url.path if len(url.path) > 1 else None))


def _scp_like(text: str) -> Host:
    user, at, rest = text.rpartition("@")
    end = rest.find("]") + 1 if rest.startswith("[") else 0
    host, colon, root = rest[end:].partition(":")
    if (at and not user) or (colon and not root):
        raise UsageError(f"{text!r} is not a place to join", _HINT)
    return _checked(text, Host(rest[:end] + host, user or None, None, root or None))


def _checked(text: str, host: Host) -> Host:
    """Nothing that ssh or a shell could take for something else."""
    good = _HOST.fullmatch(host.host) and (host.user is None or _USER.fullmatch(host.user))
    if not good or (host.root and ("\n" in host.root or "\0" in host.root)):
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise UsageError(f"{shown!r} is not a place to join", _HINT)
    return host


def check_root(folder: Folder) -> None:
    """A NoDaemonError if this is no farm's root, a RefusedError if that cannot be seen."""
    path = folder.path
    try:
        (path / "farm.json").stat()
    except (FileNotFoundError, NotADirectoryError):
        why = "correct the path; a new, empty farm is made with"
        raise NoDaemonError(f"{path} is not a farm's root", f"{why} `coordinator serve --root {path}`") from None
    except OSError as error:  # a mount whose server is gone
        why = f"{path} cannot be read: {error.strerror}"
        raise RefusedError(why, f"`mount` shows what is mounted there; `ls {path}` has to work") from None
