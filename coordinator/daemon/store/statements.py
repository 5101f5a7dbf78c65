"""What survives the daemon: jobs, layers, committed shards, failures, agents, in one SQLite file with one connection.

Plain statements; no decision is taken here. `StoreThread` runs them in order on a thread of its own, in one
transaction for all that is waiting, so that a thousand commits cost one fsync. UNIQUE (layer, number) alone makes
counting exact.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from muster.coordinator.protocol.control import Failure
from muster.jobs.common.errors import NotFoundError, RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Output
from muster.jobs.contract.requirements import apart
from muster.jobs.contract.states import JobState, LayerState
from muster.jobs.contract.text_limits import EVIDENCE_BYTES, MESSAGE_BYTES, kept, kept_line

LAYOUT = 2
# (table, column, type): columns that stores from before them get when opened
LATER = (
    ("jobs", "news", "BLOB"),
    ("jobs", "plan", "TEXT"),
    ("jobs", "settings", "BLOB"),
    ("jobs", "untold", "REAL"),
    ("jobs", "retried", "REAL"),
    ("layers", "manifest", "TEXT"),
    ("commits", "agent", "TEXT"),
    ("commits", "shards", "INTEGER"),
    ("commits", "out_bytes", "INTEGER"),
)
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE names (name TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, ready INTEGER NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL, priority INTEGER NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL, succeeded INTEGER NOT NULL DEFAULT 0,
    cursor INTEGER NOT NULL DEFAULT 0, serial INTEGER NOT NULL, kernels TEXT, news BLOB, plan TEXT,
    settings BLOB, untold REAL, retried REAL
) WITHOUT ROWID;
CREATE TABLE layers (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, digest TEXT NOT NULL, state TEXT NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0, high_water INTEGER NOT NULL DEFAULT 0, outputs BLOB,
    closed INTEGER NOT NULL DEFAULT 0, out_bytes INTEGER NOT NULL DEFAULT 0, manifest TEXT,
    UNIQUE (job, digest)
);
CREATE TABLE bundles (
    id INTEGER PRIMARY KEY, layer INTEGER NOT NULL, file TEXT NOT NULL, nbytes INTEGER NOT NULL, agent TEXT NOT NULL,
    committed REAL NOT NULL
);
CREATE INDEX bundles_of ON bundles (layer);
CREATE TABLE shards (
    layer INTEGER NOT NULL, number INTEGER NOT NULL, bundle INTEGER NOT NULL, PRIMARY KEY (layer, number)
) WITHOUT ROWID;
CREATE TABLE failures (
    id INTEGER PRIMARY KEY, layer INTEGER NOT NULL, number INTEGER NOT NULL, boot INTEGER NOT NULL,
    attempt INTEGER NOT NULL, agent TEXT NOT NULL, at REAL NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL,
    evidence TEXT NOT NULL, seconds REAL NOT NULL, peak INTEGER NOT NULL, counts INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX failures_of ON failures (layer, number);
CREATE TABLE quarantined (
    layer INTEGER NOT NULL, number INTEGER NOT NULL, why TEXT NOT NULL, PRIMARY KEY (layer, number)
) WITHOUT ROWID;
CREATE TABLE made (
    layer INTEGER NOT NULL, number INTEGER NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (layer, number)
) WITHOUT ROWID;
CREATE TABLE agents (
    name TEXT PRIMARY KEY, live INTEGER NOT NULL, seen REAL NOT NULL, info BLOB NOT NULL
) WITHOUT ROWID;
-- Who follows a job reads it in the order of its commits, and longer than bundles last: a row a bundle stays until the
-- job goes. Its ids are never used twice.
CREATE TABLE commits (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, layer INTEGER NOT NULL, file TEXT NOT NULL,
    numbers BLOB NOT NULL, agent TEXT, shards INTEGER, out_bytes INTEGER
);
CREATE INDEX commits_of ON commits (job, id);
"""


