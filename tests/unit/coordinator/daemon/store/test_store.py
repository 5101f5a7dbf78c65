"""The store: counting is exact, a batch is one transaction, a bad statement spoils no other, a full disk only waits."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.daemon.store.statements import AlreadyCommitted, LayerGone, OtherKernels, Store
from muster.coordinator.daemon.store.thread import StoreThread
from muster.coordinator.protocol.control import Failure
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Output

A, B, PLAN = "a" * 32, "b" * 32, "c" * 32
OUTPUTS = (Output("centers", "rows", "<f4", (4,)),)
DEADLINE_SECONDS = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "state.sqlite")
    yield made
    made.close()


def job_in(store: Store, name: str = "job", ready: bool = True) -> str:
    job = store.add_job(name, [(A, 10), (B, 20)], 1, 5.0, PLAN)
    if ready:
        store.set_ready(job)
    return job


def commit(store: Store, job: str, file: str, *numbers: int, layer: str = A, kernels: str | None = None) -> None:
    store.commit_bundle(job, layer, file, 100, "one", 6.0, RangeSet.of(numbers), OUTPUTS, 25, kernels)


def failure(number: int, attempt: int = 1) -> Failure:
    return Failure("job.1", A, number, 1, attempt, "exception", "it broke", "a traceback", 0.5, 9)


# --- jobs ---------------------------------------------------------------------------------------------------


def test_jobs_are_numbered_by_name_and_never_again(store: Store) -> None:
    assert [job_in(store), job_in(store), job_in(store, "other")] == ["job.1", "job.2", "other.1"]
    store.remove_job("job.2")
    assert job_in(store) == "job.3"


def test_a_job_is_none_before_it_is_ready(store: Store) -> None:
    job_in(store, ready=False)
    assert store.jobs() == [] and store.half_submitted() == ["job.1"]
    store.set_ready("job.1")
    [job] = store.jobs()
    assert (job.id, job.state, [layer.digest for layer in job.layers]) == ("job.1", "running", [A, B])
    assert store.half_submitted() == []


def test_boots_are_counted_across_lives(tmp_path: Path) -> None:
    for boot in (1, 2, 3):
        store = Store(tmp_path / "state.sqlite")
        assert store.next_boot() == boot
        store.close()


def test_another_layout_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    store.db.execute("UPDATE meta SET value = 99 WHERE key = 'layout'")
    store.close()
    with pytest.raises(RefusedError, match="layout 99"):
        Store(tmp_path / "state.sqlite")


def test_removing_a_job_leaves_nothing_of_it_and_all_of_others(store: Store) -> None:
    first, second = job_in(store), job_in(store)
    for job in (first, second):
        commit(store, job, f"{job}.part", 1)
        store.add_failure(job, "one", 6.0, failure(0), quarantine=True)
    store.remove_job(first)
    assert [job.id for job in store.jobs()] == [second]
    for table in ("bundles", "shards", "failures", "quarantined"):
        assert store.db.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)


# --- committing ---------------------------------------------------------------------------------------------


def test_a_committed_shard_refuses_a_bundle_whole_and_by_name(store: Store) -> None:
    job = job_in(store)
    commit(store, job, "1.part", 0, 1, 2)
    with pytest.raises(AlreadyCommitted) as refused:
        store.db.execute("BEGIN")
        commit(store, job, "2.part", 1, 2, 3)
    store.db.execute("ROLLBACK")
    assert refused.value.numbers == RangeSet.of([1, 2])
    assert store.committed_of(job, A) == RangeSet.of([0, 1, 2])


def test_the_first_commit_of_a_job_fixes_its_kernels(store: Store) -> None:
    job, other = job_in(store), job_in(store)
    assert store.jobs()[0].kernels == ""
    commit(store, job, "1.part", 0, kernels="numpy 1, blas 2")
    with pytest.raises(OtherKernels, match="numpy 3 here, numpy 1 there"):
        store.db.execute("BEGIN")
        commit(store, job, "2.part", 1, kernels="numpy 3, blas 2")
    store.db.execute("ROLLBACK")
    commit(store, job, "3.part", 1, layer=B, kernels="numpy 1, blas 2")
    commit(store, other, "4.part", 0, kernels="numpy 3, blas 2")
    assert [one.kernels for one in store.jobs()] == ["numpy 1, blas 2", "numpy 3, blas 2"]


def test_the_same_number_of_another_layer_or_job_is_another_shard(store: Store) -> None:
    first, second = job_in(store), job_in(store)
    for job, layer in ((first, A), (first, B), (second, A)):
        commit(store, job, f"{job}-{layer}.part", 0, layer=layer)
    assert [file for _, file, _ in store.bundles_of(first)] == [f"{first}-{A}.part", f"{first}-{B}.part"]


def test_a_million_rows_come_back_as_ranges(store: Store) -> None:
    job = job_in(store)
    store.db.execute("BEGIN")
    numbers = RangeSet([(0, 40_000), (50_000, 60_000)])
    store.commit_bundle(job, A, "1.part", 1, "one", 6.0, numbers, OUTPUTS, 1, None)
    store.db.execute("COMMIT")
    [stored] = store.jobs()
    assert stored.layers[0].committed.pairs() == [(0, 40_000), (50_000, 60_000)]
    assert (stored.layers[0].outputs, stored.layers[0].out_bytes) == (OUTPUTS, 10)


def test_a_commit_to_a_job_that_is_gone_says_so(store: Store) -> None:
    with pytest.raises(LayerGone, match="no layer"):
        commit(store, "job.9", "1.part", 0)


def test_a_damaged_bundle_takes_its_rows_alone(store: Store) -> None:
    job = job_in(store)
    commit(store, job, "1.part", 0, 1)
    commit(store, job, "2.part", 2)
    assert store.forget_bundle(job, A, "1.part") == RangeSet.of([0, 1])
    assert store.committed_of(job, A) == RangeSet.of([2])
    assert [file for _, file, _ in store.bundles_of(job, A)] == ["2.part"]
    commit(store, job, "3.part", 0, 1)


def test_merged_drops_the_rows_unless_a_retry_came_between(store: Store) -> None:
    job = job_in(store)
    commit(store, job, "1.part", 0)
    assert store.discard_layer(job, A, 1) == ["1.part"]
    commit(store, job, "2.part", 0)
    assert store.set_merged(job, A, 0, "d") is None
    assert store.committed_of(job, A) == RangeSet.of([0])
    assert store.set_merged(job, A, 1, "d") == ["2.part"]
    assert store.manifests_of(job) == {A: "d"}
    [stored] = store.jobs()
    assert (stored.layers[0].state, stored.layers[0].generation) == ("merged", 1)


def test_what_is_merged_stays_so_when_a_cancel_and_a_retry_came_before_word_of_it(store: Store) -> None:
    job = job_in(store)
    commit(store, job, "1.part", 0)
    assert store.set_merged(job, A, 0, "d") == ["1.part"]
    store.set_layer(job, A, "waiting", 0)
    store.set_layer(job, A, "open", 0)
    [stored] = store.jobs()
    assert stored.layers[0].state == "merged"
    store.discard_layer(job, A, 1)
    store.set_layer(job, A, "open", 1)
    [stored] = store.jobs()
    assert stored.layers[0].state == "open"


# --- failures and agents ------------------------------------------------------------------------------------


def test_of_a_million_failures_the_newest_hundred_are_found_without_reading_the_others(store: Store) -> None:
    store.add_job("job", [(A, 1_000_000)], 1, 5.0, PLAN)
    store.add_failure("job.1", "one", 6.0, failure(0), quarantine=False)
    store.db.execute("BEGIN")
    store.db.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999999) INSERT INTO failures (layer,"
        " number, boot, attempt, agent, at, code, message, evidence, seconds, peak) SELECT (SELECT id FROM layers), i,"
        " 1, 1, 'one', 6.0 + i, 'exception', 'it broke', 'a traceback', 0.5, 9 FROM n"
    )
    store.db.execute("COMMIT")
    plans = list[str]()
    store.db.set_trace_callback(plans.append)
    total, rows = store.failures("job.1", None, None, False, 100)
    store.db.set_trace_callback(None)
    assert total == 1_000_000 and [row.number for row in rows] == list(range(999_999, 999_899, -1))
    assert store.failures("job.1", A, 7, False, 100)[0] == 1
    steps = [row[3] for said in plans for row in store.db.execute(f"EXPLAIN QUERY PLAN {said}")]
    assert steps and not [one for one in steps if one.startswith("SCAN f")], steps


def test_failures_that_are_forgotten_are_still_told(store: Store) -> None:
    job = job_in(store)
    store.add_failure(job, "one", 6.0, failure(3), quarantine=False)
    store.add_failure(job, "two", 7.0, failure(3, 2), quarantine=True)
    store.add_quarantine(job, A, 5, "lost 5 times")
    total, rows = store.failures(job, A, None, True, 50)
    assert (total, [row.code for row in rows]) == (3, ["exception", "exception", "lost"])
    assert [row.agent for row in rows] == ["two", "one", ""]
    store.forget_failures(job, None, [])
    [stored] = store.jobs()
    assert not stored.layers[0].failures and not stored.layers[0].quarantined
    assert store.failures(job, A, 3, False, 1)[0] == 2
    assert store.failure_counts() == {job: 2}


def test_an_agent_is_remembered_as_it_was_last(store: Store) -> None:
    store.set_agent("one", True, 5.0, b"x")
    store.set_agent("one", False, 6.0, b"y")
    assert store.agents() == [("one", False, 6.0, b"y")]


def test_answers_are_kept_as_they_were_last(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "state.sqlite")) as store:
        assert store.answers() is None
        store.set_answers(b"one")
        store.set_answers(b"two")
    with closing(Store(tmp_path / "state.sqlite")) as again:
        assert again.answers() == b"two"


def test_advance_moves_once(store: Store) -> None:
    job = store.add_job("job", [(A, 0)], 1, 5.0, PLAN)
    store.set_ready(job)
    assert store.advance(job, 0, 1, [(0, b"first")], False)
    assert not store.advance(job, 0, 1, [(1, b"twin")], False)
    assert store.advance(job, 1, 2, [(1, b"second")], True)
    [stored] = store.jobs()
    assert (stored.cursor, stored.layers[0].payloads, stored.layers[0].closed) == (2, {0: b"first", 1: b"second"}, True)


# --- the thread ---------------------------------------------------------------------------------------------


class Troubles:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.some = threading.Event()

    def __call__(self, why: str) -> None:
        self.told.append(why)
        if why:
            self.some.set()


@pytest.fixture
def thread(store: Store) -> Iterator[StoreThread]:
    made = StoreThread(store, Troubles())
    yield made
    if made._thread.is_alive():
        made.stop()


def result(future: Future[Any]) -> Any:
    return future.result(DEADLINE_SECONDS)


def test_one_bad_statement_spoils_no_other_of_its_batch(store: Store) -> None:
    job = job_in(store)
    commit(store, job, "1.part", 0)
    thread = StoreThread(store, Troubles())
    gate = threading.Event()
    thread.run(lambda _: gate.wait(DEADLINE_SECONDS))  # the others wait, and become one batch
    good = thread.run(lambda s: commit(s, job, "2.part", 1))
    bad = thread.run(lambda s: commit(s, job, "3.part", 2, 0))
    also_good = thread.run(lambda s: commit(s, job, "4.part", 3))
    gate.set()
    result(good), result(also_good)
    with pytest.raises(AlreadyCommitted):
        result(bad)
    assert result(thread.run(lambda s: s.committed_of(job, A))) == RangeSet.of([0, 1, 3])
    assert result(thread.run(lambda s: [file for _, file, _ in s.bundles_of(job)])) == ["1.part", "2.part", "4.part"]
    thread.stop()


def test_what_was_asked_for_is_done_before_the_thread_stops(tmp_path: Path) -> None:
    thread = StoreThread(Store(tmp_path / "state.sqlite"), Troubles())
    futures = [thread.run(job_in) for _ in range(50)]
    thread.stop()
    assert [result(future) for future in futures] == [f"job.{n}" for n in range(1, 51)]
    again = Store(tmp_path / "state.sqlite")
    assert len(again.jobs()) == 50
    again.close()


def test_whoever_asked_may_go_away(thread: StoreThread) -> None:
    """A connection that is cancelled waits no more; its commit is done, and the thread lives."""
    gate = threading.Event()
    thread.run(lambda _: gate.wait(DEADLINE_SECONDS))
    abandoned = thread.run(job_in)
    assert not abandoned.cancel()
    gate.set()
    assert [job.id for job in result(thread.run(lambda s: s.jobs()))] == ["job.1"]


@pytest.fixture
def full(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StoreThread, Troubles]]:
    """A store with no room for another page."""
    monkeypatch.setattr("muster.coordinator.daemon.store.thread.RETRY_SECONDS", 0.02)
    troubles = Troubles()
    pages = store.db.execute("PRAGMA page_count").fetchone()[0]
    store.db.execute(f"PRAGMA max_page_count = {pages}")
    thread = StoreThread(store, troubles)
    yield thread, troubles
    if thread._thread.is_alive():
        thread.stop()


def large(store: Store) -> str:
    store.set_agent("one", True, 5.0, bytes(100_000))
    return "done"


def test_a_full_disk_only_waits(full: tuple[StoreThread, Troubles], store: Store) -> None:
    """Nothing is acknowledged meanwhile; with room again it goes on by itself."""
    thread, troubles = full
    future = thread.run(large)
    assert troubles.some.wait(DEADLINE_SECONDS) and "full" in troubles.told[0]
    assert not future.done()
    store.db.execute("PRAGMA max_page_count = 100000")
    assert result(future) == "done"
    assert troubles.told[-1] == ""


def test_a_full_disk_does_not_hold_up_the_end(full: tuple[StoreThread, Troubles]) -> None:
    thread, troubles = full
    future = thread.run(large)
    assert troubles.some.wait(DEADLINE_SECONDS)
    thread.stop()
    with pytest.raises(sqlite3.OperationalError, match="full"):
        result(future)


# --- the history ----------------------------------------------------------------------------------------------


def test_commits_are_told_in_order_and_outlive_the_merge_but_not_a_retry(store: Store) -> None:
    job, other = job_in(store), job_in(store, "other")
    commit(store, job, "1.part", 3, 4)
    commit(store, other, "2.part", 0)
    commit(store, job, "3.part", 0, layer=B)
    commit(store, job, "4.part", 0, 1)
    told = store.commits_after(job, 0, 10)
    assert [(one.layer, one.file, one.numbers) for one in told] == [
        (A, "1.part", [(3, 5)]),
        (B, "3.part", [(0, 1)]),
        (A, "4.part", [(0, 2)]),
    ]
    assert store.commits_after(job, told[0].seq, 1) == told[1:2]
    store.set_merged(job, A, 0, "d")
    assert store.commits_after(job, 0, 10) == told
    store.discard_layer(job, A, 1)
    store.forget_bundle(job, B, "3.part")
    assert store.commits_after(job, 0, 10) == []
    commit(store, job, "5.part", 0)
    assert store.commits_after(job, 0, 10)[0].seq > told[-1].seq
    store.remove_job(job)
    assert store.commits_after(job, 0, 10) == [] != store.commits_after(other, 0, 10)


def test_a_refused_bundle_leaves_no_commit(store: Store, tmp_path: Path) -> None:
    job = job_in(store)
    thread = StoreThread(store, lambda why: None)
    thread.run(lambda s: commit(s, job, "1.part", 3)).result(DEADLINE_SECONDS)
    with pytest.raises(AlreadyCommitted):
        thread.run(lambda s: commit(s, job, "2.part", 3, 4)).result(DEADLINE_SECONDS)
    assert [one.file for one in thread.run(lambda s: s.commits_after(job, 0, 9)).result(DEADLINE_SECONDS)] == ["1.part"]
    thread.stop()
