"""Whether a Ray answers somebody who has no token: one question to its gcs, in the bytes of gRPC. Does not import ray.

Ray's own clients have one token for a whole process, and so cannot ask as a stranger. Takes a millisecond.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import BinaryIO

SECONDS = 10.0  # for each read: it answers at once or is no Ray of ours
QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"  # what every client asks first; it has no arguments
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME = struct.Struct(">BHBBI")  # length in 24 bits, type, flags, stream
DATA, HEADERS, RESET, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
STREAM = 1
EMPTY_MESSAGE = bytes(5)  # not compressed, of no bytes


def answers(address: str, token: str = "", tls: ssl.SSLContext | None = None) -> bool:
    """Whether the gcs at `address`, host:port, answers whoever has this token, or none."""
    with _connected(address, tls) as sock:
        sock.sendall(PREFACE + _frame(SETTINGS, 0, 0) + _question(token))
        with sock.makefile("rb") as stream:
            return _is_answered(stream)


def wants_tls(address: str) -> bool:
    """Whether whoever is there shakes hands by TLS, with somebody who shows and checks nothing."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    try:
        _connected(address, tls).close()
    except OSError:
        return False
    return True


def _connected(address: str, tls: ssl.SSLContext | None) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    sock = socket.create_connection((host, int(port)), SECONDS)
    return sock if tls is None else tls.wrap_socket(sock, server_hostname=host)


def _question(token: str) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", QUESTION),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    if token:
        fields.append(("authorization", f"Bearer {token}"))
    headers = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
    return _frame(HEADERS, END_HEADERS, STREAM, headers) + _frame(DATA, END_STREAM, STREAM, EMPTY_MESSAGE)


def _text(text: str) -> bytes:
    """As HPACK has it where it is not compressed; of fewer than 127 characters."""
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return FRAME.pack(len(body) >> 16, len(body) & 0xFFFF, kind, flags, stream) + body


def _is_answered(stream: BinaryIO) -> bool:
    """An answer has a message; a refusal has headers alone."""
    while len(head := stream.read(FRAME.size)) == FRAME.size:
        high, low, kind, flags, number = FRAME.unpack(head)
        body = stream.read(high << 16 | low)
        if number == STREAM and kind == DATA and body:
            return True
        ended = number == STREAM and kind in (DATA, HEADERS) and flags & END_STREAM
        if ended or kind in (RESET, GOAWAY):
            return False
    return False
