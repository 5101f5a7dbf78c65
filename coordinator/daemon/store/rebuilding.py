"""Putting a rebuilt store in the place of the lost one. Decides nothing of what is in it.

Order, each step safe to die after, as the same command begins anew: what has no row is set aside → the new store
durable under a name of its own → the old one renamed, then its log → the new one renamed. Before the last there is no
store, and `coordinator serve` refuses. farm.json comes last. Nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from muster.coordinator.daemon.agents.sessions import AgentInfo
from muster.coordinator.daemon.store.rebuilt_rows import JobRows, LayerRows, StoreRows
from muster.coordinator.daemon.store.statements import Store
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.durable import fsync_folder, publish
from muster.jobs.common.names import split_job_id

BEFORE = "before-rebuild"
LOGS = ("-wal", "-shm")


def replace_store(root: Root, rows: StoreRows, aside: Iterable[tuple[Path, Path]]) -> Path | None:
    """Put a store with `rows` into the root; where the old one lies now, if there was one. `aside`: files, and where
    they are renamed to first."""
    for path, to in aside:
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
        fsync_folder(to.parent)
        fsync_folder(path.parent)
    made = root.store.with_name(f"{root.store.name}.rebuilt")
    for old in (made, *(made.with_name(made.name + log) for log in LOGS)):
        old.unlink(missing_ok=True)
    write_store(made, rows)
    kept = _set_aside(root.store)
    publish(made, root.store)
    root.note_boot(rows.boot)  # what is there may be damaged, and more than anything else knows of
    return kept


def _set_aside(store: Path) -> Path | None:
    """The database first: a log without one is that of a rebuild that was killed here."""
    number = max((_number(path) for path in store.parent.glob(f"{store.name}.{BEFORE}-*")), default=0)
    if store.exists():
        number += 1
    kept = store.with_name(f"{store.name}.{BEFORE}-{number}")
    for end in ("", *LOGS):
        old = store.with_name(store.name + end)
        if old.exists():
            old.rename(kept.with_name(kept.name + end))
            fsync_folder(store.parent)
    return kept if kept.exists() else None


def _number(path: Path) -> int:
    digits = path.name.rpartition(f"{BEFORE}-")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def write_store(path: Path, rows: StoreRows) -> None:
    """A new store at `path`, in one file that is durable."""
    store = Store(path)
    try:
        store.db.execute("BEGIN")
        store.begin_at(rows.boot)
        for job in rows.jobs:
            _add(store, job)
        for name, last in rows.numbers.items():
            store.set_number(name, last)
        for name, (seen, fingerprint) in rows.agents.items():
            store.set_agent(name, True, seen, msgspec.msgpack.encode(AgentInfo("", "", fingerprint, 0)))
        store.db.execute("COMMIT")
        store.db.execute("PRAGMA journal_mode = DELETE")
    finally:
        store.close()


def _add(store: Store, rows: JobRows) -> None:
    found, plan = rows.found, rows.found.plan
    name, number = split_job_id(found.id)
    store.set_number(name, (number or 1) - 1)
    digests = [(layer.layer.digest, layer.layer.out_bytes) for layer in rows.layers]
    job = store.add_job(name, digests, plan.priority, found.created, found.digest)
    assert job == found.id
    if rows.kernels is not None:
        store.fix_kernels(job, rows.kernels)
    for layer in rows.layers:
        _add_layer(store, job, layer)
    if any(layer.result or layer.bundles for layer in rows.layers):
        store.set_succeeded(job)
    store.set_job(job, rows.state, rows.why, rows.ended)
    store.set_ready(job)


def _add_layer(store: Store, job: str, rows: LayerRows) -> None:
    layer, result = rows.layer, rows.result
    if result is not None and layer.delivery.in_rounds:
        store.set_merged(job, layer.digest, 0, result.manifest)
        store.keep_cursor(job, 0, True, None)
    elif result is not None:
        store.adopt_layer(job, layer.digest, result.outputs, [(0, layer.count)], result.manifest)
    for bundle in rows.bundles:
        each = bundle.body // len(bundle.numbers)
        agent = min(bundle.agents, default="")
        store.commit_bundle(
            job, layer.digest, bundle.file, bundle.nbytes, agent, bundle.at, bundle.numbers, bundle.outputs, each, None
        )
    if rows.state == "open":  # any shard may have been granted
        store.set_layer(job, layer.digest, "open", 0)
        store.raise_high_water(job, layer.digest, layer.count)
