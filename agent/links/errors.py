"""What went wrong on the way to a coordinator, as one typed error with its hint. Text in, errors out; tries nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from muster.agent.links.base import first_line
from muster.jobs.common.errors import (
    AccessError,
    LinkError,
    MusterError,
    NoCommandError,
    ProtocolError,
    RefusedError,
    SpaceError,
)
from muster.jobs.common.ssh import NO_COMMAND_STATUSES, SHOWN, last_line, our_error

_NO_COMMAND = re.compile(
    r"(command )?not found|no such file or directory|unknown command|cannot execute|permission denied", re.I
)
_NO_ACCOUNT = re.compile(
    r"account is (currently )?not available|may not (run|log)|not (allowed|permitted) to (run|log)"
    r"|system is (booting|going down)|nologin",
    re.I,
)
_MOVED = re.compile(
    r"bad interpreter|required file not found|exec: /\S*python|/python[0-9.]*: (not found|no such file)", re.I
)
MOVED_HINT = (
    "it is there, and its Python is not: its environment was moved or deleted. Install muster again there; "
    "`coordinator serve` then writes the launcher in its root anew"
)
SHELL_HINT = (
    "`ssh {0} 'echo here'` has to print here: else a startup file of the shell there has an `exit`, or the account's "
    "shell is none; if it prints that, check that `coordinator serve` runs there"
)
_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded", re.I)


def no_such_host(host: str, why: str) -> LinkError:
    return LinkError(f"there is no host {host!r}: {why}", "check its name, and `Host` and `HostName` in ~/.ssh/config")


def not_reached(place: str, why: str) -> LinkError:
    return LinkError(f"{place} cannot be reached: {why}", "check the host, the port and the network in between")


def refused_port(place: str) -> LinkError:
    return LinkError(
        f"nothing listens at {place}: connection refused", "start sshd there, or name its port: ssh://user@host:port"
    )


def too_slow(place: str, what: str, seconds: float) -> LinkError:
    hint = "check the network in between; the agent tries again by itself"
    return LinkError(f"{place} did not {what} within {seconds:.0f} s", hint)


def closed_early(place: str, said: str) -> LinkError:
    """Before sshd said anything: it sheds load, or something in between does."""
    words = f": {first_line(said)[:SHOWN]!r}" if first_line(said) else ""
    return LinkError(
        f"{place} closed the connection before its ssh banner{words}",
        "the server may have too many connections under way (MaxStartups) or refuse this address for a while; "
        "the agent tries again by itself",
    )


def not_ssh(place: str, said: str) -> LinkError:
    return LinkError(f"what listens at {place} is not ssh: {first_line(said)[:SHOWN]!r}", "check the port")


def no_common_ground(place: str, why: str) -> AccessError:
    return AccessError(f"{place} and this machine have no way to encrypt in common: {why}", "try `--ssh openssh`")


def unknown_key(place: str, kind: str, fingerprint: str) -> AccessError:
    return AccessError(
        f"{place} is not known here; its host key is {kind} {fingerprint}",
        "compare that with the server's (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` there), then join with "
        "`--accept-new-host-key`",
    )


def changed_key(place: str, kind: str, fingerprint: str, known: str, where: str) -> AccessError:
    return AccessError(
        f"the host key of {place} has changed: it shows {kind} {fingerprint}, {where} has {known}",
        f"if the server was really made anew, remove its old key from {where.partition(' ')[0]} and join again; "
        "if not, somebody is in between",
    )


def revoked_key(place: str, fingerprint: str, where: str) -> AccessError:
    return AccessError(f"the host key {fingerprint} of {place} is revoked in {where}", "ask whoever runs the server")


def not_let_in(
    place: str, user: str, tried: Sequence[str], notes: Sequence[str] = (), public: str = "", banner: str = ""
) -> AccessError:
    """`public`: a line for authorized_keys; `banner`: what the server said before it refused."""
    if _NO_ACCOUNT.search(banner):
        return no_account(place, first_line(banner))
    shown = ", ".join(tried) if tried else "there was none to try"
    key = (
        f"this line: {public}"
        if public
        else "the line that `ssh-keygen -t ed25519` leaves in ~/.ssh/id_ed25519.pub here"
    )
    hint = (
        f"add to ~/.ssh/authorized_keys of {user} there {key} (or name another key with IdentityFile); if it is there, "
        "`ls -ld ~ ~/.ssh ~/.ssh/authorized_keys` there: none may be writable for group or others, which `coordinator "
        "serve` says too; sshd says why in its log: `sudo journalctl -u ssh`, or /var/log/auth.log"
    )
    return AccessError(f"{place} does not let {user} in with the keys of this machine: {shown}", _noted(hint, notes))


def too_many_keys(place: str, user: str, tried: Sequence[str]) -> AccessError:
    return AccessError(
        f"{place} gave up on {user} after {len(tried)} keys: {', '.join(tried)}",
        "name the right one: `IdentityFile` and `IdentitiesOnly yes` in ~/.ssh/config",
    )


def locked_key(place: str, path: str) -> AccessError:
    return AccessError(
        f"{place} wants a key, and {path} has a passphrase", f"`ssh-add {path}`, or join once from a terminal"
    )


def other_ways(place: str, user: str, ways: Sequence[str]) -> AccessError:
    return AccessError(
        f"{place} lets {user} in by {', '.join(ways)} only, not by a key alone",
        "join with `--ssh openssh`, which can do that from a terminal, or allow publickey there",
    )


def no_session(place: str, why: str) -> AccessError:
    return AccessError(
        f"{place} allows no command to be run: {why}", "allow sessions there (MaxSessions in sshd_config)"
    )


def broken(place: str, why: str) -> LinkError:
    return LinkError(f"the connection to {place} broke: {why}")


def no_command(place: str, command: str, words: str) -> NoCommandError:
    said = f" ({first_line(words)[:SHOWN]})" if words else ""
    hint = MOVED_HINT if _MOVED.search(words) else NoCommandError.default_hint
    return NoCommandError(f"{place} has no {command!r}{said}", hint)


def ended(place: str, command: str, status: int | None, words: str, cut: bool) -> MusterError:
    """Why a channel's far end ended, from its exit status and what it printed on stderr."""
    ours = our_error(words)
    if ours and status == RefusedError.exit_code:
        return AccessError(*ours)
    if ours:
        return LinkError(f"{place}: {ours[0]}", ours[1])
    if _NO_ACCOUNT.search(words):
        return no_account(place, last_line(words))
    if _NO_SPACE.search(words):
        return SpaceError(f"{place} has no room: {last_line(words)}", "make room on the server's disk")
    if not cut and is_no_command(status, words):
        return no_command(place, command, last_line(words))
    if status in (None, 0):
        hint = None if cut or words.strip() else SHELL_HINT.format(place.partition(" ")[0])
        return LinkError(f"{place} closed the channel{' within a message' if cut else ''}{_said(words)}", hint)
    hint = None if words.strip() else SHELL_HINT.format(place.partition(" ")[0])
    return LinkError(f"{command!r} on {place} ended with {_status(status)}{_said(words)}", hint)


