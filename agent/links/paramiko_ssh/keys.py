"""Which of the user's keys to show a server, in which order, and how the answer reads. Stores no secret on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from muster.agent.links import errors
from muster.agent.links.ssh_config import Target
from muster.jobs.common import ssh
from muster.jobs.common.errors import AccessError, LinkError

AGENT_SECONDS = 10.0  # for an ssh-agent to answer: a forwarded one may be at the end of a dead link
ASKED_TIMES = 3
_KINDS: tuple[type[paramiko.PKey], ...] = (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey)

Ask = Callable[[str], str]


class Locked(Exception):
    """A key that may be the right one has a passphrase nobody has given yet."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


@dataclass(frozen=True)
class Candidate:
    """A key to show, and what to call it."""

    key: paramiko.PKey
    name: str


@dataclass
class Keys:
    """The keys for one machine, over all connections to it."""

    target: Target
    _unlocked: dict[Path, paramiko.PKey] = field(default_factory=dict)
    _good: bytes = b""  # the public part of what let us in last: shown first

    def let_in(self, transport: paramiko.Transport) -> str:
        """Authenticate, by the key of this name; an AccessError if nothing we have will do, Locked if a passphrase may
        help."""
        tried: list[str] = []
        locked: list[Path] = []
        with ssh_agent(self.target.use_agent) as held:
            for candidate in self._in_order(held, locked):
                tried.append(candidate.name)
                if self._shown(transport, candidate, tried):
                    self._good = candidate.key.asbytes()
                    return candidate.name
        if locked:
            raise Locked(locked[0])
        banner = (transport.get_banner() or b"").decode(errors="replace")
        public = next(filter(None, map(ssh.public_line, self.target.keys)), "")
        raise errors.not_let_in(str(self.target), self.target.user, tried, self._notes(), public, banner)

    def unlock(self, path: Path, ask: Ask) -> None:
        """Ask for the passphrase of a key; an AccessError if it is not given."""
        for _ in range(ASKED_TIMES):
            secret = ask(f"passphrase of {path}: ")
            if not secret:
                break
            try:
                key = load(path, secret)
            except (paramiko.SSHException, ValueError):
                continue
            if key is not None:
                self._unlocked[path] = key
                return
        raise AccessError(f"{path} was not unlocked", f"`ssh-add {path}` asks again")

    def _shown(self, transport: paramiko.Transport, candidate: Candidate, tried: list[str]) -> bool:
        """Whether this key lets us in."""
        target = self.target
        try:
            further = transport.auth_publickey(target.user, candidate.key)
        except paramiko.BadAuthenticationType as error:
            raise errors.other_ways(str(target), target.user, error.allowed_types) from None
        except paramiko.AuthenticationException as error:
            if transport.is_active() and "timeout" not in str(error).lower():
                return False
            if "timeout" in str(error).lower():
                raise errors.too_slow(str(target), "answer a key", transport.auth_timeout) from None
            raise errors.too_many_keys(str(target), target.user, tried) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._cut_off(error, tried) from None
        if further:
            raise errors.other_ways(str(target), target.user, ["publickey and then " + ", ".join(further)])
        return True

    def _cut_off(self, error: Exception, tried: list[str]) -> LinkError:
        """sshd ends a connection over too many failures; anything else may pass."""
        if len(tried) > 1 and "too many" in str(error).lower():
            return errors.too_many_keys(str(self.target), self.target.user, tried)
        return errors.broken(str(self.target), str(error) or type(error).__name__)

    def _in_order(self, held: Sequence[paramiko.AgentKey], locked: list[Path]) -> Iterator[Candidate]:
        """Those named for the host, then the ssh-agent's others; what let us in last before all."""
        every = list(self._all(held, locked))
        every.sort(key=lambda candidate: candidate.key.asbytes() != self._good)
        seen: set[bytes] = set()
        for candidate in every:
            blob = candidate.key.asbytes()
            if blob not in seen:
                seen.add(blob)
                yield candidate

    def _all(self, held: Sequence[paramiko.AgentKey], locked: list[Path]) -> Iterator[Candidate]:
        agent = {bytes(key.asbytes()): key for key in held}
        for path in self.target.keys:
            ready = agent.pop(public_blob(path), None)
            key = ready or self._unlocked.get(path) or self._from_file(path, locked)
            if key is not None:
                yield Candidate(key, f"{_short(path)}{' (ssh-agent)' if ready else ''}")
        if not self.target.only_these:
            for other in agent.values():
                yield Candidate(other, f"{other.comment or other.get_name()} (ssh-agent)")

    def _from_file(self, path: Path, locked: list[Path]) -> paramiko.PKey | None:
        try:
            return load(path, None)
        except paramiko.PasswordRequiredException:
            locked.append(path)
        except (paramiko.SSHException, ValueError, OSError):
            pass
        return None

    def _notes(self) -> list[str]:
        names = [path.name for path in self.target.keys]
        security = ["security keys"] if any(name.endswith("_sk") for name in names) else []
        return [*self.target.notes, *(note for note in security if note not in self.target.notes)]


def load(path: Path, secret: str | None) -> paramiko.PKey | None:
    """The private key in a file; None if it is of no kind paramiko knows."""
    wrong: Exception | None = None
    for kind in _KINDS:
        try:
            return kind.from_private_key_file(str(path), secret)
        except paramiko.PasswordRequiredException:
            raise
        except (paramiko.SSHException, ValueError) as error:  # of another kind, or a wrong passphrase
            wrong = error
    if secret is not None and wrong is not None:
        raise wrong
    return None


def public_blob(path: Path) -> bytes:
    """The public part, from the file beside the private one; b"" without one."""
    import base64

    try:
        return base64.b64decode(path.with_name(path.name + ".pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return b""


@contextmanager
def ssh_agent(wanted: bool) -> Iterator[list[paramiko.AgentKey]]:
    """What the user's ssh-agent has, usable until the end; nothing if it does not answer, or is not wanted."""
    found: list[paramiko.Agent] = []

    def look() -> None:
        with suppress(paramiko.SSHException, OSError, EOFError):
            found.append(paramiko.Agent())

    looking = threading.Thread(target=look, name="ssh-agent", daemon=True)
    if wanted:
        looking.start()
        looking.join(AGENT_SECONDS)
    try:
        yield [key for agent in found for key in agent.get_keys()]
    finally:
        for agent in found:
            agent.close()


def _short(path: Path) -> str:
    home = str(Path.home())
    text = str(path)
    return "~" + text[len(home) :] if text.startswith(home + "/") else text
