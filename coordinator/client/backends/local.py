"""A farm whose root is on this machine: its daemon is asked, its files are read in place. What only a command of ours
does is done by that command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from muster.coordinator.api.requests import AgentsAsk, Cancel, Done, FailuresAsk, StatusAsk
from muster.coordinator.api.status import Agents, AgentStatus, FailureRecord, Status
from muster.coordinator.client.backends import command
from muster.coordinator.client.backends.base import Layers, document
from muster.coordinator.farm_root import ask_daemon, calls_line, uploads
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.result_downloads import partial, shard_stream
from muster.coordinator.result_downloads.file_server import layers_of
from muster.coordinator.submission import client_job
from muster.coordinator.submission.enqueue import enqueue
from muster.jobs.tuning.journal import recalled
from muster.jobs.tuning.summary import SearchReport, reported


class LocalBackend:
    """The farm of one root."""

    here = True

    def __init__(self, root: Root) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root.path)

    def status(self, job: str | None) -> Status:
        return ask_daemon.ask(self._root, StatusAsk(ask_daemon.job_named(self._root, job) if job else None), Status)

    def agents(self) -> list[AgentStatus]:
        return ask_daemon.ask(self._root, AgentsAsk(), Agents).agents

    def failures(self, question: FailuresAsk) -> list[FailureRecord]:
        return ask_daemon.failures(self._root, question)[0].items

    def report(self, job: str) -> tuple[dict[str, Any], str]:
        from muster.coordinator.report import gather, html

        found = gather.gather(self._root, [job], None, timeline=True)
        return gather.document(found)["jobs"][0], html.page(found)

    def cancel(self, job: str) -> None:
        ask_daemon.ask(self._root, Cancel(job), Done)

    def do(self, name: str, *words: str) -> dict[str, Any]:
        return document(command.run(self._root, name, ["--json", *words]), str(self))

    def share(self) -> None:
        """A question is a connection to a socket beside us."""

    def end_sharing(self) -> None: ...

    def follow(self, job: str) -> Iterator[Status]:
        return ask_daemon.statuses(self._root, job)

    def uploads(self) -> list[uploads.Upload]:
        return uploads.listed(self._root)

    def upload(self, digest: str, nbytes: int, start: int, pieces: Iterable[memoryview]) -> None:
        uploads.check_room(nbytes - start, ask_daemon.room(self._root))
        uploads.receive(self._root, digest, nbytes, start, _Reader(pieces).read)

    def submit(self, sent: client_job.ClientJob, old: str | None = None) -> str:
        ask_daemon.connect(self._root).close()
        return client_job.submit(self._root, sent, old=old)

    def session(self, job: str) -> calls_line.CallsLine:
        return calls_line.of_socket(calls_line.connect(self._root, job))

    def records(self, job: str, after: shard_stream.Cursor) -> shard_stream.Items:
        return shard_stream.read(self._root, job, after)

    def layers(self, job: str) -> Layers:
        return Layers(*layers_of(self._root.job(job)))

    def search(self, job: str) -> SearchReport:
        return reported(recalled(self._root.job(job).checkpoints))

    def enqueue(self, job: str, config: dict[str, Any], name: str) -> None:
        enqueue(self._root, job, config, name)

    def partial(self, job: str) -> Layers:
        made = partial.make(self._root, job)
        return Layers(made.layers, made.missing)

    def result(self, job: str, layers: list[str], progress: bool, partial: bool = False) -> Path:
        folder = self._root.job(job)
        return folder.partial if partial else folder.result


class _Reader:
    """Pieces of any size as a file has them."""

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def read(self, limit: int) -> bytes:
        if not self._held:
            self._held = next(self._pieces, memoryview(b""))
        piece, self._held = self._held[:limit], self._held[limit:]
        return bytes(piece)
