"""A machine reached by the system's own ssh: scripts run there by `sh`, files sent, host keys seen. Decides nothing.

One connection for each machine, kept open by ssh itself (ControlMaster) behind a socket in a folder of ours alone. What
ssh starts to pass a jump host hears of no option but its configuration's file: ours stand in one, before its user's.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from muster.agent.links import errors
from muster.deploy.inventory import Machine, MachineWish
from muster.jobs.common import ssh
from muster.jobs.common.errors import AccessError, LinkError, MusterError, RefusedError, UsageError
from muster.jobs.common.locations import Host, parse

CONNECT_SECONDS = 20
SCRIPT_SECONDS = 60.0
KEPT_SECONDS = 60  # an idle connection, should we die without a word
MARK = "@muster "  # before each line that is ours: a profile may print others
HOPS = 8  # beyond which a way goes round in circles
_ALL_THE_WAY = {
    **ssh.QUIET,
    "BatchMode": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "ConnectTimeout": str(CONNECT_SECONDS),
}
_WHOSE = re.compile(r"[Hh]ost key (?:for|is known for) (\S+) ")  # it may be a jump host's
_HEARD = re.compile(r"WARNING: .*|Warning: Permanently added .*")


class UnknownHostError(AccessError):
    """Nobody has said yet that this machine's host key is its own."""


class Connections:
    """How all machines are reached: whose configuration, whose known hosts; `folder` is 0700 and has a short path."""

    def __init__(self, folder: Path, known_hosts: Path, config: Path | None = None) -> None:
        self._folder = folder
        self.known_hosts = known_hosts
        self.known_now = folder / "known_hosts"  # for this call of a command alone
        self._config = config.absolute() if config else None
        self._answers: dict[str, dict[str, str]] = {}

    def to(self, machine: Machine) -> MachineConnection:
        return MachineConnection(machine, self)

    def close(self) -> None:
        """Whatever is kept open ends, and what still runs over it."""
        for path in self._folder.iterdir():
            if path.is_socket():
                ssh.run(["ssh", "-F", os.devnull, "-S", str(path), "-O", "exit", "--", "machine"])

    def configuration(self, machine: Machine, *known_hosts: Path) -> str:
        """What holds for the machine and for all on the way to it, before what its user's files say of them; they may
        be known in these files too, of which ssh writes to the first."""
        known = [_quoted(file) for file in known_hosts]
        known += [file for host in (machine.host, *self.hops(machine)) for file in self._known(host)]
        options = {**_ALL_THE_WAY, "UserKnownHostsFile": " ".join(dict.fromkeys(known))}
        files = [glob.escape(str(self._config))] if self._config else ["~/.ssh/config", "/etc/ssh/ssh_config"]
        lines = [*(f"{name} {value}" for name, value in options.items()), *(f'Include "{file}"' for file in files)]
        return "\n".join(["Host *", *lines, ""])

    def command(self, machine: Machine, *known_hosts: Path, **options: str) -> list[str]:
        """An ssh command line but for the target, with these options for the machine alone."""
        config = self._folder / f"{machine.name}.conf"
        config.write_text(self.configuration(machine, *known_hosts, self.known_hosts, self.known_now))
        return command(machine, config, **options)

    def shared(self, machine: Machine) -> list[str]:
        """The same, by the one connection that is kept."""
        kept = {"ControlMaster": "auto", "ControlPath": f"{self._folder}/%C", "ControlPersist": str(KEPT_SECONDS)}
        return self.command(machine, **kept)

    def hops(self, machine: Machine) -> list[Host]:
        """The jump hosts on the way to it, the first one first."""
        said = machine.wish.jump or self._effective(machine.host).get("proxyjump", "none")
        found: list[Host] = []
        while said != "none" and len(found) < HOPS:
            found = [*map(_hop, said.split(",")), *found]
            said = self._effective(found[0]).get("proxyjump", "none")
        return found

    def _known(self, host: Host) -> list[str]:
        """The files that their user's ssh looks at."""
        default = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
        return self._effective(host).get("userknownhostsfile", default).split()

    def _effective(self, host: Host) -> dict[str, str]:
        """What their user's ssh would do for this host, by the names of options."""
        if (found := self._answers.get(str(host))) is None:
            lines = (line.partition(" ") for line in ssh.ask_effective(host, self._config).stdout.splitlines())
            found = self._answers[str(host)] = {name: value for name, _, value in lines}
        return found


def command(machine: Machine, config: Path, **options: str) -> list[str]:
    """The start of an ssh command line that has `config` in place of its user's configuration."""
    host, jump = machine.host, machine.wish.jump
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    way = [*(["-J", jump] if jump else []), *port, *user]
    return ["ssh", "-F", str(config), "-T", *way, *ssh.as_arguments(options)]


def target(machine: Machine) -> str:
    return machine.host.host.strip("[]")


def _hop(said: str) -> Host:
    found = parse(f"ssh://{said.removeprefix('ssh://')}")
    assert isinstance(found, Host)
    return found


def _quoted(path: Path) -> str:
    """For ssh's configuration."""
    return f'"{str(path).replace("%", "%%")}"'


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
        if done.returncode == ssh.FAILED:
            raise explain(self.machine, self._words_on_the_way() or heard)
        return done.stdout.decode(errors="replace"), done.returncode, heard

    def _words_on_the_way(self) -> str:
        """Those of what passes a jump host for us: nobody hears them while ssh keeps its connection."""
        if not self._all.hops(self.machine):
            return ""
        return ssh.run(
            [*self._all.command(self.machine, ControlPath="none"), "--", target(self.machine), "true"]
        ).stderr

    def host_keys(self) -> tuple[str, list[str]]:
        """Of the first on the way whom nobody knows, itself or a jump host: which one ("" for itself), and lines for
        known_hosts of what it shows now, by nobody vouched for. None is passed before it is known."""
        hops, words = self._all.hops(self.machine), ""
        for number, host in enumerate([*hops, self.machine.host]):
            wish = MachineWish(jump=",".join(map(str, hops[:number])) or None)
            lines, words = self._shown(msgspec.structs.replace(self.machine, ssh=f"ssh://{host}", wish=wish))
            if lines:
                return str(host) if number < len(hops) else "", lines
        raise explain(self.machine, words)

    def _shown(self, there: Machine) -> tuple[list[str], str]:
        """What a host shows that is not known, and ssh's words."""
        with tempfile.TemporaryDirectory(prefix="muster-") as folder:
            shown = Path(folder) / "known_hosts"
            once = {
                "ControlPath": "none",
                "StrictHostKeyChecking": "accept-new",
                "HashKnownHosts": "no",
                "PreferredAuthentications": "none",
            }
            said = ssh.run([*self._all.command(there, shown, **once), "--", target(there), "true"])
            return shown.read_text().splitlines() if shown.exists() else [], said.stderr


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
    if whose := _WHOSE.search(words):
        place += f" ({whose[1]})"
    for pattern, make in _FAILURES:
        if re.search(pattern, words):
            return make(place, last)
    return errors.broken(place, last)


def _unknown(place: str, last: str) -> MusterError:
    return UnknownHostError(f"the host key of {place} is not known")


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
    (r"Host key verification failed", _unknown),
    (r"Could not resolve hostname", errors.no_such_host),
    (r"Connection refused", lambda place, last: errors.refused_port(place)),
    (r"Permission denied|Too many authentication failures", _refused),
    (r"timed out|No route to host|unreachable", errors.not_reached),
    (r"kex_exchange_identification|banner exchange", errors.closed_early),
    (r"Unable to negotiate", errors.no_common_ground),
]
