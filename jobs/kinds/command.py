"""The kind `command`: a shell command for each item, its output file, its exit code. Starts none in this process."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from muster.jobs.common import units
from muster.jobs.common.errors import JobFileError
from muster.jobs.common.validation import one_line
from muster.jobs.contract.kind import (
    Bench,
    Items,
    JobPlace,
    Kind,
    KindReport,
    Listed,
    Prepared,
    Ragged,
    Result,
    Runner,
    RunnerLost,
    Shape,
    Shard,
    ShardFailure,
    Site,
    Written,
)
from muster.jobs.contract.plan import Output, Work
from muster.jobs.sources.items import is_path
from muster.jobs.user_code import command_template
from muster.jobs.user_code.command_template import CODE, IN, NUMBER, OUT, Template, Values, not_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.jobs.user_code.sandbox import Sandbox

LINE_LIMIT = 64 << 10  # characters of a command line, before anything is filled in
WRITTEN = "written"  # folder of the outputs, below the scratch folder; commands run in a folder beside it
PRINTED = "printed"  # of what a command prints while it runs, there too
LINK = "code"  # to the user's files, there too
VALUE_LIMIT = (128 << 10) - 1  # bytes of one word that Linux starts a program with
SHOWN_LIMIT = 200  # characters of a command in a message
CAPTURE_LIMIT = 64 << 20  # bytes
SIGKILL = 9
RESERVED = frozenset({IN, OUT, CODE})  # what no column may be called
OUTPUTS = (
    Output("exit", "rows", "<i4"),
    Output("files", "files", "|u1"),
    Output("ok", "rows", "|b1"),
    Output("seconds", "rows", "<f4"),
    Output("stderr", "ragged", "|u1"),
    Output("stdout", "ragged", "|u1"),
)
PRINTS = ("stdout", "stderr")
JOB, SHARD = "MUSTER_JOB", "MUSTER_SHARD"  # variables of each command, beside MUSTER_ITEM

Text = Annotated[str, Meta(min_length=1, max_length=LINE_LIMIT)]


class CommandParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`run`: the command line. `out`: the name of an item's output. `timeout`: of one command. `capture`: bytes kept of
    each item's stdout, and of its stderr. `tries`: of an item, in its shard. `workdir`: where commands start, a folder
    that all machines have."""

    run: Text
    out: Text | None = None
    on_item_error: Literal["fail", "record"] = "fail"
    timeout: float | str | None = None
    capture: int | str | msgspec.UnsetType = msgspec.UNSET  # unset, as what follows: an older version gives the same
    tries: Annotated[int, Meta(ge=1, le=1000)] | msgspec.UnsetType = msgspec.UNSET
    workdir: Annotated[str, Meta(min_length=1, max_length=4096)] | msgspec.UnsetType = msgspec.UNSET
    here: Literal["verbatim"] | msgspec.UnsetType = msgspec.UNSET  # what a here-document gets of a value; once a word

    RESOLVED: ClassVar[tuple[str, ...]] = ("here",)  # nobody writes it: it keeps results of older versions apart


