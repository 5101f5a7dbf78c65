"""The header of a .safetensors: what its own library writes is read the same, and whatever lies is refused."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from muster.jobs.common.errors import SourceError
from muster.jobs.contract.plan import BF16
from muster.jobs.sources.formats import safetensors
from muster.jobs.sources.formats.header import Header, NoRows
from tests.support.halves import safetensors_of

DTYPES = ["|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"]


def members(raw: bytes) -> dict[str, Header | SourceError]:
    found = safetensors.members(io.BytesIO(raw), len(raw), "x.safetensors")
    assert len({one.name for one in found}) == len(found)
    return {one.name: one.header for one in found}


def refused(raw: bytes) -> str:
    with pytest.raises(SourceError) as caught:
        members(raw)
    assert caught.value.message.startswith("x.safetensors: ") and caught.value.message.isprintable()
    return caught.value.message


def framed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(first: int, last: int, shape: Any = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [last - first] if shape is None else shape, "data_offsets": [first, last]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_library_writes(dtype: str) -> None:
    arrays = {
        "a.weight": np.arange(12).reshape(3, 4).astype(dtype),
        "b": np.arange(5).astype(dtype),
        "deep/c": np.arange(24).reshape(2, 3, 4).astype(dtype),
    }
    raw = save(arrays, {"format": "np"})
    found = members(raw)
    assert set(found) == set(arrays)
    for name, array in load(raw).items():
        header = found[name]
        assert isinstance(header, Header) and (header.dtype, header.shape) == (dtype, array.shape)
        assert raw[header.offset : header.offset + header.nbytes] == array.tobytes()


def test_halves_of_float32_have_a_name_of_their_own() -> None:
    raw = safetensors_of("w", np.zeros((2, 3), "<u2"))
    assert members(raw) == {"w": Header(BF16, (2, 3), len(raw) - 12)}


def test_what_has_no_rows_and_what_numpy_lacks_is_told_of_one_tensor_alone() -> None:
    header = {
        "one": tensor(0, 1, []),
        "none": tensor(1, 1, [0, 4]),
        "small": tensor(1, 5, [4], "F8_E4M3"),
        "good": tensor(5, 9),
        "__metadata__": {"format": "pt"},
    }
    found = members(framed(header, bytes(9)))
    assert isinstance(found["one"], NoRows) and isinstance(found["none"], NoRows)
    assert "small holds F8_E4M3, which numpy does not have" in str(found["small"])
    assert found["good"] == Header("|u1", (4,), len(framed(header)) + 5)


BAD: list[tuple[bytes, str]] = [
    (b"", "truncated"),
    (b"\x00" * 7, "truncated"),
    ((1 << 63).to_bytes(8, "little") + b"{}", "truncated"),
    ((3).to_bytes(8, "little") + b"{}", "truncated"),
    (framed(b"no json"), "header cannot be read"),
    (framed(b"[" * 100_000), "header cannot be read"),
    (framed(b"[]"), "header cannot be read"),
    (framed(b"\xff\xff"), "header cannot be read"),
    (framed({"a": {"dtype": "U8", "shape": [1]}}, b"1"), "header cannot be read"),
    (framed({"a": tensor(0, 1, [-1])}, b"1"), "header cannot be read"),
    (framed({"a": tensor(0, 1, [1] * 33)}, b"1"), "header cannot be read"),
    (framed({"a": tensor(0, 1 << 70, [1])}, b"1"), "header cannot be read"),
    (framed({"a": tensor(1, 0, [1])}, b"1"), "a ends before it begins"),
    (framed({"a": tensor(0, 8)}, b"1234"), "truncated: its tensors end at byte"),
    (framed({"a": tensor(0, 4)}, b"12345678"), "its tensors have 4 bytes, the file 8 behind its header"),
    (framed({"a": tensor(0, 2), "b": tensor(3, 4)}, b"1234"), "its tensors have 3 bytes, the file 4"),
    (framed({"a": tensor(0, 3), "b": tensor(2, 4)}, b"1234"), "b and a overlap"),
    (framed({"a": tensor(0, 4, [5])}, b"1234"), "a: its shape (5,) needs 5 bytes, it has 4"),
    (framed({"a": tensor(0, 4, [1 << 62, 1 << 62], "F64")}, b"1234"), "it has 4"),
    (framed({"a\n\x1b[31m": tensor(0, 4, [5])}, b"1234"), "it has 4"),
]


@pytest.mark.parametrize(("raw", "message"), BAD)
def test_headers_that_lie(raw: bytes, message: str) -> None:
    assert message in refused(raw)


def test_a_header_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "HEADER_LIMIT", 100)
    assert "a header of 101 bytes, expected at most 100" in refused(framed(b" " * 101))


WHOLE = save({"a": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.zeros((3, 2), "<i8")})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["U8", "F32", "BF16"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
LINES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F32", "BF16", "F8_E5M2"]) | VALUES,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | VALUES,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | VALUES,
    }
)


def check(raw: bytes) -> None:
    """Refused, or every window lies behind the header and within the file."""
    try:
        found = members(raw)
    except SourceError as error:
        assert error.message.startswith("x.safetensors: ") and error.message.isprintable()
        return
    headers = sorted((one for one in found.values() if isinstance(one, Header)), key=lambda one: one.offset)
    ends = [8 + int.from_bytes(raw[:8], "little"), *(one.offset + one.nbytes for one in headers)]
    assert all(end <= one.offset for end, one in zip(ends, headers, strict=False)) and max(ends) <= len(raw)


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(WHOLE)))
@example([(0, 255)], len(WHOLE))
def test_a_mutated_file_is_refused_or_within_itself(flips: list[tuple[int, int]], length: int) -> None:
    raw = bytearray(WHOLE)
    for at, value in flips:
        raw[at] = value
    check(bytes(raw[:length]))


@given(st.dictionaries(st.text(max_size=4), LINES | VALUES, max_size=3), st.integers(0, 40))
def test_a_made_up_header_is_refused_or_within_the_file(header: dict[str, Any], data: int) -> None:
    check(framed(header, bytes(data)))


def test_an_index_names_files_beside_it_alone() -> None:
    told = {"metadata": {"total_size": 8}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    assert safetensors.files_of(json.dumps(told).encode(), "x") == {"m-1.safetensors": ["a"], "m-2.safetensors": ["b"]}
    for name in ["../m.safetensors", "/etc/m.safetensors", "m.bin", "", ".safetensors/..", "a\0.safetensors"]:
        with pytest.raises(SourceError, match="beside it"):
            safetensors.files_of(json.dumps({"weight_map": {"a": name}}).encode(), "x")
    for raw in [b"", b"{}", b"[]", b'{"weight_map": 1}', b"\xff", b"[" * 100_000]:
        with pytest.raises(SourceError, match="no index of a"):
            safetensors.files_of(raw, "x")
