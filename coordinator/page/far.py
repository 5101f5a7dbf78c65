"""The page of a farm behind ssh: served there, read here through a tunnel of the system's own ssh. Keeps nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec

from muster.coordinator.client.backends.ssh import Ssh, SshTalk
from muster.coordinator.page.guard import SECRET
from muster.coordinator.page.server import LOOPBACK, Place, listen
from muster.jobs.common.errors import LinkError, ProtocolError, RefusedError

LINE_LIMIT = 4096
FIRST_SECONDS = 60.0  # for the far page's first line
PORTS = (20_000, 32_000)  # below those that kernels give out
TRIES = 3


class Told(msgspec.Struct, frozen=True):
    """What the far page says first."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    secret: Annotated[str, msgspec.Meta(max_length=64)]


@contextmanager
def page_of(ssh: Ssh, port: int | None) -> Iterator[tuple[Place, SshTalk]]:
    """Where it is to be read on this machine, for as long as the connection holds."""
    ssh.find()
    for left in reversed(range(TRIES)):
        here, there = _free(port), PORTS[0] + secrets.randbelow(PORTS[1] - PORTS[0])
        ways = f"-o ClearAllForwardings=no -o ExitOnForwardFailure=yes -L {LOOPBACK}:{here}:{LOOPBACK}:{there}"
        words = ("page", "--json", "--until-eof", "--port", str(there))
        try:
            with ssh.talk(*words, options=ways.split()) as talk:
                yield Place(here, _told(talk, ssh).secret), talk
                return
        except RefusedError:  # its port is another's
            if not left:
                raise


def _free(port: int | None) -> int:
    """A port of this machine: ssh is to listen there."""
    with listen(port) as found:
        return int(found.getsockname()[1])


def _told(talk: SshTalk, ssh: Ssh) -> Told:
    line = next(talk.lines(LINE_LIMIT, FIRST_SECONDS), b"")
    if not line:
        raise LinkError(f"no page was started on {ssh}")
    try:
        told = msgspec.json.decode(line, type=Told)
    except msgspec.DecodeError:
        raise ProtocolError(f"{ssh} printed {line[:80]!r} where the page's address should be") from None
    if not SECRET.fullmatch(told.secret):
        raise ProtocolError(f"{ssh} gave no secret for its page")
    return told


def follow(talk: SshTalk) -> None:
    """Until the connection ends."""
    for _ in talk.lines(LINE_LIMIT, FIRST_SECONDS):
        pass
