"""The link over ssh by the system's own `ssh`, a process per channel: for what paramiko cannot do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from muster.agent.links import errors
from muster.agent.links.base import GREETING_SECONDS, Role, greet
from muster.agent.links.far_command import CIPHERS, FarChannel, FarLink, command_line, programs
from muster.agent.links.local import END_SECONDS, PipeChannel
from muster.agent.links.paramiko_ssh import known_hosts
from muster.jobs.common import ssh
from muster.jobs.common.errors import AccessError, MusterError, UsageError
from muster.jobs.common.locations import Host

PERSON_SECONDS = 300.0  # for a passphrase to be typed
CONNECT_SECONDS = 20
# A Ctrl-C in the terminal is for the agent; a session of its own would keep ssh from asking there
_IN_TERMINAL = ["/bin/sh", "-c", 'trap "" INT QUIT TSTP HUP; exec "$@"', "ssh"]
_OPTIONS = {**ssh.QUIET, "Compression": "no", "ForwardAgent": "no", "ForwardX11": "no"}


class OpensshLink(FarLink):
    """`config` is for `ssh -F`; `interactive`: ssh may ask on the terminal."""

    def __init__(
        self,
        host: Host,
        config: Path | None = None,
        command: str | None = None,
        accept_new_host_key: bool = False,
        interactive: bool = False,
    ) -> None:
        super().__init__(host, programs(host, command))
        self._file = config
        self._config = ["-F", str(config)] if config else []
        self._accept_new = accept_new_host_key
        self._terminal = interactive and sys.stdin.isatty()
        self.first_seconds = PERSON_SECONDS if self._terminal else GREETING_SECONDS
        self._found: list[str] | None = None
        self._finding_options = threading.Lock()
        self.failure: MusterError | None = None  # the last that was ssh's own, not the command's

    def close(self) -> None:
        return

    def knock(self) -> None:
        channel = self.open("control")
        try:
            greet(channel)
        finally:
            channel.close()

    def resolved(self) -> dict[str, str]:
        """What ssh makes of the user's configuration: hostname, port, user and so on; empty if it does not say."""
        return self._effective(self._file)

    def _start(self, role: Role, program: str) -> FarChannel:
        command = command_line(program, role, self._host.root)
        try:
            channel = OpensshChannel(self, [*self._ssh(), command], program)
        except OSError as error:
            raise UsageError(f"ssh cannot be started: {error.strerror}", "install OpenSSH's client") from None
        if self._terminal:
            self._await_person(channel)
        return channel

    def _await_person(self, channel: OpensshChannel) -> None:
        try:
            channel.await_first(PERSON_SECONDS)
        except MusterError:
            channel.close()
            raise

    def _ssh(self) -> list[str]:
        """The command line up to the remote command."""
        checking = "accept-new" if self._accept_new else "yes"
        asking = {"BatchMode": "no" if self._terminal else "yes", "StrictHostKeyChecking": checking}
        head = [*(_IN_TERMINAL if self._terminal else []), "ssh", *self._config, "-T", "-a", "-x"]
        return [*head, *ssh.as_arguments({**_OPTIONS, **asking}), *self._softer(), *ssh.where(self._host)]

    def _softer(self) -> list[str]:
        """What we prefer where the user's configuration does not say: an argument would overrule it."""
        with self._finding_options:
            if self._found is None:
                theirs, plain = self._effective(self._file), self._effective(Path(os.devnull))
                self._found = []
                if theirs.get("connecttimeout", "none") in ("none", "0"):
                    self._found += ssh.as_arguments({"ConnectTimeout": str(CONNECT_SECONDS)})
                if theirs.get("ciphers") == plain.get("ciphers"):
                    self._found += ssh.as_arguments({"Ciphers": "^" + ",".join(CIPHERS)})
            return self._found

    def _effective(self, file: Path | None) -> dict[str, str]:
        said = ssh.ask_effective(self._host, file).stdout
        return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)

    # --- what went wrong, from ssh's own words ---

    def explain(self, words: str) -> MusterError:
        """ssh's own words as an error of ours."""
        place = str(self._host)
        for pattern, make in _FAILURES:
            if re.search(pattern, words):
                return make(self, place, words)
        return errors.broken(place, ssh.last_line(words) or "ssh ended without a word")

    def facts(self) -> str:
        """What ssh says when it is asked to say all, once more and without a person."""
        options = ssh.as_arguments(
            {**_OPTIONS, "BatchMode": "yes", "StrictHostKeyChecking": "yes", "LogLevel": "DEBUG1"}
        )
        return ssh.run(["ssh", *self._config, "-T", *options, *self._softer(), *ssh.where(self._host), "true"]).stderr

    def login_refused(self, place: str, words: str) -> AccessError:
        facts = self.facts()
        tried = [f"{name} {mark}" for name, mark in re.findall(r"Offering public key: (\S+) \S+ (SHA256:\S+)", facts)]
        user = found[1] if (found := re.search(r"Authenticating to \S+ as '([^']*)'", facts)) else "the user"
        ways = found[1].split(",") if (found := re.search(r"Permission denied \(([^)]*)\)", words)) else []
        if ways and "publickey" not in ways:
            return errors.other_ways(place, user, ways)
        if 'Authenticated using "publickey" with partial success' in facts:
            return errors.other_ways(place, user, ["publickey and then " + ", ".join(ways)])
        named = re.findall(r"Offering public key: (\S+)", facts)
        public = next(filter(None, (ssh.public_line(Path(name)) for name in named)), "")
        return errors.not_let_in(place, user, tried, public=public, banner=_said_by_server(facts))

    def key_unknown(self, place: str, words: str) -> AccessError:
        found = re.search(r"Server host key: (\S+) (SHA256:\S+)", self.facts())
        kind, mark = (found[1], found[2]) if found else ("of a kind", "that ssh does not show")
        return errors.unknown_key(place, kind, mark)

    def key_changed(self, place: str, words: str) -> AccessError:
        shown = re.search(r"fingerprint for the (\S+) key sent by the remote host is\s+(SHA256:[^\s.]+)", words)
        line = re.search(r"Offending \S+ key in (\S+:\d+)", words)
        old = known_hosts.key_at(line[1]) if line else None
        known = f"{old.kind} {old.fingerprint}" if old else "another"
        kind, mark = (shown[1], shown[2]) if shown else ("one", "that ssh does not show")
        return errors.changed_key(place, kind, mark, known, line[1] if line else "known_hosts")


