"""What a search keeps on disk, and what it says where that is not what it wrote."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

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
    made.begin(SearchHead(PARAMS, cpus=2))
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
    found = summarised(recalled(journal.folder))
    assert (found.reached, found.diverged, found.iterations, found.fifo_iterations) == (1, 1, 4, 4)
    assert (found.seconds_to_target, found.core_seconds, found.tuning_ratio) == (5.0, 10.0, 1.0)
    assert found.best is not None and found.best.number == 1 and not found.best.curve


def test_a_scheduler_saves_what_waits_at_its_rungs_and_not_what_ended_by_itself() -> None:
    params = {"space": PARAMS.space, "metric": "accuracy", "trials": 9, "stop": {"iterations": 9, "accuracy": 0.9}}
    for scheduler, whole in (("fifo", 13), ("halving", 13 + 8 * 8)):
        search = SearchHead(TuneParams(**params, scheduler=scheduler)).search  # type: ignore[arg-type]
        for trial in range(8):
            search.commit(Segment(trial, 0, 1, [{"accuracy": 0.5}], [1.0], state=ONE))
        search.commit(Segment(8, 0, 9, [{"accuracy": 0.95}] * 5, [1.0] * 5, "target", state=TWO))
        found = summarised(search)
        assert (found.iterations, found.fifo_iterations) == (13, whole)


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
    longer = changed(stop={"iterations": 5, "accuracy": 0.9})
    segments, states = adopted(journal.folder, longer)
    assert [one.why for one in segments] == ["", "target", "diverged"] and states == STATES
    assert [one.why for one in adopted(journal.folder, changed(trials=9))[0]] == ["iterations", "target", "diverged"]
    journal.keep({TWO})
    assert adopted(journal.folder, longer)[0][0].why == "iterations"
    with pytest.raises(DamagedError, match=r"params\.seed is not that of"):
        adopted(journal.folder, changed(seed=1))
    with pytest.raises(DamagedError, match=r"params\.trials: 2 trials, and job\.1 has 3"):
        adopted(journal.folder, changed(trials=2))


def changed(**more: Any) -> TuneParams:
    return msgspec.structs.replace(PARAMS, extends="job.1", **more)


@pytest.mark.parametrize(
    ("stop", "verdicts"),
    [
        ({"iterations": 2, "accuracy": 0.99}, ["iterations", "", "diverged"]),
        ({"iterations": 9}, ["", "", "diverged"]),
        ({"iterations": 1}, ["iterations", "iterations", "diverged"]),
        ({"iterations": 2, "accuracy": 0.4}, ["target", "target", "diverged"]),
        ({"iterations": 9, "seconds": 2.5}, ["seconds", "", "diverged"]),
        ({"iterations": 9, "plateau": {"iterations": 1}}, ["plateau", "", "diverged"]),
    ],
)
def test_trials_of_a_search_that_goes_on_are_judged_by_what_ends_them_now(
    journal: Journal, stop: dict[str, Any], verdicts: list[str]
) -> None:
    assert [one.why for one in adopted(journal.folder, changed(stop=stop))[0]] == verdicts
    journal.keep({})
    lost = ["iterations" if why == "" else why for why in verdicts]
    assert [one.why for one in adopted(journal.folder, changed(stop=stop))[0]] == lost


def test_what_waits_at_a_rung_or_failed_is_judged_anew_too(journal: Journal) -> None:
    waits = Segment(3, 0, 1, [{"accuracy": 0.7}], [1.0], state=ONE)
    fails = [Segment(4, 0, 1, [{"accuracy": 0.6}], [1.0], state=TWO), Segment(4, 1, 2, why="failed", final=True)]
    head = journal.folder / "search.json"
    head.write_bytes(msgspec.json.encode(SearchHead(msgspec.structs.replace(PARAMS, trials=5))))
    journal.append([waits, *fails], {})
    search = SearchHead(changed(trials=5, stop={"iterations": 4, "accuracy": 0.65})).search
    assert all(search.commit(one) for one in adopted(journal.folder, search.params)[0])
    assert {number: trial.why for number, trial in search.table.trials.items() if number > 2} == {3: "target", 4: ""}
    assert (4, 4) in search.orders((), 9) and search.table.failed == 0
    journal.keep({ONE})
    again = SearchHead(search.params).search
    assert all(again.commit(one) for one in adopted(journal.folder, search.params)[0])
    assert again.table.trials[4].why == "failed"


def test_what_was_added_to_a_search_is_in_the_one_that_goes_on_from_it(journal: Journal) -> None:
    search = recalled(journal.folder)
    new = search.added(0, {"lr": 0.25}, 7.0)
    journal.append([new], {})
    done = Segment(3, 0, 2, [{"accuracy": 0.7}], [1.0], state=ONE, state_bytes=3)
    journal.append([done], {})
    for params in (PARAMS, msgspec.structs.replace(PARAMS, trials=5)):
        again = SearchHead(msgspec.structs.replace(params, extends="job.1")).search
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
