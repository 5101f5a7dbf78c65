"""When a layer that did not merge is tried again, and when no more."""

from __future__ import annotations

from pathlib import Path

from muster.coordinator.api.process_messages import MergeReply
from muster.coordinator.daemon.merge.queue import PAUSE_LIMIT_SECONDS, QueuedMerge
from tests.support.shards import layer_of


async def none() -> None:
    return None


async def settled(reply: MergeReply, folder: Path, seconds: float) -> bool:
    return True


def order() -> QueuedMerge:
    return QueuedMerge("j.1", layer_of(1, 1), none, settled)


def test_pauses_grow_up_to_a_limit() -> None:
    one = order()
    pauses = [one.put_off(MergeReply(message=str(number))) for number in range(10)]
    assert pauses == sorted(pauses) and pauses[0] < pauses[1] and pauses[-1] == PAUSE_LIMIT_SECONDS


def test_failures_alike_are_counted_and_a_full_disk_is_none() -> None:
    one = order()
    counted = []
    for reply in (
        [MergeReply(message="a")] * 3 + [MergeReply(message="b")] * 2 + [MergeReply(message="b", full=True)] * 9
    ):
        one.put_off(reply)
        counted.append(one.equal)
    assert counted == [1, 2, 3, 1, 2] + [0] * 9
    assert one.why == "b"
    one.put_off(MergeReply(message="b"))
    assert one.equal == 1
