"""A merged layer as a table of its rows: which columns it has, text for csv, a data frame. Writes no file."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from muster.jobs.common.errors import RefusedError
from muster.jobs.contract.requirements import pip_line
from muster.jobs.results.open_result import MergedLayer, RaggedRows

Array = np.ndarray[Any, Any]

PRINTS = ("stdout", "stderr")  # ragged bytes of a `command` job, which are text
BATCH_BYTES = 32 << 20  # of rows that are in memory at once
COLUMNS_LIMIT = 16_384  # of a table whose columns are single numbers


class RowOutput(NamedTuple):
    """An output that has an entry for each row."""

    name: str  # of its column, or what the names of its columns begin with
    values: Array | RaggedRows

    @property
    def is_text(self) -> bool:
        return isinstance(self.values, RaggedRows) and self.name in PRINTS and self.values.values.dtype == np.uint8

    @property
    def columns(self) -> list[str]:
        """A name for each number of a row; of a ragged output one for all."""
        if isinstance(self.values, RaggedRows) or self.values.ndim == 1:
            return [self.name]
        return [".".join([self.name, *map(str, at)]) for at in np.ndindex(self.values.shape[1:])]

    def rows(self, start: int, stop: int) -> Array | RaggedRows:
        """Some of them, in this machine's byte order."""
        if not isinstance(self.values, RaggedRows):
            return _native(self.values[start:stop])
        offsets = self.values.offsets[start : stop + 1]
        return RaggedRows(_native(offsets - offsets[0]), _native(self.values.values[offsets[0] : offsets[-1]]))

    def listed(self, start: int, stop: int) -> list[Any]:
        """Those of a ragged output: texts, or an array for each row."""
        rows = self.rows(start, stop)
        each = (rows[row] for row in range(stop - start))
        return [row.tobytes().decode(errors="replace") for row in each] if self.is_text else list(each)


class Table:
    """A layer's outputs that have an entry for each row, behind the columns that say what a row is of."""

    def __init__(self, folder: Path, layer: MergedLayer) -> None:
        """`folder`: the layer's. A RefusedError where there is nothing of rows."""
        self.items = folder / layer.manifest.items.file if layer.manifest.items is not None else None
        self.keys = _header_of(self.items) if self.items is not None else []
        forms = {product.name: product.form for product in layer.manifest.outputs}
        of_rows = [name for name in layer.outputs if forms[name] in ("rows", "ragged")]
        self.left_out = [name for name in layer.outputs if name not in of_rows]
        self.outputs = [RowOutput(_apart(name, self.keys), layer.outputs[name]) for name in of_rows]  # type: ignore[arg-type]
        if not self.outputs and not self.keys:
            hint = "`--as npz` has arrays of every form"
            raise RefusedError(f"{layer.manifest.layer}: none of its outputs has an entry for each row", hint)
        self.rows = len(self.outputs[0].values) if self.outputs else layer.manifest.rows

    def batches(self) -> Iterator[tuple[int, int]]:
        """Runs of rows that fit into memory; at least one, perhaps of no row."""
        nbytes = sum(_nbytes(output.values) for output in self.outputs)
        step = max(1, BATCH_BYTES * self.rows // max(nbytes, 1)) if self.rows else 1
        for start in range(0, max(self.rows, 1), step):
            yield start, min(start + step, self.rows)

    @property
    def columns(self) -> list[str]:
        """A name for each number; a RefusedError where these are too many."""
        count = sum(1 if isinstance(o.values, RaggedRows) else math.prod(o.values.shape[1:]) for o in self.outputs)
        if count > COLUMNS_LIMIT:
            hint = "`--as parquet` has a list for each row, `--as npz` the arrays; result[LAYER][OUTPUT] is one"
            raise RefusedError(f"a row has {count:,} numbers, a table up to {COLUMNS_LIMIT:,} columns", hint)
        return [name for output in self.outputs for name in output.columns]

    def write_csv(self, file: TextIO) -> None:
        """Quoted where a value needs it; lists as `[1, 2]`."""
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*self.keys, *self.columns])
        items = self._item_lines()
        for start, stop in self.batches():
            blocks = [_texts(output, start, stop) for output in self.outputs]
            for k in range(stop - start):
                writer.writerow([*next(items), *(cell for block in blocks for cell in block[k])])

    def dataframe(self) -> Any:
        """As a `pandas.DataFrame`, all of it in memory."""
        columns, pandas = self.columns, _pandas()
        found = dict(pandas.read_csv(self.items, keep_default_na=False)) if self.items is not None else {}
        names = iter(columns)
        for output in self.outputs:
            if isinstance(output.values, RaggedRows):
                listed = output.listed(0, self.rows)
                found[next(names)] = pandas.Series(listed, dtype=object)
                continue
            flat = np.asarray(output.rows(0, self.rows)).reshape(self.rows, -1)
            found |= {next(names): flat[:, k] for k in range(flat.shape[1])}
        return pandas.DataFrame(found, index=pandas.RangeIndex(self.rows, name="row"))

    def _item_lines(self) -> Iterator[list[str]]:
        """What each row is of; without items, nothing for each."""
        if self.items is None:
            yield from ([] for _ in range(self.rows))
            return
        with self.items.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            next(lines)
            yield from lines


def joined(frames: Mapping[str, Any]) -> Any:
    """Data frames of several layers as one, whose index has the layer before the row."""
    return _pandas().concat(frames, names=["layer", "row"])


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise RefusedError("pandas is not installed here", pip_line("pandas", sys.executable)) from None
    return pandas


def _header_of(items: Path) -> list[str]:
    with items.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file))


def _apart(name: str, keys: list[str]) -> str:
    """A name that no column of the items has."""
    while name in keys:
        name += "_out"
    return name


def _native(values: Array) -> Array:
    return np.asarray(values).astype(values.dtype.newbyteorder("="), copy=False)


def _nbytes(values: Array | RaggedRows) -> int:
    return values.offsets.nbytes + values.values.nbytes if isinstance(values, RaggedRows) else values.nbytes


def _texts(output: RowOutput, start: int, stop: int) -> list[list[str]]:
    """The cells of each row; a number as numpy writes it, in as many digits as its dtype has."""
    if isinstance(output.values, RaggedRows):
        listed = output.listed(start, stop)
        return [[one if output.is_text else _list_text(one)] for one in listed]
    cells: list[list[str]] = np.asarray(output.rows(start, stop)).reshape(stop - start, -1).astype(str).tolist()
    return cells


def _list_text(values: Array) -> str:
    if values.ndim > 1:
        return f"[{', '.join(map(_list_text, values))}]"
    return f"[{', '.join(values.astype(str).tolist())}]"
