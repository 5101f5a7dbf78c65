"""The server's side of the machines' keys: their lines in authorized_keys, the host keys they are told to trust.

A line lets its holder run `coordinator connect --as NAME` and nothing else. Everything else in the file, and its mode,
stay as they are. What a machine says its key is, is another's word: only what has the form of a key is written.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from muster.deploy.inventory import SSH_PORT, ServerAddress
from muster.jobs.common.durable import make_folder, write_durably
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.locations import expand
from muster.jobs.common.ssh import quote

_PUBLIC = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+) ([A-Za-z0-9+/]{16,8192}={0,3})( .*)?", re.ASCII)


def public_key(text: str) -> str | None:
    """Kind and key, without the comment; None if it is none."""
    found = _PUBLIC.fullmatch(text.strip())
    return f"{found[1]} {found[2]}" if found else None


def confined(public: str, name: str, launcher: Path) -> str:
    """The line that lets this key in as `name`."""
    command = f"{quote(str(launcher))} --as {name}".replace("\\", "\\\\").replace('"', '\\"')
    return f'restrict,command="{command}" {public} {name}'


def line_of(text: str, farm: str, name: str) -> str | None:
    """The line between this farm's marks that is for `name`."""
    _, inside, _ = _parts(text, farm)
    return next((line for line in inside if _is_for(line, name)), None)


def with_line(text: str, farm: str, name: str, line: str | None) -> str:
    """The file with this one line for `name` between the marks; None: without one."""
    before, inside, after = _parts(text, farm)
    kept = [one for one in inside if not _is_for(one, name)] + ([line] if line else [])
    begin, end = _marks(farm)
    block = [begin, *sorted(kept), end] if kept else []
    return "".join(f"{one}\n" for one in [*before, *block, *after])


def _lines(text: str) -> list[str]:
    """As sshd takes them: a form feed, a carriage return or a line separator is a character like any other."""
    return text.removesuffix("\n").split("\n") if text else []


def _is_for(line: str, name: str) -> bool:
    return line.endswith(f" {name}")


def _marks(farm: str) -> tuple[str, str]:
    return f"# muster farm {farm}: kept by `muster deploy`", f"# end of muster farm {farm}"


def _parts(text: str, farm: str) -> tuple[list[str], list[str], list[str]]:
    """The lines before, between and after the marks; all are before where there are none."""
    lines, (begin, end) = _lines(text), _marks(farm)
    if begin not in lines and end not in lines:
        return lines, [], []
    if lines.count(begin) != 1 or lines.count(end) != 1 or lines.index(end) < lines.index(begin):
        raise RefusedError(f"the marks `{begin}` and `{end}` do not match", "take both out of authorized_keys")
    first, last = lines.index(begin), lines.index(end)
    return lines[:first], lines[first + 1 : last], lines[last + 1 :]


class AuthorizedKeys:
    """The server's file, for several threads, and for other farms of its user."""

    def __init__(self, path: str, farm: str) -> None:
        self._path = Path(os.path.realpath(expand(path)))
        self._farm = farm

    def line_of(self, name: str) -> str | None:
        return line_of(self._read(), self._farm, name)

    def check(self) -> None:
        """A RefusedError where the file is not this user's to change."""
        try:
            owner = self._path.stat().st_uid
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error) from None
        if owner != os.geteuid():
            raise RefusedError(f"{self._path} belongs to another user", "chown it, or name another file")

    def put(self, name: str, line: str | None) -> bool:
        """Let `line` be the one for `name`, whole or not at all; whether that changed anything."""
        if self.line_of(name) == line:
            return False
        self.check()
        try:
            make_folder(self._path.parent, 0o700)
            with self._held():
                self._write(with_line(self._read(), self._farm, name, line))
        except OSError as error:
            raise self._unusable(error) from None
        return True

    @contextmanager
    def _held(self) -> Iterator[None]:
        """By nobody else meanwhile, of those who ask so: by its folder, as the file itself becomes another."""
        fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _read(self) -> str:
        try:
            return self._path.read_bytes().decode(errors="surrogateescape")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise self._unusable(error) from None

    def _write(self, text: str) -> None:
        tmp = self._path.with_name(f".{self._path.name}.muster")
        tmp.unlink(missing_ok=True)
        mode = self._path.stat().st_mode & 0o7777 if self._path.exists() else 0o600
        write_durably(tmp, text.encode(errors="surrogateescape"), mode=0o600)
        tmp.chmod(mode)
        tmp.replace(self._path)

    def _unusable(self, error: OSError) -> RefusedError:
        return RefusedError(f"{self._path}: {error.strerror}", "`authorized_keys:` below `server:` names another file")


def known_hosts(server: ServerAddress) -> str:
    """What the machines are to know this server by, from the public halves of its own host keys."""
    host = server.host
    name = host.host.strip("[]").lower()
    if host.port not in (None, SSH_PORT):
        name = f"[{name}]:{host.port}"
    found = [public_key(Path(file).read_text()) for file in sorted(glob.glob(str(expand(server.host_keys))))]
    lines = [f"{name} {key}\n" for key in found if key]
    if not lines:
        hint = "`host_keys:` below `server:` says where its sshd has the public ones"
        raise RefusedError(f"there is no host key of this server in {server.host_keys}", hint)
    return "".join(lines)
