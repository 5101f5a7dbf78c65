"""Datasets of HDF5: what h5py reads lies where it is said to lie, and what has no such place is refused in a line."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.jobs.common.errors import SourceError
from muster.jobs.sources.formats import hdf5
from muster.jobs.sources.formats.header import Header, NoRows

h5py = pytest.importorskip("h5py")

ROWS = np.arange(60, dtype="<f4").reshape(15, 4)
DTYPES = ["|b1", "|u1", "|i1", "<u2", ">i2", "<u4", ">u8", "<i8", "<f2", ">f4", "<f8", ">f8"]


def members(path: Path) -> dict[str, Header | SourceError]:
    with path.open("rb") as file:
        return {one.name: one.header for one in hdf5.members(file, path.stat().st_size, "x.h5")}


def made(path: Path, fill: Callable[[Any], object], **how: Any) -> dict[str, Header | SourceError]:
    with h5py.File(path, "w", **how) as file:
        fill(file)
    return members(path)


def there(path: Path, header: Header | SourceError) -> np.ndarray[Any, Any]:
    assert isinstance(header, Header), header
    raw = path.read_bytes()[header.offset : header.offset + header.nbytes]
    return np.frombuffer(raw, header.dtype).reshape(header.shape)


@pytest.mark.parametrize("how", [{}, {"userblock_size": 1024}, {"libver": "latest"}, {"libver": "v108"}], ids=str)
def test_contiguous_datasets_lie_where_they_are_said_to_lie(tmp_path: Path, how: dict[str, Any]) -> None:
    arrays = {f"deep/{i}": np.arange(24).reshape(4, 6).astype(dtype) for i, dtype in enumerate(DTYPES)}

    def fill(file: Any) -> None:
        for name, array in arrays.items():
            file[name] = array
        file["soft"] = h5py.SoftLink("/deep/0")
        file["out"] = h5py.ExternalLink("nowhere.h5", "/x")
        file["enum"] = np.array([1, 2], h5py.enum_dtype({"a": 1, "b": 2}, "<i4"))

    found = made(tmp_path / "x.h5", fill, **how)
    assert set(found) == {*arrays, "enum"}
    with h5py.File(tmp_path / "x.h5") as file:
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype.str
            assert np.array_equal(there(tmp_path / "x.h5", found[name]), file[name][...])
    assert there(tmp_path / "x.h5", found["enum"]).tolist() == [1, 2]


def _compact(file: Any) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((4,))
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, plan).write(space, space, np.ones(4, "<f4"))


def _external(file: Any) -> None:
    raw = Path(file.filename).with_name("raw.bin")
    raw.write_bytes(ROWS.tobytes())
    file.create_dataset("x", ROWS.shape, "<f4", external=[(str(raw), 0, ROWS.nbytes)])


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout(ROWS.shape, "<f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", ROWS.shape)
    file.create_virtual_dataset("x", layout)


def _few_bits(file: Any) -> None:
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(24)
    space = h5py.h5s.create_simple((4,))
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    h5py.h5d.create(file.id, b"x", kind, space, plan)


ELSEWHERE: list[tuple[Callable[[Any], object], str]] = [
    (lambda file: file.create_dataset("x", data=ROWS, chunks=(5, 4)), "in chunks, and not in one piece"),
    (lambda file: file.create_dataset("x", data=ROWS, compression="gzip"), "in chunks that are compressed (gzip)"),
    (lambda file: file.create_dataset("x", data=ROWS, shuffle=True), "in chunks that are compressed (filtered)"),
    (_compact, "compact"),
    (_external, "in external files"),
    (_virtual, "virtual"),
    (_few_bits, "holds int32"),
    (lambda file: file.create_dataset("x", (4, 4), "<f4"), "nothing was written to it"),
    (lambda file: file.create_dataset("x", data=["a", "b"]), "holds object"),
    (lambda file: file.create_dataset("x", data=np.zeros(3, "c8")), "holds complex64"),
    (lambda file: file.create_dataset("x", data=np.zeros(3, [("a", "<f4")])), "holds"),
]


@pytest.mark.parametrize(("fill", "message"), ELSEWHERE)
def test_what_is_no_run_of_bytes_is_refused(tmp_path: Path, fill: Callable[[Any], object], message: str) -> None:
    problem = made(tmp_path / "x.h5", fill)["x"]
    assert isinstance(problem, SourceError) and f"x.h5: x: {message}" in problem.message
    if "chunks" in message:
        assert "`kind: map`" in problem.hint and "docs/examples/tables.md" in problem.hint


def test_what_has_no_rows(tmp_path: Path) -> None:
    found = made(tmp_path / "x.h5", lambda file: file.update({"one": 3.0, "none": np.zeros((0, 2))}))
    assert isinstance(found["one"], NoRows) and isinstance(found["none"], NoRows)
    found = made(tmp_path / "y.h5", lambda file: file.create_dataset("null", data=h5py.Empty("f4")))
    assert isinstance(found["null"], NoRows)


def _whole() -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as opened:
        opened["a"], opened["deep/b"] = ROWS, np.arange(5)
    return file.getvalue()


WHOLE = _whole()


@given(st.integers(0, len(WHOLE) - 1) | st.just(len(WHOLE)))
@settings(max_examples=30)
def test_a_file_that_was_cut_is_refused(length: int) -> None:
    raw = WHOLE[:length]
    try:
        found = hdf5.members(io.BytesIO(raw), len(raw), "x.h5")
    except SourceError as error:
        assert error.message.startswith("x.h5: ") and error.message.isprintable()
        return
    headers = [one.header for one in found if isinstance(one.header, Header)]
    assert all(one.offset + one.nbytes <= length for one in headers)
