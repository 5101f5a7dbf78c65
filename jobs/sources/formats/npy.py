"""The .npy header, read without trusting it and written so that it can be patched. Needs no numpy; reads no data."""

from __future__ import annotations

import ast
import math
import re
import sys
from typing import Any, BinaryIO

from muster.jobs.common.errors import SourceError
from muster.jobs.sources.formats.header import AXES_LIMIT, Header, check_rows

SUFFIX = ".npy"
MAGIC = b"\x93NUMPY"
ARCHIVE_MAGIC = b"PK\x03\x04"
HEADER_LIMIT = 10_000  # numpy's own; longer ones are structured types or an attack on the parser
ALIGN = 64

_DTYPE = re.compile(r"([<>=|]?)([biuf])([1248])")
_NAMED = re.compile(r"(bool|(int|uint|float)(8|16|32|64))")
_SIZES = {"b": {1}, "i": {1, 2, 4, 8}, "u": {1, 2, 4, 8}, "f": {2, 4, 8}}
_NATIVE = "<" if sys.byteorder == "little" else ">"
_REFUSED = {
    "O": "objects, which only pickle can read",
    "V": "structured or void data",
    "c": "complex numbers",
    "M": "dates",
    "m": "time spans",
    "U": "text",
    "S": "text",
    "a": "text",
}
DTYPES_HINT = "use integers, bool, float16, float32 or float64, either byte order, and save with `allow_pickle=False`"


def canonical_dtype(text: str) -> str | None:
    """numpy's name with its byte order, "<f4", for "<f4", "f4" or "float32"; None for what we do not read."""
    text = _unnamed(text)
    match = _DTYPE.fullmatch(text)
    if not match or int(match[3]) not in _SIZES[match[2]]:
        return None
    order, size = match[1], match[3]
    if size == "1":
        return f"|{match[2]}1"
    if order == "|":
        return None
    return f"{order if order in {'<', '>'} else _NATIVE}{match[2]}{size}"


def _unnamed(text: str) -> str:
    match = _NAMED.fullmatch(text)
    if not match:
        return text
    return "b1" if text == "bool" else f"{match[2][0]}{int(match[3]) // 8}"


def itemsize(dtype: str) -> int:
    """Bytes of one value of a canonical dtype."""
    return int(dtype[-1])


def read_header(file: BinaryIO, size: int, where: str) -> Header:
    """The header of a .npy of `size` bytes; a SourceError that starts with `where` unless header and size agree."""
    text, offset = _header_text(file, size, where)
    dtype, shape = _checked(_literal(text, where), where)
    check_length(size - offset, dtype, shape, where)
    return Header(dtype, shape, offset)


def check_length(actual: int, dtype: str, shape: tuple[int, ...], where: str) -> None:
    """Refuse data that is not exactly as long as its shape says."""
    claimed = math.prod(shape) * itemsize(dtype)
    if actual < claimed:
        raise SourceError(
            f"{where}: truncated: its shape {shape} needs {claimed} bytes of data, the file has {actual}",
            "copy or write the file again",
        )
    if actual > claimed:
        raise SourceError(
            f"{where}: longer than it claims: its shape {shape} needs {claimed} bytes of data, the file has {actual}",
            "write the file again; nothing may follow the array",
        )


def _header_text(file: BinaryIO, size: int, where: str) -> tuple[str, int]:
    """The header's text and the offset of the data behind it."""
    if size == 0:
        raise SourceError(f"{where}: the file is empty", "write the file again")
    start = file.read(12)
    if start[:1] == b"\x80":
        raise SourceError(
            f"{where}: a pickle, not a .npy", "save the array with `np.save(path, array, allow_pickle=False)`"
        )
    if start[:4] == ARCHIVE_MAGIC:
        hint = "save each of its arrays by `np.save` as a .npy"
        raise SourceError(f"{where}: not a .npy file but an archive, as a .npz of several arrays is", hint)
    if start[: len(MAGIC)] != MAGIC[: len(start)]:
        raise SourceError(f"{where}: not a .npy file", "save the array with `np.save(path, array)`")
    if len(start) < 12:
        raise _cut_short(where, size)
    if start[6] not in {1, 2, 3}:
        raise SourceError(
            f"{where}: .npy version {start[6]}.{start[7]}, expected 1.0 to 3.0", "save it again with numpy"
        )
    wide = start[6] > 1
    length = int.from_bytes(start[8 : 12 if wide else 10], "little")
    offset = (12 if wide else 10) + length
    if length > HEADER_LIMIT:
        raise SourceError(f"{where}: a header of {length} bytes, expected at most {HEADER_LIMIT}", DTYPES_HINT)
    file.seek(12 if wide else 10)
    raw = file.read(length)
    if len(raw) < length:
        raise _cut_short(where, size)
    return raw.decode("utf-8" if start[6] == 3 else "latin-1", "replace"), offset


def _cut_short(where: str, size: int) -> SourceError:
    return SourceError(f"{where}: truncated: {size} bytes end within the .npy header", "copy or write the file again")


def _literal(text: str, where: str) -> dict[str, Any]:
    """The header's dictionary. literal_eval runs nothing, and the length limit bounds what it may take."""
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict) or set(found) != {"descr", "fortran_order", "shape"}:
        raise SourceError(f"{where}: its .npy header cannot be read", "save it again with `np.save(path, array)`")
    return found


def _checked(header: dict[str, Any], where: str) -> tuple[str, tuple[int, ...]]:
    dtype = _checked_dtype(header["descr"], where)
    shape = header["shape"]
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > AXES_LIMIT:
        raise SourceError(f"{where}: its .npy header has the shape {str(shape)[:80]}", "save it again with numpy")
    check_rows(shape, where)
    fortran = header["fortran_order"]
    if not isinstance(fortran, bool):
        raise SourceError(
            f"{where}: its .npy header has no true or false for fortran_order", "save it again with numpy"
        )
    if fortran and len(shape) > 1:
        raise SourceError(f"{where}: Fortran order, its rows lie scattered", "`np.save(path, np.ascontiguousarray(a))`")
    return dtype, shape


def _checked_dtype(descr: object, where: str) -> str:
    if isinstance(descr, str):
        dtype = canonical_dtype(descr)
        if dtype is not None:
            return dtype
        what = _REFUSED.get(descr.lstrip("<>=|")[:1], f"dtype {descr[:40]!r}")
    else:
        what = _REFUSED["V"]
    raise SourceError(f"{where}: holds {what}", DTYPES_HINT)


def make_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """A version 1.0 header whose length depends on dtype and row shape alone, so that the row count can be patched."""
    rows, *row_shape = shape
    axes = "".join(f" {n}," for n in row_shape)
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({rows},{axes}), }}"
    longest = len(text) - len(str(rows)) + 20  # digits of the largest row count
    padded = -(-(len(MAGIC) + 4 + longest + 1) // ALIGN) * ALIGN - len(MAGIC) - 4
    body = text.ljust(padded - 1).encode("ascii") + b"\n"
    return MAGIC + b"\x01\x00" + len(body).to_bytes(2, "little") + body
