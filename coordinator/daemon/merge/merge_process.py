"""The merge helper: a process that merges the layers it is told to, one at a time, and decides nothing.

Orders come as frames on stdin, one reply to each goes to stdout. It ends with its stdin, in the middle of a merge too:
whatever it wrote is in a tmp folder of a boot that is over.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import traceback
from pathlib import Path

import msgspec

from muster.coordinator.api.process_messages import MergeOrder, MergeReply
from muster.coordinator.protocol.frames import FrameReader, frame
from muster.jobs.common.durable import is_full, write_all
from muster.jobs.common.logs import open_log
from muster.jobs.contract.text_limits import EVIDENCE_CHARS, MESSAGE_CHARS

log = logging.getLogger("muster.merge")

READ_BYTES = 1 << 16
MISSING_TOLD = 100_000  # ranges in one reply, which is a frame; the next merge tells of more


def main() -> int:
    if len(sys.argv) > 1:
        open_log(Path(sys.argv[1]))
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    while True:
        write_all(sys.stdout.fileno(), answer(orders.get()))


def answer(raw: bytes) -> bytes:
    """The reply to an order, as a frame. Nothing that goes wrong with one order ends the helper."""
    try:
        return frame(msgspec.msgpack.encode(carry_out(msgspec.msgpack.decode(raw, type=MergeOrder))))
    except Exception as error:
        log.exception("a merge ended with an exception")
        return frame(msgspec.msgpack.encode(_unforeseen(error)))


def _unforeseen(error: Exception) -> MergeReply:
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    why = "memory is short" if isinstance(error, MemoryError) else type(error).__name__
    return MergeReply(message=f"{why}: {str(error)[:MESSAGE_CHARS]}", evidence=told[-EVIDENCE_CHARS:])


def _read(orders: queue.SimpleQueue[bytes]) -> None:
    """Orders from stdin; its end is ours."""
    reader = FrameReader()
    try:
        while data := os.read(sys.stdin.fileno(), READ_BYTES):
            for payload in reader.feed(data):
                orders.put(payload)
    finally:
        os._exit(0)


def carry_out(order: MergeOrder) -> MergeReply:
    from muster.jobs.common.errors import MusterError, SpaceError
    from muster.jobs.common.hashing import of_bytes
    from muster.jobs.parts.manifest import encode_manifest
    from muster.jobs.results.merge import DamagedBundle, Incomplete, merge_layer
    from muster.jobs.results.outputs import SumTooLarge
    from muster.jobs.results.result_formats import Collision

    folder = Path(order.folder)
    try:
        folder.mkdir(parents=True)
        items = Path(order.items) if order.items else None
        bundles = [Path(bundle) for bundle in order.bundles]
        merged = merge_layer(order.layer, bundles, folder, job=order.job, items=items, since=order.since)
    except Incomplete as error:
        return MergeReply(missing=error.missing.pairs()[:MISSING_TOLD], message=str(error))
    except DamagedBundle as error:
        return MergeReply(damaged=str(error.path), message=str(error))
    except SpaceError as error:
        return MergeReply(full=True, message=error.message)
    except (Collision, SumTooLarge) as error:
        return MergeReply(hopeless=True, message=error.message)
    except (MusterError, OSError) as error:
        return MergeReply(full=isinstance(error, OSError) and is_full(error), message=str(error))
    return MergeReply(nbytes=merged.nbytes, manifest=of_bytes(encode_manifest(merged)))
