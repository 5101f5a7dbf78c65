"""An sshd of one's own, for the demo and the tests: its configuration and that of its clients. Starts nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
HOST = "farm"  # what the client's configuration calls it
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin:/sbin")


def obstacle() -> str:
    """Why there can be no sshd here, or ""."""
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    if SSHD is None:
        missing.insert(0, "sshd")
    return f"without {', '.join(missing)} (install openssh-server and openssh-client)" if missing else ""


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    """A key pair; the private one's path."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return path


def public_line(key: Path) -> str:
    return key.with_name(key.name + ".pub").read_text().strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def command(config: Path) -> list[str]:
    """How it is started, in the foreground; it says on stderr what happens."""
    assert SSHD is not None, "ask for the obstacle first"
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    return [SSHD, "-D", "-e", "-f", str(config)]


def listening(address: str, port: int) -> str:
    """What it says once it does."""
    return f"Server listening on {address} port {port}"


def name_of(address: str, port: int) -> str:
    """What known_hosts calls it."""
    return f"[{address}]:{port}"


def server_config(
    folder: Path, host_key: Path, authorized: Path, port: int, env: Mapping[str, str], address: str = LOOPBACK
) -> str:
    """For whoever starts it alone, with keys. `env` is what its sessions get."""
    given = {"SHLVL": "2", **env}  # deeper than 1, bash leaves the user's ~/.bashrc alone
    lines = [
        f"Port {port}",
        f"ListenAddress {address}",
        f"HostKey {host_key}",
        f"AuthorizedKeysFile {authorized}",
        f"PidFile {folder / 'sshd.pid'}",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PrintMotd no",
        "LogLevel VERBOSE",
        " ".join(["SetEnv", *(f"{name}={value}" for name, value in given.items())]),
        "Subsystem sftp internal-sftp",
    ]
    return "\n".join(lines) + "\n"


def client_config(
    port: int, user: str, key: Path, known_hosts: Path, more: Sequence[str] = (), address: str = LOOPBACK
) -> str:
    """In which `Host farm` is that sshd; the lines of `more` come first, and so win."""
    lines = [
        f"Host {HOST}",
        *more,
        f"HostName {address}",
        f"Port {port}",
        f"User {user}",
        f"IdentityFile {key}",
        "IdentitiesOnly yes",
        "IdentityAgent none",
        f"UserKnownHostsFile {known_hosts}",
        "GlobalKnownHostsFile /dev/null",
    ]
    return "\n".join(lines) + "\n"
