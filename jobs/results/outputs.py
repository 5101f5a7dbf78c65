"""A kind's result as bytes: checked against its declaration, or giving it. Decides nothing about files or merging."""

from __future__ import annotations

from typing import Any

import numpy as np

from muster.jobs.common.errors import MusterError
from muster.jobs.contract.kind import Ragged, Result, ShardFailure, Total, Written
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import BYTES, TABLE_LIMIT, Layout

Array = np.ndarray[Any, Any]
Settled = tuple[tuple[Output, ...], list[memoryview]]

SUM_DTYPE = np.dtype("<i8")
SUM_LIMIT = float(1 << 62)  # of one shard's scaled value; beyond it an int64 is close


class SumTooLarge(MusterError):
    """A `sum` output that does not fit into int64."""

    default_hint = "declare the output with a smaller `scale`, or sum fewer shards"


def settle(result: Result, declared: tuple[Output, ...] | None, rows: int) -> Settled:
    """The declaration and the segments, in a part's order. Where nothing is declared yet, this result declares it.

    By name, since the order of a result's names may differ from one machine to the next.
    """
    if declared is None:
        declared = tuple(_derive(name, value, rows) for name, value in sorted(result.items()))
        _check_layout(declared)
    if len(result) != len(declared) or any(output.name not in result for output in declared):
        raise _wrong(f"gave {_listed(result)}, but {_listed(output.name for output in declared)} are declared")
    kept: list[memoryview] = []
    sums: list[memoryview] = []
    for output in declared:
        value = result[output.name]
        if output.form == "rows":
            kept.append(_rows(output, value, rows))
        elif output.form == "ragged":
            kept += _ragged(output, value, rows)
        elif output.form == "files":
            kept += _files(output, value)
        else:
            sums.append(_sum(output, value))
    return declared, kept + sums


def blank(dtype: np.dtype[Any] | str) -> Any:
    """What stands in `rows` where there is no result: NaN in floats, and else what is all zeros."""
    zero = np.zeros((), dtype)
    return zero.dtype.type(np.nan) if zero.dtype.kind == "f" else zero[()]


def same(one: tuple[Output, ...], other: tuple[Output, ...]) -> bool:
    """Whether results of both declarations may be merged."""
    return one == other


class Sums:
    """The `sum` outputs of many shards, added up exactly, so that order and grouping never show."""

    def __init__(self, layout: Layout) -> None:
        self._totals = [np.zeros(output.shape, _sum_dtype(output)) for output in layout.sums]
        self._peaks = [0 for _ in layout.sums]  # no number of a total is larger than this
        self._outputs = layout.sums
        self._count = 0
        self.nbytes = sum(layout.sum_sizes)

    def add(self, raw: bytes | bytearray | memoryview) -> None:
        """The sum segments of one shard, or of one bundle. They stay as they are until the next are added."""
        start = 0
        for number, total in enumerate(self._totals):
            more = np.frombuffer(raw, total.dtype, total.size, start).reshape(total.shape)
            self._add(number, more)
            start += total.nbytes
        self._count += 1

    def _add(self, number: int, more: Array) -> None:
        """The first is kept as it is, the second makes a new array, all others go into that."""
        total = self._totals[number]
        self._peaks[number] += max(int(more.max()), -int(more.min())) if more.size else 0
        if self._peaks[number] > np.iinfo(total.dtype).max:
            self._check(number, more)
        if self._count > 1:
            np.add(total, more, out=total)
        else:
            self._totals[number] = np.asarray(total + more) if self._count else more

    def _check(self, number: int, more: Array) -> None:
        """Where the signs of both differ from the sum's, it goes over."""
        total = self._totals[number]
        found = total + more
        if self._count and np.any(((total ^ found) & (more ^ found)) < 0):
            name = self._outputs[number].name
            raise SumTooLarge(f"output {name}: a sum does not fit into {8 * total.itemsize} bits")
        self._peaks[number] = np.iinfo(total.dtype).max

    def raw(self) -> bytes | memoryview:
        """Without a copy where there is one output."""
        if len(self._totals) == 1:
            return _bytes_of(self._totals[0])
        return b"".join(total.tobytes() for total in self._totals)

    def shown(self) -> list[Array]:
        """As a result has them: integers as they are; with a scale, in the declared dtype again."""
        return [_unscaled(output, total) for output, total in zip(self._outputs, self._totals, strict=True)]


def _sum_dtype(output: Output) -> np.dtype[Any]:
    return np.dtype(output.dtype) if output.narrow else SUM_DTYPE


