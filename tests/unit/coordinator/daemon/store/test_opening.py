"""A store that is gone, damaged, or knows less than the root is refused, and one that a crash left is not."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from muster.coordinator.daemon.store.opening import open_store
from muster.coordinator.daemon.store.statements import Store
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.errors import DamagedError
from muster.jobs.common.ranges import RangeSet

LAYER, PLAN = "a" * 32, "b" * 32


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return roots.prepare(tmp_path / "farm")


def served(root: Root) -> Store:
    """What a daemon does first."""
    store, boot = open_store(root)
    (root.tmp / str(boot)).mkdir()
    return store


def submitted(root: Root, store: Store) -> str:
    job = store.add_job("job", [(LAYER, 0)], 1, 5.0, PLAN)
    folder_of(root, job)
    store.set_ready(job)
    return job


def folder_of(root: Root, job: str) -> None:
    root.job(job).bundles.mkdir(parents=True)
    root.job(job).plan.touch()


def committed(root: Root, store: Store, job: str, file: str, number: int) -> None:
    (root.job(job).bundles / file).touch()
    store.commit_bundle(job, LAYER, file, 1, "one", 6.0, RangeSet.of([number]), (), 1, None)


def stopped(root: Root, store: Store) -> None:
    """In good order."""
    store.close()
    for path in root.tmp.iterdir():
        path.rmdir()


def killed(root: Root, store: Store, aside: Path) -> None:
    """As it is on disk now, its log beside it."""
    shutil.copytree(root.path, aside)
    store.close()
    shutil.rmtree(root.path)
    aside.rename(root.path)


def gone(root: Root) -> None:
    root.store.unlink()


def emptied(root: Root) -> None:
    root.store.write_bytes(b"")


def cut_short(root: Root) -> None:
    raw = root.store.read_bytes()
    root.store.write_bytes(raw[: len(raw) // 2])


def overwritten(root: Root) -> None:
    root.store.write_bytes(b"x" * 10_000)


def made_anew(root: Root) -> None:
    root.store.unlink()
    Store(root.store).close()


def of_a_backup(root: Root) -> None:
    with closing(sqlite3.connect(root.store)) as db, db:
        db.execute("UPDATE meta SET value = value - 1 WHERE key = 'boot'")


@pytest.mark.parametrize("harm", [gone, emptied, cut_short, overwritten, made_anew, of_a_backup])
def test_a_lost_store_is_not_replaced_in_silence(root: Root, harm: Callable[[Root], None]) -> None:
    store = served(root)
    submitted(root, store)
    stopped(root, store)
    harm(root)
    for _ in range(2):
        with pytest.raises(DamagedError) as caught:
            open_store(root)
        assert caught.value.exit_code == 12 and "coordinator rebuild" in caught.value.hint


def test_a_store_whose_log_is_gone_is_not_believed(root: Root, tmp_path: Path) -> None:
    store = served(root)
    job = submitted(root, store)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    committed(root, store, job, "1-1.part", 0)
    killed(root, store, tmp_path / "aside")
    root.store.with_name("state.sqlite-wal").unlink()
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"log is gone.*job.1"):
            open_store(root)


def test_what_a_crash_leaves_is_no_loss(root: Root, tmp_path: Path) -> None:
    store = served(root)
    job = submitted(root, store)
    committed(root, store, job, "1-1.part", 0)
    (root.job(job).bundles / "1-2.part").touch()  # renamed, and not in the store yet
    folder_of(root, "job.2")
    assert store.add_job("job", [(LAYER, 0)], 1, 5.0, PLAN) == "job.2"  # its folder is in place, it is not ready
    folder_of(root, "job.3")
    assert store.add_job("job", [(LAYER, 0)], 1, 5.0, PLAN) == "job.3"
    store.remove_job("job.3")  # its rows went, its folder stayed
    killed(root, store, tmp_path / "aside")
    store, boot = open_store(root)
    assert boot == 2 and [one.id for one in store.jobs()] == [job] and store.half_submitted() == ["job.2"]
    store.close()


def test_who_looked_into_the_store_of_a_killed_daemon_took_nothing_away(root: Root, tmp_path: Path) -> None:
    store = served(root)
    committed(root, store, submitted(root, store), "1-1.part", 0)
    killed(root, store, tmp_path / "aside")
    with closing(sqlite3.connect(root.store)) as db:  # takes the log in, and deletes it
        assert db.execute("SELECT count(*) FROM shards").fetchone() == (1,)
    assert not root.store.with_name("state.sqlite-wal").exists()
    store, _ = open_store(root)
    store.close()


def test_a_root_without_jobs_starts_as_ever_and_counts_on(root: Root) -> None:
    stopped(root, served(root))
    gone(root)
    (root.jobs / "notes.1").mkdir()  # somebody's own, and no job
    store, boot = open_store(root)
    assert (boot, root.boot, store.boot) == (2, 2, 2)
    store.close()


def test_a_store_is_ahead_of_the_root_where_the_daemon_died_between(root: Root) -> None:
    store = served(root)
    submitted(root, store)
    store.next_boot()
    stopped(root, store)
    store, boot = open_store(root)
    assert boot == 3
    store.close()
