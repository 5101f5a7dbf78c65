"""Questions to a coordinator that want no job and no session: does it answer, how soon, how fast."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from muster.agent.links.base import Channel
from muster.coordinator.protocol.control import Bye, Rejected
from muster.coordinator.protocol.transfer import Probe, Refused, Sending, Sent, ToPuller
from muster.coordinator.protocol.values import PROBE_LIMIT, Decoder
from muster.jobs.common.errors import LinkError, NoDaemonError, ProtocolError, RefusedError

ANSWER_SECONDS = 30.0
BYTE_SECONDS = 30.0  # without any byte of those that are on their way
PINGS = 5
FIRST_BYTES = 256 << 10  # then four times as many, until a run lasts long enough
LONG_ENOUGH_SECONDS = 1.0

_decode = Decoder(ToPuller)


def round_trip(channel: Channel) -> float:
    """Seconds from here to the coordinator and back: the shortest of a few."""
    return min(probe(channel, 0) for _ in range(PINGS))


def rate(channel: Channel) -> tuple[int, float]:
    """Bytes that came, and in how many seconds."""
    for nbytes in _sizes():
        seconds = probe(channel, nbytes)
        if seconds >= LONG_ENOUGH_SECONDS:
            break
    return nbytes, max(seconds, 1e-6)


def probe(channel: Channel, nbytes: int, name: str = "") -> float:
    """Seconds until so many bytes have come."""
    begun = time.monotonic()
    with suppress(LinkError):  # a helper that ended already has said why
        channel.say(Probe(nbytes, name))
    match channel.hear(_decode, ANSWER_SECONDS):
        case Sending(coming) if coming == nbytes:
            for _ in channel.pieces(nbytes, BYTE_SECONDS):
                pass
        case Bye(reason):
            raise NoDaemonError(reason)
        case Rejected(_, message, hint):
            raise RefusedError(message, hint or None)
        case Refused(_, _, message):
            raise RefusedError(message)
        case answer:
            raise ProtocolError(f"{answer!r:.200} is no answer to a probe of {nbytes} bytes")
    if not isinstance(channel.hear(_decode, ANSWER_SECONDS), Sent):
        raise ProtocolError("the end of a probe was something else")
    return time.monotonic() - begun


def _sizes() -> Iterator[int]:
    nbytes = FIRST_BYTES
    while nbytes < PROBE_LIMIT:
        yield nbytes
        nbytes *= 4
    yield PROBE_LIMIT
