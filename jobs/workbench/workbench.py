"""Running shards: a `Workbench` opens a job's kind once, runs batches of shards and writes each batch's part.

Used by a pool's worker, by `coordinator try`, and by the tests' serial run. Knows nothing of Ray, links or leases.
"""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash

from muster.jobs.common.durable import is_full, local_commit, write_private
from muster.jobs.common.errors import DamagedError, SpaceError
from muster.jobs.contract.failure_codes import CopyCode, MachineCode
from muster.jobs.contract.kind import Bench, Runner, RunnerLost, Shard, ShardFailure
from muster.jobs.contract.plan import ItemsWindow, Layer, Output
from muster.jobs.contract.text_limits import BATCH_CHARS, EVIDENCE_CHARS, LINE_CHARS, PRINTED_CHARS
from muster.jobs.kinds import registry
from muster.jobs.parts.part_file import Index, Layout, PartEntry, PartWriter
from muster.jobs.workbench.admission import Unfit, admit
from muster.jobs.workbench.batch import Batch, Item, Mishap, Outcome
from muster.jobs.workbench.slot_marker import Mark

if TYPE_CHECKING:
    from muster.jobs.results.outputs import Array
    from muster.jobs.sources.stage_files import LaidOut


ITEMS = "items"  # folder of a shard's files, below the scratch folder
GPUS = "CUDA_VISIBLE_DEVICES"
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class InputLost(RunnerLost):
    """The copy of a shard's input is gone, or not what was pulled."""


class OtherOutputs(Exception):
    """A shard's outputs are not those of its part: it wants a part of its own. Which of them is right is not known
    here: the coordinator judges, by what the layer's first commit had."""


class ModelLost(RunnerLost):
    """The copy of the job's model is gone, or not what was submitted."""


class CodeLost(RunnerLost):
    """The user's files are not what was submitted, and cannot be unpacked anew."""


class Workbench:
    """A slot's: keeps the kind of the last batch open, and its input buffer, until another job's batch comes."""

    def __init__(self) -> None:
        self._job: tuple[object, ...] = ()
        self._runner: Runner | None = None
        self._mark: Mark | None = None
        self._buffer: Array | None = None
        self._admitted: set[str] = set()  # kinds that this process was seen to compute rightly

    def run(self, batch: Batch) -> Outcome:
        """Run a batch and commit its part locally. Raises only for what is wrong with this worker itself."""
        part = _Part(batch)
        try:
            self._run_items(batch, part)
            part.commit()
        except SpaceError as error:
            part.full = error.message
        except OSError as error:
            if not is_full(error):
                raise
            part.full = str(error)
        finally:
            part.close()
        return part.outcome()

    @property
    def printed(self) -> str:
        """What the user's code printed for the last shard, its middle left out."""
        return self._runner.printed if self._runner is not None else ""

    def close(self) -> None:
        """Give back the kind that is open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _run_items(self, batch: Batch, part: _Part) -> None:
        mark = self._mark_at(Path(batch.mark))
        try:
            for item in batch.items:
                mark.start(item.number, item.boot, item.attempt)
                if not self._run_item(batch, item, part):
                    break
        finally:
            mark.idle()

    def _run_item(self, batch: Batch, item: Item, part: _Part) -> bool:
        """Whether the batch can go on."""
        from muster.jobs.sources.read_rows import SourceChanged

        begun = time.perf_counter()
        try:
            runner = self._opened(batch)
        except Exception as error:
            part.add_mishap(item, error, time.perf_counter() - begun, _peak(None))
            return False
        try:
            entry, segments = self._compute(batch, item, runner, part)
        except SourceChanged as error:
            if item.window is None or not item.window.is_copy:
                part.changed, part.change = True, str(error)
                return False
            lost = InputLost(f"its input is not in the spool: {error}")
            part.add_mishap(item, lost, time.perf_counter() - begun, _peak(runner))
        except OtherOutputs:
            return False
        except Exception as error:
            part.add_mishap(item, error, time.perf_counter() - begun, _peak(runner))
        else:
            part.add(entry, segments)
            part.note_printed(item.number, runner.printed)
        return True

    def _compute(self, batch: Batch, item: Item, runner: Runner, part: _Part) -> tuple[PartEntry, list[memoryview]]:
        """One shard's line in the part, and its bytes."""
        from muster.jobs.results.outputs import settle

        layer = batch.layer
        given = self._input(batch, item)
        started, begun = time.time(), time.perf_counter()
        try:
            try:
                result = runner.run(given.shard(layer, item, batch.job))
                seconds = time.perf_counter() - begun
            finally:  # a failure over files that are not what was planned any more is nobody's
                given.check()
            count = layer.rows_of(item.number)
            outputs, segments = settle(result, layer.outputs, count)
            part.keep_sheets(runner.made)
            runner.made = {}  # it may be large
        finally:
            given.close()
        layout = part.layout_of(outputs)
        entry = PartEntry(
            number=item.number,
            rows=count,
            boot=item.boot,
            attempt=item.attempt,
            agent=batch.agent,
            started=started,
            seconds=seconds,
            in_bytes=given.nbytes,
            in_digest=given.digest,
            peak=_peak(runner),
            sizes=tuple([segment.nbytes for segment in segments]),
            digest=_digest_of(segments[: layout.kept_segments]),
            sum_digest=_digest_of(segments[layout.kept_segments :]) if layout.sums else b"",
        )
        return entry, segments

    def _input(self, batch: Batch, item: Item) -> _Given:
        """What a shard is computed from. Rows live until the next shard's are read."""
        if item.window is None:
            return _Given(len(item.payload), xxhash.xxh3_128_digest(item.payload))
        if isinstance(item.window, ItemsWindow):
            from muster.jobs.sources.stage_files import LaidOut

            laid = LaidOut(item.window, Path(batch.scratch) / ITEMS)
            return _Given(item.window.nbytes, laid.digest, laid=laid)
        from muster.jobs.sources.read_rows import new_buffer, read_window

        if self._buffer is None or self._buffer.nbytes < item.window.nbytes:
            self._buffer = new_buffer(item.window.nbytes)
        rows, digest = read_window(item.window, self._buffer)
        return _Given(item.window.nbytes, digest, rows)

    def _opened(self, batch: Batch) -> Runner:
        """The batch's kind, opened unless it is the last batch's."""
        job = (batch.work, batch.code, batch.python, batch.scratch, batch.model, batch.gpus)
        if self._runner is None or job != self._job:
            self.close()
            self._runner = _open(batch, self._admitted)
            self._job = job
        return self._runner

    def _mark_at(self, path: Path) -> Mark:
        if self._mark is None or self._mark.path != path:
            if self._mark is not None:
                self._mark.close()
            self._mark = Mark(path)
        return self._mark


