"""The work that all of the arena do, item by item; of every execution it notes when it began and when it ended.

It imports nothing of ours, so that it runs as it is in every system: `python item.py NUMBER` writes the item's block.
"""

import hashlib
import os
import sys
import time

RECORD = "ARENA_RECORD"  # names the file that executions are noted in
BLOCK_BYTES = 1 << 16


def block_of(number: int) -> bytes:
    """What the item gives, whoever computes it."""
    return hashlib.shake_256(str(number).encode()).digest(BLOCK_BYTES)


def seconds_of(number: int) -> float:
    """How long the item takes: from 0.1 to 0.2 s, without need of a processor."""
    return 0.1 + number * 37 % 100 / 1000


def work(number: int) -> bytes:
    _note("began", number)
    time.sleep(seconds_of(number))
    block = block_of(number)
    _note("ended", number)
    return block


def _note(what: str, number: int) -> None:
    """One write to a file opened for appending: lines of many processes do not mix."""
    record = os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(record, f"{what} {number} {os.getpid()}\n".encode())
    finally:
        os.close(record)


if __name__ == "__main__":
    sys.stdout.buffer.write(work(int(sys.argv[1])))
