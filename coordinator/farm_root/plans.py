"""A job's plan as the root keeps it, held to the digest that the store has of it. One that differs is never used. And
what the store has of its results: the digests of manifests, by which `verify` judges those, and which bundles count."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from muster.coordinator.api.requests import CommitsAsk, Manifests, ManifestsAsk, StatusAsk
from muster.coordinator.api.status import Commits, Status
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root.paths import JobFolder, Root
from muster.jobs.common.errors import DamagedError, LinkError, NoDaemonError, NotFoundError, RefusedError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.contract.plan import Plan, decode_plan

_HINT = (
    "restore the file from a backup, then start the coordinator again; or `coordinator rm {0}`, and submit its job"
    " file anew"
)


def read(folder: JobFolder, digest: str | None) -> tuple[Plan, str]:
    """The plan and its digest; a DamagedError unless that is `digest`. None: nobody knows it yet."""
    try:
        raw = folder.plan.read_bytes()
    except OSError as error:
        raise damaged(folder, str(error.strerror)) from None
    found = of_bytes(raw)
    if digest is not None and found != digest:
        raise damaged(folder, "it is not what was submitted: its digest is another")
    try:
        return decode_plan(raw), found
    except DamagedError as error:
        raise damaged(folder, error.message) from None


def damaged(folder: JobFolder, why: str) -> DamagedError:
    """What is said of a plan that cannot be used."""
    return DamagedError(f"{folder.plan} is damaged: {why}", _HINT.format(folder.path.name))


def load(folder: JobFolder) -> Plan:
    """The plan, for whoever is not the daemon: that one is asked for the digest, or where none serves, the store."""
    try:
        return read(folder, _digest_of(folder))[0]
    except DamagedError:
        if folder.path.is_dir():
            raise
        raise NotFoundError(f"{folder.path.name} was removed just now", "`coordinator status` lists jobs") from None


def _digest_of(folder: JobFolder) -> str | None:
    root, job = Root(folder.path.parents[1]), folder.path.name
    try:
        return ask_daemon.ask(root, StatusAsk(job), Status).jobs[0].plan or None
    except (NoDaemonError, LinkError):  # none is there, or it stands still
        rows = _stored(root.store, "jobs", "plan", "SELECT plan FROM jobs WHERE id = ?", job)
        return rows[0][0] if rows else None
    except NotFoundError:  # a folder without a row: nothing is known of it
        return None


def manifests(folder: JobFolder) -> dict[str, str]:
    """Layer's digest → the digest of its manifest, of what was merged since that is kept; from the daemon, or the
    store where none serves."""
    root, job = Root(folder.path.parents[1]), folder.path.name
    try:
        return ask_daemon.ask(root, ManifestsAsk(job), Manifests).layers
    except (NoDaemonError, LinkError):
        known = "SELECT digest, manifest FROM layers WHERE job = ? AND manifest IS NOT NULL"
        return dict(_stored(root.store, "layers", "manifest", known, job))
    except NotFoundError:
        return {}


def bundles(folder: JobFolder, plan: Plan) -> dict[str, list[str]]:
    """The files of the committed bundles by layer; from the daemon, which tells of those of merged layers too, or the
    store where none serves."""
    root, job = Root(folder.path.parents[1]), folder.path.name
    found: dict[str, list[str]] = {layer.name: [] for layer in plan.layers}
    try:
        with ask_daemon.line(root) as line:
            after = 0
            while items := line.ask(CommitsAsk(job, after), Commits).items:
                for commit in items:
                    found[commit.layer].append(commit.file)
                after = items[-1].seq
    except (NoDaemonError, LinkError):
        names = {layer.digest: layer.name for layer in plan.layers}
        known = "SELECT digest, file FROM bundles JOIN layers ON layers.id = bundles.layer WHERE job = ? ORDER BY file"
        found = {name: [] for name in found}
        for digest, file in _stored(root.store, "bundles", "file", known, job):
            found[names[digest]].append(file)
    return found


def _stored(path: Path, table: str, column: str, query: str, job: str) -> list[tuple[Any, ...]]:
    """What the store at `path` has of a job, where no daemon has that open. None of a store from before that column.

    Read-only: such a connection neither writes nor checkpoints, so a daemon that starts meanwhile is not disturbed.
    """
    import sqlite3

    if not path.exists():
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, column)).fetchone()
            return db.execute(query, (job,)).fetchall() if found else []
    except sqlite3.Error as error:
        raise RefusedError(f"{path} cannot be read: {error}", "restore it from a backup") from None
