"""Training data out of files: what is read, and every way in which it is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.jobs.common.errors import DamagedError, JobFileError, SourceError
from muster.jobs.training.data import dataset, named_sets
from muster.jobs.training.data.dataset import Feeder, load
from muster.jobs.training.params import DataSpec

Array = np.ndarray[Any, Any]


def idx(array: Array) -> bytes:
    kinds = {"uint8": 8, "int16": 11, "int32": 12, "float32": 13}
    head = bytes([0, 0, kinds[array.dtype.name], array.ndim])
    return head + np.array(array.shape, ">u4").tobytes() + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def images() -> tuple[Array, Array]:
    luck = np.random.default_rng(0)
    return luck.integers(0, 256, (50, 4, 3), dtype=np.uint8), luck.integers(0, 5, 50)


def written(folder: Path, x: Array, y: Array) -> DataSpec:
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return DataSpec("x.npy", "y.npy")


def test_a_share_is_held_out(tmp_path: Path, images: tuple[Array, Array]) -> None:
    found = load(written(tmp_path, *images), tmp_path, seed=3)
    assert (found.facts.rows, found.facts.test_rows, found.facts.row) == (40, 10, (4, 3))
    both = np.concatenate([found.x, found.test_x]).reshape(50, -1)
    np.testing.assert_array_equal(both[np.lexsort(both.T)], _sorted(images[0]))
    again, other = load(DataSpec("x.npy", "y.npy"), tmp_path, seed=3), load(DataSpec("x.npy", "y.npy"), tmp_path, 4)
    np.testing.assert_array_equal(again.x, found.x)
    assert not np.array_equal(other.x, found.x)


def _sorted(x: Array) -> Array:
    flat = x.reshape(len(x), -1)
    return flat[np.lexsort(flat.T)]


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_with_a_test_set(tmp_path: Path, images: tuple[Array, Array], zipped: bool) -> None:
    pack = gzip.compress if zipped else bytes
    for name, array in zip(("x", "y"), (images[0], images[1].astype(np.uint8)), strict=True):
        (tmp_path / name).write_bytes(pack(idx(array)))
        (tmp_path / f"t{name}").write_bytes(pack(idx(array[:7])))
    found = load(DataSpec("x", "y", "tx", "ty"), tmp_path)
    np.testing.assert_array_equal(found.x, images[0])
    np.testing.assert_array_equal(found.test_y, images[1][:7])
    assert found.unit == 1 / 255


def test_floats_are_taken_as_they_are(tmp_path: Path, images: tuple[Array, Array]) -> None:
    found = load(written(tmp_path, images[0].astype(">f8") / 7, images[1]), tmp_path)
    assert (found.x.dtype, found.unit) == (np.dtype(np.float32), 1.0)
    (tmp_path / "i").write_bytes(idx(images[0].astype(np.int16)))
    assert load(DataSpec("i", "y.npy"), tmp_path).x.dtype == np.float32


def test_a_data_set_is_had_by_its_name_and_cut(
    tmp_path: Path, images: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    there = tmp_path / "muster" / "data" / "mnist"
    there.mkdir(parents=True)
    for part, array in zip(named_sets.PARTS, (*images, *images), strict=True):
        np.save(there / f"{part}.npy", array)
    facts = load(DataSpec(name="mnist", rows=7), tmp_path).facts
    assert (facts.rows, facts.test_rows, facts.classes) == (7, 50, 5)
    assert load(DataSpec(name="digits", rows=100), tmp_path).facts.rows == 100
    for spec, said, hint in (
        (DataSpec(name="mnst"), "there is no data set 'mnst'", "did you mean `mnist`?"),
        (DataSpec(name="mnist", rows=51), "params.data.rows: 51 of 50 rows", "leave it out"),
        (DataSpec(name="mnist", x="x.npy"), "params.data: a name and files", "give one of them"),
        (DataSpec(name="cifar10"), "params.data.name: cifar10: there is no npm here", "let npm reach"),
        ("mnist", "params.data: there is no data set 'mnist'", "data: {name: mnist}"),
    ):
        with pytest.raises((JobFileError, SourceError)) as caught:
            load(spec, tmp_path)
        assert said in caught.value.message and hint in str(caught.value.hint)


def test_digits_by_name(tmp_path: Path) -> None:
    found = load("digits", tmp_path)
    assert (found.facts.rows, found.facts.test_rows, found.facts.row, found.facts.classes) == (1437, 360, (8, 8), 10)
    with pytest.raises(JobFileError, match="no data set 'digit'") as caught:
        load("digit", tmp_path)
    assert caught.value.hint == "did you mean `digits`?"


BAD: list[tuple[str, Any, Any, str]] = [
    ("a label too many", lambda x: x, lambda y: np.append(y, 0), "y.npy: 51 labels for 50 rows"),
    ("a label below 0", lambda x: x, lambda y: np.where(np.arange(50) == 9, -1, y), "the label of row 9 is -1"),
    ("a label too high", lambda x: x, lambda y: np.where(np.arange(50) == 8, 50, y), "row 8 is 50, expected 0 to 49"),
    ("one label", lambda x: x, lambda y: np.full(50, 3), "every label is 3"),
    ("float labels", lambda x: x, lambda y: y / 1, "float64 of shape"),
    ("one-hot labels", lambda x: x, lambda y: np.eye(5, dtype=int)[y], "is no labels"),
    ("no rows", lambda x: x[:0], lambda y: y[:0], "empty"),
    ("one axis", lambda x: x[:, 0, 0], lambda y: y, "is no rows of numbers"),
    ("NaN", lambda x: np.where(np.arange(50) == 4, np.nan, 1.0)[:, None], lambda y: y, "row 4 has a number"),
    ("beyond float32", lambda x: np.full((50, 1), 1e300), lambda y: y, "row 0 has a number"),
]


@pytest.mark.parametrize(("x", "y", "said"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_cannot_be_trained_on(tmp_path: Path, images: tuple[Array, Array], x: Any, y: Any, said: str) -> None:
    spec = written(tmp_path, x(images[0]), y(images[1]))
    with pytest.raises(SourceError, match=said) as caught:
        load(spec, tmp_path)
    assert caught.value.message.startswith("params.data.")


@pytest.mark.parametrize(
    ("test_x", "test_y", "said"),
    [((5, 4, 4), 5, "test_x: rows of shape"), ((5, 4, 3), 4, "4 labels for 5 rows"), ((0, 4, 3), 0, "empty")],
)
def test_a_test_set_that_does_not_fit(
    tmp_path: Path, images: tuple[Array, Array], test_x: tuple[int, ...], test_y: int, said: str
) -> None:
    written(tmp_path, *images)
    np.save(tmp_path / "tx.npy", np.zeros(test_x, np.uint8))
    np.save(tmp_path / "ty.npy", np.zeros(test_y, int))
    with pytest.raises(SourceError, match=said):
        load(DataSpec("x.npy", "y.npy", "tx.npy", "ty.npy"), tmp_path)


def test_classes_that_no_row_has_may_be_said(tmp_path: Path, images: tuple[Array, Array]) -> None:
    written(tmp_path, *images)
    found = load(DataSpec("x.npy", "y.npy", classes=9), tmp_path)
    dataset.write(found, tmp_path / "packed")
    assert (found.facts.classes, dataset.read(tmp_path / "packed").facts.classes) == (9, 9)


def test_test_labels_are_those_of_the_training_set(tmp_path: Path, images: tuple[Array, Array]) -> None:
    written(tmp_path, *images)
    np.save(tmp_path / "ty.npy", np.full(50, 5))
    with pytest.raises(SourceError, match="the label of row 0 is 5, expected 0 to 4"):
        load(DataSpec("x.npy", "y.npy", "x.npy", "ty.npy"), tmp_path)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "neither .npy nor idx"),
        (b"\0\0\x08\x02\0\0", "without its whole header"),
        (b"\0\0\x08\x01\0\0\0\x09abc", "truncated"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "longer than it claims"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "truncated"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab", mtime=0)[:-9], "x: "),
        (b"\x1f\x8b\x08nonsense", "x: "),
        (b"\x80\x04pickle", "neither"),
    ],
)
def test_files_that_are_not_whole(tmp_path: Path, raw: bytes, said: str) -> None:
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(SourceError, match=said):
        load(DataSpec("x", "y"), tmp_path)


@pytest.mark.parametrize("name", ["gone.npy", "~nobody-of-that-name/x.npy"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=rf"params\.data\.x: {name}: No such file"):
        load(DataSpec(name, "y.npy"), tmp_path)


def test_one_file_holds_it_all(tmp_path: Path, images: tuple[Array, Array]) -> None:
    found = load(written(tmp_path, *images), tmp_path)
    dataset.write(found, tmp_path / "packed")
    again = dataset.read(tmp_path / "packed")
    assert (again.unit, again.facts) == (found.unit, found.facts)
    np.testing.assert_array_equal(again.test_x, found.test_x)
    whole = (tmp_path / "packed").read_bytes()
    for cut in (0, 7, 50, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises(DamagedError, match="cut: no data set"):
            dataset.read(tmp_path / "cut")
    with pytest.raises(DamagedError, match="packed: a data set without a module"):
        dataset.born_in(tmp_path / "packed")


def test_batches_are_scaled_floats(images: tuple[Array, Array]) -> None:
    feeder = Feeder(*images, 1 / 255)
    for rows in ([3, 1, 3], [7], [8, 9, 10]):
        x, y = feeder.batch(np.array(rows))
        np.testing.assert_array_equal(x, images[0][rows] * np.float32(1 / 255))
        np.testing.assert_array_equal(y, images[1][rows])