class Command(Kind[CommandParams]):
    """`run` for every file, or line of a table."""

    name = "command"
    kernel = 1
    Params = CommandParams
    may_have_code = True
    has_entry = False

    def check(self, params: CommandParams, shape: Shape | None) -> None:
        raise JobFileError(
            "source: kind `command` runs on files or the lines of a table", 'source: {files: "img/*.jpg"}'
        )

    def prepare(self, params: CommandParams, site: Site) -> Prepared[CommandParams]:
        """The timeout in seconds, sizes in bytes; whatever is wrong that needs no item to show."""
        params = msgspec.structs.replace(params, here="verbatim" if "<<" in params.run else msgspec.UNSET)
        if params.timeout is not None:
            params = msgspec.structs.replace(params, timeout=_read("timeout", units.parse_duration, params.timeout))
        if params.capture is not msgspec.UNSET:
            size = int(_read("capture", units.parse_size, params.capture))
            if not 0 < size <= CAPTURE_LIMIT:
                wrong = f"params.capture: expected 1 to {CAPTURE_LIMIT} bytes, got {size}"
                raise JobFileError(wrong, "write more than that to {out}, which is a file")
            params = msgspec.structs.replace(params, capture=size)
        if params.workdir is not msgspec.UNSET and not os.path.isabs(params.workdir):  # noqa: PTH117
            wrong = f"params.workdir: {params.workdir!r} is no absolute path"
            raise JobFileError(wrong, "name the folder as every machine knows it")
        return Prepared(params, proven=params.on_item_error == "record")

    def runs_code(self, work: Work) -> bool:
        return True

    def declare(self, params: CommandParams, shape: Shape | None) -> tuple[Output, ...] | None:
        raise NotImplementedError("arrays were refused")

    def declare_items(self, params: CommandParams, listed: Listed) -> tuple[Output, ...] | None:
        if taken := sorted(RESERVED & set(listed.columns)):
            wrong = f"source.table: a column called {taken[0]}, which means something else in a command"
            raise JobFileError(wrong, "rename the column")
        if params.workdir is not msgspec.UNSET and not listed.columns:
            hint = "leave it out, or give the files' names in a table"
            raise JobFileError("params.workdir: files are given to commands in a folder of their own", hint)
        line = ItemLine.of(params, listed.columns)
        _check_values(line.run, listed)
        if line.out is not None:
            _check_outputs(line.out, listed)
        unused = {*(() if line.out else ("files",)), *(() if params.on_item_error == "record" else ("ok",))}
        unused |= set(PRINTS) if params.capture is msgspec.UNSET else set()
        return tuple(output for output in OUTPUTS if output.name not in unused)

    def report(self, places: Mapping[str, JobPlace], target: float | None) -> KindReport:
        from muster.jobs.kinds import rows_report

        return rows_report.of_items(places, "seconds")

    def open(self, bench: Bench) -> Runner:
        from muster.jobs.user_code.runner import spawner
        from muster.jobs.user_code.sandbox import Sandbox

        sandbox = Sandbox(
            python=bench.python or sys.executable,
            folder=bench.code or bench.scratch,
            entry="",
            scratch=bench.scratch,
            env=bench.env,
            threads=bench.cpus,
            program=Path(spawner.__file__),
            check=bench.check_code,
        )
        return CommandRunner(sandbox, bench)


def _read(name: str, parse: Callable[[Any], float], value: object) -> float:
    try:
        return parse(value)
    except ValueError as error:
        raise JobFileError(f"params.{name}: {error}") from None


@dataclass(frozen=True)
class ItemLine:
    """The command line and the name of its output, of items with these columns."""

    run: Template
    out: Template | None
    words: Sequence[Sequence[command_template.Piece]] | None  # where no shell is needed

    @staticmethod
    def of(params: CommandParams, columns: Sequence[str]) -> ItemLine:
        run = command_template.parse_command(params.run, columns, "params.run")
        if OUT not in run.names:
            if params.out is not None:
                raise JobFileError("params.out: the command has no {out}", "write {out} where its output file is named")
            return ItemLine(run, None, run.words())
        text = params.out if params.out is not None else f"{{{'' if not columns else NUMBER}}}"
        return ItemLine(run, command_template.parse_name(text, columns, "params.out"), run.words())

    def command(self, values: Values) -> list[str]:
        """The words of a program's start, which may be a shell's. A ShardFailure for what a shell would evaluate."""
        for name in self.run.evaluated:
            if not command_template.is_whole(values[name]):
                raise ShardFailure("exception", not_whole(name, repr(values[name][:SHOWN_LIMIT]), "params.run").message)
        if self.words is None:
            return self.run.shell_words(values)
        return ["".join(p.value(values) if p.is_placeholder else p.text for p in word) for word in self.words]

    def shown(self, values: Values) -> str:
        text = self.run.shown(values)
        return text if len(text) <= SHOWN_LIMIT else f"{text[:SHOWN_LIMIT]}…"


def _check_values(run: Template, listed: Listed) -> None:
    """Every value fits where it is to stand."""
    if not listed.columns and not run.evaluated:
        return
    for number, item in enumerate(listed.items()):
        values = _values(item, number)
        for name in run.names - {OUT, CODE}:
            if name in run.evaluated and not command_template.is_whole(values[name]):
                raise not_whole(name, f"{values[name][:SHOWN_LIMIT]!r} of {_called(item, number)}", "params.run")
            if len(values[name].encode()) > VALUE_LIMIT:
                wrong = f"params.run: {{{name}}} of {_called(item, number)} has {len(values[name].encode())} bytes"
                raise JobFileError(wrong, f"a program takes words of {VALUE_LIMIT}: put it into a file, and name that")