def noisy(place: str, noise: str) -> MusterError:
    """Why text came where the first message should be: a profile that prints, or an account without a shell."""
    line = first_line(noise)[:SHOWN]
    if _NO_ACCOUNT.search(noise):
        return no_account(place, line)
    return ProtocolError(
        f"{place} printed {line!r} before the first message",
        "keep the shell's startup files there (.bashrc, .profile, config.fish) silent without a terminal",
    )


def no_account(place: str, line: str) -> AccessError:
    return AccessError(
        f"the account on {place} may not run commands: {line[:SHOWN]!r}",
        "join as a user with a shell there; where it says that the system is starting or going down, wait for it",
    )


def is_no_command(status: int | None, words: str) -> bool:
    """Each shell has its own status and words for it."""
    if status in NO_COMMAND_STATUSES:
        return True
    return bool(status) and _NO_COMMAND.search(last_line(words)) is not None


def hint_at(error: MusterError, notes: Sequence[str]) -> MusterError:
    """The same error, its hint naming what only the system's ssh can do and this machine's configuration asks for."""
    return type(error)(error.message, _noted(error.hint, notes))


def _noted(hint: str, notes: Sequence[str]) -> str:
    return f"{hint}; `--ssh openssh` knows {', '.join(notes)}, which are used here" if notes else hint


def _status(status: int | None) -> str:
    return f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"


def _said(words: str) -> str:
    return f": {last_line(words)}" if words.strip() else ""
