"""Commands on the server, each an exec of the system's own `ssh`. Knows how they fail, and nothing of what they do.

The system's ssh and not the agent's link: an ordinary key, ~/.ssh/config in full, nothing to keep open.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from muster.jobs.common import configuration, ssh
from muster.jobs.common.errors import (
    AccessError,
    LinkError,
    MusterError,
    NoCommandError,
    ProtocolError,
    UsageError,
    error_class,
)
from muster.jobs.common.locations import Host
from muster.jobs.common.ssh import quote

if TYPE_CHECKING:
    from typing_extensions import Buffer  # the type checker's; nothing to install

COMMAND = "coordinator"
DEFAULT_ROOT = ".muster"  # relative to the home folder, where a command starts
SSH_FAILED = 255
END_SECONDS = 10.0  # for a command whose stream has ended
WORDS_BYTES = 16 << 10
CHUNK = 1 << 16  # bytes read at once of what is printed line by line
_OPTIONS = {**ssh.QUIET, "BatchMode": "yes", "ConnectTimeout": "20"}
# What a user there has configured for commands of their own is not for ours. `env` is the same to every shell.
ALONE = ("env", f"{configuration.VARIABLE}=")
KEPT_SECONDS = 60  # that a shared connection outlives its last command
SOCKET_LIMIT = 60  # bytes of the folder of such connections' sockets: ssh appends as many again
_FAILURES: list[tuple[str, type[LinkError], str, str]] = [  # what ssh says, and what that is
    (
        "HOST IDENTIFICATION HAS CHANGED",
        AccessError,
        "the host key of {0} has changed",
        "if the server was made anew, `ssh-keygen -R` its name; if not, somebody is in between",
    ),
    (
        "Host key verification failed",
        AccessError,
        "{0} is not known here",
        "`ssh {0} true` once by hand, and compare the fingerprint it shows with the server's",
    ),
    (
        "Could not resolve hostname",
        LinkError,
        "there is no host {0}: {1}",
        "check its name, and `Host` and `HostName` in ~/.ssh/config; a folder has a `/` or starts with `.` or `~`",
    ),
    (
        "Connection refused",
        LinkError,
        "nothing listens at {0}: connection refused",
        "start sshd there, or name its port: ssh://user@host:port",
    ),
    (
        r"Permission denied \(|Too many authentication failures",
        AccessError,
        "{0} does not let us in: {1}",
        "`ssh {0} true` should work without a question: a key in its authorized_keys, `ssh-add` for a passphrase",
    ),
    (
        "timed out|No route to host|unreachable",
        LinkError,
        "{0} cannot be reached: {1}",
        "check the host, the port and the network in between",
    ),
]


class Ssh:
    """One server. `config`: what `ssh -F` takes; `command`: what `coordinator` is called there; `shared`: this and the
    next commands share a connection, unless the user's own configuration has something to say of that."""

    def __init__(
        self, host: Host, config: Path | None = None, command: str | None = None, shared: bool = False
    ) -> None:
        self._host = host
        self._sharing = _sharing(host, config) if shared else []
        self._config = ["-F", str(config)] if config else []
        here = f"{(host.root or DEFAULT_ROOT).rstrip('/')}/{COMMAND}"  # `coordinator serve` writes one into its root
        self._programs = [command] if command else [COMMAND, here]

    def __str__(self) -> str:
        return str(self._host)

    def share(self) -> None:
        """One connection for all that is asked from now on, until `end_sharing`."""
        self._sharing = _sharing(self._host, self._config[1] if self._config else None)

    def end_sharing(self) -> None:
        """What runs over it goes on to its end; no other command begins there."""
        if self._sharing:
            stop = ["ssh", *self._config, *self._sharing, "-O", "stop", *ssh.where(self._host)]
            ssh.run(stop)
        self._sharing = []

    def find(self) -> None:
        """Connect, and find the program: PATH need not have it."""
        first: MusterError | None = None
        for program in self._programs:
            try:
                self._once(program, ["--version"])
            except NoCommandError as error:
                first = first or error
                continue
            self._programs = [program]
            return
        assert first is not None
        raise first

    def run(self, *args: str, data: bytes = b"") -> bytes:
        """All that `coordinator ARGS` prints."""
        return self._once(self._programs[0], self._rooted(args), data)

    @contextlib.contextmanager
    def talk(self, *args: str, options: Sequence[str] = ()) -> Iterator[SshTalk]:
        """`coordinator ARGS` while it runs, by an ssh with more `options`. Left without an error, it is waited for, and
        its own error raised."""
        talk = self.begin(*args, options=options)
        try:
            yield talk
            talk.finish()
        except (LinkError, ProtocolError, BrokenPipeError) as error:
            cause = talk.why()
            if cause is None and isinstance(error, BrokenPipeError):
                cause = LinkError(f"{self} closed the connection")
            raise cause or error from None
        finally:
            talk.close()

    def hand_over(self, *args: str, reads: bool = False) -> int:
        """The exit code of `coordinator ARGS`, with our standard streams: at a terminal it has that terminal, elsewhere
        stdin only if it `reads` it."""
        at_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
        options = ["-o", "RequestTTY=force"] if at_terminal else []
        line = self._line(self._programs[0], self._rooted(args), options)
        plain = {"TERM": "dumb"} if os.environ.get("NO_COLOR") else {}  # which goes along with a terminal
        stdin = None if at_terminal or reads else subprocess.DEVNULL
        with _started(line, stdin=stdin, env={**os.environ, **plain}) as process:
            try:
                status = process.wait()
            except KeyboardInterrupt:  # without a terminal there: ssh has had it too
                process.terminate()
                raise
        if status in (SSH_FAILED, *ssh.NO_COMMAND_STATUSES) or status < 0:
            raise LinkError(f"the connection to {self} broke", "type it again; what was asked for may have been done")
        return status

    def begin(self, *args: str, options: Sequence[str] = ()) -> SshTalk:
        """The same, to be closed by who began it."""
        return SshTalk(self, self._line(self._programs[0], self._rooted(args), options))

    def _once(self, program: str, args: Sequence[str], data: bytes = b"") -> bytes:
        talk = SshTalk(self, self._line(program, args))
        try:
            return talk.exchange(data)
        finally:
            talk.close()

    def _rooted(self, args: Sequence[str]) -> list[str]:
        return [args[0], *(["--root", self._host.root] if self._host.root else []), *args[1:]]

    def _line(self, program: str, args: Sequence[str], more: Sequence[str] = ()) -> list[str]:
        options = [*more, *self._sharing, *ssh.as_arguments(_OPTIONS)]  # of each, ssh takes the first
        far = " ".join(map(quote, [*ALONE, program, *args]))
        return ["ssh", *self._config, "-a", "-x", *options, *ssh.where(self._host), far]

    def failure(self, status: int, words: str) -> MusterError:
        """Why a command there ended so."""
        ours, last = ssh.our_error(words), ssh.last_line(words)
        if ours and status != SSH_FAILED:
            return error_class(status)(*ours)
        if status in ssh.NO_COMMAND_STATUSES:
            return NoCommandError(f"{self} has no {COMMAND!r} ({last})", "install muster there, or name it: `command=`")
        if status != SSH_FAILED:
            return LinkError(f"`coordinator` on {self} ended with {status}: {last}")
        for pattern, kind, message, hint in _FAILURES:
            if re.search(pattern, words):
                return kind(message.format(self._host.host, last), hint.format(self._host.host))
        return LinkError(f"the connection to {self} broke: {last or 'ssh ended without a word'}")


