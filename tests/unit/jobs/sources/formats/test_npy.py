"""The .npy header: what numpy writes is read the same, and whatever lies is refused with its reason."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.common.errors import SourceError
from muster.jobs.sources.formats import npy
from muster.jobs.sources.formats.header import Header

DTYPES = ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "|i1", "<i2", ">i4", "<i8", "|u1", ">u2", "<u4", ">u8", "|b1"]


def saved(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version=version)
    return file.getvalue()


def read(raw: bytes) -> Header:
    return npy.read_header(io.BytesIO(raw), len(raw), "x.npy")


def refused(raw: bytes) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read(raw)
    assert caught.value.message.startswith("x.npy: ")
    assert caught.value.message.isprintable()
    return caught.value


def with_header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    raw = text.encode("latin-1")
    length = struct.pack("<H" if version == 1 else "<I", len(raw))
    return npy.MAGIC + bytes([version, 0]) + length + raw + data


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (1, 1, 1, 1)])
def test_what_numpy_writes(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    raw = saved(array)
    header = read(raw)
    assert (header.dtype, header.shape) == (array.dtype.str, shape)
    assert raw[header.offset :] == array.tobytes()
    assert npy.itemsize(header.dtype) == array.dtype.itemsize


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions(version: tuple[int, int]) -> None:
    raw = saved(np.zeros((3, 2), "<f4"), version)
    assert read(raw) == ("<f4", (3, 2), len(raw) - 24)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([1, "a", None], dtype=object), "holds objects"),
        (np.zeros(3, "c8"), "holds complex numbers"),
        (np.zeros(3, "M8[s]"), "holds dates"),
        (np.zeros(3, "m8[s]"), "holds time spans"),
        (np.zeros(3, "U4"), "holds text"),
        (np.zeros(3, "S4"), "holds text"),
        (np.zeros(3, "V4"), "holds structured or void data"),
        (np.zeros(3, [("a", "<f4")]), "holds structured or void data"),
        (np.zeros(3, "longdouble"), "holds dtype"),
        (np.float32(3), "a single value, without rows"),
        (np.zeros((0, 4)), "empty: its shape is (0, 4)"),
        (np.zeros((4, 0)), "empty: its shape is (4, 0)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_are_no_layers(array: Any, message: str) -> None:
    assert message in refused(saved(array)).message


def test_fortran_order_has_a_one_line_fix() -> None:
    error = refused(saved(np.asfortranarray(np.zeros((3, 4)))))
    assert "Fortran order" in error.message
    assert error.hint == "`np.save(path, np.ascontiguousarray(a))`"


def test_truncated_and_longer_say_both_numbers() -> None:
    raw = saved(np.zeros((3, 4), "<f4"))
    assert "truncated: its shape (3, 4) needs 48 bytes of data, the file has 47" in refused(raw[:-1]).message
    assert (
        "longer than it claims: its shape (3, 4) needs 48 bytes of data, the file has 49" in refused(raw + b"x").message
    )


def test_every_cut_is_refused() -> None:
    raw = saved(np.zeros((3, 4), "<f4"))
    for length in range(len(raw)):
        refused(raw[:length])


def test_a_huge_claim_costs_nothing() -> None:
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999, 999999999999), }"
    assert "truncated" in refused(with_header(text, b"\0" * 64)).message


BAD_HEADERS = [
    "",
    "{}",
    "[]",
    "{'descr': '<f4'}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3.0,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': ('a',)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 40 + ")}",
    "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
    "{'descr': 7, 'fortran_order': False, 'shape': (3,)}",
    "{'descr': '<f4\\n', 'fortran_order': False, 'shape': (3,)}",
    "{'descr': '<f3', 'fortran_order': False, 'shape': (3,)}",
    "{'descr': '|f4', 'fortran_order': False, 'shape': (3,)}",
    "{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (3,)}",
    "{[]: 1}",
    "(" * 9000,
    "-" * 9000 + "1",
    "[" * 90 + "]" * 90,
    "9" * 9000,
    "\0\0\0",
]


@pytest.mark.parametrize("text", BAD_HEADERS, ids=range(len(BAD_HEADERS)))
@pytest.mark.parametrize("version", [1, 2, 3])
def test_bad_headers(text: str, version: int) -> None:
    refused(with_header(text, b"\0" * 12, version))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the file is empty"),
        (b"\x80\x04K\x01.", "a pickle"),
        (b"PK\x03\x04" + b"\0" * 20, "not a .npy file but an archive"),
        (b"hello", "not a .npy file"),
        (npy.MAGIC, "end within the .npy header"),
        (npy.MAGIC + b"\x09\x00" + b"\0" * 9, ".npy version 9.0"),
        (with_header(" " * 20_000, version=2), "a header of 20000 bytes"),
        (npy.MAGIC + b"\x02\x00" + b"\xff" * 4, "a header of 4294967295 bytes"),
    ],
)
def test_other_files(raw: bytes, message: str) -> None:
    assert message in refused(raw).message


@given(st.binary(max_size=300), st.integers(1, 3))
def test_any_header_is_read_or_refused(raw: bytes, version: int) -> None:
    whole = with_header(raw.decode("latin-1"), b"\0" * 8, version)
    with pytest.raises(SourceError):
        read(whole)


@given(st.data())
def test_any_flipped_byte_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray(saved(np.zeros((3, 4), "<f4")))
    raw[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
    try:
        header = read(bytes(raw))
    except SourceError:
        return
    assert header.offset + np.prod(header.shape) * npy.itemsize(header.dtype) == len(raw)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("float32", "<f4"),
        ("f4", "<f4"),
        ("=f4", "<f4"),
        (">f4", ">f4"),
        ("int8", "|i1"),
        ("<u1", "|u1"),
        ("bool", "|b1"),
        ("uint64", "<u8"),
    ],
)
def test_dtype_names(text: str, dtype: str) -> None:
    assert npy.canonical_dtype(text) == dtype
    assert np.dtype(text).str == dtype


@pytest.mark.parametrize(
    "text", ["", "float", "float8", "f16", "int128", "c8", "O", "b2", "f1", "<f4 ", "<f4\n", "uintc", "|f4"]
)
def test_no_dtype_names(text: str) -> None:
    assert npy.canonical_dtype(text) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [(), (7,), (3, 4, 5), (1,) * 31])
def test_made_headers_load_and_can_be_patched(tmp_path: Path, dtype: str, row: tuple[int, ...]) -> None:
    array = np.ones((2, *row), dtype)
    header = npy.make_header(dtype, array.shape)
    assert len(header) % npy.ALIGN == 0
    assert {len(npy.make_header(dtype, (rows, *row))) for rows in (0, 1, 10**6, 2**63)} == {len(header)}
    path = tmp_path / "x.npy"
    path.write_bytes(header + array.tobytes())
    loaded = np.load(path)
    assert loaded.dtype.str == dtype
    np.testing.assert_array_equal(loaded, array)
    assert read(path.read_bytes()) == (dtype, array.shape, len(header))
