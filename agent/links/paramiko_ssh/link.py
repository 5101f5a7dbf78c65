"""The link over ssh by paramiko: channels shared out over as few connections as the server's MaxSessions allows.

Each wait is bounded: a name lookup by the system, TCP by ConnectTimeout (20 s), banner and key exchange 30 s, login
60 s, opening a channel 60 s, a write that is not taken 30 s, a trickle by `Pace`.
"""

from __future__ import annotations

import getpass
import sys
import threading
import time
from contextlib import suppress

import paramiko

from muster.agent.links import errors
from muster.agent.links.base import SEND_SECONDS, Pace, Role
from muster.agent.links.far_command import FarChannel, FarLink, command_line, programs
from muster.agent.links.paramiko_ssh.connection import Connection, Connector, Limits, Passed, unheard
from muster.agent.links.paramiko_ssh.transport import keep_freed_memory
from muster.agent.links.ssh_config import Config
from muster.jobs.common.errors import AccessError, LinkError
from muster.jobs.common.locations import Host

WINDOW_BYTES = 2 << 20  # in flight to us: the rate is at most this per round trip, and each larger one costs sshd more
PULL_RATE = 256 << 20  # bytes per second a pull's window has to allow, over a round trip of the connection at hand
PULL_WINDOW_LIMIT = 64 << 20
PACKET_BYTES = 240 << 10  # what has piled up at sshd comes at once, not 32 KiB at a time; 256 KiB is its limit
BULK_BYTES = 256 << 10  # who asks for so much at once is given more to a time, not each packet by itself
NAP_SECONDS = 0.001  # for that: a wake-up per packet costs a quarter of a pull's processor time
SLICE_SECONDS = 0.25  # how soon an abort is noticed
STATUS_SECONDS = 2.0
WORDS_BYTES = 4096
JAMMED_SECONDS = 2.0  # an abort while a write has hung for so long takes the connection with it


