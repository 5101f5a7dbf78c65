"""known_hosts files: which keys a host may show. Reads lines and appends one; connects to nothing."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.jobs.common.errors import AccessError

SSH_PORT = 22


@dataclass(frozen=True)
class KnownKey:
    """One line's key, if it is for the host that was asked about."""

    marker: str  # "", "@revoked" or "@cert-authority"
    kind: str
    blob: bytes
    where: str  # file:line

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.blob)


def fingerprint(blob: bytes) -> str:
    """As ssh-keygen -l shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def name_of(host: str, port: int) -> str:
    """What a host is called in these files."""
    return host.lower() if port == SSH_PORT else f"[{host.lower()}]:{port}"


def keys_of(name: str, files: Sequence[Path]) -> list[KnownKey]:
    """Every key the files have for `name`."""
    return [key for file in files for key in _read(file, name)]


def key_at(where: str) -> KnownKey | None:
    """The key in line `file:line`, whomever it is for."""
    file, _, number = where.rpartition(":")
    lines = _lines(Path(file))
    if not number.isdecimal() or not 0 < int(number) <= len(lines):
        return None
    return _parse(lines[int(number) - 1], where, None)


def add(file: Path, name: str, kind: str, blob: bytes) -> None:
    """One more line, by one write to the file's end: other processes may add theirs at the same moment."""
    line = f"{name} {kind} {base64.b64encode(blob).decode()}\n".encode()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            os.write(fd, b"\n" + line if torn else line)
        finally:
            os.close(fd)
    except OSError as error:
        message = f"the host key of {name} cannot be written to {file}: {error.strerror}"
        raise AccessError(message, "make the file writable, or name another with UserKnownHostsFile") from None


def _read(file: Path, name: str) -> Iterator[KnownKey]:
    for number, line in enumerate(_lines(file), 1):
        key = _parse(line, f"{file}:{number}", name)
        if key is not None:
            yield key


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _parse(line: str, where: str, name: str | None) -> KnownKey | None:
    """The line's key, unless it is a comment, broken, or for other hosts than `name`."""
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#"):
        return None
    if name is not None and not _is_for(words[0], name):
        return None
    try:
        return KnownKey(marker, words[1], base64.b64decode(words[2], validate=True), where)
    except (binascii.Error, ValueError):
        return None


def _is_for(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        return _hashed(names, name)
    patterns = names.lower().split(",")
    if any(_matches(pattern[1:], name) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_matches(pattern, name) for pattern in patterns if not pattern.startswith("!"))


def _matches(pattern: str, name: str) -> bool:
    """Brackets stand for themselves in these files, `*` and `?` do not."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _hashed(names: str, name: str) -> bool:
    try:
        _, _, salt, digest = names.split("|")
        wanted = base64.b64decode(digest)
        found = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(found, wanted)
