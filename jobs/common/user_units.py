"""Units of systemd's user manager on this machine: their text, and how they are put in place, asked and taken away.

Knows no program of ours: whoever calls says what is started. What `deploy` writes on other machines has the same text.
"""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.jobs.common.durable import make_folder, write_durably
from muster.jobs.common.errors import NotFoundError, RefusedError
from muster.jobs.common.ssh import last_line

KEPT = ("PATH", "XDG_STATE_HOME")  # of who installs it: a user manager has a PATH of its own, without any conda
SECONDS = 30.0
STOP_SECONDS = 330.0  # more than the unit gives its program to end
_UNIT = """# Written by `{writer}`, which writes it anew.
[Unit]
Description={description}
StartLimitIntervalSec=0

[Service]
{lines}Restart=on-failure
RestartSec=10
KillMode=mixed
TimeoutStopSec=300
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def text(
    writer: str,
    description: str,
    command: Sequence[str],
    folder: str | None = None,
    variables: Mapping[str, str] | None = None,
    memory: int | None = None,
) -> str:
    """A unit that is started with its user's manager, and again whenever it fails. Its main process is told to end,
    and has five minutes; where memory runs out, the rest of it may be killed without it. `memory`: bytes for all of
    it."""
    settings = [("ExecStart", " ".join(map(quoted, command)))]
    settings += [("WorkingDirectory", folder.replace("%", "%%"))] if folder else []
    settings += [("Environment", quoted(f"{name}={value}", command=False)) for name, value in (variables or {}).items()]
    settings += [("MemoryMax", str(memory))] if memory else []
    lines = "".join(f"{name}={value}\n" for name, value in settings)
    return _UNIT.format(writer=writer, description=description.replace("%", "%%"), lines=lines)


def quoted(word: str, command: bool = True) -> str:
    """A word as systemd reads it: nothing in it means more than itself. `command`: of a command line."""
    if not word.isprintable():
        raise RefusedError(f"systemd cannot be given {word!r:.80}", "use a name without newlines or control characters")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$") if command else escaped}"'


def kept_variables() -> dict[str, str]:
    """Of this process's environment, what its unit needs."""
    return {name: os.environ[name] for name in KEPT if os.environ.get(name)}


@dataclass(frozen=True)
class UnitFacts:
    """A unit as systemd has it."""

    name: str
    state: str  # active, inactive, failed, activating, …
    pid: int  # of its main process; 0 while there is none
    restarts: int  # since it was last started by hand
    enabled: bool  # to be started with its user's manager
    lingers: bool  # that manager is started with the machine, and stays when its user logs out
    memory_max: str  # bytes, or infinity

    def __str__(self) -> str:
        after = "after each start of this machine" if self.lingers else "while its user is logged in"
        again = f", started again {self.restarts} times" if self.restarts else ""
        process = f", process {self.pid}" if self.pid else ""
        return f"{self.name}: {self.state}{process}{again}; {f'runs {after}' if self.enabled else 'not enabled'}"


class UserUnit:
    """One unit of this user."""

    def __init__(self, name: str) -> None:
        self.name = name
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self.path = config / "systemd" / "user" / name

    def install(self, unit: str) -> None:
        """Put in place, started now and with the machine: what it was before is stopped in good order."""
        make_folder(self.path.parent, 0o700)
        write_durably(self.path, unit.encode(), mode=0o600)
        _systemctl("daemon-reload")
        with suppress(OSError):  # without it the unit ends when its user logs out, which `facts` tells
            subprocess.run(["loginctl", "enable-linger"], capture_output=True, timeout=SECONDS, check=False)
        _systemctl("enable", "--quiet", self.name)
        _systemctl("restart", self.name, seconds=STOP_SECONDS)

    def remove(self) -> None:
        """Stopped in good order, and gone."""
        self.require()
        _systemctl("disable", "--quiet", "--now", self.name, seconds=STOP_SECONDS)
        self.path.unlink()
        _systemctl("daemon-reload")

    def require(self) -> None:
        if not self.path.exists():
            hint = "`service install` makes it; --name or --root says which is meant"
            raise NotFoundError(f"there is no unit {self.path}", hint)

    def facts(self) -> UnitFacts:
        """How it is now."""
        said = _properties("show", self.name, "-p", "ActiveState,MainPID,NRestarts,UnitFileState,MemoryMax")
        return UnitFacts(
            self.name,
            said.get("ActiveState", "unknown"),
            int(said.get("MainPID") or 0),
            int(said.get("NRestarts") or 0),
            said.get("UnitFileState") == "enabled",
            _lingers(),
            said.get("MemoryMax", "infinity"),
        )

    def is_active(self) -> bool:
        """Whether systemd keeps it at work now; also where there is no systemd."""
        return self.path.exists() and has_manager() and self.facts().state in ("active", "activating", "reloading")


def has_manager() -> bool:
    """Whether a user manager of systemd answers us."""
    try:
        return _run(["systemctl", "--user", "show-environment"]).returncode == 0
    except RefusedError:
        return False


def require_manager(otherwise: str) -> None:
    """A RefusedError that says what to do in its place."""
    if not has_manager():
        raise RefusedError("no user manager of systemd answers here (`systemctl --user`)", otherwise)


def _lingers() -> bool:
    try:
        said = _run(["loginctl", "show-user", getpass.getuser(), "--property=Linger"]).stdout
    except (KeyError, OSError, RefusedError):
        return False
    return said.strip() == "Linger=yes"


def _properties(*words: str) -> dict[str, str]:
    lines = _systemctl(*words).splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _systemctl(*words: str, seconds: float = SECONDS) -> str:
    done = _run(["systemctl", "--user", *words], seconds)
    if done.returncode:
        why = last_line(done.stderr) or f"it ended with {done.returncode}"
        raise RefusedError(f"`systemctl --user {' '.join(words)}`: {why}", "`journalctl --user -e` has more")
    return done.stdout


def _run(command: list[str], seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ)
    own = Path(f"/run/user/{os.getuid()}")
    if "XDG_RUNTIME_DIR" not in env and own.is_dir():  # by ssh without PAM, or by su
        env["XDG_RUNTIME_DIR"] = str(own)
    try:
        return subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=seconds, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise RefusedError(f"there is no {command[0]} here", "this machine is not kept by systemd") from None
    except subprocess.TimeoutExpired:
        late = f"`{' '.join(command)}` did not end within {seconds:.0f} s"
        raise RefusedError(late, "`journalctl --user -e` has more") from None
