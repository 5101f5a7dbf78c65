"""Members of an .npz: what numpy stores is read where it lies, and whatever lies is refused."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.common.errors import SourceError
from muster.jobs.sources.formats import npz
from muster.jobs.sources.formats.header import Header, NoRows

ARRAYS = {
    "w": np.arange(12, dtype="<f4").reshape(3, 4),
    "deep/b": np.arange(5, dtype=">i2"),
    "flags": np.array([[True], [False]]),
}


def saved(arrays: dict[str, Any], save: Any = np.savez) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def members(raw: bytes) -> dict[str, Header | SourceError]:
    return {one.name: one.header for one in npz.members(io.BytesIO(raw), len(raw), "x.npz")}


def refused(raw: bytes) -> str:
    with pytest.raises(SourceError) as caught:
        members(raw)
    assert caught.value.message.startswith("x.npz: ") and caught.value.message.isprintable()
    return caught.value.message


def test_what_numpy_stores() -> None:
    raw = saved(ARRAYS)
    found = members(raw)
    assert set(found) == set(ARRAYS)
    with np.load(io.BytesIO(raw)) as arrays:
        for name in arrays.files:
            header = found[name]
            assert isinstance(header, Header) and (header.dtype, header.shape) == (
                arrays[name].dtype.str,
                arrays[name].shape,
            )
            assert raw[header.offset : header.offset + header.nbytes] == arrays[name].tobytes()


def test_what_other_programs_store() -> None:
    """With fields of their own in the member's header that the directory does not have, and something before it."""
    file = io.BytesIO(b"#!/bin/sh\n")
    file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"made elsewhere"
        inner = io.BytesIO()
        np.save(inner, ARRAYS["w"])
        info = zipfile.ZipInfo("w.npy")
        info.extra = struct.pack("<HH4s", 0xCAFE, 4, b"fill")
        archive.writestr(info, inner.getvalue())
        archive.writestr("README.txt", "no array")
    raw = file.getvalue()
    [(name, header)] = members(raw).items()
    assert name == "w" and raw[header.offset : header.offset + header.nbytes] == ARRAYS["w"].tobytes()


def test_what_is_deflated_is_refused_with_what_to_do() -> None:
    found = members(saved(ARRAYS, np.savez_compressed))
    assert set(found) == set(ARRAYS)
    for name, problem in found.items():
        assert f"x.npz: {name}: compressed" in problem.message and problem.hint == "save it by `np.savez`"


def test_each_array_that_is_no_layer_is_told_of_alone() -> None:
    arrays = {
        "one": 3.0,
        "none": np.zeros((0, 2)),
        "text": np.array(["a"]),
        "order": np.asfortranarray(np.ones((2, 3))),
    }
    found = members(saved({**arrays, "good": np.zeros(3)}))
    assert isinstance(found["one"], NoRows) and isinstance(found["none"], NoRows)
    assert "x.npz: text: holds text" in str(found["text"]) and "Fortran order" in str(found["order"])
    assert isinstance(found["good"], Header)


def with_directory(raw: bytes, at: int, form: str, value: int) -> bytes:
    """With another value in the first member's record of the directory."""
    start = raw.index(b"PK\x01\x02") + at
    return raw[:start] + struct.pack(form, value) + raw[start + struct.calcsize(form) :]


def test_archives_that_lie() -> None:
    raw = saved({"a": np.zeros(8), "b": np.ones(8)})
    for bad in (b"", b"PK", raw[:-1], raw[: len(raw) // 2], b"\0" * 100):
        assert "not an .npz, or a damaged one" in refused(bad)
    assert "is not where it is said to be" in refused(with_directory(raw, 42, "<I", 1))
    second = raw.index(b"PK\x03\x04", 4)
    assert "overlap" in refused(with_directory(raw, 42, "<I", second))
    long = with_directory(with_directory(raw, 20, "<I", 1 << 30), 24, "<I", 1 << 30)
    assert "overlap" in refused(long) or "bytes behind the file" in refused(long)
    short = with_directory(with_directory(raw, 20, "<I", 130), 24, "<I", 130)
    assert "truncated" in str(members(short)["a"])
    torchs = io.BytesIO()
    with zipfile.ZipFile(torchs, "w") as archive:
        archive.writestr("model/data.pkl", b"")
    assert "a checkpoint of torch.save" in refused(torchs.getvalue())


WHOLE = saved(ARRAYS)
SPOTS = st.sampled_from([at for at in range(len(WHOLE)) if WHOLE[at : at + 2] == b"PK"])


@given(
    st.lists(st.tuples(SPOTS, st.integers(0, 160), st.integers(0, 255)), max_size=6),
    st.integers(0, len(WHOLE)) | st.just(len(WHOLE)),
)
def test_a_mutated_archive_is_refused_or_within_itself(flips: list[tuple[int, int, int]], length: int) -> None:
    raw = bytearray(WHOLE)
    for spot, at, value in flips:
        raw[min(spot + at, len(raw) - 1)] = value
    cut = bytes(raw[:length])
    try:
        found = members(cut)
    except SourceError as error:
        assert error.message.startswith("x.npz: ") and error.message.isprintable()
        return
    headers = sorted((one for one in found.values() if isinstance(one, Header)), key=lambda one: one.offset)
    ends = [0, *(one.offset + one.nbytes for one in headers)]
    assert all(end <= one.offset for end, one in zip(ends, headers, strict=False)) and max(ends) <= len(cut)
