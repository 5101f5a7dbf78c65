"""ROOT/figures.sqlite: what was measured of each job, written by the daemon alone. Plain statements; decides nothing.

Nothing hangs on this file: it may be deleted while no daemon runs. A rollback journal, and no log beside it, lets a
command read it while nobody serves the root.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from heapq import nlargest
from pathlib import Path
from typing import TypeVar

import msgspec

from muster.coordinator.api.figures import JobFiguresKept, JobLine, MachineFigures
from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.states import JobState

LAYOUT = 1
BUSY_SECONDS = 5.0
SCHEMA = """
CREATE TABLE jobs (job TEXT PRIMARY KEY, told BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE machines (
    job TEXT NOT NULL, agent TEXT NOT NULL, told BLOB NOT NULL, PRIMARY KEY (job, agent)
) WITHOUT ROWID;
"""
Rows = tuple[JobFiguresKept, list[MachineFigures]]
_encode = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(JobFiguresKept)
_machine = msgspec.msgpack.Decoder(MachineFigures)
_line = msgspec.msgpack.Decoder(JobLine)  # skips what a line does not show
_T = TypeVar("_T")


class OtherLayout(Exception):
    """The file is of another version of the product."""


class FiguresFile:
    """One connection, on one thread. A sqlite3.DatabaseError, or an OtherLayout, for a file that cannot be used."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        layout = self._db.execute("PRAGMA user_version").fetchone()[0]
        if layout not in (0, LAYOUT):
            raise OtherLayout(f"its layout is {layout}, ours is {LAYOUT}")
        self._db.execute("PRAGMA synchronous = NORMAL")
        if layout == 0:
            self._db.execute("PRAGMA page_size = 1024")  # a machine's row has some 2 KB, and would take 4 of a page
            self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {LAYOUT}; COMMIT;")

    def write(self, rows: Iterable[tuple[bytes | None, str, list[tuple[str, bytes]]]]) -> None:
        """Of each job what is new, all or nothing: the job's own row and those of its machines, encoded."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for told, job, machines in rows:
                if told is not None:
                    self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (job, told))
                self._db.executemany(
                    "INSERT OR REPLACE INTO machines VALUES (?, ?, ?)", [(job, agent, raw) for agent, raw in machines]
                )
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def read(self, job: str) -> Rows | None:
        """None where nothing is kept of it."""
        return _read(self._db, job)

    def forget(self, job: str) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("DELETE FROM jobs WHERE job = ?", (job,))
        self._db.execute("DELETE FROM machines WHERE job = ?", (job,))
        self._db.execute("COMMIT")
        self._db.execute("PRAGMA incremental_vacuum")

    def close(self) -> None:
        self._db.close()


def new_job(job: str, kind: str, version: str, created: float, state: JobState) -> JobFiguresKept:
    return JobFiguresKept(job, kind, state, "", version, created, since=created, at=created)


def encoded(told: JobFiguresKept | MachineFigures) -> bytes:
    return _encode(told)


def read(path: Path, job: str) -> Rows | None:
    """What the file has of a job, for whoever finds no daemon; None where that is nothing. A DamagedError where the
    file cannot be read."""
    return _asked(path, lambda db: _read(db, job))


def newest(path: Path, most: int) -> tuple[list[JobLine], int] | None:
    """Of the jobs that were submitted last, for whoever finds no daemon, with how many there are beside; None without
    a file. As `read`."""

    def found(db: sqlite3.Connection) -> tuple[list[JobLine], int]:
        lines = (_line.decode(raw) for (raw,) in db.execute("SELECT told FROM jobs"))
        kept = nlargest(most, lines, key=lambda one: one.created)
        return kept, db.execute("SELECT count(*) FROM jobs").fetchone()[0] - len(kept)

    return _asked(path, found)


def _asked(path: Path, what: Callable[[sqlite3.Connection], _T]) -> _T | None:
    if not path.exists():
        return None
    try:
        db = sqlite3.connect(f"file:{_quoted(path)}?mode=rw", uri=True, timeout=BUSY_SECONDS)  # a journal may be left
        try:
            if db.execute("PRAGMA user_version").fetchone()[0] != LAYOUT:
                raise OtherLayout("it is of another version")
            return what(db)
        finally:
            db.close()
    except (sqlite3.Error, msgspec.MsgspecError, OtherLayout) as error:
        raise DamagedError(
            f"{path} cannot be read: {error}",
            "it has measurements alone: `coordinator serve` puts it aside and begins it anew, or delete it",
        ) from None


def _read(db: sqlite3.Connection, job: str) -> Rows | None:
    row = db.execute("SELECT told FROM jobs WHERE job = ?", (job,)).fetchone()
    if row is None:
        return None
    machines = db.execute("SELECT told FROM machines WHERE job = ? ORDER BY agent", (job,))
    return _job.decode(row[0]), [_machine.decode(raw) for (raw,) in machines]


def _quoted(path: Path) -> str:
    return path.as_posix().replace("%", "%25").replace("?", "%3f").replace("#", "%23")