@dataclass(frozen=True)
class _Given:
    """A shard's input."""

    nbytes: int
    digest: bytes
    rows: Array | None = None
    laid: LaidOut | None = None

    def shard(self, layer: Layer, item: Item, job: str) -> Shard:
        found = self.laid.items if self.laid is not None else None
        sheet = Path(item.sheet) if item.sheet is not None else None
        first = layer.first_row(item.number)
        return Shard(layer.name, item.number, first, self.rows, item.payload, found, sheet, job)

    def check(self) -> None:
        """After it was used. Rows were looked at as they were read."""
        if self.laid is not None:
            self.laid.check()

    def close(self) -> None:
        if self.laid is not None:
            self.laid.close()


class _Part:
    """A batch's part while it is made, and what went wrong meanwhile."""

    def __init__(self, batch: Batch) -> None:
        self.changed, self.change = False, ""
        self.full = ""
        self._batch = batch
        self._tmp = Path(batch.tmp)
        self._layout: Layout | None = None
        self._outputs: tuple[Output, ...] = ()
        self._writer: PartWriter | None = None
        self._committed = False
        self._entries: list[PartEntry] = []
        self._mishaps: list[Mishap] = []
        self._printed: list[tuple[int, str]] = []
        self._printed_room = BATCH_CHARS
        self._unprinted = 0
        self._sheets: list[tuple[str, int]] = []

    def layout_of(self, outputs: tuple[Output, ...]) -> Layout:
        """What `outputs` are in bytes; the first ones are the part's, and it takes no others."""
        if self._layout is None:
            self._layout, self._outputs = Layout(outputs), outputs
        elif outputs != self._outputs:
            raise OtherOutputs
        return self._layout

    def add(self, entry: PartEntry, segments: Sequence[memoryview]) -> None:
        if self._writer is None:
            self._tmp.parent.mkdir(parents=True, exist_ok=True)
            self._writer = PartWriter(self._tmp)
        self._writer.add(segments)
        self._entries.append(entry)

    def note_printed(self, number: int, text: str) -> None:
        """What the user's code printed for a shard that gave a result; that of others is in their evidence."""
        if not text:
            return
        from muster.jobs.user_code.runner.runner import clip

        text = clip(text, PRINTED_CHARS)
        if len(text) > self._printed_room:
            self._unprinted += 1
            return
        self._printed_room -= len(text)
        self._printed.append((number, text))

    def add_mishap(self, item: Item, error: Exception, seconds: float, peak: int) -> None:
        """A shard that gave no result. A full disk is nobody's mishap, and goes on up."""
        if isinstance(error, SpaceError) or (isinstance(error, OSError) and is_full(error)):
            raise error
        self._mishaps.append(_mishap(item.number, error, seconds, peak))

    def keep_sheets(self, made: Mapping[str, bytes]) -> None:
        """What a later shard may read, where that is: then no link has to bring it back. One that does not fit, or that
        the disk refuses, is none the worse for it."""
        for digest, raw in made.items() if self._batch.sheets else ():
            if len(raw) > self._batch.keeps:
                continue
            path = Path(self._batch.sheets) / f"{digest}.sheet"
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_private(path, raw)
                self._sheets.append((digest, len(raw)))

    def commit(self) -> None:
        """Index, tail and rename, where any shard gave a result."""
        from muster.jobs.workbench.fingerprint import fingerprint

        if self._writer is None:
            return
        batch, kernels = self._batch, fingerprint() + self._batch.rest
        self._writer.finish(Index(batch.farm, batch.layer.digest, self._outputs, kernels, tuple(self._entries)))
        done = Path(batch.done)
        done.parent.mkdir(parents=True, exist_ok=True)
        local_commit(self._tmp, done)
        self._committed = True

    def close(self) -> None:
        """Nothing is left of a part that was not committed."""
        if self._writer is not None and not self._committed:
            self._writer.close()
            with suppress(OSError):
                self._tmp.unlink()

    def outcome(self) -> Outcome:
        entries = self._entries if self._committed else []
        return Outcome(
            numbers=tuple([entry.number for entry in entries]),
            rows=sum([entry.rows for entry in entries]),
            nbytes=self._writer.nbytes if self._writer is not None and entries else 0,
            in_bytes=sum([entry.in_bytes for entry in entries]),
            seconds=sum([entry.seconds for entry in entries]),
            peak=max([*(entry.peak for entry in entries), *(mishap.peak for mishap in self._mishaps)], default=0),
            mishaps=tuple(self._mishaps),
            changed=self.changed,
            change=self.change,
            full=self.full,
            printed=tuple(self._printed) if entries else (),
            unprinted=self._unprinted if entries else 0,
            sheets=tuple(self._sheets),
        )