class SshTalk:
    """One command under way. Its stderr goes to a file: nobody has to drain it."""

    def __init__(self, ssh: Ssh, line: list[str]) -> None:
        self._ssh = ssh
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 it is closed with the process
        pipe = subprocess.PIPE
        try:  # a session of its own: Ctrl-C is for us, not for ssh
            self._process = _started(line, stdin=pipe, stdout=pipe, stderr=self._words, start_new_session=True)
        except UsageError:
            self._words.close()
            raise

    @property
    def writer(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def reader(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def read(self, count: int) -> bytes:
        """`count` bytes, fewer only at the end."""
        return self.reader.read(count)

    def lines(self, limit: int, within: float) -> Iterator[bytes | None]:
        """Each line as it comes, of at most `limit` bytes; None each time that nothing came `within` so many seconds.
        Nothing else may read beside it."""
        held = b""
        while True:
            if not select.select([self.reader], [], [], within)[0]:
                yield None
                continue
            if not (said := os.read(self.reader.fileno(), CHUNK)):
                break
            *whole, held = (held + said).split(b"\n")
            if len(held) > limit:
                raise ProtocolError(f"{self._ssh} printed a line of more than {limit} bytes")
            yield from whole
        if held:
            yield held

    def write(self, data: Buffer) -> None:
        self.writer.write(data)

    def flush(self) -> None:
        self.writer.flush()

    def send(self, pieces: Iterable[memoryview]) -> None:
        """All of them, then the end. Who has enough before may close its end."""
        try:
            for piece in pieces:
                self.write(piece)
        except BrokenPipeError:
            pass
        with contextlib.suppress(BrokenPipeError):
            self.writer.close()

    def exchange(self, data: bytes) -> bytes:
        said, _ = self._process.communicate(data)
        if self._process.returncode:
            raise self._ssh.failure(self._process.returncode, self._said())
        return said

    def finish(self) -> None:
        """To its end; an error if that was not a good one."""
        with contextlib.suppress(BrokenPipeError):
            self.writer.close()
        if (cause := self.why()) is not None:
            raise cause

    def why(self) -> MusterError | None:
        """Its error, if it ended with one."""
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return self._ssh.failure(status, self._said()) if status else None

    def _said(self) -> str:
        size = self._words.seek(0, 2)
        self._words.seek(max(0, size - WORDS_BYTES))
        return self._words.read().decode(errors="replace").replace("\r\n", "\n")

    def close(self) -> None:
        """Gone, whatever it was doing."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()
        self._words.close()


def _started(line: list[str], **streams: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(line, **streams)
    except OSError as error:
        raise UsageError(f"ssh cannot be started: {error.strerror}", "install OpenSSH's client") from None


def _sharing(host: Host, config: Path | str | None) -> list[str]:
    """Options by which the commands of a minute share a connection; none where the user's configuration has its own, or
    there is no private folder for its socket."""
    said = ssh.ask_effective(host, Path(config) if config else None).stdout.splitlines()
    own = {name: value for name, _, value in (line.partition(" ") for line in said)}
    if own.get("controlmaster", "false") != "false" or own.get("controlpath", "none") != "none":
        return []
    if (folder := _socket_folder()) is None:
        return []
    wishes = {"ControlMaster": "auto", "ControlPath": f"{folder}/%C", "ControlPersist": str(KEPT_SECONDS)}
    return ssh.as_arguments(wishes)


def _socket_folder() -> Path | None:
    """Ours alone: who may write there could sit in between."""
    run = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(run) / "muster" if Path(run).is_absolute() else Path(tempfile.gettempdir()) / f"muster-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    fits = len(os.fsencode(folder)) <= SOCKET_LIMIT and "%" not in str(folder) and " " not in str(folder)
    return folder if is_ours and fits else None