def _check_outputs(out: Template, listed: Listed) -> None:
    """Every item has an output of its own, in the result and nowhere else."""
    taken: dict[str, int] = {}
    alone = bool(out.names & {"", NUMBER})  # then no two are the same
    for number, item in enumerate(listed.items()):
        name = out.filled(_values(item, number))
        if not is_path(name):
            hint = "it must be a relative path without `..`, in parts of 255 bytes"
            raise JobFileError(f"params.out: the output of {_called(item, number)} would be {name[:200]!r}", hint)
        if not alone and taken.setdefault(name, number) != number:
            wrong = f"params.out: {_called(item, number)} and item {taken[name] + 1} would both write {name[:200]!r}"
            raise JobFileError(wrong, "use more of the item's name: {}, {.} or {#}")
    for name, number in taken.items():
        for end in (i for i, char in enumerate(name) if char == "/"):
            if name[:end] in taken:
                wrong = (
                    f"params.out: item {taken[name[:end]] + 1} would write {name[:end]!r}, item {number + 1} below it"
                )
                raise JobFileError(wrong, "use more of the item's name: {}, {.} or {#}")


def _values(item: str | Values, number: int) -> dict[str, str]:
    return (
        command_template.values_of(item, number + 1)
        if isinstance(item, str)
        else command_template.line_values(item, number + 1)
    )


def _called(item: str | Values, number: int) -> str:
    return repr(item) if isinstance(item, str) else f"line {number + 1}"


def _each(items: Items) -> Iterator[str | Values]:
    yield from items.lines or items.names


@dataclass(frozen=True)
class Ran:
    """What became of one item."""

    position: int
    called: str
    command: list[str]
    shown: str
    out: str | None
    exit: int


