"""Reading windows: the right rows, their digest, and nothing at all from a file that changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from muster.jobs.contract.plan import Window
from muster.jobs.sources import read_rows as windows
from muster.jobs.sources.discover import stamp_of
from muster.jobs.sources.read_rows import SourceChanged, new_buffer, read_window


def window_of(path: Path, offset: int, shape: tuple[int, ...], dtype: str = "<f4") -> Window:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Window(str(path), offset, shape, dtype, nbytes, stamp_of(path.stat()))


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(300, 2000)).astype("<f4")


@pytest.fixture
def path(tmp_path: Path, rows: np.ndarray) -> Path:
    np.save(tmp_path / "a.npy", rows)
    return tmp_path / "a.npy"


def test_rows_and_digest(path: Path, rows: np.ndarray) -> None:
    found, digest = read_window(window_of(path, 128 + 10 * 8000, (250, 2000)))
    np.testing.assert_array_equal(found, rows[10:260])
    assert found.flags.c_contiguous
    assert found.flags.writeable
    assert digest == xxhash.xxh3_128_digest(rows[10:260].tobytes())


@pytest.mark.parametrize("dtype", ["<f2", ">f8", "|i1", ">u4", "|b1"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2)])
def test_dtypes_and_shapes(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    (tmp_path / "raw").write_bytes(b"###" + array.tobytes())
    found, _ = read_window(window_of(tmp_path / "raw", 3, shape, dtype))
    assert found.dtype.str == dtype
    np.testing.assert_array_equal(found, array)


def test_a_buffer_is_used_where_it_is_large_enough(path: Path, rows: np.ndarray) -> None:
    buffer = new_buffer(8000)
    assert buffer.nbytes == 8000
    assert buffer.ctypes.data % windows.ALIGN == 0
    one, first = read_window(window_of(path, 128, (1, 2000)), buffer)
    assert np.shares_memory(one, buffer)
    two, second = read_window(window_of(path, 128, (2, 2000)), buffer)
    assert not np.shares_memory(two, buffer)
    np.testing.assert_array_equal(two, rows[:2])
    assert first != second


def test_a_window_that_contradicts_itself(path: Path) -> None:
    good = window_of(path, 128, (2, 2000))
    bad = Window(good.path, good.offset, (3, 2000), good.dtype, good.nbytes, good.stamp)
    with pytest.raises(ValueError, match="cannot have the shape"):
        read_window(bad)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _cut(path: Path) -> None:
    os.truncate(path, 500)


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _replace(path: Path) -> None:
    old = path.read_bytes()
    status = path.stat()
    other = path.with_suffix(".tmp")
    other.write_bytes(old)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


def _overwrite_and_hide(path: Path) -> None:
    """The same size and mtime, as a careful tool would leave: ctime still tells."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"other")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [_append, _cut, _touch, _replace, _overwrite_and_hide, _remove])
def test_a_changed_file_is_not_read(path: Path, change: object) -> None:
    window = window_of(path, 128, (2, 2000))
    assert callable(change)
    change(path)
    with pytest.raises(SourceChanged, match=r"is gone|not the file that was planned"):
        read_window(window)


def test_a_change_during_the_read_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window = window_of(path, 128, (300, 2000))
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset == window.offset:
            _touch(path)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(SourceChanged):
        read_window(window)


def test_short_reads_are_put_together(path: Path, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:777]], offset))
    found, digest = read_window(window_of(path, 128, (30, 2000)))
    np.testing.assert_array_equal(found, rows[:30])
    assert digest == xxhash.xxh3_128_digest(rows[:30].tobytes())


def test_without_a_stamp_only_the_length_counts(path: Path) -> None:
    full = window_of(path, 128, (2, 2000))
    window = Window(full.path, full.offset, full.shape, full.dtype, full.nbytes, None)
    _touch(path)
    read_window(window)
    os.truncate(path, 128 + 8001)
    with pytest.raises(SourceChanged, match="ends 7999 bytes before its window does"):
        read_window(window)


def test_no_file_is_left_open(path: Path) -> None:
    window = window_of(path, 128, (2, 2000))
    _cut(path)
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").is_dir() else []
    with pytest.raises(SourceChanged):
        read_window(window)
    after = os.listdir("/proc/self/fd") if before else []
    assert len(after) == len(before)
