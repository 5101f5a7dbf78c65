"""A machine reached by the system's own ssh: scripts run there by `sh`, files sent, host keys seen. Decides nothing.

One connection for each machine, kept open by ssh itself (ControlMaster) behind a socket in a folder of ours alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from muster.agent.links import errors
from muster.deploy.inventory import Machine
from muster.jobs.common import ssh
from muster.jobs.common.errors import AccessError, LinkError, MusterError, RefusedError, UsageError

SSH_FAILED = 255
CONNECT_SECONDS = 20
SCRIPT_SECONDS = 60.0
KEPT_SECONDS = 60  # an idle connection, should we die without a word
MARK = "@muster "  # before each line that is ours: a profile may print others
_QUIET = {**ssh.QUIET, "BatchMode": "yes", "ForwardAgent": "no", "ForwardX11": "no"}
_HEARD = re.compile(r"WARNING: .*|Warning: Permanently added .*")


class UnknownHostError(AccessError):
    """Nobody has said yet that this machine's host key is its own."""


class Connections:
    """How all machines are reached: whose configuration, whose known hosts; `folder` is 0700 and has a short path."""

    def __init__(self, folder: Path, known_hosts: Path, config: Path | None = None) -> None:
        self._sockets = folder
        self.known_hosts = known_hosts
        self._config = ["-F", str(config.absolute())] if config else []

    def to(self, machine: Machine) -> MachineConnection:
        return MachineConnection(machine, self)

    def command(self, machine: Machine) -> list[str]:
        """The start of an ssh command line: options for this machine that leave its user's own in force."""
        host, jump = machine.host, machine.wish.jump
        port = ["-p", str(host.port)] if host.port else []
        user = ["-l", host.user] if host.user else []
        return ["ssh", *self._config, "-T", *(["-J", jump] if jump else []), *port, *user]

    def shared(self, machine: Machine) -> list[str]:
        """The same, by the one connection that is kept."""
        kept = {
            "ControlMaster": "auto",
            "ControlPath": f"{self._sockets}/%C",
            "ControlPersist": str(KEPT_SECONDS),
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": self._known(machine),
            "ConnectTimeout": str(CONNECT_SECONDS),
        }
        return [*self.command(machine), *ssh.as_arguments({**_QUIET, **kept})]

    def kept_open(self, machine: Machine) -> list[str]:
        """The same by a connection of its own that runs nothing there and stays; options of what it forwards follow."""
        alone = {
            **{name: value for name, value in _QUIET.items() if name != "ClearAllForwardings"},
            "ControlPath": "none",
            "ExitOnForwardFailure": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": self._known(machine),
            "ConnectTimeout": str(CONNECT_SECONDS),
        }
        return [*self.command(machine), "-N", *ssh.as_arguments(alone)]

    def _known(self, machine: Machine) -> str:
        """The files that their user's ssh looks at, and ours."""
        said = _run([*self.command(machine), "-G", "--", target(machine)]).stdout
        found = re.search(r"^userknownhostsfile (.+)$", said, re.M)
        theirs = found[1] if found else "~/.ssh/known_hosts ~/.ssh/known_hosts2"
        return f"{theirs} {self.known_hosts}"


def target(machine: Machine) -> str:
    return machine.host.host.strip("[]")