def _unscaled(output: Output, total: Array) -> Array:
    if output.scale is None:
        return total
    shown: Array = (total / output.scale).astype(output.dtype)
    return shown


def _derive(name: str, value: object, rows: int) -> Output:
    if isinstance(value, Total):
        return Output(name, "sum", "<i8", value.value.shape)
    if isinstance(value, Written):
        return Output(name, "files", BYTES)
    if isinstance(value, Ragged):
        values = _array(name, value.values)
        return Output(name, "ragged", _little(values.dtype), values.shape[1:])
    array = _array(name, value)
    if array.ndim == 0 or array.shape[0] != rows:
        raise _wrong(f"output {name} is {_told(array)}, but this shard has {rows} rows: its first axis must be {rows}")
    return Output(name, "rows", _little(array.dtype), array.shape[1:])


def _check_layout(outputs: tuple[Output, ...]) -> None:
    try:
        Layout(outputs)
    except ValueError as error:
        raise _wrong(str(error)) from None


def _rows(output: Output, value: object, rows: int) -> memoryview:
    return _bytes_of(_matching(output, value, (rows, *output.shape)))


def _ragged(output: Output, value: object, rows: int) -> list[memoryview]:
    if not isinstance(value, Ragged):
        raise _wrong(f"output {output.name} is declared ragged, but came as {type(value).__name__}")
    lengths, values = _array(output.name, value.lengths), _array(output.name, value.values)
    if lengths.shape != (rows,) or lengths.dtype.kind not in "iu" or bool(np.any(lengths < 0)):
        raise _wrong(f"output {output.name}: its lengths are {_told(lengths)}, not {rows} integers of 0 or more")
    if values.ndim == 0 or bool(np.any(lengths > len(values))) or int(lengths.sum()) != len(values):
        raise _wrong(f"output {output.name}: its lengths say {int(lengths.sum())} values, there are {_told(values)}")
    values = _matching(output, values, (len(values), *output.shape))
    return [_bytes_of(lengths.astype(SUM_DTYPE, copy=False)), _bytes_of(values)]


def _files(output: Output, value: object) -> list[memoryview]:
    from muster.jobs.parts.written_files import pack

    if not isinstance(value, Written):
        raise _wrong(f"output {output.name} is declared as files, but came as {type(value).__name__}")
    packed = pack(value)
    if packed.table.nbytes > TABLE_LIMIT:
        raise _wrong(f"output {output.name}: {len(value.files)} files are too many for one shard")
    return list(packed)


def _sum(output: Output, value: object) -> memoryview:
    value = value.value if isinstance(value, Total) else value
    array = _matching(output, value, output.shape)
    if output.scale is not None:
        return _bytes_of(_fixed_point(output.name, array, output.scale))
    if output.narrow:
        return _bytes_of(array)
    if array.dtype.kind not in "iu":
        raise _wrong(f"output {output.name}: only integers add up exactly; declare a `scale` for {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 1 << 63:
        raise _wrong(f"output {output.name}: {int(array.max())} does not fit into int64")
    return _bytes_of(array.astype(SUM_DTYPE, copy=False))


def _fixed_point(name: str, array: Array, scale: float) -> Array:
    scaled = np.rint(array.astype(np.float64) * scale)
    if not np.all(np.abs(scaled) < SUM_LIMIT):  # NaN is not below it either
        raise _wrong(f"output {name}: a value is not finite, or too large for the scale {scale}")
    fixed: Array = scaled.astype(SUM_DTYPE)
    return fixed


def _matching(output: Output, value: object, shape: tuple[int, ...]) -> Array:
    """`value` as a little-endian array of exactly the declared dtype and this shape."""
    array = _array(output.name, value)
    if array.shape != shape or _little(array.dtype) != output.dtype:
        raise _wrong(f"output {output.name} is {_told(array)}, but {output.dtype} of shape {shape} is declared")
    return array


def _array(name: str, value: object) -> Array:
    if not isinstance(value, np.ndarray):
        raise _wrong(f"output {name} is a {type(value).__name__}, not an array")
    return value


def _little(dtype: np.dtype[Any]) -> str:
    text: str = dtype.str
    return "<" + text[1:] if text[0] == ">" else text


def _bytes_of(array: Array) -> memoryview:
    """The array's bytes, little-endian in C order; without a copy where it is so already."""
    if array.dtype.str[0] == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _told(array: Array) -> str:
    return f"{array.dtype.str} of shape {array.shape}"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _wrong(message: str) -> ShardFailure:
    return ShardFailure("output", message)
