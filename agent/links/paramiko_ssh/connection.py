"""One authenticated ssh connection by paramiko: the way there, the host key, the login. Knows no roles."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from muster.agent.links import errors
from muster.agent.links.paramiko_ssh import known_hosts
from muster.agent.links.paramiko_ssh.keys import Ask, Keys, Locked
from muster.agent.links.paramiko_ssh.transport import (
    ArrivedData,
    Line,
    ProxyStream,
    Transport,
    WatchedSocket,
    deadline,
    dial,
    prefer_fast_ciphers,
)
from muster.agent.links.ssh_config import JUMPS_LIMIT, Config, Target
from muster.jobs.common.errors import LinkError, UsageError
from muster.jobs.common.locations import Host

HANDSHAKE_SECONDS = 30.0  # from TCP's connection to the host key
LOGIN_SECONDS = 30.0  # for each key, and for all of them twice that
OPEN_SECONDS = 60.0
SEVERAL_KEYS = 2
PINGS = 3  # the first may wait for a delayed acknowledgement of what was sent before

Step = Literal["jump", "port", "ssh banner", "host key", "login"]
Passed = Callable[[Step, str], None]


def unheard(step: Step, fact: str) -> None:
    """Nobody asked how far it got."""


@dataclass(frozen=True)
class Limits:
    """What tests make smaller. `rekey_bytes`: after so many each way new keys are made; None is paramiko's 512 MiB."""

    rekey_bytes: int | None = None
    handshake_seconds: float = HANDSHAKE_SECONDS


class Connection:
    """Channels are opened on it by any thread. `under` carries it, where there is a jump."""

    def __init__(self, target: Target, transport: Transport, line: Line, under: Connection | None) -> None:
        self.target = target
        self.transport = transport
        self._line = line
        self._under = under
        self.sessions: set[paramiko.Channel] = set()  # open ones
        self.round_trip = _round_trip(transport)  # seconds

    @property
    def alive(self) -> bool:
        return bool(self.transport.is_active())

    @property
    def heard_at(self) -> float:
        return self._line.heard_at

    def open_session(self, window: int, packet: int) -> paramiko.Channel:
        """A ChannelException if the server allows no more of them."""
        session = self.transport.open_session(window_size=window, max_packet_size=packet, timeout=OPEN_SECONDS)
        session.in_buffer = ArrivedData()  # type: ignore[assignment]  # nothing comes before a command is run
        self.sessions.add(session)
        return session

    def run(self, channel: paramiko.Channel, command: str) -> None:
        """paramiko would wait for the answer for good."""
        with deadline(self._line, OPEN_SECONDS):
            channel.exec_command(command)

    def jammed_for(self) -> float:
        return self._line.jammed_for()

    def close(self) -> None:
        with suppress(Exception):
            self.transport.close()
        self._line.close()
        if self._under is not None:
            self._under.close()