class MachineConnection:
    """To one machine; nothing is connected before the first script. Used by one thread at a time."""

    def __init__(self, machine: Machine, all_: Connections) -> None:
        self.machine = machine
        self._all = all_
        self._command: list[str] | None = None

    def _ssh(self) -> list[str]:
        self._command = self._command or self._all.shared(self.machine)
        return self._command

    def run(self, script: str, seconds: float = SCRIPT_SECONDS) -> list[str]:
        """The lines that a script says to us with `say`; a RefusedError with its last word if it ends otherwise."""
        with tempfile.TemporaryFile() as given:
            given.write(script.encode())
            given.seek(0)
            said, code, words = self._call("sh -s", given, seconds)
        return _heard(said, code, words)

    def send(self, files: Sequence[Path], folder: str, seconds: float = 1800.0) -> None:
        """Files into a folder of ours below the home there, which is made."""
        with tempfile.TemporaryFile() as made:
            with tarfile.open(fileobj=made, mode="w") as tar:
                for file in files:
                    tar.add(file, file.name)
            made.seek(0)
            unpack = f'cd "$HOME" && mkdir -p {folder} && tar -xf - -C {folder}'
            _, code, words = self._call(f"sh -c {ssh.quote(unpack)}", made, seconds)
        if code:
            raise RefusedError(ssh.last_line(words) or f"tar there ended with {code}", "is there room in that home?")

    def follow(self, command: str) -> int:
        """A command whose output is ours; its exit code."""
        return subprocess.run([*self._ssh(), "--", target(self.machine), command], check=False).returncode

    def close(self) -> None:
        if self._command:
            _run([*self._command, "-O", "exit", "--", target(self.machine)])

    def _call(self, command: str, given: IO[bytes], seconds: float) -> tuple[str, int, str]:
        """What it prints, its exit status and its words on stderr; an error of ours where ssh itself failed."""
        line = [*self._ssh(), "--", target(self.machine), command]
        with tempfile.TemporaryFile() as words:  # a pipe would be held open by the connection that is kept
            try:
                done = subprocess.run(
                    line, stdin=given, stdout=subprocess.PIPE, stderr=words, timeout=seconds, check=False
                )
            except subprocess.TimeoutExpired:
                raise LinkError(f"{self.machine.ssh} did not answer within {seconds:.0f} s") from None
            except OSError as error:
                raise UsageError(f"ssh cannot be started: {error.strerror}", "install OpenSSH's client") from None
            words.seek(0)
            heard = words.read().decode(errors="replace")
        if done.returncode == SSH_FAILED:
            raise explain(self.machine, heard)
        return done.stdout.decode(errors="replace"), done.returncode, heard

    def host_keys(self) -> list[str]:
        """Lines for known_hosts: what the machine shows now, by nobody vouched for."""
        with tempfile.TemporaryDirectory(prefix="muster-") as folder:
            shown = Path(folder) / "known_hosts"
            once = {
                "ControlPath": "none",
                "StrictHostKeyChecking": "accept-new",
                "UserKnownHostsFile": str(shown),
                "GlobalKnownHostsFile": os.devnull,
                "HashKnownHosts": "no",
                "PreferredAuthentications": "none",
                "ConnectTimeout": str(CONNECT_SECONDS),
            }
            command = [*self._all.command(self.machine), *ssh.as_arguments({**_QUIET, **once})]
            said = _run([*command, "--", target(self.machine), "true"])
            if not shown.exists():
                raise explain(self.machine, said.stderr)
            return shown.read_text().splitlines()


class OwnShell:
    """This machine, where the same scripts can be run."""

    def run(self, script: str, seconds: float = SCRIPT_SECONDS) -> list[str]:
        """As that of a MachineConnection."""
        try:
            done = subprocess.run(
                ["sh", "-s"], input=script, capture_output=True, text=True, errors="replace", timeout=seconds,
                check=False, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LinkError(f"this machine took longer than {seconds:.0f} s") from None
        return _heard(done.stdout, done.returncode, done.stderr)


def _heard(said: str, code: int, words: str) -> list[str]:
    """What a script said to us, of all that was printed."""
    lines = [line.partition(MARK)[2] for line in said.splitlines() if MARK in line]
    if code == 0 and lines[-1:] == ["end"]:
        return lines[:-1]
    last = ssh.last_line(words) or ssh.last_line(said) or f"the shell there ended with {code}"
    raise RefusedError(last, "put that right there, and run it again: it goes on from where it was")


def fingerprint(line: str) -> str:
    """Of a line of known_hosts, as people compare it."""
    said = subprocess.run(["ssh-keygen", "-lf", "-"], input=line, capture_output=True, text=True, check=False).stdout
    found = re.search(r"(SHA256:\S+).*\((\S+)\)", said)
    return f"{found[2].lower()} {found[1]}" if found else "of a kind that ssh-keygen does not know"


def explain(machine: Machine, words: str) -> MusterError:
    """ssh's own words as an error of ours."""
    place, last = machine.ssh, ssh.last_line(_HEARD.sub("", words)) or "ssh ended without a word"
    for pattern, make in _FAILURES:
        if re.search(pattern, words):
            return make(place, last)
    return errors.broken(place, last)


def _changed(place: str, last: str) -> MusterError:
    hint = (
        "if it was really made anew, remove its old key with `ssh-keygen -R`, also with `-f` from deploy-known_hosts "
        "in the root; if not, somebody is in between"
    )
    return AccessError(f"the host key of {place} has changed", hint)


def _refused(place: str, last: str) -> MusterError:
    return AccessError(f"{place} does not let us in: {last}", f"`ssh {place} true` should work without a question")


_FAILURES: list[tuple[str, Callable[[str, str], MusterError]]] = [
    (r"HOST IDENTIFICATION HAS CHANGED", _changed),
    (r"Host key verification failed", lambda place, last: UnknownHostError(f"the host key of {place} is not known")),
    (r"Could not resolve hostname", errors.no_such_host),
    (r"Connection refused", lambda place, last: errors.refused_port(place)),
    (r"Permission denied|Too many authentication failures", _refused),
    (r"timed out|No route to host|unreachable", errors.not_reached),
    (r"kex_exchange_identification|banner exchange", errors.closed_early),
    (r"Unable to negotiate", errors.no_common_ground),
]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=CONNECT_SECONDS * 2, check=False,
        )  # fmt: skip
    return subprocess.CompletedProcess(command, SSH_FAILED, "", "")
