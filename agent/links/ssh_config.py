"""What the user's ssh configuration says of a host, and what only the system's ssh can do of it. Connects nowhere.

The system's ssh is asked what it makes of the configuration (`ssh -G`), so that Include and Match mean what they mean
there. Where there is no ssh, paramiko's reader has to do.
"""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from muster.jobs.common import ssh
from muster.jobs.common.errors import UsageError
from muster.jobs.common.locations import Folder, Host, expand, parse

USER_CONFIG = Path("~/.ssh/config")
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
CONNECT_SECONDS = 20.0
JUMPS_LIMIT = 8
_ONLY_OPENSSH = {
    "certificatefile": "certificates",
    "controlpath": "ControlMaster",
    "gssapiauthentication": "kerberos",
    "identityagent": "IdentityAgent",
    "pkcs11provider": "PKCS#11 tokens",
    "proxyusefdpass": "ProxyUseFdpass",
    "securitykeyprovider": "security keys",
    "knownhostscommand": "KnownHostsCommand",
}
_NEEDED = ("certificatefile", "pkcs11provider", "proxyusefdpass", "knownhostscommand")
_NEEDS = {key: _ONLY_OPENSSH[key] for key in _NEEDED}
_UNSET = ("no", "none", "")
_ASKED = frozenset(
    {"hostname", "port", "user", "identityfile", "identitiesonly", "proxyjump", "proxycommand", "userknownhostsfile"}
    | {"globalknownhostsfile", "hostkeyalias", "connecttimeout", *_ONLY_OPENSSH}
)


@dataclass(frozen=True)
class Target:
    """One machine to connect to, every default resolved."""

    alias: str  # as it was asked for
    host: str
    port: int
    user: str
    keys: tuple[Path, ...]  # identity files, those that exist
    only_these: bool  # IdentitiesOnly
    use_agent: bool
    jumps: tuple[Host, ...]  # in the order they are passed
    proxy: str | None
    known_hosts: tuple[Path, ...]  # the first is where a new key goes
    key_name: str | None  # HostKeyAlias
    connect_seconds: float
    notes: tuple[str, ...]  # what is asked for and only the system's ssh can do
    needs: tuple[str, ...] = ()  # what of it there is no way in without

    def __str__(self) -> str:
        port = "" if self.port == 22 else f" port {self.port}"
        return f"{self.host}{port}" if self.alias == self.host else f"{self.alias} ({self.host}{port})"


class Config:
    """The user's configuration, then the system's; `file` stands in for both, as with `ssh -F`."""

    def __init__(self, file: Path | None = None) -> None:
        self._files = [file] if file else [USER_CONFIG.expanduser(), SYSTEM_CONFIG]
        self._must_exist = file is not None
        self._texts = [_read(path, self._must_exist) for path in self._files]

    def target(self, host: Host) -> Target:
        """What to connect to for `host`; what it says itself comes before what the configuration says."""
        alias = host.host.strip("[]")
        try:
            said = self._said(host, alias)
            port = host.port or int(said.get("port", 22))
            seconds = float(said.get("connecttimeout", "none").lower().replace("none", "0"))
        except UsageError:
            raise
        except Exception as error:  # Match exec, canonical names, numbers that are none
            raise _unreadable(self._files[0], error) from None
        jumps = _jumps(said.get("proxyjump", "none"), alias)
        return Target(
            alias=alias,
            host=said.get("hostname", alias),
            port=port,
            user=host.user or said.get("user") or getpass.getuser(),
            keys=_keys(said),
            only_these=_yes(said, "identitiesonly"),
            use_agent=said.get("identityagent", "").lower() != "none",
            jumps=jumps,
            proxy=None if jumps else said.get("proxycommand"),
            known_hosts=_known_hosts(said),
            key_name=said.get("hostkeyalias"),
            connect_seconds=seconds or CONNECT_SECONDS,
            notes=self._notes(said),
            needs=tuple(what for key, what in _NEEDS.items() if said.get(key, "no") not in _UNSET),
        )

    def _said(self, host: Host, alias: str) -> Mapping[str, Any]:
        """The words of ssh, with the tokens that it leaves in them, or what paramiko reads."""
        if shutil.which("ssh") is None:
            return self._parsed().lookup(alias)
        asked = ssh.ask_effective(host, self._files[0] if self._must_exist else None)
        if asked.returncode:
            why = ssh.last_line(asked.stderr) or f"ssh ended with {asked.returncode}"
            raise UsageError(f"ssh cannot read its configuration: {why}", f"correct {self._files[0]}")
        lines = [line for line in asked.stdout.splitlines() if line.partition(" ")[0].lower() in _ASKED]
        return paramiko.SSHConfig.from_text("\n".join(["Host *", *lines])).lookup(alias)

    def _parsed(self) -> paramiko.SSHConfig:
        config = paramiko.SSHConfig()
        for path, text in zip(self._files, self._texts, strict=True):
            try:
                config.parse(text.splitlines())
            except Exception as error:  # whatever its parser trips over is a line it does not know
                raise _unreadable(path, error) from None
        return config

    def _notes(self, said: Mapping[str, object]) -> tuple[str, ...]:
        """Only of the user's own file: the system's includes something nearly everywhere."""
        own = self._texts[0]
        alone = shutil.which("ssh") is None
        notes = [word for word in ("Include", "Match") if alone and _names(own, word)]
        for key, what in _ONLY_OPENSSH.items():
            if _names(own, key) and str(said.get(key, "no")).lower() not in ("no", "none"):
                notes.append(what)
        return tuple(notes)


def _names(text: str, keyword: str) -> bool:
    return re.search(rf"^\s*{keyword}\b", text, re.M | re.I) is not None


def _read(path: Path, must_exist: bool) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        if must_exist:
            raise UsageError(f"{path} cannot be read: {error.strerror}", "name an ssh configuration file") from None
        return ""


def _unreadable(path: Path, error: Exception) -> UsageError:
    why = str(error) or type(error).__name__
    return UsageError(f"{path} has something only the system's ssh reads: {why}", "join with `--ssh openssh`")


def _yes(said: Mapping[str, str], key: str) -> bool:
    return said.get(key, "no").lower() == "yes"


def _keys(said: Mapping[str, object]) -> tuple[Path, ...]:
    named = said.get("identityfile")
    paths = [expand(path) for path in (named if isinstance(named, list) else DEFAULT_KEYS)]
    return tuple(path for path in paths if path.is_file())


def _known_hosts(said: Mapping[str, str]) -> tuple[Path, ...]:
    user = said.get("userknownhostsfile", USER_KNOWN_HOSTS)
    system = said.get("globalknownhostsfile", SYSTEM_KNOWN_HOSTS)
    home = str(Path.home())
    words = [word.strip('"').replace("%d", home) for word in f"{user} {system}".split()]
    return tuple(expand(word) for word in words if word.lower() != "none")


def _jumps(text: str, alias: str) -> tuple[Host, ...]:
    """`[user@]host[:port]` or ssh:// addresses, separated by commas. What all jump through does not jump itself."""
    if text.lower() == "none":
        return ()
    jumps = tuple(_jump(word.strip()) for word in text.split(","))
    return () if any(jump.host == alias for jump in jumps) else jumps


def _jump(word: str) -> Host:
    found = parse(word if word.startswith("ssh://") else f"ssh://{word}")
    if isinstance(found, Folder):
        raise UsageError(f"ProxyJump {word!r} is not a host", "write it as user@host:port")
    return found
