"""What a search keeps on disk, and what it says where that is not what it wrote."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import xxhash

from muster.jobs.common.errors import DamagedError, NotFoundError
from muster.jobs.tuning.journal import Journal, SearchHead, adopted, recalled
from muster.jobs.tuning.params import TuneParams
from muster.jobs.tuning.summary import summarised, trials_csv, trials_of
from muster.jobs.tuning.trials import Segment

PARAMS = TuneParams({"lr": {"uniform": [0, 1]}}, "accuracy", trials=3, stop={"iterations": 2, "accuracy": 0.9})
STATES = {xxhash.xxh3_128_hexdigest(raw): raw for raw in (b"one", b"two")}
ONE, TWO = STATES


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "checkpoints")
    made.begin(SearchHead(PARAMS, 3, 20))
    done = Segment(0, 0, 2, [{"accuracy": 0.5}] * 2, [1.0, 2.0], "iterations", state=ONE, state_bytes=3, at=4.0)
    made.append([done], STATES)
    good = Segment(1, 0, 2, [{"accuracy": 0.95}], [1.0], "target", state=TWO, state_bytes=3, at=5.0)
    bad = Segment(2, 0, 2, [{"accuracy": math.nan}], [1.0], "diverged", at=6.0)
    made.append([good, bad], {})
    return made


def test_what_was_written_is_what_comes_back(journal: Journal) -> None:
    again = Journal(journal.folder)
    assert len(again) == 2 and [one.trial for one in again.segments()] == [0, 1, 2]
    assert again.state(ONE) == b"one"
    again.keep({TWO})
    assert Journal(journal.folder).states() == {TWO: b"two"}
    found = summarised(recalled(journal.folder), cpus=2)
    assert (found.reached, found.diverged, found.iterations, found.fifo_iterations) == (1, 1, 4, 6)
    assert (found.seconds_to_target, found.core_seconds, found.tuning_ratio) == (5.0, 10.0, 1.0)
    assert found.best is not None and found.best.trial == 1


def test_tables_have_the_best_first_and_nan_is_told_as_it_is(journal: Journal) -> None:
    search = recalled(journal.folder)
    lines = trials_csv(search).splitlines()
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["1", "target", "1", "0.95"],
        ["0", "done", "2", "0.5"],
        ["2", "diverged", "1", "nan"],
    ]
    assert trials_of(search)[2].metrics == {"accuracy": None}


def test_a_file_that_is_not_what_was_written_is_named(journal: Journal) -> None:
    (journal.folder / f"{ONE}.state").write_bytes(b"other")
    with pytest.raises(DamagedError, match="do not match its name"):
        journal.state(ONE)
    (journal.folder / "00000001.segments").write_bytes(b"\xc1")
    with pytest.raises(DamagedError, match=r"00000001\.segments"):
        journal.segments()
    with pytest.raises(NotFoundError, match="has not begun"):
        recalled(journal.folder.parent / "nothing")


def test_a_search_that_goes_on_has_what_was_done_and_more_iterations_for_those_that_are_there(journal: Journal) -> None:
    segments, states = adopted(journal.folder, TuneParams(PARAMS.space, "accuracy", stop={"iterations": 5}))
    assert [one.why for one in segments] == ["", "target", "diverged"] and states == STATES
    segments, _ = adopted(journal.folder, TuneParams(PARAMS.space, "accuracy", trials=9, stop={"iterations": 2}))
    assert segments[0].why == "iterations"
    journal.keep({TWO})
    segments, _ = adopted(journal.folder, TuneParams(PARAMS.space, "accuracy", stop={"iterations": 5}))
    assert segments[0].why == "iterations"
    with pytest.raises(DamagedError, match=r"params\.seed is not that of"):
        adopted(journal.folder, TuneParams(PARAMS.space, "accuracy", seed=1))


def test_what_was_added_to_a_search_is_in_the_one_that_goes_on_from_it(journal: Journal) -> None:
    search = recalled(journal.folder)
    new = search.added(0, {"lr": 0.25}, 7.0)
    journal.append([new], {})
    done = Segment(3, 0, 2, [{"accuracy": 0.7}], [1.0], state=ONE, state_bytes=3)
    journal.append([done], {})
    for params in (PARAMS, msgspec.structs.replace(PARAMS, trials=5)):
        again = SearchHead(msgspec.structs.replace(params, extends="job.1"), 3, 20).search
        segments, _ = adopted(journal.folder, again.params)
        assert all(again.commit(one) for one in segments)
        assert again.config(3) == {"lr": 0.25} and again.table.trials[3].iterations == 1
        assert again.table.count == max(4, params.trials or 0)
        assert (3, 2) in again.orders((), 9)


def test_a_trial_that_waits_is_in_the_table(journal: Journal) -> None:
    journal.append([recalled(journal.folder).added(0, {"lr": 0.25}, 7.0)], {})
    search = recalled(journal.folder)
    assert trials_csv(search).splitlines()[-1] == "3,waiting,0,,0.25,"
    assert summarised(search).tried == 3 and trials_of(search)[-1].state == "waiting"
