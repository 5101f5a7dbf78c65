"""The kind `map`: a user's function over rows, in a process of its own. How that is kept or killed is the sandbox's."""

from __future__ import annotations

import keyword
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from jobs import npy
from jobs.errors import JobFileError
from jobs.kinds import Bench, Kind, Result, Runner, Shape, Shard
from jobs.model import Output
from jobs.parts import RESERVED

if TYPE_CHECKING:
    from jobs.sandbox import Sandbox

_OUTPUT = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
AXES_LIMIT = 16  # of one row
Length = Annotated[int, Meta(ge=0, le=1 << 40)]


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output, for one row."""

    dtype: str
    shape: Annotated[list[Length], Meta(max_length=AXES_LIMIT)] = []


class MapParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`outputs`: what the function returns, where it shall be held to it. `args`: its keyword arguments."""

    outputs: Annotated[dict[str, Declared], Meta(min_length=1)] | None = None
    args: dict[str, Any] = {}


class Map(Kind[MapParams]):
    """`file.py:function` over the rows of each shard."""

    name = "map"
    kernel = 1
    Params = MapParams
    wants_code = True

    def check(self, params: MapParams, shape: Shape | None) -> None:
        for name, output in (params.outputs or {}).items():
            if not _OUTPUT.fullmatch(name) or name in RESERVED:
                raise JobFileError(f"params.outputs: {name[:80]!r} cannot be an output", "use letters, digits and `_`")
            if npy.canonical_dtype(output.dtype) is None:
                wrong = f"expected such as float32 or int64, got {output.dtype[:40]!r}"
                raise JobFileError(f"params.outputs.{name}.dtype: {wrong}", npy.DTYPES_HINT)
        for name in params.args:
            if not name.isidentifier() or keyword.iskeyword(name):
                wrong = f"{name[:80]!r} cannot be a parameter's name"
                raise JobFileError(f"params.args: {wrong}", "args are the function's keyword arguments")

    def declare(self, params: MapParams, shape: Shape | None) -> tuple[Output, ...] | None:
        if params.outputs is None:
            return None
        declared = sorted(params.outputs.items())
        return tuple(Output(name, "rows", _little(one.dtype), tuple(one.shape)) for name, one in declared)

    def open(self, bench: Bench) -> Runner:
        from jobs.sandbox import Sandbox

        assert bench.code is not None and bench.entry is not None, "the plan of a map job has code"
        sandbox = Sandbox(
            python=bench.python or sys.executable,
            folder=bench.code,
            entry=bench.entry,
            scratch=bench.scratch,
            env=bench.env,
            threads=bench.cpus,
            args=bench.params.args,
        )
        return MapRunner(sandbox, bench.timeout)


class MapRunner(Runner):
    """The user's function. Its process starts with the first shard: what is wrong with it is that shard's failure."""

    def __init__(self, sandbox: Sandbox, timeout: float | None) -> None:
        self._sandbox = sandbox
        self._timeout = timeout

    def run(self, shard: Shard) -> Result:
        assert shard.rows is not None, "map runs on rows"
        try:
            return self._sandbox.call(shard.number, shard.first_row, shard.rows, self._timeout)
        finally:
            self.peak = self._sandbox.peak

    @property
    def printed(self) -> str:
        """What the function printed for the last shard, its middle left out."""
        return self._sandbox.printed

    def close(self) -> None:
        self._sandbox.close()


def _little(dtype: str) -> str:
    """As results are stored, whatever order the job file says."""
    name = npy.canonical_dtype(dtype)
    assert name is not None, "checked"
    return name.replace(">", "<")
