"""The merge helper: a process that merges the layers it is told to, one at a time, and decides nothing.

Orders come as frames on stdin, one reply to each goes to stdout. It ends with its stdin, in the middle of a merge too:
whatever it wrote is in a tmp folder of a boot that is over.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from pathlib import Path

import msgspec

from coordinator.protocol.frames import FrameReader, frame
from jobs.model import Layer

READ_BYTES = 1 << 16


class MergeOrder(msgspec.Struct, frozen=True):
    """Merge these bundles into `folder`."""

    job: str
    layer: Layer
    bundles: list[str]
    folder: str
    items: str = ""  # the layer's list, where it has one


class MergeReply(msgspec.Struct, frozen=True):
    """What came of an order: merged where all else is empty."""

    nbytes: int = 0
    damaged: str = ""  # the bundle that failed its digest
    missing: list[tuple[int, int]] = []
    full: bool = False
    hopeless: bool = False  # it would fail again and again: what the shards gave does not merge
    message: str = ""


def main() -> int:
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    while True:
        order = msgspec.msgpack.decode(orders.get(), type=MergeOrder)
        os.write(sys.stdout.fileno(), frame(msgspec.msgpack.encode(carry_out(order))))


def _read(orders: queue.SimpleQueue[bytes]) -> None:
    """Orders from stdin; its end is ours."""
    reader = FrameReader()
    while data := os.read(sys.stdin.fileno(), READ_BYTES):
        for payload in reader.feed(data):
            orders.put(payload)
    os._exit(0)


def carry_out(order: MergeOrder) -> MergeReply:
    from jobs.errors import MusterError, SpaceError
    from jobs.manifest import read_manifest
    from jobs.merge import DamagedBundle, Incomplete, merge_layer
    from jobs.outputs import SumTooLarge
    from jobs.products import Collision

    folder = Path(order.folder)
    try:
        folder.mkdir(parents=True)
        items = Path(order.items) if order.items else None
        merge_layer(order.layer, [Path(bundle) for bundle in order.bundles], folder, job=order.job, items=items)
    except Incomplete as error:
        return MergeReply(missing=error.missing.pairs(), message=str(error))
    except DamagedBundle as error:
        return MergeReply(damaged=str(error.path), message=str(error))
    except SpaceError as error:
        return MergeReply(full=True, message=error.message)
    except (Collision, SumTooLarge) as error:
        return MergeReply(hopeless=True, message=error.message)
    except (MusterError, OSError, ValueError) as error:
        return MergeReply(message=str(error) or type(error).__name__)
    return MergeReply(nbytes=read_manifest(folder).nbytes)
