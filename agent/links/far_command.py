"""The command that is run at the far end of an ssh link, and the links that run it. Makes no connection itself."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence

from muster.agent.links import errors
from muster.agent.links.base import GREETING_SECONDS, Channel, Link, Role
from muster.jobs.common.errors import MusterError, NoCommandError
from muster.jobs.common.locations import Host
from muster.jobs.common.ssh import quote

COMMAND = "coordinator"
LAUNCHER = "connect"  # what `coordinator serve` writes into its root
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # wanted first: the fastest where processors know AES
DEFAULT_ROOT = ".muster"  # relative to the home folder, where a command starts


def programs(host: Host, named: str | None) -> list[str]:
    """What may be the command there, best first: PATH need not have it, but each root has a launcher."""
    if named:
        return [named]
    return [COMMAND, f"{(host.root or DEFAULT_ROOT).rstrip('/')}/{LAUNCHER}"]


def command_line(program: str, role: Role, root: str | None) -> str:
    words = [program, "connect", "--role", role, *(["--root", root] if root else [])]
    return " ".join(map(quote, words))


class FarChannel(Channel):
    """A channel whose other end is a command at a far place."""

    place: str
    program: str

    @abstractmethod
    def await_first(self, seconds: float) -> None:
        """Until something came; else why nothing will, as an error."""

    @abstractmethod
    def status(self) -> int | None:
        """How the command ended, if that is known by now or in a moment; None if not."""

    @abstractmethod
    def words(self) -> str:
        """The end of what came on stderr."""

    def last_words(self) -> str:
        lines = self.words().strip().splitlines()
        return lines[-1].strip() if lines else ""

    def ended(self, cut: bool) -> MusterError:
        status = self.status()
        return errors.ended(self.place, self.program, status, self.words(), cut)

    def noisy(self, noise: str) -> MusterError:
        return errors.noisy(self.place, noise)


class FarLink(Link):
    """Finds out which of the programs is there, once."""

    first_seconds = GREETING_SECONDS

    def __init__(self, host: Host, programs: Sequence[str]) -> None:
        self._host = host
        self._programs = list(programs)
        self._finding = threading.Lock()

    def __str__(self) -> str:
        return str(self._host)

    @property
    def program(self) -> str:
        """The one that is used; known once a channel was opened."""
        return self._programs[0]

    @abstractmethod
    def knock(self) -> None:
        """Make one more connection, without a person, and close it; from any thread. A LinkError if it is refused."""

    @abstractmethod
    def _start(self, role: Role, program: str) -> FarChannel:
        """A channel to that program."""

    def open(self, role: Role) -> Channel:
        if len(self._programs) == 1:
            return self._start(role, self._programs[0])
        with self._finding:
            return self._find(role)

    def _find(self, role: Role) -> Channel:
        error: MusterError | None = None
        for program in list(self._programs):
            channel = self._start(role, program)
            try:
                channel.await_first(self.first_seconds)
            except NoCommandError as missing:
                channel.close()
                error = error or missing
                continue
            except MusterError:
                channel.close()
                raise
            self._programs = [program]
            return channel
        assert error is not None
        raise error