class OpensshChannel(PipeChannel, FarChannel):
    """One ssh process."""

    def __init__(self, link: OpensshLink, command: list[str], program: str) -> None:
        super().__init__(command, own_session=command[0] == "ssh")
        self.place = str(link)
        self.program = program
        self._link = link
        self._first = b""  # looked at, not yet asked for

    def receive_some(self, limit: int, seconds: float) -> bytes:
        if not self._first:
            return super().receive_some(limit, seconds)
        piece, self._first = self._first[:limit], self._first[limit:]
        return piece

    def await_first(self, seconds: float) -> None:
        self._first = self._first or super().receive_some(1, seconds)
        if not self._first:
            raise self.ended(cut=False)

    def status(self) -> int | None:
        try:
            return self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def words(self) -> str:
        return self._said()

    def last_words(self) -> str:
        return FarChannel.last_words(self)

    def ended(self, cut: bool) -> MusterError:
        if self.status() == ssh.FAILED:
            self._link.failure = self._link.explain(self.words())
            return self._link.failure
        return FarChannel.ended(self, cut)


def _said_by_server(facts: str) -> str:
    """What is no line of ssh's own: the banner of the server."""
    own = re.compile(r"debug\d|OpenSSH_|Authenticat|Permission denied|Connection |Warning: |Transferred")
    return "\n".join(line for line in facts.splitlines() if line.strip() and not own.match(line))


Explain = Callable[[OpensshLink, str, str], MusterError]


def _saying(make: Callable[[str, str], MusterError]) -> Explain:
    """From what ssh said last."""
    return lambda link, place, words: make(place, ssh.last_line(words))


# the first pattern found in what ssh says names the failure
_FAILURES: list[tuple[str, Explain]] = [
    (r"HOST IDENTIFICATION HAS CHANGED", OpensshLink.key_changed),
    (r"Host key verification failed", OpensshLink.key_unknown),
    (r"Could not resolve hostname", _saying(errors.no_such_host)),
    (r"Connection refused", lambda link, place, words: errors.refused_port(place)),
    (r"Too many authentication failures", lambda link, place, words: errors.too_many_keys(place, "the user", [])),
    (r"Permission denied \(", OpensshLink.login_refused),
    (r"banner exchange: .*timed out|Connection timed out during banner", _saying(errors.not_reached)),
    (r"(timed out|No route to host|unreachable)", _saying(errors.not_reached)),
    (r"kex_exchange_identification|banner exchange", _saying(errors.closed_early)),
    (r"Unable to negotiate", _saying(errors.no_common_ground)),
    (r"(session|channel) request failed|open failed|session open refused", _saying(errors.no_session)),
    (
        r"Bad configuration option|terminating, \d+ bad|Can't open user config file",
        lambda link, place, words: _bad_config(words),
    ),
]


def _bad_config(words: str) -> UsageError:
    return UsageError(f"ssh cannot read its configuration: {ssh.last_line(words)}", "correct ~/.ssh/config")
