"""A real sshd of a test's own, on a free high port of 127.0.0.1, its host and client keys its own; ended by its pid.

`Sshd(folder)` is started by `start()`; `options` are lines of sshd_config. `ssh_config()` writes what a client needs.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from docs.examples import own_sshd
from docs.examples.own_sshd import HOST, LOOPBACK, SSHD, free_port, make_key, obstacle, public_line
from tests.support.needs import skip_for

__all__ = ["HOST", "Sshd", "free_port", "knows", "make_key", "obstacle", "public_line", "require", "running"]

START_SECONDS = 20.0
POLL_SECONDS = 0.02
TRIES = 5  # another process may take the free port that was found


def require() -> None:
    """Skip where there is no sshd; in CI that is a failure."""
    skip_for(obstacle())


def knows(option: str) -> bool:
    """Whether this sshd's version has it: an unknown one keeps it from starting."""
    assert SSHD is not None
    tried = subprocess.run([SSHD, "-t", "-f", os.devnull, "-o", option], capture_output=True, text=True, check=False)
    return "Bad configuration option" not in tried.stderr


class Sshd:
    """One daemon. `authorize` may be called while it runs."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        path: str | None = None,
        address: str = LOOPBACK,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.options = list(options)
        self.address = address
        self._prefix = prefix  # a command to run it under
        self._env = env or {}  # what its sessions get, beside PATH
        self.path = path or f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        self.port = 0
        self.user = getpass.getuser()
        folder.mkdir(parents=True, exist_ok=True)
        self.host_key = make_key(folder / "host_key")
        self.key = make_key(folder / "client_key")
        self.known_hosts = folder / "known_hosts"
        self._authorized = folder / "authorized_keys"
        self._process: subprocess.Popen[bytes] | None = None
        self.authorize(self.key)

    # --- its life ---

    def start(self) -> Sshd:
        for _ in range(TRIES):
            self.port = free_port()
            if self._try_start():
                self.trust()
                return self
        raise AssertionError(f"sshd does not start: {self.log()}")

    def _try_start(self) -> bool:
        (self.folder / "sshd_config").write_text(self._config())
        command = [*self._prefix, *own_sshd.command(self.folder / "sshd_config")]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._listens():
                return True
            time.sleep(POLL_SECONDS)
        self.stop()
        return False

    def _listens(self) -> bool:
        return own_sshd.listening(self.address, self.port) in self.log()

    def _config(self) -> str:
        env = {"PATH": self.path, **self._env}
        own = own_sshd.server_config(self.folder, self.host_key, self._authorized, self.port, env, self.address)
        return "\n".join([*self.options, own])

    def stop(self) -> None:
        """The daemon and every session it made."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [*psutil.Process(self._process.pid).children(recursive=True)]
            self._process.terminate()
            for one in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self._process.wait(START_SECONDS)
        self._process = None

    def sessions(self) -> list[psutil.Process]:
        """Every process below the daemon now."""
        assert self._process is not None
        return psutil.Process(self._process.pid).children(recursive=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log_file(self) -> Path:
        return self.folder / "sshd.log"

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    # --- who may come in ---

    def authorize(self, key: Path, options: str = "") -> None:
        with self._authorized.open("a") as file:
            file.write(f"{options} {public_line(key)}\n".lstrip())

    def forbid_all(self) -> None:
        self._authorized.write_text("")

    # --- what a client needs ---

    def trust(self, key: Path | None = None) -> None:
        """Let `known_hosts` hold this key for the daemon, its own by default."""
        self.known_hosts.write_text(f"{self.name} {public_line(key or self.host_key)}\n")

    @property
    def name(self) -> str:
        """What known_hosts calls it."""
        return own_sshd.name_of(self.address, self.port)

    def ssh_config(self, *more: str, key: Path | None = None, name: str = "ssh_config") -> Path:
        """A file in which `Host farm` is this daemon; `more` lines come first, and so win."""
        identity = key or self.key
        text = own_sshd.client_config(self.port, self.user, identity, self.known_hosts, more, self.address)
        path = self.folder / name
        path.write_text(text)
        return path


@contextlib.contextmanager
def running(folder: Path, *options: str, path: str | None = None) -> Iterator[Sshd]:
    """An sshd with these lines of configuration, and gone at the end."""
    require()
    daemon = Sshd(folder, options, path)
    try:
        yield daemon.start()
    finally:
        daemon.stop()
