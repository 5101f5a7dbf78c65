"""A draft handed in: what it needs is sent first, and the job then. Reads no job file."""

from __future__ import annotations

from muster.coordinator.client.arrays import send
from muster.coordinator.client.backends.base import Backend
from muster.coordinator.client.job_draft import JobDraft
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
