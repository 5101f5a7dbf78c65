"""Two machines with an account each, for walks that people take by hand: `me` on `server`, `lab` on `desk`.

A mount namespace has its own /etc/passwd, shadow, group and hosts, so that nothing of this machine is changed. Each
of the two is a network namespace (netns) and has its host's name. sshd runs as it does by default, but without PAM,
which knows no such accounts. As root on Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.examples.own_sshd import SSHD
from tests.support import netns
from tests.support.netns import Machine

PASSWORD = "a password of nobody's"
SECONDS = 180.0
START_SECONDS = 20.0
TOOLS = ("unshare", "nsenter", "setpriv", "ssh-copy-id", "ssh-keygen", "mount")
SETTINGS = ("ListenAddress {address}", "Port 22", "HostKey {key}", "UsePAM no", "PasswordAuthentication yes",
            "KbdInteractiveAuthentication no", "LogLevel VERBOSE", "PidFile none")  # fmt: skip
ASKPASS = """#!/bin/sh
case "$1" in *fingerprint*|*"(yes/no"*) echo yes ;; *) echo "{password}" ;; esac
"""


def obstacle() -> str:
    """Why there can be none here, or ""."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if SSHD is None or missing:
        return f"without {', '.join(missing or ['sshd'])}"
    return netns.obstacle()


@dataclass(frozen=True)
class Account:
    """A user on a machine."""

    user: str
    uid: int
    host: str
    home: Path
    machine: Machine
    namespace: str  # of its mounts

    def run(self, script: str, typed: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """As if typed there, in its home; `typed`: on its stdin. Whoever asks for a password on no terminal gets it."""
        command = self.command("sh", "-ec", script, env=env)
        return subprocess.run(
            command, input=typed, capture_output=True, text=True, timeout=SECONDS, check=False, start_new_session=True
        )

    def command(self, *command: str, env: Mapping[str, str] | None = None) -> list[str]:
        known = {
            "HOME": str(self.home),
            "USER": self.user,
            "LOGNAME": self.user,
            "SHELL": "/bin/sh",
            "COLUMNS": "200",
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",  # as after `. ~/muster-venv/bin/activate`
            "SSH_ASKPASS": str(self.home.parent / "askpass"),
            "SSH_ASKPASS_REQUIRE": "force",
            "DISPLAY": ":0",
            **(env or {}),
        }
        given = [f"{name}={value}" for name, value in known.items()]
        drop = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups", "env", "-i", *given]
        into = f'hostname {self.host} && cd {self.home} && exec "$@"'
        return [*within(self.namespace, self.machine), "unshare", "--uts", "sh", "-c", into, "sh", *drop, *command]


def within(namespace: str, machine: Machine) -> list[str]:
    """What to put before a command, for root."""
    return ["nsenter", f"--mount={namespace}", f"--net=/run/netns/{machine.namespace}"]


@dataclass(frozen=True)
class TwoUsers:
    me: Account
    lab: Account
    sshd_log: Path


@contextlib.contextmanager
def running() -> Iterator[TwoUsers]:
    """Gone at the end, with all that runs in them."""
    folder = Path(tempfile.mkdtemp(prefix="mst-two-", dir="/tmp"))
    folder.chmod(0o755)
    with netns.running() as net, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server, desk = net.add("server"), net.add("desk")
        users = {"me": (47011, "server", server), "lab": (47012, "desk", desk)}
        for user, (uid, _, _) in users.items():
            (folder / user).mkdir(mode=0o750)
            os.chown(folder / user, uid, uid)
        _write_files(folder, {user: uid for user, (uid, _, _) in users.items()}, {"server": server, "desk": desk})
        keeper = stack.enter_context(
            subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _mounts(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        stack.callback(keeper.kill)
        assert keeper.stdout is not None and keeper.stdout.readline() == b"ready\n"
        namespace = f"/proc/{keeper.pid}/ns/mnt"
        log = _start_sshd(folder, namespace, server, stack)
        made = {u: Account(u, uid, host, folder / u, at, namespace) for u, (uid, host, at) in users.items()}
        yield TwoUsers(made["me"], made["lab"], log)


def _write_files(folder: Path, uids: Mapping[str, int], machines: Mapping[str, Machine]) -> None:
    """What the namespace has in place of this machine's own."""
    passwd, group, shadow = ((Path("/etc") / name).read_text() for name in ("passwd", "group", "shadow"))
    crypt = ctypes.CDLL("libcrypt.so.1").crypt
    crypt.restype = ctypes.c_char_p
    secret = crypt(PASSWORD.encode(), b"$6$muster$").decode()
    for user, uid in uids.items():
        passwd += f"{user}:x:{uid}:{uid}::{folder / user}:/bin/sh\n"
        group += f"{user}:x:{uid}:\n"
        shadow += f"{user}:{secret}:19000:0:99999:7:::\n"
    hosts = "127.0.0.1 localhost\n" + "".join(f"{one.address} {name}\n" for name, one in machines.items())
    for name, text in (("passwd", passwd), ("group", group), ("shadow", shadow), ("hosts", hosts)):
        (folder / name).write_text(text)
    (folder / "shadow").chmod(0o600)
    (folder / "askpass").write_text(ASKPASS.format(password=PASSWORD))
    (folder / "askpass").chmod(0o755)


def _mounts(folder: Path) -> str:
    """A shell's script: the files above, and an interpreter that other users may start, if it is in root's home."""
    lines = [f"mount --bind {folder / name} /etc/{name}" for name in ("passwd", "group", "shadow", "hosts")]
    base = Path(sys.base_prefix).resolve()
    if hidden := [path for path in reversed(base.parents) if path != path.parent and not path.stat().st_mode & 0o001]:
        lines += [f"mkdir {folder / 'python'}", f"mount --bind {base} {folder / 'python'}"]
        lines += [f"mount -t tmpfs -o mode=755 none {hidden[0]}", f"mkdir -p {base}"]
        lines += [f"mount --bind {folder / 'python'} {base}"]
    return "; ".join([*lines, "echo ready", "exec cat"])


def _start_sshd(folder: Path, namespace: str, server: Machine, stack: contextlib.ExitStack) -> Path:
    assert SSHD is not None
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    key, log = folder / "host_key", folder / "sshd.log"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, stdin=subprocess.DEVNULL
    )
    (folder / "sshd_config").write_text("\n".join(SETTINGS).format(address=server.address, key=key) + "\n")
    with log.open("wb") as out:
        command = [*within(namespace, server), SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/")
    stack.callback(daemon.wait)
    stack.callback(daemon.terminate)
    deadline = time.monotonic() + START_SECONDS
    while "Server listening" not in log.read_text():
        assert daemon.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return log
