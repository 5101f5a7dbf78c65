"""Writing layers: what numpy loads is what was appended, and a failure leaves nothing under the name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.jobs.sources import layer_writer
from muster.jobs.sources.discover import SourceSpec, discover
from muster.jobs.sources.layer_writer import LayerWriter


@pytest.mark.parametrize("dtype", ["float16", "<f4", ">f8", "int8", ">i4", "bool"])
@pytest.mark.parametrize("row", [(), (3,), (2, 3)])
def test_round_trip(tmp_path: Path, dtype: str, row: tuple[int, ...]) -> None:
    blocks = [np.arange(n * np.prod(row, dtype=int)).reshape(n, *row).astype(dtype) for n in (1, 0, 5, 2)]
    with LayerWriter(tmp_path / "a" / "x.npy", row, dtype) as layer:
        for block in blocks:
            layer.append(block)
        layer.append(blocks[0][0])
    assert layer.rows == 9
    loaded = np.load(tmp_path / "a" / "x.npy")
    assert loaded.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(loaded, np.concatenate([*blocks, blocks[0]]))
    [found] = discover(SourceSpec("a"), tmp_path).layers
    assert (found.name, found.source.shape) == ("x", (9, *row))
    assert os.listdir(tmp_path / "a") == ["x.npy"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any), st.integers(1, 100))
def test_any_blocks_through_any_buffer(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], buffer: int
) -> None:
    folder = tmp_path_factory.mktemp("layers")
    blocks = [np.random.default_rng(i).normal(size=(n, 3)) for i, n in enumerate(counts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_writer, "BUFFER_BYTES", buffer)
        with LayerWriter(folder / "x.npy", (3,), "f8") as layer:
            for block in blocks:
                layer.append(block)
    np.testing.assert_array_equal(np.load(folder / "x.npy"), np.concatenate(blocks))


def test_rows_that_are_not_contiguous(tmp_path: Path) -> None:
    rows = np.arange(24.0).reshape(4, 6)
    with LayerWriter(tmp_path / "x.npy", (3,), "f8") as layer:
        layer.append(rows[:, ::2])
        layer.append(np.asfortranarray(rows[:, :3]))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.concatenate([rows[:, ::2], rows[:, :3]]))


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), LayerWriter(tmp_path / "x.npy", (3,), "f4") as layer:
        layer.append(np.zeros((2, 3), "f4"))
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_an_old_layer_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones(3))
    with LayerWriter(path, (), "f4") as layer:
        layer.append(np.zeros(2, "f4"))
        assert np.load(path).tolist() == [1, 1, 1]
    assert np.load(path).tolist() == [0, 0]


def test_a_layer_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without rows"), LayerWriter(tmp_path / "x.npy", (3,), "f4"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 4), "f4"), "expected rows of shape"),
        (np.zeros((2, 2, 3), "f4"), "expected rows of shape"),
        (np.float32(3), "expected rows of shape"),
        (np.zeros((2, 3), "f8"), "expected float32, got float64"),
        (np.zeros((2, 3), object), "expected float32, got object"),
    ],
)
def test_rows_of_another_shape_or_dtype(tmp_path: Path, rows: object, message: str) -> None:
    with pytest.raises(ValueError, match=message), LayerWriter(tmp_path / "x.npy", (3,), "f4") as layer:
        layer.append(rows)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", ["c8", "O", "U3", "V4"])
def test_dtypes_that_no_source_reads(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(ValueError, match="layers do not hold"):
        LayerWriter(tmp_path / "x.npy", (3,), dtype)


def test_a_row_without_values(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a length"):
        LayerWriter(tmp_path / "x.npy", (3, 0), "f4")


def test_a_killed_writer_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    script = (
        "import os, sys, numpy as np\n"
        "from muster.jobs.sources.layer_writer import LayerWriter\n"
        "layer = LayerWriter(sys.argv[1], (1 << 20,), 'f4')\n"
        "for _ in range(40): layer.append(np.ones(1 << 20, 'f4'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x.npy")], check=False, timeout=60)
    assert done.returncode == -9
    assert not (tmp_path / "x.npy").exists()
    assert all(name.startswith(".") for name in os.listdir(tmp_path))
