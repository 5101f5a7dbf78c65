"""A draft handed in: what it needs is sent first, and the job then; or planned on this machine alone. Reads no job
file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from muster.coordinator.client.arrays import send
from muster.coordinator.client.backends.base import Backend
from muster.coordinator.client.job_draft import JobDraft
from muster.coordinator.submission import client_job
from muster.coordinator.submission.submit import Planned
from muster.jobs.common.errors import SourceError

SUBMIT_TRIES = 3  # an upload may go, with the last job that needed it, just when it is counted on


def hand_in(place: Backend, draft: JobDraft, progress: bool, old: str | None = None) -> str:
    """The id of the job. `old`: an earlier one, whose layers it takes over where they would come out the same."""
    for tries in range(1, SUBMIT_TRIES + 1):
        send(place, draft.files, progress)
        try:
            return place.submit(draft.parcel(), old)
        except SourceError:
            there = {one.digest for one in place.uploads() if one.complete}
            if tries == SUBMIT_TRIES or all(file.digest in there for file in draft.files):
                raise
    raise AssertionError("the last try raises or returns")


@contextmanager
def planned_here(draft: JobDraft) -> Iterator[Planned]:
    """Its plan, made on this machine, with its arrays as files for as long as they are needed."""
    with TemporaryDirectory(prefix="muster-plan-") as name:
        folder = Path(name)
        for layer, array in draft.arrays.items():
            path = folder / client_job.ARRAYS / f"{layer}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.writelines(array.pieces(0))
        yield client_job.plan_in(folder, draft.text, draft.code)
