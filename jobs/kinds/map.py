"""The kind `map`: a user's function over rows or items, in a process of its own, which is the sandbox's affair."""

from __future__ import annotations

import keyword
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import (
    Bench,
    CalledWith,
    Items,
    JobPlace,
    Kind,
    KindReport,
    Listed,
    Result,
    Runner,
    Shape,
    Shard,
    ShardFailure,
)
from muster.jobs.contract.plan import Output
from muster.jobs.contract.text_limits import ROWS_CHARS
from muster.jobs.results import output_declarations
from muster.jobs.results.output_declarations import Declared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.jobs.user_code.sandbox import Reply, Sandbox

OFFERED = frozenset({"first_row", "shard", "out"})  # arguments that the runner gives a function that has them
OK = "ok"  # the output that says which rows gave a result, where failures are recorded
FILES = "files"  # what written files are called, where no name is declared
OUT = "written"  # folder a function may write to, below the scratch folder
FORMS = ("rows", "ragged", "sum")
ITEM_FORMS = (*FORMS, "files")


class MapParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`outputs`: what the function returns, where it shall be held to it. `args`: its keyword arguments."""

    outputs: Annotated[dict[str, Declared], Meta(min_length=1)] | None = None
    args: dict[str, Any] = {}
    on_item_error: Literal["fail", "record"] = "fail"


class Map(Kind[MapParams]):
    """`file.py:function` over the rows or items of each shard."""

    name = "map"
    kernel = 1
    Params = MapParams
    wants_code = True

    def check(self, params: MapParams, shape: Shape | None) -> None:
        self._check(params, FORMS)

    def declare(self, params: MapParams, shape: Shape | None) -> tuple[Output, ...] | None:
        outputs = output_declarations.as_outputs(params.outputs)
        if outputs is None or params.on_item_error == "fail":
            return outputs
        return tuple(sorted((*outputs, Output(OK, "rows", "|b1")), key=lambda output: output.name))

    def declare_items(self, params: MapParams, listed: Listed) -> tuple[Output, ...] | None:
        self._check(params, ITEM_FORMS)
        return self.declare(params, None)

    def called_with(self, params: MapParams) -> CalledWith:
        return CalledWith(frozenset(params.args), OFFERED)

    def _check(self, params: MapParams, forms: Sequence[str]) -> None:
        output_declarations.check(params.outputs, (OK,) if params.on_item_error == "record" else (), forms)
        check_args(params.args)

    def report(self, places: Mapping[str, JobPlace], target: float | None) -> KindReport:
        from muster.jobs.kinds import rows_report

        return rows_report.of_items(places)

    def open(self, bench: Bench) -> Runner:
        from muster.jobs.user_code.sandbox import Sandbox

        assert bench.code is not None and bench.entry is not None, "the plan of a map job has code"
        params: MapParams = bench.params
        sandbox = Sandbox(
            python=bench.python or sys.executable,
            folder=bench.code,
            entry=bench.entry,
            scratch=bench.scratch,
            env=bench.env,
            threads=bench.cpus,
            args=params.args,
            check=bench.check_code,
            forms={name: one.form for name, one in (params.outputs or {}).items() if one.form in ("ragged", "sum")},
        )
        function = Function(sandbox, bench, params)
        return RecordingRunner(function, params) if params.on_item_error == "record" else MapRunner(function)


class Function:
    """The user's, and the folder it may write to. Its process starts with the first shard."""

    def __init__(self, sandbox: Sandbox, bench: Bench, params: MapParams) -> None:
        self._sandbox = sandbox
        self.timeout = bench.timeout
        self.out = (bench.scratch / OUT).absolute()
        self._is_made = False
        files = [name for name, one in (params.outputs or {}).items() if one.form == "files"]
        self._files = files[0] if files else FILES

    @property
    def peak(self) -> int:
        return self._sandbox.peak

    @property
    def printed(self) -> str:
        return self._sandbox.printed

    def call(self, shard: Shard, timeout: float | None) -> Result:
        """The outputs for the rows or items of a shard, or of some of them."""
        if shard.items is not None or not self._is_made:  # over rows nothing that is written there counts
            shutil.rmtree(self.out, ignore_errors=True)
            self.out.mkdir(parents=True)
            self._is_made = True
        facts: dict[str, Any] = {"shard": shard.number, "first_row": shard.first_row, "out": str(self.out)}
        if shard.items is not None:
            facts["given"] = _given(shard.items)
        reply = self._sandbox.run(facts, shard.rows, timeout)
        return self._result(reply, shard.items)

    def close(self) -> None:
        self._sandbox.close()
        shutil.rmtree(self.out, ignore_errors=True)

    def _result(self, reply: Reply, items: Items | None) -> Result:
        from muster.jobs.contract.kind import Ragged
        from muster.jobs.parts import written_files
        from muster.jobs.user_code.runner.runner import LENGTHS

        result: dict[str, Any] = dict(reply.arrays)
        for name in reply.header["ragged"]:
            result[name] = Ragged(result.pop(name + LENGTHS), result[name])
        if not reply.header["writes"]:
            return result
        if items is None:
            raise ShardFailure("output", "a function over rows has no folder to write to: leave `out` out")
        if self._files in result:
            raise ShardFailure("output", f"an output may not be called {self._files}: that is what was written")
        return result | {self._files: written_files.collected(self.out, items.names)}


