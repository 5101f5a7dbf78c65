"""A job's plan as the root keeps it, held to the digest that the store has of it. One that differs is never used."""

from __future__ import annotations

from coordinator import ask
from coordinator.admin import Status, StatusAsk
from coordinator.root import JobFolder, Root
from jobs.checksum import of_bytes
from jobs.errors import DamagedError, LinkError, NoDaemonError, NotFoundError
from jobs.plan import Plan, decode_plan

_HINT = (
    "restore the file from a backup, then start the coordinator again; or `coordinator rm {0}`, and submit its job"
    " file anew"
)


def read(folder: JobFolder, digest: str | None) -> tuple[Plan, str]:
    """The plan and its digest; a DamagedError unless that is `digest`. None: nobody knows it yet."""
    raw = folder.plan.read_bytes()
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
    return read(folder, _digest_of(folder))[0]


def _digest_of(folder: JobFolder) -> str | None:
    from coordinator.store import plan_digest

    root, job = Root(folder.path.parents[1]), folder.path.name
    try:
        return ask.ask(root, StatusAsk(job), Status).jobs[0].plan or None
    except (NoDaemonError, LinkError):  # none is there, or it stands still
        return plan_digest(root.store, job)
    except NotFoundError:  # a folder without a row: nothing is known of it
        return None
