"""What `explain` and `logs` remember: the chronicle is bounded, and a log survives halves of lines."""

from __future__ import annotations

from pathlib import Path

from muster.coordinator.daemon.views.shard_history import ShardHistory
from muster.coordinator.farm_root import printed_log
from muster.coordinator.farm_root.printed_log import Saying
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.text_limits import LOG_BYTES


def test_a_shards_story_is_what_names_it_in_order() -> None:
    shard_history = ShardHistory()
    shard_history.note("granted", "L", "a", RangeSet([(0, 10)]), 1, 1)
    shard_history.note("granted", "M", "a", RangeSet([(0, 10)]), 1, 2)
    shard_history.note("lost", "L", "a", [(3, 5)], 1, 1, "killed")
    assert [entry.what for entry in shard_history.of("L", 3)] == ["granted", "lost"]
    assert [entry.what for entry in shard_history.of("L", 5)] == ["granted"]


def test_it_forgets_the_oldest_and_says_since_when_it_knows() -> None:
    shard_history = ShardHistory(limit=10)
    for number in range(20):
        shard_history.note("granted", "L", "a", [(number, number + 1)], 1, number)
    assert not shard_history.of("L", 9) and shard_history.of("L", 10)
    assert shard_history.since <= shard_history.of("L", 10)[0].when
    shard_history.note_parting("a", "gone")
    assert [one.state for one in shard_history.partings("a", 0.0)] == ["gone"]


def test_what_was_printed_is_read_from_where_one_left_off(tmp_path: Path) -> None:
    log = tmp_path / "printed.log"
    assert list(printed_log.read(log)) == []
    printed_log.append(log, [Saying(1.0, "a", "conv1", 3, 1, 2, "hello\n\u2028there")])
    [(place, one)] = printed_log.read(log)
    assert (one.text, one.run) == ("hello\n\u2028there", ("conv1", 3, 1, 2))
    with log.open("ab") as file:
        file.write(b'{"half\n')
    printed_log.append(log, [Saying(2.0, "a", left_out=7)])
    assert [one.left_out for _, one in printed_log.read(log, place)] == [7]
    with log.open("ab") as file:
        file.write(b'{"when": 3')
    assert len(list(printed_log.read(log))) == 2, "a line that is still being written waits"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_is_full_takes_no_more(tmp_path: Path) -> None:
    log = tmp_path / "printed.log"
    log.touch()
    with log.open("ab") as file:
        file.truncate(LOG_BYTES)
    printed_log.append(log, [Saying(1.0, "a", text="more")])
    assert log.stat().st_size == LOG_BYTES and printed_log.is_full(log)
