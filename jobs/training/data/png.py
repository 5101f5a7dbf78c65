"""A PNG of 8-bit colours as an array: what CIFAR-10 comes in. Reads no other kind of PNG."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MAGIC = b"\x89PNG\r\n\x1a\n"
CHANNELS = 3


def read(raw: bytes) -> Array:
    """(height, width, 3) as uint8. ValueError says what is not as expected."""
    width, height, packed = _chunks(raw)
    lines = zlib.decompressobj().decompress(packed, height * (1 + width * CHANNELS) + 1)
    if len(lines) != height * (1 + width * CHANNELS):
        raise ValueError("a PNG with too few or too many pixels")
    table = np.frombuffer(lines, np.uint8).reshape(height, -1)
    found = np.zeros((height + 1, width, CHANNELS), np.uint8)
    for number, line in enumerate(table):
        found[number + 1] = _unfiltered(int(line[0]), line[1:].reshape(width, CHANNELS), found[number])
    return found[1:]


def _chunks(raw: bytes) -> tuple[int, int, bytes]:
    """Width, height and the packed pixels."""
    if not raw.startswith(MAGIC) or raw[12:16] != b"IHDR":
        raise ValueError("not a PNG")
    width, height, *form = struct.unpack(">IIBBBBB", raw[16:29])
    if form != [8, 2, 0, 0, 0]:
        raise ValueError(f"a PNG of form {form}, expected 8-bit colours without interlace")
    at, packed = len(MAGIC), []
    while at + 8 <= len(raw):
        length, name = struct.unpack(">I4s", raw[at : at + 8])
        if name == b"IDAT":
            packed.append(raw[at + 8 : at + 8 + length])
        at += 12 + length
    return width, height, b"".join(packed)


def _unfiltered(way: int, line: Array, above: Array) -> Array:
    """One line's pixels; sums are modulo 256."""
    if way == 0:
        return line
    if way == 1:
        return line.cumsum(axis=0, dtype=np.uint8)
    if way == 2:
        return line + above
    if way == 3:
        return _one_by_one(line, above, lambda left, up, _: (left + up) // 2)
    if way == 4:
        return _one_by_one(line, above, _paeth)
    raise ValueError(f"a PNG line filtered in way {way}")


def _one_by_one(line: Array, above: Array, guess: Any) -> Array:
    found = np.empty_like(line)
    for channel in range(line.shape[1]):
        left = corner = 0
        given, upper = line[:, channel].tolist(), above[:, channel].tolist()
        for at, up in enumerate(upper):
            left = (given[at] + guess(left, up, corner)) % 256
            found[at, channel] = left
            corner = up
    return found


def _paeth(left: int, up: int, corner: int) -> int:
    """Of the three, the one nearest to left + up - corner."""
    far = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    return (left, up, corner)[far.index(min(far))]