def _open(batch: Batch, admitted: set[str]) -> Runner:
    """The batch's kind, ready, with no more threads than the plan gives it."""
    work = batch.work
    kind = registry.load(work.kind)
    if kind.kernel != work.kernel:
        raise RunnerLost(f"kind {work.kind} is version {kind.kernel} here, the plan was made for {work.kernel}")
    if work.kind not in admitted:
        admit(kind)
        admitted.add(work.kind)
    scratch = Path(batch.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    bench = Bench(
        params=msgspec.convert(work.params, kind.Params),
        cpus=work.threads or work.cpus,
        timeout=work.timeout,
        scratch=scratch,
        code=Path(batch.code) if batch.code is not None else None,
        entry=work.entry,
        python=batch.python,
        model=_checked_model(batch),
        env=work.variables | ({} if batch.gpus is None else {GPUS: ",".join(batch.gpus)}),
        check_code=partial(_check_code, batch.code, batch.pack, work.code),
    )
    bench.check_code()
    runner = kind.open(bench)
    _limit_threads(work.threads or work.cpus)
    return runner


def _check_code(folder: str | None, pack: str | None, digest: str | None) -> None:
    """Make the folder hold what was submitted: whoever can write to it may have changed it, the user's own code too."""
    if folder is None or pack is None or digest is None:
        return
    from muster.jobs.user_code.code_pack import unpack

    try:
        unpack(Path(pack).read_bytes(), Path(folder), digest)
    except DamagedError as error:
        raise CodeLost(error.message) from None
    except OSError as error:
        if is_full(error):
            raise
        raise CodeLost(f"the user's code cannot be unpacked: {error}") from None


def _checked_model(batch: Batch) -> Path | None:
    """This machine's copy of the model, compared with what was submitted."""
    if batch.work.model is None or batch.model is None:
        return None
    from muster.jobs.inference import model_file

    try:
        model_file.check(Path(batch.model), batch.work.model)
    except DamagedError as error:
        raise ModelLost(error.message) from None
    return Path(batch.model)


def _limit_threads(count: int) -> None:
    """Of the numeric libraries loaded by now: the number of threads decides bits."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(limits=count)


def _peak(runner: Runner | None) -> int:
    """The most memory this process ever took, and what the runner's own took for the last shard, in bytes."""
    own: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    return own + (runner.peak if runner is not None else 0)


def _digest_of(segments: Sequence[memoryview]) -> bytes:
    if len(segments) == 1:
        return xxhash.xxh3_128_digest(segments[0])
    digest = xxhash.xxh3_128()
    for segment in segments:
        digest.update(segment)
    return digest.digest()


_LOST: dict[type[Exception], CopyCode | MachineCode] = {
    InputLost: "input", ModelLost: "model", CodeLost: "code", Unfit: "unfit"
}  # fmt: skip


def _mishap(number: int, error: Exception, seconds: float, peak: int) -> Mishap:
    if isinstance(error, RunnerLost):
        lost = next((code for kind, code in _LOST.items() if isinstance(error, kind)), "killed")
        return Mishap(number, lost, str(error) or "its process was killed", "", seconds, peak)
    if isinstance(error, ShardFailure):
        return Mishap(number, error.code, error.message, error.evidence, seconds, peak)
    code = "memory" if isinstance(error, MemoryError) else "exception"
    message = f"{type(error).__name__}: {error}".splitlines()[0][:LINE_CHARS]
    return Mishap(number, code, message, _trace(error), seconds, peak)


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-EVIDENCE_CHARS:]
