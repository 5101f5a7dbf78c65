"""A shard's outputs put together from those of its single rows, some of which gave none. Calls nothing.

What is missing is NaN in rows of floats, 0 in others, of length 0 where rows are ragged, and adds nothing to sums.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from muster.jobs.contract.kind import Ragged, Result, ShardFailure, Written
from muster.jobs.contract.plan import Output
from muster.jobs.parts.written_files import NOBODY
from muster.jobs.results.outputs import blank

Array = np.ndarray[Any, Any]


class Recorded:
    """`folder`: where files are kept that single rows wrote."""

    def __init__(self, rows: int, declared: tuple[Output, ...] | None, folder: Path) -> None:
        self.ok = np.zeros(rows, bool)
        self._declared = {output.name: output for output in declared or ()}
        self._found: list[Result | None] = [None] * rows
        self._first: ShardFailure | None = None
        self._folder = folder
        self._written: list[tuple[int, str]] = []
        shutil.rmtree(folder, ignore_errors=True)

    def add(self, position: int, result: Result) -> None:
        """One row's outputs. Its files are moved away: the next row writes to the same folder."""
        for value in result.values():
            if isinstance(value, Written):
                self._keep(position, value)
        self._found[position] = result
        self.ok[position] = True

    def leave_out(self, failure: ShardFailure) -> None:
        self._first = self._first or failure

    def result(self) -> Result:
        """By name. Where nothing is declared one row must have told what there is; else the first failure stands."""
        found = [result for result in self._found if result is not None]
        if not found and not self._declared:
            assert self._first is not None
            raise self._first
        names = sorted({name for result in found for name in result} | set(self._declared))
        if any(set(result) != set(found[0]) for result in found):
            raise ShardFailure("output", f"its rows gave different outputs: {', '.join(names)}")
        return {
            name: self._joined(name, [result[name] if result else None for result in self._found]) for name in names
        }

    def close(self) -> None:
        """The files may be read until then."""
        self._found.clear()

    def _keep(self, position: int, written: Written) -> None:
        for owner, name in written.files:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                raise ShardFailure("output", f"two items wrote {name!r}")
            os.rename(written.folder / name, path)  # noqa: PTH104
            self._written.append((NOBODY if owner == NOBODY else position, name))

    def _joined(self, name: str, values: list[Any]) -> Any:
        some = next((value for value in values if value is not None), None)
        form = self._form(name, some)
        if form == "files":
            order = sorted(self._written, key=lambda one: (one[0] == NOBODY, *one))
            return Written(self._folder, order)
        if form == "ragged":
            return self._ragged(name, values)
        return self._sum(name, values) if form == "sum" else self._rows(name, values)

    def _form(self, name: str, value: Any) -> str:
        if name in self._declared:
            return self._declared[name].form
        return "files" if isinstance(value, Written) else "ragged" if isinstance(value, Ragged) else "rows"

    def _rows(self, name: str, values: list[Array | None]) -> Array:
        dtype, shape = self._kind_of(name, [value[0] if value is not None else None for value in values])
        joined = np.full((len(values), *shape), blank(dtype), dtype)
        for position, value in enumerate(values):
            if value is not None:
                joined[position] = value[0]
        return joined

    def _ragged(self, name: str, values: list[Ragged | None]) -> Ragged:
        lengths = np.array([len(value.values) if value is not None else 0 for value in values], np.int64)
        dtype, shape = self._kind_of(name, [value.values[:0] if value is not None else None for value in values], 1)
        parts = [value.values for value in values if value is not None]
        return Ragged(lengths, np.concatenate([np.zeros((0, *shape), dtype), *parts]))

    def _sum(self, name: str, values: list[Array | None]) -> Array:
        dtype, shape = self._kind_of(name, values)
        total = np.zeros(shape, dtype)
        for value in values:
            if value is not None:
                total += value
        return total

    def _kind_of(self, name: str, values: list[Array | None], skip: int = 0) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """The dtype and shape that all have, or that is declared."""
        kinds = {(value.dtype, value.shape[skip:]) for value in values if value is not None}
        if len(kinds) > 1:
            told = " and ".join(sorted(f"{dtype} of shape {shape}" for dtype, shape in kinds))
            raise ShardFailure("output", f"output {name}: its rows are {told}")
        if kinds:
            return next(iter(kinds))
        output = self._declared[name]
        return np.dtype(output.dtype), output.shape