# Of shards that are quarantined those that never failed, as far as that counts: losses alone did it.
LOSSES = """quarantined f WHERE NOT EXISTS
  (SELECT 1 FROM failures x WHERE x.layer = f.layer AND x.number = f.number AND x.counts)"""
_QUARANTINED = "EXISTS (SELECT 1 FROM quarantined q WHERE q.layer = f.layer AND q.number = f.number)"


@dataclass(frozen=True)
class StoredLayer:
    digest: str
    state: LayerState
    generation: int
    high_water: int
    outputs: tuple[Output, ...] | None
    closed: bool
    out_bytes: int
    committed: RangeSet
    quarantined: RangeSet
    failures: dict[int, frozenset[tuple[str, int, int]]]  # number → (agent, boot, attempt) of those that count
    payloads: dict[int, bytes]  # every made shard


@dataclass(frozen=True)
class StoredJob:
    id: str
    state: JobState
    why: str
    priority: int
    created: float
    started: float | None
    ended: float | None
    succeeded: bool
    cursor: int
    kernels: str  # the one fingerprint of what is committed, where the job wants one alone; "" before there is any
    news: bytes | None  # what its driver last said for people, with the cursor
    plan: str | None  # the digest of its plan's file; None in a store from before it, until the plan is read
    layers: tuple[StoredLayer, ...]
    fault: str = ""  # why the rows of its layers cannot be read, where they cannot: then `layers` is empty
    settings: bytes | None = None  # what was changed of it since it was submitted
    untold: float | None = None  # when it came to its state, where who wants to be told of that was not yet
    retried: float | None = None  # when somebody last had what failed of it run again


@dataclass(frozen=True)
class FailureRow:
    """A stored failure, with the layer's digest."""

    layer: str
    number: int
    boot: int
    attempt: int
    agent: str
    at: float
    code: str
    message: str
    evidence: str
    seconds: float
    peak: int
    quarantined: bool


@dataclass(frozen=True)
class BundleRow:
    """Who committed a shard, and when."""

    agent: str
    committed: float


@dataclass(frozen=True)
class CommitRow:
    """One bundle's commit."""

    seq: int
    layer: str  # its digest
    file: str  # of the bundle, which goes when its layer is merged
    numbers: list[tuple[int, int]]


class AlreadyCommitted(Exception):
    """The bundle has shards that are in the store already: it is refused whole, and they are named."""

    def __init__(self, numbers: RangeSet) -> None:
        super().__init__(str(numbers))
        self.numbers = numbers


class LayerGone(NotFoundError):
    """The store has no such layer: its job was removed. Nothing else raises this."""


class OtherKernels(Exception):
    """The job wants one kernel fingerprint alone, and what is committed of it has another."""

    def __init__(self, here: str, fixed: str) -> None:
        super().__init__(f"the job's results are of other kernels: {apart(here, fixed)}")


