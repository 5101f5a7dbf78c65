"""What a farm can be asked, wherever it is. Says nothing of how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from muster.coordinator.api.requests import FailuresAsk
from muster.coordinator.api.status import AgentStatus, FailureRecord, Status
from muster.coordinator.farm_root.calls_line import CallsLine
from muster.coordinator.farm_root.uploads import Upload
from muster.coordinator.result_downloads.shard_stream import Cursor, Items
from muster.coordinator.submission.client_job import ClientJob
from muster.jobs.common.errors import ProtocolError
from muster.jobs.tuning.summary import SearchReport


class Layers(NamedTuple):
    """Names of a job's layers."""

    merged: list[str]
    missing: list[str]


def document(raw: bytes, where: str) -> dict[str, Any]:
    """What a command printed under --json, without the number of the schema."""
    try:
        found = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError):
        first = raw.decode(errors="replace").strip().partition("\n")[0][:80]
        raise ProtocolError(f"{where} printed {first!r} where JSON should be") from None
    found.pop("schema", None)
    return found


class Backend(Protocol):
    """One farm's root, here or behind ssh. Every error is of `muster.jobs.common.errors`."""

    @property
    def here(self) -> bool:
        """Whether its files are this machine's."""

    def status(self, job: str | None) -> Status:
        """Of all jobs, or of one with its layers; `weights` means the latest of that name."""

    def agents(self) -> list[AgentStatus]: ...

    def failures(self, question: FailuresAsk) -> list[FailureRecord]:
        """What failed; where only shards that are given up are asked for and none is, all that failed."""

    def report(self, job: str) -> tuple[dict[str, Any], str]:
        """How the job went, as `coordinator report` says it: the values of `--json`, and the page."""

    def do(self, name: str, *words: str) -> dict[str, Any]:
        """What `coordinator NAME --json WORDS` prints: of commands that report or change something, and no more."""

    def share(self) -> None:
        """Keep what is needed to ask open until `end_sharing`, if that is dear."""

    def end_sharing(self) -> None: ...

    def cancel(self, job: str) -> None: ...

    def follow(self, job: str) -> Iterator[Status]:
        """The job's status again and again, without its layers perhaps, until one says that it is over."""

    def uploads(self) -> list[Upload]: ...

    def upload(self, digest: str, nbytes: int, start: int, pieces: Iterable[memoryview]) -> None: ...

    def submit(self, parcel: ClientJob, old: str | None = None) -> str:
        """The job's id. `old`: an earlier job, of which layers that would come out the same are taken over."""

    def session(self, job: str) -> CallsLine:
        """A line to the driver of a session; a retryable error while there is none to be had."""

    def records(self, job: str, after: Cursor) -> Items:
        """Shards as they are committed; closed, it leaves nothing open."""

    def layers(self, job: str) -> Layers: ...

    def search(self, job: str) -> SearchReport:
        """How a search stands, with its trials."""

    def enqueue(self, job: str, config: dict[str, Any], name: str) -> None:
        """Have a search that runs try this too; under the same name once only."""

    def partial(self, job: str) -> Layers:
        """Merge what there is of the job, in place of what was merged so before. The layers of which something is
        there, and those of which nothing is."""

    def result(self, job: str, layers: list[str], progress: bool, partial: bool = False) -> Path:
        """A folder of this machine in which these layers are. `partial`: as `partial` merged them."""
