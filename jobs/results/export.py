"""A merged layer as one file that other programs read: npz, csv or parquet. Durable, or not there."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from muster.jobs.common.durable import naming_space, publish
from muster.jobs.common.errors import RefusedError, UsageError
from muster.jobs.contract.requirements import pip_line
from muster.jobs.results.open_result import MergedLayer, RaggedRows, WrittenFiles, open_result
from muster.jobs.results.tables import Array, RowOutput, Table


class Exported(NamedTuple):
    """A file that was made of a layer, and the outputs that such a file cannot have."""

    path: Path
    left_out: list[str]


def export(result: Path, layers: Sequence[str], form: str, target: Path) -> Iterator[Exported]:
    """Each layer of a result as TARGET/LAYER.FORM; a single one as TARGET itself, where that has the form's suffix."""
    alone = target.suffix.lower() == f".{form}"
    if alone and len(layers) != 1:
        raise UsageError(f"{target.name} is one file, and there are {len(layers)} layers", "name a folder")
    for name in layers:
        layer = open_result(result / name)
        if not layer.outputs:
            raise RefusedError(f"{name} has no arrays, but files of its own", f"they are in {result / name}")
        path = target if alone else target / f"{name}.{form}"
        try:
            with naming_space(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                tmp = path.with_name(f".{path.name}.tmp")
                try:
                    left_out = _WRITERS[form](result / name, layer, tmp)
                    publish(tmp, path)
                finally:
                    tmp.unlink(missing_ok=True)
        except OSError as error:
            why = f"the result cannot be written: {error.filename or path}: {error.strerror or error}"
            raise RefusedError(why, "name a folder you may write to") from None
        yield Exported(path, left_out)


def print_csv(folder: Path, file: TextIO) -> list[str]:
    """A layer's csv; the outputs that it cannot have."""
    table = Table(folder, open_result(folder))
    table.write_csv(file)
    return table.left_out


def _npz(folder: Path, layer: MergedLayer, path: Path) -> list[str]:
    """Stored and not deflated, so that it is a source again. A mapped array is not loaded."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in _arrays(layer):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    return [name for name, value in layer.outputs.items() if isinstance(value, WrittenFiles)]


def _arrays(layer: MergedLayer) -> Iterator[tuple[str, Array]]:
    for name, value in layer.outputs.items():
        if isinstance(value, RaggedRows):
            yield f"{name}.offsets", value.offsets
            yield f"{name}.values", value.values
        elif not isinstance(value, WrittenFiles):
            yield name, value


def _csv(folder: Path, layer: MergedLayer, path: Path) -> list[str]:
    with path.open("w", encoding="utf-8", newline="") as file:
        return print_csv(folder, file)


def _parquet(folder: Path, layer: MergedLayer, path: Path) -> list[str]:
    """An output with several numbers in a row is a column of lists."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise RefusedError("pyarrow is not installed here", pip_line("pyarrow", sys.executable)) from None
    table = Table(folder, layer)
    lines = pyarrow.csv.ParseOptions(newlines_in_values=True)
    items = pyarrow.csv.read_csv(table.items, parse_options=lines) if table.items is not None else pyarrow.table({})
    writer = None
    try:
        for start, stop in table.batches():
            columns = {key: items.column(key).slice(start, stop - start) for key in table.keys}
            columns |= {output.name: _arrow(pyarrow, output, start, stop) for output in table.outputs}
            batch = pyarrow.table(columns)
            writer = writer or pyarrow.parquet.ParquetWriter(path, batch.schema)
            writer.write_table(batch)
    finally:
        if writer is not None:
            writer.close()
    return table.left_out


def _arrow(pyarrow: Any, output: RowOutput, start: int, stop: int) -> Any:
    if output.is_text:
        return pyarrow.array(output.listed(start, stop), pyarrow.string())
    rows = output.rows(start, stop)
    if isinstance(rows, RaggedRows):
        return pyarrow.LargeListArray.from_arrays(rows.offsets, _lists(pyarrow, rows.values))
    return _lists(pyarrow, rows)


def _lists(pyarrow: Any, values: Array) -> Any:
    """A value for each entry of the first axis: a number, or lists of fixed lengths."""
    if values.dtype == np.float16:
        values = values.astype(np.float32)  # older readers of Parquet have no halves
    found = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    for length in reversed(values.shape[1:]):
        found = pyarrow.FixedSizeListArray.from_arrays(found, length)
    return found


_WRITERS: dict[str, Callable[[Path, MergedLayer, Path], list[str]]] = {"npz": _npz, "csv": _csv, "parquet": _parquet}
