"""One job of a farm: wait for it, follow its shards, have its result. Keeps no state but the job's id."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import msgspec

from muster.coordinator.api.requests import FailuresAsk
from muster.coordinator.api.status import Explained, FailureRecord, JobStatus
from muster.coordinator.api.values import FAILURES_LIMIT
from muster.coordinator.client import bars
from muster.coordinator.client.backends.base import Backend
from muster.coordinator.client.backends.retry import Patience
from muster.coordinator.client.notebook import page
from muster.coordinator.client.python_words import python_words
from muster.coordinator.client.report import Report
from muster.coordinator.client.results import Result
from muster.coordinator.client.shards import Shard, assemble, parse_cursor
from muster.coordinator.display import jobs
from muster.coordinator.display.tables import short
from muster.coordinator.result_downloads.shard_stream import Cursor, Record
from muster.jobs.common.errors import IncompleteError, MusterError, NotFoundError, StillRunningError
from muster.jobs.common.names import parse_shard
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.validation import one_line
from muster.jobs.sources.globs import matches
from muster.jobs.tuning.summary import SearchReport

PLACE_WIDTH = 60  # columns of where its farm is


class Job:
    """A job by its full id, `weights.1`. Every error is one of `muster.jobs.common.errors`, as on the command line."""

    def __init__(self, place: Backend, job: str) -> None:
        self._place = place
        self.id = job

    def __repr__(self) -> str:
        return f"<Job {self.id} of {short(str(self._place), PLACE_WIDTH)}>"

    def _repr_html_(self) -> str:
        try:
            status = self._place.status(self.id).jobs[0]
        except MusterError as error:
            return page(repr(self), (), (), [error.message])
        rows = [(layer.name, layer.state, layer.tally.committed, layer.tally.shards) for layer in status.layers]
        notes = [*([status.why] if status.why else []), *status.notes]
        return page(f"{self.id}: {status.kind}, {status.state}", ("layer", "state", "committed", "shards"), rows, notes)

    @python_words()
    def status(self) -> JobStatus:
        """How the job is now: its `state`, `totals`, `layers`, `agents` and `notes`."""
        return self._place.status(self.id).jobs[0]

    @python_words()
    def report(self) -> Report:
        """How the job went, or goes: a notebook shows the page, `.values` has it all, `.save(file)` keeps it."""
        return Report(self.id, *self._place.report(self.id))

    @python_words()
    def wait(self, progress: bool = True, timeout: float | None = None) -> JobStatus:
        """Wait until the job is complete. Raises an IncompleteError if it ends, or is halted, without all of its
        shards, a DamagedError if it is damaged, and a StillRunningError, which is a TimeoutError as well, after
        `timeout` seconds.

        `progress` shows a bar. An interrupt or a timeout leaves the job running.
        """
        try:
            status = self._followed(progress, None if timeout is None else time.monotonic() + timeout)
        except KeyboardInterrupt:
            print(f"\n{self.id} goes on; farm.job({self.id!r}).wait() follows it again", file=sys.stderr)
            raise
        if status is None:
            raise StillRunningError(f"{self.id} goes on after {timeout} s", "job.wait() again, or job.cancel()")
        if status.state != "complete":
            raise self._incomplete(status)
        return status

    def search(self) -> SearchReport:
        """Of a search: how it stands, and its trials with their curves, as far as there are any."""
        return self._place.search(self.id)

    @python_words()
    def enqueue(self, config: Mapping[str, Any], name: str) -> None:
        """Of a search that runs: have it try this configuration too. Under the same name it is tried once."""
        self._place.enqueue(self.id, dict(config), name)

    def end_search(self) -> None:
        """Of a search that runs: have it end with the best of what it has."""
        self._place.do("enqueue", "--end", "--", self.id)

    def _followed(self, progress: bool, deadline: float | None) -> JobStatus | None:
        """The job as it ended; None at the deadline."""
        held: list[str] = []
        with bars.bar(progress, desc=self.id, total=0, unit="shard") as bar:
            for answer in self._place.follow(self.id):
                status = answer.jobs[0]
                bar.total, done = jobs.bar_counts(status)
                bar.unit = one_line(status.progress.unit) if status.progress else "shard"
                before, held = held, jobs.holdups(answer)
                said = "; ".join([jobs.bar_note(answer), *held])
                bar.set_postfix_str(one_line(said), refresh=bars.is_watched() or held != before)
                bar.update(done - bar.n)
                if not status.is_over and deadline is not None and time.monotonic() >= deadline:
                    return None
        return status

    def _incomplete(self, status: JobStatus) -> MusterError:
        """Why it is not complete, with one of the failures that its user's code had."""
        error = jobs.incomplete(status)
        if not isinstance(error, IncompleteError):
            return error
        failures = []
        with suppress(MusterError):
            failures = self._place.failures(FailuresAsk(self.id, None, None, True, 1))
        if not failures:
            return error
        [one] = failures
        return error.caused_by(f"{one.layer}/{one.number}", one.message, one.evidence)

    @python_words()
    def result(self, layers: Sequence[str] | None = None, progress: bool = True, *, partial: bool = False) -> Result:
        """The merged arrays by layer and output, mapped and not loaded. Waits for the job unless they are merged.

        `layers` are names or globs of the layers that are wanted, by default all. On another machine than the server
        they are downloaded first, into the cache. `partial` gives what there is by now, with holes where shards are
        missing, which `["ok"]` and the layer's manifest show; layers of which there is nothing are left out.
        """
        if partial:
            return self._partial(layers, progress)
        merged, missing = self._place.layers(self.id)
        wanted = _chosen([*merged, *missing], layers)
        if not set(wanted) <= set(merged):
            self.wait(progress)
            merged, missing = self._place.layers(self.id)
        if unmerged := [name for name in wanted if name not in set(merged)]:
            raise IncompleteError(f"{self.id}: layer {unmerged[0]} is not merged", "wait for the job, then ask again")
        return Result(self.id, self._place.result(self.id, wanted, progress), wanted)

    def _partial(self, layers: Sequence[str] | None, progress: bool) -> Result:
        there, missing = self._place.partial(self.id)
        wanted = [name for name in _chosen([*there, *missing], layers) if name in set(there)]
        if not wanted:
            raise IncompleteError(f"{self.id}: no shard of these layers is committed yet", "ask again later")
        return Result(self.id, self._place.result(self.id, wanted, progress, partial=True), wanted, partial=True)

    def stream(self, after: str | None = None) -> Iterator[Shard]:
        """Yield each shard once, as soon as it is committed, in the order of the commits; first those of the past.

        `after` is the `cursor` of the last shard that was seen, to go on after that one. A connection that is cut is
        made again. The stream ends with the job, and with an IncompleteError if that is not complete then.
        """
        cursor, seen, patience = parse_cursor(after), dict[str, RangeSet](), Patience()
        while True:
            try:
                for shard, at in self._shards(cursor):
                    cursor = at
                    patience.progress()
                    known = seen.setdefault(shard.layer, RangeSet())
                    if shard.number not in known:  # else a damaged bundle, or a retry, made it be computed again
                        known.add(shard.number, shard.number + 1)
                        yield shard
                break
            except MusterError as error:
                patience.endure(error)
        status = self.status()
        if status.state != "complete":
            with python_words():
                raise self._incomplete(status)

    def _shards(self, after: Cursor) -> Iterator[tuple[Shard, Cursor]]:
        with closing(self._place.records(self.id, after)) as items:
            for news, pieces in items:
                if isinstance(news, Record):
                    yield assemble(news, pieces), news.cursor

    @python_words()
    def cancel(self) -> None:
        """End the job; what is merged is kept."""
        self._place.cancel(self.id)

    @python_words()
    def retry(self, layers: Sequence[str] = ()) -> None:
        """Run its failed shards again, or all of these layers; a job that was cancelled goes on."""
        self._place.do("retry", *_repeated("--layers", layers), "--", self.id)

    @python_words()
    def pause(self) -> None:
        """Grant nothing more of it until `resume`."""
        self._place.do("pause", "--", self.id)

    @python_words()
    def resume(self) -> None:
        self._place.do("resume", "--", self.id)

    @python_words()
    def priority(self, share: int) -> None:
        """Let it have so many shares of the farm, where another job has one."""
        self._place.do("priority", "--", self.id, str(share))

    @python_words()
    def set(self, **settings: object) -> None:
        """Change what its shards may use from now on, and how often they may fail: `memory="4GiB"`, `timeout="1h"`,
        `attempts`, `max_failures`."""
        self._place.do("set", "--", self.id, *(f"{name}={value}" for name, value in settings.items()))

    @python_words()
    def kick(self, shard: str) -> None:
        """Take a shard, LAYER/NUMBER, from the machine where it runs, and have it run elsewhere."""
        self._place.do("kick", "--", f"{self.id}/{shard}")

    @python_words()
    def rm(self) -> None:
        """Delete it with its result, once it has ended."""
        self._place.do("rm", "--", self.id)

    @python_words()
    def explain(self, shard: str | None = None) -> Explained:
        """Why nothing of it runs, or the whole story of a shard, LAYER/NUMBER: `.lines` says it."""
        return explained(self._place, f"{self.id}/{shard}" if shard else self.id)[0]

    @python_words()
    def verify(
        self, inputs: bool = False, rerun: int | None = None, on: str | None = None, seed: int | None = None
    ) -> dict[str, Any]:
        """Read its result again, or its inputs too, and compare all digests; or have `rerun` shards computed again, by
        the machine `on` if it is given. Raises a DamagedError, or a DifferenceError, where something is wrong."""
        words = ["--inputs"] if inputs else []
        for option, value in (("--rerun", rerun), ("--on", on), ("--seed", seed)):
            words += [f"{option}={value}"] if value is not None else []
        return self._place.do("verify", *words, "--", self.id)

    @python_words()
    def diff(self, other: Job | str) -> dict[str, Any]:
        """How the parameters, code, environment, sources and results of another job differ from this one's."""
        return self._place.do("diff", "--", self.id, other.id if isinstance(other, Job) else other)

    # --- as a block ---

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Left in good order, it is waited for. After an exception, or Ctrl-C, it is cancelled."""
        if error is None:
            self.wait()
            return
        with suppress(MusterError):  # it may have ended; and the block's own error is to be seen
            self.cancel()

    @python_words()
    def logs(self, shard: str | None = None, failed: bool = False, limit: int = 50) -> list[FailureRecord]:
        """The failures of the job, newest first, each with its machine and its evidence.

        `shard`, as LAYER/NUMBER, asks for those of one shard, and `failed` for those of shards that are given up, or
        for all if none is.
        """
        layer, number = parse_shard(shard) if shard else (None, None)
        return self._place.failures(FailuresAsk(self.id, layer, number, failed, max(1, min(limit, FAILURES_LIMIT))))


def explained(place: Backend, *what: str) -> list[Explained]:
    """What the farm says of a machine, a job or a shard, or of everything."""
    return msgspec.convert(place.do("explain", "--", *what)["explained"], list[Explained])


def _repeated(option: str, values: Sequence[str]) -> list[str]:
    return [f"{option}={value}" for value in ([values] if isinstance(values, str) else values)]


def _chosen(names: list[str], globs: Sequence[str] | None) -> list[str]:
    """Every glob must match one."""
    if globs is None:
        return names
    chosen: dict[str, None] = {}
    for glob in [globs] if isinstance(globs, str) else globs:
        found = [name for name in names if matches(name, glob)]
        if not found:
            raise NotFoundError(f"no layer is called {glob!r}", f"the layers: {', '.join(names[:8])}")
        chosen.update(dict.fromkeys(found))
    return list(chosen)
