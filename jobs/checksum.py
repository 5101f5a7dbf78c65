"""The digest of a file's bytes, as manifests, models and uploads name it. Reads all of it, a megabyte at a time."""

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