class Connector:
    """Makes connections to one machine. `ask` asks a person for a secret; without it, nobody is there to ask."""

    def __init__(self, config: Config, host: Host, accept_new: bool, limits: Limits, depth: int = 0) -> None:
        self.target = config.target(host)
        self._accept_new = accept_new
        self._limits = limits
        self._keys = Keys(self.target)
        self._lines: set[Line] = set()
        self._lock = threading.Lock()  # over `_lines` and `_closed`
        self._closed = False
        if depth > JUMPS_LIMIT:
            raise UsageError(f"ProxyJump of {self.target} goes round in circles", "correct ~/.ssh/config")
        jumps = self.target.jumps
        via = [Connector(config, jump, accept_new, limits, depth + 1) for jump in jumps]
        for one, before in zip(via[1:], via[:-1], strict=True):
            one._before = before  # as ssh does: only the first jump's own ProxyJump counts
        self._before: Connector | None = via[-1] if via else None

    def connect(self, ask: Ask | None = None, passed: Passed = unheard) -> Connection:
        """A LinkError if there is no way; each wait is bounded, but for a person's. `passed` hears of each step that is
        done, and what there is to say of it; of some twice, where a person was asked."""
        while True:
            try:
                return self._connect(ask, passed)
            except Locked as locked:
                if ask is None:
                    raise errors.locked_key(str(self.target), str(locked.path)) from None
                self._keys.unlock(locked.path, ask)

    def close(self) -> None:
        """From any thread: what is being made now fails."""
        with self._lock:
            self._closed = True
            lines = list(self._lines)
        for line in lines:
            line.close()
        if self._before is not None:
            self._before.close()

    def _connect(self, ask: Ask | None, passed: Passed) -> Connection:
        under = self._before.connect(ask) if self._before is not None else None
        if under is not None:
            passed("jump", f"{under.target} lets {under.target.user} in")
        line: Line | None = None
        transport: Transport | None = None
        try:
            line = self._tracked(Line(self._stream(under)))
            passed("port", self._reached(line, under))
            transport = self._greeted(line)
            passed("ssh banner", transport.remote_version)
            passed("host key", self._check_host_key(transport))
            passed("login", f"{self.target.user}, by {self._log_in(transport, line)}")
            with deadline(line, OPEN_SECONDS):
                return Connection(self.target, transport, line, under)
        except BaseException:
            _abandon(transport, line, under)
            raise
        finally:
            with self._lock:
                self._lines = {one for one in self._lines if one is not line}

    def _tracked(self, line: Line) -> Line:
        with self._lock:
            self._lines.add(line)
            closed = self._closed
        if closed:
            line.close()
            raise LinkError(f"the link to {self.target} was closed")
        return line

    # --- the way there ---

    def _stream(self, under: Connection | None) -> WatchedSocket:
        target = self.target
        if under is not None:
            return self._through(under)
        if target.proxy:
            return ProxyStream(target.proxy)
        try:
            return dial(target.host, target.port, target.connect_seconds)
        except socket.gaierror as error:
            raise errors.no_such_host(target.host, error.strerror or str(error)) from None
        except TimeoutError:
            raise errors.too_slow(str(target), "answer", target.connect_seconds) from None
        except ConnectionRefusedError:
            raise errors.refused_port(f"{target.host} port {target.port}") from None
        except OSError as error:
            raise errors.not_reached(str(target), error.strerror or str(error)) from None

    def _through(self, under: Connection) -> WatchedSocket:
        target = self.target
        try:
            return under.transport.open_channel(
                "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=target.connect_seconds
            )
        except paramiko.ChannelException as error:
            raise errors.not_reached(str(target), f"{under.target} says: {error.text}") from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise errors.broken(str(under.target), str(error)) from None

    def _reached(self, line: Line, under: Connection | None) -> str:
        """What is known once there is a stream."""
        if under is not None:
            return f"{self.target.host} port {self.target.port} answers {under.target.host}"
        if self.target.proxy:
            return "ProxyCommand was started"
        address = self.target.host
        with suppress(OSError):  # it may be gone again
            if isinstance(line.stream, socket.socket):
                address = line.stream.getpeername()[0]
        return f"{address} port {self.target.port} answers"

    # --- who is there ---

    def _greeted(self, line: Line) -> Transport:
        """After the banners and the first key exchange: encrypted, but with whom is not known yet."""
        seconds = self._limits.handshake_seconds
        transport = Transport(line)
        transport.banner_timeout = transport.handshake_timeout = 2 * seconds  # ours ends the whole before
        transport.auth_timeout = LOGIN_SECONDS
        if self._limits.rekey_bytes is not None:
            transport.packetizer.REKEY_BYTES = self._limits.rekey_bytes
        prefer_fast_ciphers(transport)
        self._prefer_known_keys(transport)
        with deadline(line, seconds) as passed:
            try:
                transport.start_client()
            except (paramiko.SSHException, EOFError, OSError) as error:
                _abandon(transport, line, None)
                raise self._no_greeting(line, error, passed.is_set()) from None
        return transport

    def _no_greeting(self, line: Line, error: Exception, late: bool) -> LinkError:
        target, said = str(self.target), line.first.decode(errors="replace")
        if isinstance(error, IncompatiblePeer):
            return errors.no_common_ground(target, str(error))
        if said.startswith("SSH-"):
            if late or "timed out" in str(error).lower():
                return errors.too_slow(target, "finish the key exchange", self._limits.handshake_seconds)
            return errors.broken(target, str(error) or "closed during the key exchange")
        if "Indecipherable" in str(error) or len(said.splitlines()) > 1:
            return errors.not_ssh(target, said)
        if late or "timed out" in str(error).lower():
            return errors.too_slow(target, "say its ssh banner", self._limits.handshake_seconds)
        return errors.closed_early(target, said or self._proxy_words(line))

    def _proxy_words(self, line: Line) -> str:
        stream = line.stream
        return stream.words() if isinstance(stream, ProxyStream) else ""

    # --- the host key ---

    @property
    def _name(self) -> str:
        return self.target.key_name or known_hosts.name_of(self.target.host, self.target.port)

    def _prefer_known_keys(self, transport: Transport) -> None:
        """Ask first for the kinds of key this host is known by: it may have others that are not."""
        known = [key.kind for key in known_hosts.keys_of(self._name, self.target.known_hosts) if not key.marker]
        options = transport.get_security_options()
        first = [
            kind for kind in options.key_types if kind in known or (kind.startswith("rsa-") and "ssh-rsa" in known)
        ]
        options.key_types = (*first, *(kind for kind in options.key_types if kind not in first))

    def _check_host_key(self, transport: Transport) -> str:
        """Which key it is and why it is trusted."""
        shown = transport.get_remote_server_key()
        kind, blob, target = shown.get_name(), shown.asbytes(), str(self.target)
        known = known_hosts.keys_of(self._name, self.target.known_hosts)
        mark = known_hosts.fingerprint(blob)
        for key in known:
            if key.marker == "@revoked" and key.blob == blob:
                raise errors.revoked_key(target, mark, key.where)
        plain = [key for key in known if not key.marker]
        if same := next((key for key in plain if key.blob == blob), None):
            return f"{kind} {mark}, as in {same.where}"
        if plain:
            old = next((key for key in plain if key.kind == kind), plain[0])
            raise errors.changed_key(target, kind, mark, f"{old.kind} {old.fingerprint}", f"{old.where} ({self._name})")
        if not self._accept_new:
            certificates = ["certificate authorities"] if known else []
            raise errors.hint_at(errors.unknown_key(target, kind, mark), certificates)
        known_hosts.add(self._new_keys_file(), self._name, kind, blob)
        return f"{kind} {mark}, new, and now in {self._new_keys_file()}"

    def _new_keys_file(self) -> Path:
        return self.target.known_hosts[0] if self.target.known_hosts else Path("~/.ssh/known_hosts").expanduser()

    # --- the login ---

    def _log_in(self, transport: Transport, line: Line) -> str:
        """The key that let us in."""
        with deadline(line, SEVERAL_KEYS * LOGIN_SECONDS) as passed:
            try:
                return self._keys.let_in(transport)
            except LinkError:
                if passed.is_set():
                    raise errors.too_slow(str(self.target), "finish the login", SEVERAL_KEYS * LOGIN_SECONDS) from None
                raise


def _round_trip(transport: Transport) -> float:
    """The shortest of a few. The answer is a refusal, as sshd knows no such request, and answers all the same."""
    times = []
    for _ in range(PINGS):
        begun = time.monotonic()
        transport.global_request("keepalive@openssh.com", wait=True)
        times.append(time.monotonic() - begun)
    return min(times)


def _abandon(transport: Transport | None, line: Line | None, under: Connection | None) -> None:
    if transport is not None:
        transport.packetizer.complete_handshake()  # its timer would hold up the end of the process
        with suppress(Exception):
            transport.close()
    if line is not None:
        line.close()
    if under is not None:
        under.close()
