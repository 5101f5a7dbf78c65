"""A farm behind ssh: every question is a `coordinator` command there. Keeps no connection between two of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from muster.coordinator.api.requests import FailuresAsk, Submitted
from muster.coordinator.api.status import Agents, AgentStatus, FailureRecord, Failures, Status
from muster.coordinator.client.backends.base import Layers, document
from muster.coordinator.client.backends.download import Download
from muster.coordinator.client.backends.retry import Patience
from muster.coordinator.client.backends.ssh import Ssh
from muster.coordinator.farm_root.ask_daemon import SILENCE_SECONDS
from muster.coordinator.farm_root.calls_line import CallsLine
from muster.coordinator.farm_root.uploads import Upload
from muster.coordinator.result_downloads import shard_stream
from muster.coordinator.submission import client_job
from muster.jobs.common.errors import IncompleteError, MusterError, ProtocolError
from muster.jobs.common.names import is_digest, is_job, is_layer
from muster.jobs.common.validation import one_line
from muster.jobs.tuning.summary import SearchReport, SearchSummary, TrialSummary

if TYPE_CHECKING:
    from typing_extensions import Buffer  # the type checker's; nothing to install

LINE_LIMIT = 1 << 20  # bytes of a status without its layers

_T = TypeVar("_T")


class Uploads(msgspec.Struct, frozen=True):
    """What `uploads --json` prints."""

    uploads: list[Upload]


class Reported(msgspec.Struct, frozen=True):
    """What `report --json` prints."""

    jobs: list[dict[str, Any]]


class Listing(msgspec.Struct, frozen=True):
    """What `result --json` prints."""

    farm: str
    layers: list[str]
    missing: list[str]


class SearchEffect(msgspec.Struct, frozen=True):
    of_kind: SearchSummary


class SearchMeasured(msgspec.Struct, frozen=True):
    effect: SearchEffect


class Searches(msgspec.Struct, frozen=True):
    """What `report --json --curves` prints of a search, as far as a client wants it."""

    jobs: Annotated[list[SearchMeasured], msgspec.Meta(min_length=1)]
    curves: Annotated[list[list[TrialSummary]], msgspec.Meta(min_length=1)]


class RemoteBackend:
    """The farm of one server's root. `cache`: where results are kept on this machine; None: where they all are."""

    here = False

    def __init__(self, ssh: Ssh, cache: Path | None = None) -> None:
        self._ssh = ssh
        self._cache = cache or _default_cache()
        self.farm = ""  # its uuid, once it was told with layers

    def __str__(self) -> str:
        return str(self._ssh)

    def status(self, job: str | None) -> Status:
        return self._ask(Status, "status", "--json", *(["--", job] if job else []))

    def agents(self) -> list[AgentStatus]:
        return self._ask(Agents, "agents", "--json").agents

    def failures(self, question: FailuresAsk) -> list[FailureRecord]:
        options = [*(["--failed"] if question.quarantined else []), "--limit", str(question.limit)]
        shard = [f"{question.layer}/{question.number}"] if question.layer is not None else []
        return self._ask(Failures, "logs", "--json", *options, "--", question.job, *shard).items

    def report(self, job: str) -> tuple[dict[str, Any], str]:
        found = self._ask(Reported, "report", "--json", "--timeline", "--", job)
        if len(found.jobs) != 1:
            raise ProtocolError(f"{self} reports on {len(found.jobs)} jobs")
        return found.jobs[0], self._ssh.run("report", "--html", "-", "--", job).decode(errors="replace")

    def cancel(self, job: str) -> None:
        self._ssh.run("cancel", "--", job)

    def do(self, name: str, *words: str) -> dict[str, Any]:
        return document(self._ssh.run(name, "--json", *words), str(self))

    def share(self) -> None:
        self._ssh.share()

    def end_sharing(self) -> None:
        self._ssh.end_sharing()

    def follow(self, job: str) -> Iterator[Status]:
        patience, last, heard = Patience(), None, time.monotonic()
        while True:
            try:
                for status in self._lines(job):
                    if status is not None:
                        patience.progress()
                        last, heard = status, time.monotonic()
                        yield status
                        if status.jobs[0].is_over:
                            return
                    elif last is not None:
                        yield msgspec.structs.replace(last, silent=time.monotonic() - heard)
            except MusterError as error:
                if last is not None:
                    yield msgspec.structs.replace(last, silent=time.monotonic() - heard)
                patience.endure(error)

    def _lines(self, job: str) -> Iterator[Status | None]:
        """None for each SILENCE_SECONDS without a line."""
        with self._ssh.talk("watch", "--json", "--", job) as talk:
            for line in talk.lines(LINE_LIMIT, SILENCE_SECONDS):
                yield None if line is None else self._decoded(line, Status)

    def uploads(self) -> list[Upload]:
        return self._ask(Uploads, "uploads", "--json").uploads

    def upload(self, digest: str, nbytes: int, start: int, pieces: Iterable[memoryview]) -> None:
        with self._ssh.talk("upload", "--json", "--size", str(nbytes), "--from", str(start), "--", digest) as talk:
            talk.send(pieces)

    def submit(self, sent: client_job.ClientJob, old: str | None = None) -> str:
        taken = ["--from", old] if old else []
        job = self._ask(Submitted, "submit", "--parcel", "--json", *taken, data=client_job.encode(sent)).job
        if not is_job(job):
            raise ProtocolError(f"{self} calls a job {job[:80]!r}")
        return job

    def session(self, job: str) -> CallsLine:
        talk = self._ssh.begin("session", "--", job)

        def send(data: Buffer) -> None:
            talk.write(data)
            talk.flush()

        return CallsLine(talk.reader, send, talk.close)

    def records(self, job: str, after: shard_stream.Cursor) -> shard_stream.Items:
        where = ["--after", str(after.seq), "--shard", str(after.number)]
        with self._ssh.talk("stream", *where, "--", job) as talk:
            yield from shard_stream.receive(talk.read)

    def layers(self, job: str) -> Layers:
        return Layers(*self._listed(job)[1:])

    def search(self, job: str) -> SearchReport:
        found = self._ask(Searches, "report", "--json", "--curves", "--", job)
        return SearchReport(found.jobs[0].effect.of_kind, found.curves[0])

    def enqueue(self, job: str, config: dict[str, Any], name: str) -> None:
        values = [f"{parameter}={msgspec.json.encode(value).decode()}" for parameter, value in config.items()]
        self._ssh.run("enqueue", "--id", name, "--", job, *values)

    def partial(self, job: str) -> Layers:
        found = self._checked(self._ask(Listing, "result", "--partial", "--json", "--", job))
        return Layers(found.layers, found.missing)

    def _listed(self, job: str) -> tuple[str, list[str], list[str]]:
        try:
            found = self._checked(self._ask(Listing, "result", "--json", "--", job))
        except IncompleteError:
            return self.farm, [], [layer.name for layer in self.status(job).jobs[0].layers]
        return found.farm, found.layers, found.missing

    def _checked(self, found: Listing) -> Listing:
        if found.farm and not is_digest(found.farm):
            raise ProtocolError(f"{self} calls its farm {found.farm[:80]!r}")
        if (odd := next((name for name in found.layers + found.missing if not is_layer(name)), None)) is not None:
            raise ProtocolError(f"{self} calls a layer {odd[:80]!r}")
        self.farm = found.farm
        return found

    def result(self, job: str, layers: list[str], progress: bool, partial: bool = False) -> Path:
        farm = self.farm if partial else self._listed(job)[0]
        folder = self._cache / farm / (f"{job}.partial" if partial else job)
        self.fetch(job, layers, folder, progress, partial)
        return folder

    def fetch(self, job: str, layers: list[str], folder: Path, progress: bool, partial: bool) -> None:
        """Have these layers in a folder of this machine."""
        Download(self._ssh, job, folder, partial).run(layers, progress)

    def _ask(self, answer: type[_T], *args: str, data: bytes = b"") -> _T:
        return self._decoded(self._ssh.run(*args, data=data), answer)

    def _decoded(self, raw: bytes, answer: type[_T]) -> _T:
        try:
            return msgspec.json.decode(raw, type=answer)
        except (msgspec.DecodeError, ValueError) as error:
            first = raw.decode(errors="replace").strip().partition("\n")[0][:80]
            raise ProtocolError(
                f"{self} printed {first!r} where JSON should be: {one_line(str(error))[:200]}"
            ) from None


def _default_cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path.home() / ".cache") / "muster"
