"""The digest of a file's bytes, as manifests, models, uploads and plans are held to. Reads a megabyte at a time."""

from __future__ import annotations

import os

import xxhash

CHUNK = 1 << 20


def of_file(fd: int) -> str:
    """xxh3_128 of a whole open file, in hex; where it stands does not matter."""
    digest, offset, room = xxhash.xxh3_128(), 0, memoryview(bytearray(CHUNK))
    while count := os.preadv(fd, [room], offset):
        digest.update(room[:count])
        offset += count
    return digest.hexdigest()


def of_bytes(raw: bytes) -> str:
    """The same of a file that has been read."""
    return xxhash.xxh3_128_hexdigest(raw)
