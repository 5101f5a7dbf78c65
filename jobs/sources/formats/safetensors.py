"""The header of a .safetensors and the index of one in several files, read without trusting them. Reads no data."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from muster.jobs.common.errors import SourceError
from muster.jobs.common.validation import one_line
from muster.jobs.contract.plan import BF16
from muster.jobs.sources.formats import npy
from muster.jobs.sources.formats.header import AXES_LIMIT, Header, Member, NoRows, check_rows, check_spans, named

SUFFIX = ".safetensors"
INDEX = ".safetensors.index.json"  # says which file of several has which tensor
HEADER_LIMIT = 100_000_000  # bytes, as its own library has it
METADATA = "__metadata__"  # texts beside the tensors
_AGAIN = "copy or write the file again"
_DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": BF16,
}  # fmt: skip

_Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Tensor(msgspec.Struct, frozen=True):
    """A line of the header."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], Meta(max_length=AXES_LIMIT)]
    data_offsets: tuple[_Size, _Size]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def members(file: BinaryIO, size: int, where: str) -> list[Member]:
    """Every tensor of a file of `size` bytes; a SourceError that starts with `where` unless header and size agree."""
    start, tensors = read_header(file, size, where)
    return [Member(name, _header(tensor, start, named(where, name))) for name, tensor in tensors.items()]


def read_header(file: BinaryIO, size: int, where: str) -> tuple[int, dict[str, Tensor]]:
    """Where the tensors' bytes begin, and each tensor by its name. They are as long as their shapes say, and fill the
    file one behind the other."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise SourceError(f"{where}: truncated: {size} bytes end within the .safetensors header", _AGAIN)
    if length > HEADER_LIMIT:
        raise SourceError(f"{where}: a header of {length} bytes, expected at most {HEADER_LIMIT}", _AGAIN)
    tensors = _decoded(file.read(length), where)
    for name, tensor in tensors.items():
        _check_length(tensor, named(where, name))
    start = 8 + length
    spans = [(*tensor.data_offsets, name) for name, tensor in tensors.items()]
    end = max((last for _, last, _ in spans), default=0)
    if end > size - start:
        raise SourceError(f"{where}: truncated: its tensors end at byte {start + end}, the file has {size}", _AGAIN)
    check_spans(spans, size - start, where)
    told = sum(last - first for first, last, _ in spans)
    if told != size - start:
        told_of = f"its tensors have {told} bytes, the file {size - start} behind its header"
        raise SourceError(f"{where}: {told_of}; nothing may lie between or behind them", _AGAIN)
    return start, tensors


def files_of(raw: bytes, where: str) -> dict[str, list[str]]:
    """What an index says: the files beside it, each with the names of the tensors wanted of it."""
    try:
        index = msgspec.json.decode(raw, type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{where}: no index of a .safetensors in several files: {error}", _AGAIN) from None
    found: dict[str, list[str]] = {}
    for tensor, name in index.weight_map.items():
        if PurePosixPath(name).name != name or not name.endswith(SUFFIX) or "\0" in name:
            told = f"{where}: names {one_line(name[:80])!r}, which is no {SUFFIX} beside it"
            raise SourceError(told, "write the index again")
        found.setdefault(name, []).append(tensor)
    return found


def _decoded(raw: bytes, where: str) -> dict[str, Tensor]:
    try:
        lines = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return {name: msgspec.json.decode(line, type=Tensor) for name, line in lines.items() if name != METADATA}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{where}: its .safetensors header cannot be read: {error}", _AGAIN) from None


def _check_length(tensor: Tensor, where: str) -> None:
    """Of what has a dtype that is not read here, only that it ends behind its beginning."""
    first, last = tensor.data_offsets
    if last < first:
        raise SourceError(f"{where} ends before it begins", _AGAIN)
    dtype = _DTYPES.get(tensor.dtype)
    needed = last - first if dtype is None else math.prod(tensor.shape) * npy.itemsize(dtype)
    if needed != last - first:
        raise SourceError(f"{where}: its shape {tensor.shape} needs {needed} bytes, it has {last - first}", _AGAIN)


def _header(tensor: Tensor, start: int, where: str) -> Header | SourceError:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        told = f"{where} holds {one_line(tensor.dtype[:40])}, which numpy does not have"
        return SourceError(told, "save it as float32, or leave it out with `source.layers`")
    try:
        check_rows(tensor.shape, where)
    except NoRows as error:
        return error
    return Header(dtype, tensor.shape, start + tensor.data_offsets[0])