class CommandRunner(Runner):
    """Hands a shard's command lines to the process that starts them, and looks at what came of them."""

    def __init__(self, sandbox: Sandbox, bench: Bench) -> None:
        self._sandbox = sandbox
        self._params: CommandParams = bench.params
        self._timeout = bench.timeout
        self._capture = None if self._params.capture is msgspec.UNSET else self._params.capture
        self._workdir = None if self._params.workdir is msgspec.UNSET else Path(self._params.workdir)
        self._written = bench.scratch / WRITTEN
        self._prints = bench.scratch / PRINTED
        self._lines: dict[tuple[str, ...], ItemLine] = {}
        self._link = bench.scratch / LINK
        if bench.code is not None:
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(bench.code.absolute())

    def run(self, shard: Shard) -> Result:
        import numpy as np

        assert shard.items is not None, "commands run on items"
        items = list(_each(shard.items))
        columns = tuple(items[0]) if not isinstance(items[0], str) else ()
        line = self._lines.setdefault(columns, ItemLine.of(self._params, columns))
        planned = [self._planned(line, item, shard.first_row + i, i) for i, item in enumerate(items)]
        self._make_room(planned)
        arrays = self._carry_out(planned, shard)
        exits, seconds = arrays["exit"].tolist(), arrays["seconds"].tolist()
        ran = [replace(one, exit=code) for one, code in zip(planned, exits, strict=False)]
        ok = np.array([self._is_good(one) for one in ran], bool)
        if self._params.on_item_error == "fail":
            for one, good in zip(ran, ok, strict=True):
                if not good:
                    self._sandbox.printed += _printed(arrays, one.position)
                    raise self._failure(one)
        result = self._result(line, ran, ok, exits, seconds)
        return result if self._capture is None else {**result, **_ragged(arrays)}

    def close(self) -> None:
        self._sandbox.close()
        shutil.rmtree(self._written, ignore_errors=True)
        shutil.rmtree(self._prints, ignore_errors=True)
        self._link.unlink(missing_ok=True)

    def _planned(self, line: ItemLine, item: str | Values, number: int, position: int) -> Ran:
        values = _values(item, number)
        out = line.out.filled(values) if line.out is not None else None
        if out is not None and not is_path(out):
            raise ShardFailure("output", f"the output of {_called(item, number)} would be {out[:200]!r}")
        beside = ".." if self._workdir is None else str(self._written.parent.absolute())
        values[CODE] = f"{beside}/{LINK}"
        if out is not None:
            values[OUT] = f"{beside}/{WRITTEN}/{out}"
        if "" in values:
            values[""] = values[IN]
        return Ran(position, _called(item, number), line.command(values), line.shown(values), out, 0)

    def _make_room(self, planned: list[Ran]) -> None:
        shutil.rmtree(self._written, ignore_errors=True)
        self._written.mkdir(parents=True)
        if self._capture is not None:
            shutil.rmtree(self._prints, ignore_errors=True)
            self._prints.mkdir()
        for parent in sorted({one.out.rpartition("/")[0] for one in planned if one.out} - {""}):
            (self._written / parent).mkdir(parents=True, exist_ok=True)

    def _carry_out(self, planned: list[Ran], shard: Shard) -> Mapping[str, Any]:
        """Exit codes, seconds and prints, of all or up to the first that failed."""
        assert shard.items is not None
        if self._workdir is not None and not self._workdir.is_dir():
            why = f"params.workdir: there is no folder {self._workdir} on {os.uname().nodename}"
            raise ShardFailure("exception", one_line(why))
        told = {
            "commands": [one.command for one in planned],
            "cwd": str(self._workdir or shard.items.folder),
            "variables": {JOB: shard.job, SHARD: f"{shard.layer}/{shard.number}"},
            "first": shard.first_row + 1,
            "timeout": self._params.timeout,
            "stop": self._params.on_item_error == "fail",
            "tries": 1 if self._params.tries is msgspec.UNSET else self._params.tries,
            "capture": self._capture,
            "prints": str(self._prints.absolute()),
        }
        try:
            reply = self._sandbox.run(told, None, self._timeout)
        finally:
            self.peak, self.printed = self._sandbox.peak, self._sandbox.printed
        return reply.arrays

    def _is_good(self, one: Ran) -> bool:
        return one.exit == 0 and (one.out is None or (self._written / one.out).is_file())

    def _failure(self, one: Ran) -> Exception:
        """Why an item's command counts as failed."""
        from muster.jobs.user_code.runner.spawner import LATE, NOT_FOUND, TOO_LONG
        from muster.jobs.user_code.sandbox import signal_name

        where, evidence = one_line(f"{one.called}: `{one.shown}`"), self._sandbox.evidence("")
        if one.exit == -SIGKILL:
            return RunnerLost(f"{where} was killed from outside")
        if one.exit == TOO_LONG and self._capture is not None:
            limit = units.format_size(int(self._capture))
            return ShardFailure("output", f"{where} printed more than {limit}, the limit of `capture`", evidence)
        if one.exit < 0:
            return ShardFailure("signal", f"{where} died of {signal_name(-one.exit)}", evidence)
        if one.exit == LATE and self._params.timeout is not None:
            return ShardFailure("timeout", f"{where} took longer than {self._params.timeout:g} s", evidence)
        if one.exit == NOT_FOUND:
            return ShardFailure("exit", f"{where}: a program it names was not found on {os.uname().nodename}", evidence)
        if one.exit:
            return ShardFailure("exit", f"{where} ended with status {one.exit}", evidence)
        return ShardFailure("output", f"{where} wrote no output file", evidence)

    def _result(self, line: ItemLine, ran: list[Ran], ok: Any, exits: list[int], seconds: list[float]) -> Result:
        import numpy as np

        result: dict[str, Any] = {"exit": np.array(exits, "<i4"), "seconds": np.array(seconds, "<f4")}
        if line.out is not None:
            kept = [(one.position, one.out) for one, good in zip(ran, ok, strict=True) if good and one.out is not None]
            result["files"] = Written(self._written, kept)
        if self._params.on_item_error == "record":
            result["ok"] = ok
        return result


def _printed(arrays: Mapping[str, Any], position: int) -> str:
    """What one item printed, on stdout and then on stderr, where that is kept."""
    said = b""
    for name in PRINTS if PRINTS[0] in arrays else ():
        lengths = arrays[f"{name} lengths"]
        start = int(lengths[:position].sum())
        said += arrays[name][start : start + int(lengths[position])].tobytes()
    return said.decode(errors="replace")


def _ragged(arrays: Mapping[str, Any]) -> dict[str, Ragged]:
    return {name: Ragged(arrays[f"{name} lengths"].astype("<i8"), arrays[name]) for name in PRINTS}
