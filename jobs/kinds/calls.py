"""The kind `calls`: a session of function calls that its client feeds. A shard is a batch of them: bytes, here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from muster.jobs.contract.kind import Bench, Kind, Prepared, Result, Runner, RunnerLost, Shape, Shard, Site
from muster.jobs.contract.plan import Output, Work

OUT = "out"
FUNCTIONS = "functions"  # folder of those that came as text, below the scratch folder
INSIDE = "MUSTER_INSIDE_CALL"  # in the environment of a call: a session opened there would wait for its own slot


class CallsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ship`: how functions, arguments and results are written down. `linger`: seconds that it waits for its client."""

    ship: Literal["text", "pickle"] = "text"
    linger: Annotated[float, Meta(ge=1.0, le=86_400.0)] = 60.0


class Calls(Kind[CallsParams]):
    """Nothing of it is stored: calls and results are the client's, which sends again what was lost."""

    name = "calls"
    kernel = 1
    Params = CallsParams
    driven = True
    sourceless = True
    may_have_code = True
    has_entry = False

    def prepare(self, params: CallsParams, site: Site) -> Prepared[CallsParams]:
        return Prepared(params, proven=True)

    def rounds(self, params: CallsParams) -> Literal["", "whole", "each"]:
        return "each"

    def runs_code(self, work: Work) -> bool:
        return True

    def declare(self, params: CallsParams, shape: Shape | None) -> tuple[Output, ...]:
        return (Output(OUT, "ragged", "|u1"),)

    def open(self, bench: Bench) -> Runner:
        return CallsRunner(bench)


class CallsRunner(Runner):
    """Hands a batch to the process that opens it, and what that wrote back. Opens neither."""

    def __init__(self, bench: Bench) -> None:
        from muster.jobs.user_code.runner import calls
        from muster.jobs.user_code.sandbox import Sandbox

        self._timeout, self._functions = bench.timeout, bench.scratch / FUNCTIONS
        self._sheets: set[Path] = set()  # looked at, and found to be what they are called
        params: CallsParams = bench.params
        self._sandbox = Sandbox(
            python=bench.python or sys.executable,
            folder=Path(calls.__file__).parent,
            entry="calls.py:answer",
            scratch=bench.scratch,
            env={**bench.env, INSIDE: "1"},
            threads=bench.cpus,
            args={
                "ship": params.ship,
                "folder": str(bench.code) if bench.code is not None else None,
                "scratch": str(self._functions.absolute()),
            },
            forms={OUT: "sum"},  # bytes as they are, however many
            check=bench.check_code,
        )

    def run(self, shard: Shard) -> Result:
        import numpy as np

        from muster.jobs.contract.kind import Ragged
        from muster.jobs.user_code.runner import calls

        sheet = str(self._checked(shard.sheet)) if shard.sheet is not None else ""
        given = np.frombuffer(calls.written({"sheet": sheet}, [shard.payload]), np.uint8)
        try:
            reply = self._sandbox.run({}, given, self._timeout)
        finally:
            self.peak, self.printed = self._sandbox.peak, self._sandbox.printed
        out: Any = reply.arrays[OUT]
        return {OUT: Ragged(np.array([len(out)], "<i8"), out)}

    def close(self) -> None:
        self._sandbox.close()
        shutil.rmtree(self._functions, ignore_errors=True)

    def _checked(self, sheet: Path) -> Path:
        """Compared with the digest that is its name, once."""
        import xxhash

        if sheet not in self._sheets:
            try:
                found = xxhash.xxh3_128()
                with sheet.open("rb") as file:
                    while piece := file.read(1 << 20):
                        found.update(piece)
            except OSError as error:
                raise RunnerLost(f"the arguments of these calls are not here: {error}") from None
            if found.hexdigest() != sheet.stem:
                raise RunnerLost("the arguments of these calls are not those that were laid out")
            self._sheets.add(sheet)
        return sheet.absolute()
