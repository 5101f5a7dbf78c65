"""The round helper: what shards of rounds read, to an agent that follows them. The daemon names each file, not we."""

from __future__ import annotations

import os

from muster.coordinator.connect.serve_pull import PullAsked, RowsTaker
from muster.coordinator.protocol.control import Bye, Rejected
from muster.coordinator.protocol.transfer import Follow, FromFollower, Laid, NotYet, Refused, Sheet
from muster.coordinator.protocol.values import Decoder, Message

_from_agent = Decoder(FromFollower)
_from_daemon = Decoder(Laid | NotYet | Refused | Rejected | Bye)


def send_sheets(agent: RowsTaker, daemon: PullAsked) -> None:
    """One question after another, until the agent closes."""
    while (payload := agent.read_frame()) is not None:
        wanted = _from_agent(payload)
        assert isinstance(wanted, Follow)
        said = _from_daemon(daemon.ask(payload))
        if isinstance(said, Laid):
            _send(agent, said)
        else:
            agent.send(said)


def _send(agent: RowsTaker, laid: Laid) -> None:
    """Sheets are written once, under another name first: what is there is whole, and stays so while it is open."""
    try:
        fd = os.open(laid.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        agent.send(Refused("changed", [], f"{laid.path}: {error.strerror}"))
        return
    try:
        left, offset = os.fstat(fd).st_size, 0
        agent.send(_head(laid, left))
        while left:
            sent = agent.send_file(fd, offset, left)
            offset, left = offset + sent, left - sent
    finally:
        os.close(fd)


def _head(laid: Laid, nbytes: int) -> Message:
    return Sheet(laid.sheet, nbytes, laid.base)
