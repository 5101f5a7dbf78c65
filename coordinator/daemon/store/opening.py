"""Opening the store at the daemon's start, unless it is not the one that this root had. Puts nothing right."""

from __future__ import annotations

import sqlite3

from muster.coordinator.daemon.store.statements import Store
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.errors import DamagedError
from muster.jobs.common.names import is_job, split_job_id


def open_store(root: Root) -> tuple[Store, int]:
    """The store, and the number of this start, which is durable in it and then in farm.json. A DamagedError where jobs
    lie in the root and the store is gone, cannot be read, or knows less than the root."""
    store = _sound(root)
    try:
        boot = store.next_boot(root.boot)
        root.note_boot(boot)
        return store, boot
    except BaseException:
        store.close()
        raise


def is_sound(root: Root) -> bool:
    """Whether `open_store` would open it."""
    try:
        _sound(root).close()
    except DamagedError:
        return False
    return True


def _sound(root: Root) -> Store:
    logged = root.store.with_name(f"{root.store.name}-wal").exists()
    if _planned(root) and not (root.store.exists() and root.store.stat().st_size):
        raise _lost(root, "is gone or empty, and jobs/ is not")
    try:
        return _checked(root, logged)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # of the disk, or of who may read it
            raise
        raise _lost(root, f"is damaged: {error}") from None


def _checked(root: Root, logged: bool) -> Store:
    store = Store(root.store)
    try:
        if harm := store.harm():
            raise _lost(root, f"is damaged: {harm}")
        if why := _unknown(root, store, logged):
            raise _lost(root, f"is not the one that this root had: {why}")
        return store
    except BaseException:
        store.close()
        raise


def job_folders(root: Root) -> list[str]:
    return sorted(path.name for path in root.jobs.iterdir() if is_job(path.name) and path.is_dir())


def _planned(root: Root) -> list[str]:
    """Those that were submitted: a folder comes with its plan."""
    return [job for job in job_folders(root) if root.job(job).plan.exists()]


def _unknown(root: Root, store: Store, logged: bool) -> str:
    """What lies in the root and is not known to the store; "" where all is. A job's row is there before its folder and
    may go before that does, but its number was counted. `logged`: whether there was a log beside the store."""
    jobs = _planned(root)
    numbers = store.numbers()
    if new := [job for job in jobs if _number(job) > numbers.get(split_job_id(job)[0], 0)]:
        return f"it does not know {', '.join(new[:3])}"
    if jobs and store.boot < root.boot:
        return f"it ends with start {store.boot}, and there was start {root.boot}"
    if not logged and any(path.name.isdecimal() for path in root.tmp.iterdir()):  # a daemon died with a log beside it
        known_jobs = [job.id for job in store.jobs()]
        bundles = [(job, _bundles(root, job), {file for _, file, _ in store.bundles_of(job)}) for job in known_jobs]
        if other := [job for job, there, known in bundles if there != known]:
            return f"its log is gone, and with it what was last committed of {', '.join(other[:3])}"
    return ""


def _bundles(root: Root, job: str) -> set[str]:
    folder = root.job(job).bundles
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _number(job: str) -> int:
    return split_job_id(job)[1] or 0


def _lost(root: Root, why: str) -> DamagedError:
    return DamagedError(
        f"{root.store} {why}",
        f"restore the root from a backup; or `coordinator rebuild --root {root.path}` makes a new one of what is there",
    )
