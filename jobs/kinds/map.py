"""The kind `map`: a user's function over rows or items, in a process of its own, which is the sandbox's affair."""

from __future__ import annotations

import keyword
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from jobs import declared
from jobs.declared import Declared
from jobs.errors import JobFileError
from jobs.kinds import Bench, Kind, Listed, Result, Runner, Shape, Shard
from jobs.model import Output

if TYPE_CHECKING:
    from jobs.sandbox import Sandbox


class MapParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`outputs`: what the function returns, where it shall be held to it. `args`: its keyword arguments."""

    outputs: Annotated[dict[str, Declared], Meta(min_length=1)] | None = None
    args: dict[str, Any] = {}


class Map(Kind[MapParams]):
    """`file.py:function` over the rows or items of each shard."""

    name = "map"
    kernel = 1
    Params = MapParams
    wants_code = True

    def check(self, params: MapParams, shape: Shape | None) -> None:
        declared.check(params.outputs)
        check_args(params.args)

    def declare(self, params: MapParams, shape: Shape | None) -> tuple[Output, ...] | None:
        return declared.as_outputs(params.outputs)

    def declare_items(self, params: MapParams, listed: Listed) -> tuple[Output, ...] | None:
        self.check(params, None)
        return self.declare(params, None)

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
        try:
            if shard.items is not None:
                return self._sandbox.call_items(shard.number, shard.first_row, shard.items, self._timeout)
            assert shard.rows is not None, "map runs on rows or items"
            return self._sandbox.call(shard.number, shard.first_row, shard.rows, self._timeout)
        finally:
            self.peak, self.printed = self._sandbox.peak, self._sandbox.printed

    def close(self) -> None:
        self._sandbox.close()


def check_args(args: dict[str, Any]) -> None:
    """Refuse what could not be keyword arguments."""
    for name in args:
        if not name.isidentifier() or keyword.iskeyword(name):
            wrong = f"{name[:80]!r} cannot be a parameter's name"
            raise JobFileError(f"params.args: {wrong}", "args are the function's keyword arguments")