class Store:
    """Every statement. Not thread safe: `StoreThread` owns it once the daemon runs."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._set_up(path)
        except BaseException:
            self.db.close()
            raise

    def _set_up(self, path: Path) -> None:
        path.chmod(0o600)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        if not self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            self.db.executescript(f"BEGIN; {SCHEMA} INSERT INTO meta VALUES ('layout', {LAYOUT}), ('boot', 0); COMMIT;")
        layout = self._value("SELECT value FROM meta WHERE key = 'layout'")
        if layout != LAYOUT:
            raise RefusedError(f"{path} has layout {layout}, not {LAYOUT}", "run the version of muster that made it")
        for table, column, kind in LATER:
            if not _has_column(self.db, table, column):
                self.db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")

    def close(self) -> None:
        self.db.close()

    def _value(self, sql: str, *args: Any) -> Any:
        row = self.db.execute(sql, args).fetchone()
        return row[0] if row else None

    def _layer(self, job: str, digest: str) -> int:
        found = self._value("SELECT id FROM layers WHERE job = ? AND digest = ?", job, digest)
        if found is None:
            raise LayerGone(f"{job} has no layer {digest}: the job was removed")
        return int(found)

    # --- starting -------------------------------------------------------------------------------------

    def harm(self) -> str:
        """What is wrong with the database's pages, by its own check; "" where nothing is."""
        said = str(self._value("PRAGMA quick_check(1)"))
        return "" if said == "ok" else said

    @property
    def boot(self) -> int:
        """The number of the daemon's last start."""
        return int(self._value("SELECT value FROM meta WHERE key = 'boot'"))

    def next_boot(self, last: int = 0) -> int:
        """Count this start of the daemon, above `last`."""
        self.db.execute("UPDATE meta SET value = max(value, ?) + 1 WHERE key = 'boot'", (last,))
        return self.boot

    def begin_at(self, boot: int) -> None:
        """A store that takes another's place: no start and no commit has a number that the other's had."""
        self.db.execute("UPDATE meta SET value = ? WHERE key = 'boot'", (boot,))
        self.db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('commits', ?)", (boot << 32,))

    def set_number(self, name: str, last: int) -> None:
        self.db.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (name, last))

    def numbers(self) -> dict[str, int]:
        """The last number that a job of each name was given."""
        return dict(self.db.execute("SELECT name, last FROM names"))

    def half_submitted(self) -> list[str]:
        """Jobs whose folder may or may not have been renamed into place when the daemon died."""
        return [row[0] for row in self.db.execute("SELECT id FROM jobs WHERE NOT ready")]

    def jobs(self) -> list[StoredJob]:
        columns = (
            "id, state, why, priority, created, started, ended, succeeded, cursor, coalesce(kernels, ''), news, plan,"
            " settings, untold, retried"
        )
        rows = self.db.execute(f"SELECT {columns} FROM jobs WHERE ready ORDER BY serial").fetchall()
        return [self._stored_job(row) for row in rows]

    def _stored_job(self, row: tuple[Any, ...]) -> StoredJob:
        job, state, why, priority, created, started, ended, succeeded, cursor, kernels, *others = row
        news, plan, settings, untold, retried = others
        layers: tuple[StoredLayer, ...] = ()
        fault = ""
        try:
            layers = self._layers_of(job)
        except sqlite3.OperationalError:
            raise
        except Exception as error:  # whatever a row may hold: it keeps no other job from being read
            fault = f"{type(error).__name__}: {error}"
        if isinstance(why, str):
            why = kept_line(why, MESSAGE_BYTES)
        return StoredJob(
            job, state, why, priority, created, started, ended, bool(succeeded), cursor, kernels, news, plan, layers,
            fault, settings, untold, retried,
        )  # fmt: skip

    def digests_of(self, job: str) -> list[str]:
        """Of its layers."""
        return [str(row[0]) for row in self.db.execute("SELECT digest FROM layers WHERE job = ?", (job,))]

    def _layers_of(self, job: str) -> tuple[StoredLayer, ...]:
        rows = self.db.execute(
            "SELECT id, digest, state, generation, high_water, outputs, closed, out_bytes FROM layers"
            " WHERE job = ? ORDER BY id",
            (job,),
        ).fetchall()
        return tuple(self._stored_layer(row) for row in rows)

    def _stored_layer(self, row: tuple[Any, ...]) -> StoredLayer:
        layer, digest, state, generation, high_water, outputs, closed, out_bytes = row
        return StoredLayer(
            digest=digest,
            state=state,
            generation=generation,
            high_water=high_water,
            outputs=msgspec.msgpack.decode(outputs, type=tuple[Output, ...]) if outputs else None,
            closed=bool(closed),
            out_bytes=out_bytes,
            committed=self._numbers("shards", layer),
            quarantined=self._numbers("quarantined", layer),
            failures=self._failed_runs(layer),
            payloads=dict(
                self.db.execute("SELECT number, payload FROM made WHERE layer = ? ORDER BY number", (layer,))
            ),
        )

    def _numbers(self, table: str, layer: int) -> RangeSet:
        """A column of numbers as ranges, gathered by the database: a million rows cost well under a second."""
        rows = self.db.execute(
            "SELECT min(number), max(number) + 1 FROM"
            f" (SELECT number, number - row_number() OVER (ORDER BY number) AS island FROM {table} WHERE layer = ?)"
            " GROUP BY island ORDER BY 1",
            (layer,),
        )
        return RangeSet(rows)

    def _failed_runs(self, layer: int) -> dict[int, frozenset[tuple[str, int, int]]]:
        rows = self.db.execute(
            "SELECT number, agent, boot, attempt FROM failures WHERE layer = ? AND counts ORDER BY number", (layer,)
        ).fetchall()
        return {number: frozenset(run[1:] for run in runs) for number, runs in groupby(rows, lambda row: int(row[0]))}

    def set_answers(self, answers: bytes) -> None:
        """What machines answered to known problems: one value, which the scheduler packs."""
        self.db.execute("INSERT OR REPLACE INTO meta VALUES ('answers', ?)", (answers,))

    def answers(self) -> bytes | None:
        """None in a store that never had any."""
        found = self._value("SELECT value FROM meta WHERE key = 'answers'")
        return None if found is None else bytes(found)

    # --- jobs -----------------------------------------------------------------------------------------

    def add_job(
        self,
        name: str,
        digests: Iterable[tuple[str, int]],
        priority: int,
        created: float,
        plan: str,
        state: JobState = "running",
    ) -> str:
        """A new job under the next number of its name, not ready before its folder is. `plan`: its plan's digest."""
        self.db.execute("INSERT INTO names VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET last = last + 1", (name,))
        job = f"{name}.{self._value('SELECT last FROM names WHERE name = ?', name)}"
        self.db.execute(
            "INSERT INTO jobs (id, ready, state, why, priority, created, plan, serial)"
            " VALUES (?, 0, ?, '', ?, ?, ?, (SELECT coalesce(max(serial), 0) + 1 FROM jobs))",
            (job, state, priority, created, plan),
        )
        rows = [(job, digest, out_bytes) for digest, out_bytes in digests]
        self.db.executemany("INSERT INTO layers (job, digest, state, out_bytes) VALUES (?, ?, 'waiting', ?)", rows)
        return job

    def adopt_layer(
        self, job: str, digest: str, outputs: tuple[Output, ...], numbers: list[tuple[int, int]], manifest: str
    ) -> None:
        """The layer is merged, by another job: its result was linked, under a manifest with this digest."""
        layer = self._layer(job, digest)
        told_outputs = (msgspec.msgpack.encode(outputs), manifest, layer)
        self.db.execute("UPDATE layers SET state = 'merged', outputs = ?, manifest = ? WHERE id = ?", told_outputs)
        told = (job, layer, "adopted", msgspec.msgpack.encode(numbers))
        self.db.execute("INSERT INTO commits (job, layer, file, numbers) VALUES (?, ?, ?, ?)", told)

    def set_ready(self, job: str) -> None:
        self.db.execute("UPDATE jobs SET ready = 1 WHERE id = ?", (job,))

    def set_plan(self, job: str, digest: str) -> None:
        """Of a job from before digests of plans were kept."""
        self.db.execute("UPDATE jobs SET plan = ? WHERE id = ?", (digest, job))

    def remove_job(self, job: str) -> None:
        for table in ("shards", "bundles", "failures", "quarantined", "made"):
            self.db.execute(f"DELETE FROM {table} WHERE layer IN (SELECT id FROM layers WHERE job = ?)", (job,))
        self.db.execute("DELETE FROM layers WHERE job = ?", (job,))
        self.db.execute("DELETE FROM commits WHERE job = ?", (job,))
        self.db.execute("DELETE FROM jobs WHERE id = ?", (job,))

    def set_job(self, job: str, state: JobState, why: str, ended: float | None, untold: float | None = None) -> None:
        told = (state, why, ended, untold, job)
        self.db.execute("UPDATE jobs SET state = ?, why = ?, ended = ?, untold = ? WHERE id = ?", told)

    def set_told(self, job: str, at: float) -> None:
        """Of the state that it came to then."""
        self.db.execute("UPDATE jobs SET untold = NULL WHERE id = ? AND untold = ?", (job, at))

    def set_started(self, job: str, at: float) -> None:
        self.db.execute("UPDATE jobs SET started = ? WHERE id = ? AND started IS NULL", (at, job))

    def set_succeeded(self, job: str) -> None:
        self.db.execute("UPDATE jobs SET succeeded = 1 WHERE id = ?", (job,))

    def set_priority(self, job: str, priority: int) -> None:
        self.db.execute("UPDATE jobs SET priority = ? WHERE id = ?", (priority, job))

    def set_retried(self, job: str, at: float) -> None:
        self.db.execute("UPDATE jobs SET retried = ? WHERE id = ?", (at, job))

    def set_settings(self, job: str, settings: bytes) -> None:
        self.db.execute("UPDATE jobs SET settings = ? WHERE id = ?", (settings, job))

    def advance(self, job: str, from_seq: int, to_seq: int, create: list[tuple[int, bytes]], finish: bool) -> bool:
        """Move a driver's job on, if and only if `from_seq` is the cursor."""
        moved = self.db.execute("UPDATE jobs SET cursor = ? WHERE id = ? AND cursor = ?", (to_seq, job, from_seq))
        if moved.rowcount != 1:
            return False
        layer = self._value("SELECT id FROM layers WHERE job = ? ORDER BY id LIMIT 1", job)
        self.db.executemany("INSERT INTO made VALUES (?, ?, ?)", [(layer, number, raw) for number, raw in create])
        self.db.execute("UPDATE layers SET closed = max(closed, ?) WHERE id = ?", (finish, layer))
        return True

    def keep_cursor(self, job: str, to_seq: int, finish: bool, news: bytes | None, manifest: str | None = None) -> None:
        """Where the driver of a job of rounds is: only what is said here outlives the daemon. `manifest`: the digest of
        that of its result, once it has one."""
        self.db.execute("UPDATE jobs SET cursor = ?, news = coalesce(?, news) WHERE id = ?", (to_seq, news, job))
        said = (finish, manifest, job)
        self.db.execute(
            "UPDATE layers SET closed = max(closed, ?), manifest = coalesce(?, manifest) WHERE job = ?", said
        )

    # --- layers and their shards ----------------------------------------------------------------------

    def set_layer(self, job: str, digest: str, state: LayerState, generation: int) -> None:
        """What is merged stays so until it is discarded, whatever was decided before anybody heard of the merge."""
        self.db.execute(
            "UPDATE layers SET state = ?, generation = ? WHERE id = ? AND NOT (state = 'merged' AND generation = ?)",
            (state, generation, self._layer(job, digest), generation),
        )

    def raise_high_water(self, job: str, digest: str, value: int) -> None:
        self.db.execute(
            "UPDATE layers SET high_water = max(high_water, ?) WHERE id = ?", (value, self._layer(job, digest))
        )

    def commit_bundle(
        self, job: str, digest: str, file: str, nbytes: int, agent: str, at: float, numbers: RangeSet,
        outputs: tuple[Output, ...], out_bytes: int, kernels: str | None,
    ) -> None:  # fmt: skip
        """The one commit: all of a bundle's shards, or AlreadyCommitted and none. With `kernels`, the job's first
        commit fixes them: OtherKernels for any other."""
        layer = self._layer(job, digest)
        if kernels is not None:
            self.fix_kernels(job, kernels)
        row = self.db.execute(
            "INSERT INTO bundles (layer, file, nbytes, agent, committed) VALUES (?, ?, ?, ?, ?)",
            (layer, file, nbytes, agent, at),
        )
        try:
            self.db.executemany(
                "INSERT INTO shards VALUES (?, ?, ?)", ((layer, number, row.lastrowid) for number in numbers)
            )
        except sqlite3.IntegrityError:
            raise AlreadyCommitted(self._numbers("shards", layer) & numbers) from None
        self.db.execute(
            "INSERT INTO commits (job, layer, file, numbers, agent, shards, out_bytes) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (job, layer, file, msgspec.msgpack.encode(numbers.pairs()), agent, len(numbers), out_bytes * len(numbers)),
        )
        self.db.execute(
            "UPDATE layers SET outputs = coalesce(outputs, ?), out_bytes = max(out_bytes, ?) WHERE id = ?",
            (msgspec.msgpack.encode(outputs), out_bytes, layer),
        )

    def fix_kernels(self, job: str, kernels: str) -> None:
        """The first that there is stays; OtherKernels for any other."""
        self.db.execute("UPDATE jobs SET kernels = coalesce(kernels, ?) WHERE id = ?", (kernels, job))
        fixed = self._value("SELECT kernels FROM jobs WHERE id = ?", job)
        if fixed != kernels:
            raise OtherKernels(kernels, fixed)

    def commits_after(self, job: str, after: int, limit: int) -> list[CommitRow]:
        """What was committed of a job and still counts, in that order, merged meanwhile or not."""
        rows = self.db.execute(
            "SELECT commits.id, layers.digest, file, numbers FROM commits JOIN layers ON layers.id = commits.layer"
            " WHERE commits.job = ? AND commits.id > ? ORDER BY commits.id LIMIT ?",
            (job, after, limit),
        )
        decode = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
        return [CommitRow(seq, digest, file, decode(numbers)) for seq, digest, file, numbers in rows]

    def committed_by(self, job: str) -> list[tuple[str, int, int]]:
        """(agent, shards, bytes of output) of what counts of a job, merged meanwhile or not; not of what was committed
        before this was kept, or by nobody knows whom."""
        said = "SELECT agent, sum(shards), sum(out_bytes) FROM commits WHERE job = ? AND agent != '' GROUP BY agent"
        return self.db.execute(said, (job,)).fetchall()

    def manifests_of(self, job: str) -> dict[str, str]:
        """Layer → digest of its manifest, of those that are merged. Not of those merged before it was kept."""
        return dict(
            self.db.execute("SELECT digest, manifest FROM layers WHERE job = ? AND manifest IS NOT NULL", (job,))
        )

    def committed_of(self, job: str, digest: str) -> RangeSet:
        return self._numbers("shards", self._layer(job, digest))

    def bundles_of(self, job: str, digest: str | None = None) -> list[tuple[int, str, int]]:
        """(id, file, bytes) of a layer's bundles, or of all the job's, in order of commit."""
        if digest is None:
            rows = self.db.execute(
                "SELECT id, file, nbytes FROM bundles WHERE layer IN (SELECT id FROM layers WHERE job = ?) ORDER BY id",
                (job,),
            )
        else:
            layer = self._layer(job, digest)
            rows = self.db.execute("SELECT id, file, nbytes FROM bundles WHERE layer = ? ORDER BY id", (layer,))
        return rows.fetchall()

    def bundle_of(self, job: str, digest: str, number: int) -> BundleRow | None:
        """The bundle that has a shard; None once the layer is merged, and before the shard is committed."""
        row = self.db.execute(
            "SELECT agent, committed FROM bundles JOIN shards ON shards.bundle = bundles.id"
            " WHERE shards.layer = ? AND number = ?",
            (self._layer(job, digest), number),
        ).fetchone()
        return BundleRow(*row) if row else None

    def forget_bundle(self, job: str, digest: str, file: str) -> RangeSet:
        """A damaged bundle loses all its rows; the numbers are to be run again."""
        layer = self._layer(job, digest)
        bundle = self._value("SELECT id FROM bundles WHERE layer = ? AND file = ?", layer, file)
        rows = self.db.execute(
            "SELECT number FROM shards WHERE layer = ? AND bundle = ? ORDER BY number", (layer, bundle)
        )
        numbers = RangeSet.of(row[0] for row in rows)
        self.db.execute("DELETE FROM shards WHERE layer = ? AND bundle = ?", (layer, bundle))
        self.db.execute("DELETE FROM bundles WHERE id = ?", (bundle,))
        self.db.execute("DELETE FROM commits WHERE job = ? AND layer = ? AND file = ?", (job, layer, file))
        return numbers

    def forget_shards(self, job: str, digest: str, numbers: RangeSet) -> None:
        """Rows that no bundle bears out."""
        layer = self._layer(job, digest)
        self.db.executemany("DELETE FROM shards WHERE layer = ? AND number = ?", ((layer, n) for n in numbers))

    def payloads_of(self, job: str, digest: str, numbers: RangeSet) -> dict[int, bytes]:
        """What made shards are made of; none where the layer is of an array."""
        made = "SELECT number, payload FROM made WHERE layer = ? AND number >= ? AND number < ?"
        layer = self._layer(job, digest)
        return {n: raw for lo, hi in numbers.pairs() for n, raw in self.db.execute(made, (layer, lo, hi))}

    def set_merged(self, job: str, digest: str, generation: int, manifest: str) -> list[str] | None:
        """The layer's files are in place, with a manifest of this digest: its rows go, and the bundles they named are
        returned. None: too late."""
        layer = self._layer(job, digest)
        if self._value("SELECT generation FROM layers WHERE id = ?", layer) != generation:
            return None
        self.db.execute("UPDATE layers SET state = 'merged', manifest = ? WHERE id = ?", (manifest, layer))
        return self._drop_rows(layer)

    def discard_layer(self, job: str, digest: str, generation: int) -> list[str]:
        """The layer runs again whole; the bundles to delete are returned."""
        layer = self._layer(job, digest)
        self.db.execute(
            "UPDATE layers SET state = 'waiting', generation = ?, high_water = 0, outputs = NULL, manifest = NULL"
            " WHERE id = ?",
            (generation, layer),
        )
        self.db.execute("DELETE FROM quarantined WHERE layer = ?", (layer,))
        self.db.execute("UPDATE failures SET counts = 0 WHERE layer = ?", (layer,))
        self.db.execute("DELETE FROM commits WHERE job = ? AND layer = ?", (job, layer))
        return self._drop_rows(layer)

    def _drop_rows(self, layer: int) -> list[str]:
        files = [row[0] for row in self.db.execute("SELECT file FROM bundles WHERE layer = ?", (layer,))]
        self.db.execute("DELETE FROM shards WHERE layer = ?", (layer,))
        self.db.execute("DELETE FROM bundles WHERE layer = ?", (layer,))
        return files

    # --- failures -------------------------------------------------------------------------------------

    def add_failure(
        self, job: str, agent: str, at: float, failure: Failure, quarantine: bool, counts: bool = True
    ) -> None:
        layer = self._layer(job, failure.layer)
        f = failure
        self.db.execute(
            "INSERT INTO failures"
            " (layer, number, boot, attempt, agent, at, code, message, evidence, seconds, peak, counts)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (layer, f.number, f.boot, f.attempt, agent, at, f.code, f.message, f.evidence, f.seconds, f.peak, counts),
        )
        if quarantine:
            self.add_quarantine(job, failure.layer, failure.number, failure.message)

    def add_quarantine(self, job: str, digest: str, number: int, why: str) -> None:
        layer = self._layer(job, digest)
        self.db.execute("INSERT OR REPLACE INTO quarantined VALUES (?, ?, ?)", (layer, number, why))

    def forget_failures(self, job: str, agent: str | None, shards: Iterable[tuple[str, int]]) -> None:
        """They count no longer; they stay to be read."""
        if agent is None:
            of_job = "layer IN (SELECT id FROM layers WHERE job = ?)"
            self.db.execute(f"UPDATE failures SET counts = 0 WHERE {of_job}", (job,))
            self.db.execute(f"DELETE FROM quarantined WHERE {of_job}", (job,))
            return
        for digest, number in shards:
            layer = self._layer(job, digest)
            key = (layer, number)
            self.db.execute(
                "UPDATE failures SET counts = 0 WHERE layer = ? AND number = ? AND agent = ?", (*key, agent)
            )
            self.db.execute("DELETE FROM quarantined WHERE layer = ? AND number = ?", key)

    def failures(
        self, job: str, digest: str | None, number: int | None, quarantined: bool, limit: int
    ) -> tuple[int, list[FailureRow]]:
        """How many match, and the newest `limit` of them, which are looked up in an index: there may be millions. A
        quarantine by losses is a row of its own, and comes last: nobody knows when that was."""
        of = f"f.layer IN (SELECT id FROM layers WHERE job = ?{'' if digest is None else ' AND digest = ?'})"
        of += "" if number is None else " AND f.number = ?"
        args = [one for one in (job, digest, number) if one is not None]
        failed, lost = f"failures f WHERE {of} AND {_QUARANTINED if quarantined else '1'}", f"{LOSSES} AND {of}"
        total: int = sum(self._value(f"SELECT count(*) FROM {found}", *args) for found in (failed, lost))
        rows = self.db.execute(
            "SELECT layers.digest, f.number, f.boot, f.attempt, f.agent, f.at, f.code, f.message, f.evidence,"
            f" f.seconds, f.peak, {_QUARANTINED} FROM failures f JOIN layers ON layers.id = f.layer WHERE f.id IN"
            f" (SELECT f.id FROM {failed} ORDER BY f.id DESC LIMIT ?) ORDER BY f.id DESC",
            (*args, limit),
        ).fetchall()
        rows += self.db.execute(
            "SELECT (SELECT digest FROM layers WHERE id = f.layer), f.number, 0, 0, '', 0, 'lost', f.why, '', 0, 0, 1"
            f" FROM {lost} LIMIT ?",
            (*args, limit - len(rows)),
        )
        return total, [_failure_row(row) for row in rows]

    def failure_counts(self) -> dict[str, int]:
        rows = self.db.execute("SELECT job, count(*) FROM failures JOIN layers ON layers.id = layer GROUP BY job")
        return dict(rows)

    # --- agents ---------------------------------------------------------------------------------------

    def set_agent(self, name: str, live: bool, seen: float, info: bytes) -> None:
        self.db.execute("INSERT OR REPLACE INTO agents VALUES (?, ?, ?, ?)", (name, live, seen, info))

    def agents(self) -> list[tuple[str, bool, float, bytes]]:
        rows = self.db.execute("SELECT name, live, seen, info FROM agents ORDER BY name")
        return [(name, bool(live), seen, info) for name, live, seen, info in rows]


def _has_column(db: sqlite3.Connection, table: str, name: str) -> bool:
    return db.execute("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, name)).fetchone() is not None


def _failure_row(row: tuple[Any, ...]) -> FailureRow:
    layer, number, boot, attempt, agent, at, code, message, evidence, seconds, peak, quarantined = row
    told = kept_line(message, MESSAGE_BYTES), kept(evidence, EVIDENCE_BYTES, end=True)  # as an older one did not
    return FailureRow(layer, number, boot, attempt, agent, at, code, *told, seconds, peak, bool(quarantined))