def _given(items: Items) -> dict[str, Any]:
    return {"lines": items.lines} if items.lines else {"names": items.names, "cwd": str(items.folder)}


class MapRunner(Runner):
    """What is wrong with the function is its shard's failure."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def run(self, shard: Shard) -> Result:
        try:
            return self._function.call(shard, self._function.timeout)
        finally:
            self.peak, self.printed = self._function.peak, self._function.printed

    def close(self) -> None:
        self._function.close()


class RecordingRunner(MapRunner):
    """Where a shard fails its rows are taken one by one, and those that fail are left out: `ok` says which."""

    def __init__(self, function: Function, params: MapParams) -> None:
        super().__init__(function)
        self._outputs = output_declarations.as_outputs(params.outputs)

    def run(self, shard: Shard) -> Result:
        import numpy as np

        from muster.jobs.user_code.sandbox import CannotStart

        begun, timeout = time.monotonic(), self._function.timeout
        try:
            result = super().run(shard)
        except CannotStart:
            raise
        except ShardFailure as failure:
            left = None if timeout is None else timeout - (time.monotonic() - begun)
            return self._one_by_one(shard, failure, left)
        if OK in result:
            raise ShardFailure("output", f"an output may not be called {OK}: that says which rows gave a result")
        return {**result, OK: np.ones(_count(shard), bool)}

    def _one_by_one(self, shard: Shard, failure: ShardFailure, left: float | None) -> Result:
        from muster.jobs.user_code.partial_results import Recorded
        from muster.jobs.user_code.runner.runner import clip

        until = None if left is None else time.monotonic() + left
        recorded = Recorded(_count(shard), self._outputs, self._function.out.with_name(f"{OUT}-kept"))
        said: list[str] = []
        try:
            for position in range(_count(shard)):
                if until is not None and until <= time.monotonic():
                    raise failure  # what hung took the time of all
                rest = None if until is None else until - time.monotonic()
                note = ""
                try:
                    recorded.add(position, self._function.call(_one(shard, position), rest))
                except ShardFailure as error:
                    recorded.leave_out(error)
                    note = f"{_called(shard, position)} is left out: {error.message}\n"
                self.peak = max(self.peak, self._function.peak)
                said += [self._function.printed, note]
            self.printed = clip("".join(said), ROWS_CHARS)
            return {**recorded.result(), OK: recorded.ok}
        finally:
            recorded.close()


def _count(shard: Shard) -> int:
    if shard.items is not None:
        return len(shard.items)
    assert shard.rows is not None, "map runs on rows or items"
    return len(shard.rows)


def _called(shard: Shard, position: int) -> str:
    named = shard.items is not None and shard.items.names
    return repr(shard.items.names[position]) if named and shard.items else f"row {shard.first_row + position}"


def _one(shard: Shard, position: int) -> Shard:
    """The shard with one of its rows or items alone."""
    first_row = shard.first_row + position
    if shard.items is None:
        assert shard.rows is not None
        return replace(shard, first_row=first_row, rows=shard.rows[position : position + 1])
    items, end = shard.items, position + 1
    one = replace(items, names=items.names[position:end], lines=items.lines[position:end])
    return replace(shard, first_row=first_row, items=one)


def check_args(args: dict[str, Any]) -> None:
    """Refuse what could not be keyword arguments."""
    for name in args:
        if not name.isidentifier() or keyword.iskeyword(name):
            wrong = f"{name[:80]!r} cannot be a parameter's name"
            raise JobFileError(f"params.args: {wrong}", "args are the function's keyword arguments")