class ParamikoLink(FarLink):
    """`command` names the program there; `interactive`: a person may be asked for passphrases, in `prepare` alone."""

    def __init__(
        self,
        host: Host,
        config: Config,
        command: str | None = None,
        accept_new_host_key: bool = False,
        interactive: bool = False,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(host, programs(host, command))
        keep_freed_memory()
        self._connector = Connector(config, host, accept_new_host_key, limits or Limits())
        self._ask = getpass.getpass if interactive and sys.stdin.isatty() else None
        self._connections: list[Connection] = []
        self._lock = threading.Lock()  # over `_connections` and `_closed`
        self._connecting = threading.Lock()  # one at a time: the second may find the first's connection good
        self._closed = False

    def prepare(self, passed: Passed = unheard) -> None:
        with self._connecting:
            self._add(self._connector.connect(self._ask, passed))

    def knock(self) -> None:
        self._connector.connect().close()

    def room(self, wanted: int) -> int:
        """How many sessions the server allows on one connection, of so many; while none is open."""
        connection = next(iter(self._living()), None) or self._add(self._connector.connect())
        some: list[paramiko.Channel] = []
        try:
            while len(some) < wanted:
                some.append(connection.open_session(WINDOW_BYTES, PACKET_BYTES))
        except paramiko.ChannelException as error:
            if not some:
                raise errors.no_session(str(connection.target), error.text) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise errors.broken(str(connection.target), str(error)) from None
        finally:
            for session in some:
                self._give_back(connection, session)
        return len(some)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections, self._connections = self._connections, []
        self._connector.close()
        for connection in connections:
            connection.close()

    @property
    def connections(self) -> int:
        """How many there are: one, unless the server allows few sessions on each."""
        with self._lock:
            return len(self._connections)

    def _start(self, role: Role, program: str) -> FarChannel:
        command = command_line(program, role, self._host.root)
        connection, session = self._session(role)
        try:
            connection.run(session, command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._give_back(connection, session)
            raise self._why_not_run(connection, error) from None
        return ParamikoChannel(self, connection, session, program)

    # --- connections ---

    def _session(self, role: Role) -> tuple[Connection, paramiko.Channel]:
        """A session on a connection that has room for one, else on a new one."""
        with self._connecting:
            for connection in self._living():
                try:
                    return connection, connection.open_session(_window(role, connection), PACKET_BYTES)
                except paramiko.ChannelException:
                    continue  # MaxSessions
                except (paramiko.SSHException, EOFError, OSError):
                    self._drop(connection)
            connection = self._add(self._connector.connect())
            try:
                return connection, connection.open_session(_window(role, connection), PACKET_BYTES)
            except paramiko.ChannelException as error:
                self._drop(connection)
                raise errors.no_session(str(connection.target), error.text) from None
            except (paramiko.SSHException, EOFError, OSError) as error:
                self._drop(connection)
                raise errors.broken(str(connection.target), str(error)) from None

    def _living(self) -> list[Connection]:
        with self._lock:
            dead = [connection for connection in self._connections if not connection.alive]
            self._connections = [connection for connection in self._connections if connection.alive]
            living = list(self._connections)
        for connection in dead:
            connection.close()
        return living

    def _add(self, connection: Connection) -> Connection:
        with self._lock:
            if not self._closed:
                self._connections.append(connection)
                return connection
        connection.close()
        raise LinkError(f"the link to {self} was closed")

    def _drop(self, connection: Connection) -> None:
        """It is dead, or nobody knows what state it is in: channels on it end with an error."""
        with self._lock:
            if connection in self._connections:
                self._connections.remove(connection)
        connection.close()

    def _give_back(self, connection: Connection, session: paramiko.Channel) -> None:
        """End a session, and a connection made for it alone once there are others."""
        with suppress(paramiko.SSHException, EOFError, OSError):
            session.close()
        with self._lock:
            connection.sessions.discard(session)
            idle = [one for one in self._connections if not one.sessions]
            spare = idle[0] if idle and len(self._connections) > 1 else None
        if spare is not None:
            self._drop(spare)

    def _why_not_run(self, connection: Connection, error: Exception) -> LinkError:
        if connection.alive:
            message = f"{connection.target} refuses to run a command"
            return AccessError(message, "join as a user with a shell there, and a key that may run commands")
        return errors.broken(str(connection.target), str(error) or type(error).__name__)


def _window(role: Role, connection: Connection) -> int:
    """Of a new session. Only what bulk comes down on is worth more than the least."""
    if role not in {"pull", "round"}:
        return WINDOW_BYTES
    return max(WINDOW_BYTES, min(int(connection.round_trip * PULL_RATE), PULL_WINDOW_LIMIT))


class ParamikoChannel(FarChannel):
    """One session. It is lost with its connection, and takes it along when a send stops half-way."""

    def __init__(self, link: ParamikoLink, connection: Connection, session: paramiko.Channel, program: str) -> None:
        self.place = str(connection.target)
        self.program = program
        self._link = link
        self._connection = connection
        self._session = session
        self._aborted = False
        self._first = b""  # received, not yet asked for
        self._words = b""

    def send(self, data: bytes | memoryview, seconds: float = SEND_SECONDS) -> None:
        view, pace = memoryview(data).cast("B"), Pace()
        while view:
            sent = self._send_some(bytes(view[: self._session.out_max_packet_size - 64]), seconds)
            view = view[sent:]
            if view:
                pace.moved(sent)

    def _send_some(self, piece: bytes, seconds: float) -> int:
        """How much of it went on its way. Bytes that did are not known to have arrived."""
        until = time.monotonic() + seconds
        while True:
            self._check()
            self._session.settimeout(self._slice(until))
            try:
                sent: int = self._session.send(piece)
            except TimeoutError:
                self._read_words()
                self._check_silence(until, seconds)
                continue
            except (paramiko.SSHException, EOFError, OSError):
                raise self._lost() from None
            if not sent or not self._connection.alive:  # what a dead connection takes is gone
                raise self._lost()
            return sent

    def receive_some(self, limit: int, seconds: float) -> bytes:
        if self._first:
            piece, self._first = self._first[:limit], self._first[limit:]
            return piece
        if limit >= BULK_BYTES > len(self._session.in_buffer):
            time.sleep(NAP_SECONDS)
        return self._receive(limit, seconds)

    def _receive(self, limit: int, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        while True:
            self._check()
            self._session.settimeout(self._slice(until))
            try:
                data = self._session.recv(limit)
            except TimeoutError:
                self._read_words()
                self._check_silence(until, seconds)
                continue
            except (paramiko.SSHException, EOFError, OSError):
                raise self._lost() from None
            self._read_words()
            if not data and not self._session.eof_received:
                raise self._lost()
            return data

    def await_first(self, seconds: float) -> None:
        if not self._first:
            self._first = self._receive(PACKET_BYTES, seconds)
        if not self._first:
            raise self.ended(cut=False)

    def abort(self) -> None:
        self._aborted = True
        if self._connection.jammed_for() > JAMMED_SECONDS:
            self._connection.close()

    def close(self) -> None:
        self._link._give_back(self._connection, self._session)

    def status(self) -> int | None:
        if not self._session.status_event.wait(STATUS_SECONDS):
            return None
        return self._session.exit_status if self._session.exit_status >= 0 else None

    def words(self) -> str:
        self._read_words()
        return self._words.decode(errors="replace")

    def _read_words(self) -> None:
        """Whatever is there: unread it would use up the window."""
        with suppress(paramiko.SSHException, EOFError, OSError):
            while self._session.recv_stderr_ready() and (words := self._session.recv_stderr(1 << 16)):
                self._words = (self._words + words)[-WORDS_BYTES:]

    @staticmethod
    def _slice(until: float) -> float:
        return min(SLICE_SECONDS, max(until - time.monotonic(), 0.001))

    def _check(self) -> None:
        if self._aborted:
            raise LinkError(f"the channel to {self.place} was closed")

    def _check_silence(self, until: float, seconds: float) -> None:
        """A LinkError at the deadline. A connection on which nothing at all came meanwhile is not used again."""
        if time.monotonic() < until:
            return
        if time.monotonic() - self._connection.heard_at >= seconds:
            self._link._drop(self._connection)
        raise LinkError(f"{self.place} was silent for {seconds:.0f} s")

    def _lost(self) -> LinkError:
        """Why a session ended that should not have."""
        self._check()
        error = self.ended(cut=False) if self._session.eof_received else None
        if isinstance(error, LinkError):
            return error
        saved = self._connection.transport.get_exception()
        return errors.broken(self.place, str(saved) if saved and str(saved) else "it was closed")
