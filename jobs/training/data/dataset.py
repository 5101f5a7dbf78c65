"""Rows, labels and a held-out test set: out of files, and as one file that goes to every machine. Knows no round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from muster.jobs.common import durable
from muster.jobs.common.errors import DamagedError, JobFileError, SourceError
from muster.jobs.common.locations import located
from muster.jobs.common.validation import nearest, one_line
from muster.jobs.sources.formats import safetensors
from muster.jobs.sources.formats.header import Header
from muster.jobs.training.data import array_files, named_sets, sampling
from muster.jobs.training.params import DATA_FORMS, DataSpec, Facts, check_data

Array = np.ndarray[Any, Any]

DIGITS = "digits"
NAMED = (DIGITS, *named_sets.DATASETS)
DIGITS_TEST = 360 / 1797
PIXEL, DIGITS_UNIT = 1 / 255, 1 / 16
ROWS_LIMIT = 1 << 31
CLASSES_LIMIT = 1 << 16


@dataclass(frozen=True)
class Born:
    """A torch module as it was made: its first weights, and what their pieces are called."""

    start: Array
    names: list[tuple[str, list[int]]]


@dataclass(frozen=True)
class Data:
    """`x` is uint8 or float32; what a model is given is x * unit. Labels are int64, from 0 on; numbers that are to be
    found in place of labels are float64."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array
    unit: float
    born: Born | None = None  # of a model that is not made from the seed
    least: int = 2  # classes, whatever the labels are

    @property
    def facts(self) -> Facts:
        classes = max(int(max(self.y.max(), self.test_y.max())) + 1, self.least) if self.y.dtype.kind == "i" else 0
        return Facts(len(self.x), len(self.test_x), self.x.shape[1:], classes)


class Feeder:
    """Batches out of one array, in memory that the next batch uses again."""

    def __init__(self, x: Array, y: Array, unit: float) -> None:
        self._x, self._y, self._unit = x, y, np.float32(unit)
        self._raw: Array = np.empty((0, *x.shape[1:]), x.dtype)
        self._floats: Array = np.empty((0, *x.shape[1:]), np.float32)

    def batch(self, rows: Array) -> tuple[Array, Array]:
        if len(self._floats) != len(rows):
            self._raw = np.empty((len(rows), *self._x.shape[1:]), self._x.dtype)
            self._floats = np.empty(self._raw.shape, np.float32)
        np.take(self._x, rows, axis=0, out=self._raw, mode="clip")
        np.multiply(self._raw, self._unit, out=self._floats)
        return self._floats, self._y[rows]


def load(spec: str | DataSpec, base: Path, seed: int = 0, numbers: bool = False) -> Data:
    """The data a job names, relative to the job file's folder. SourceError or JobFileError says what is wrong.
    `numbers`: a file of floats in place of labels is as welcome."""
    if isinstance(spec, str):
        if spec != DIGITS:
            hint = f"data: {{name: {spec}}}" if spec in named_sets.DATASETS else DATA_FORMS
            raise JobFileError(f"params.data: there is no data set {one_line(spec[:80])!r}", _near(spec) or hint)
        return _digits(seed)
    check_data(spec)
    found = _named(spec.name, base, seed) if spec.name is not msgspec.UNSET else _of_files(spec, base, seed, numbers)
    return found if spec.rows is msgspec.UNSET else _cut(found, spec.rows)


def _near(name: str) -> str | None:
    """A data set of nearly that name."""
    near = nearest(name, NAMED)
    return f"did you mean `{near}`?" if near and near != name else None


def _named(name: str, base: Path, seed: int) -> Data:
    """A data set that has a name; it is fetched where it is not here yet."""
    if name == DIGITS:
        return _digits(seed)
    if name not in NAMED:
        hint = _near(name) or f"there are: {', '.join(NAMED)}"
        raise JobFileError(f"params.data.name: there is no data set {one_line(name[:80])!r}", hint)
    try:
        folder = named_sets.fetched(name)
    except named_sets.NotFetched as error:
        raise SourceError(f"params.data.name: {one_line(error.why)}", error.by_hand) from None
    x, y, test_x, test_y = (str(folder / f"{part}.npy") for part in named_sets.PARTS)
    return _of_files(DataSpec(x, y, test_x, test_y), base, seed)


def _cut(data: Data, rows: int) -> Data:
    """With so many training rows alone."""
    if rows > len(data.x):
        raise SourceError(f"params.data.rows: {rows:,} of {len(data.x):,} rows", "leave it out to have all")
    return replace(data, x=data.x[:rows], y=data.y[:rows], least=data.facts.classes)


def _of_files(spec: DataSpec, base: Path, seed: int, numbers: bool = False) -> Data:
    assert spec.x is not None and spec.y is not None, "checked"
    x, unit = _rows_of(spec.x, base, "x")
    labels_of = _numbers_of if numbers and _array(spec.y, base, "y").dtype.kind == "f" else _labels_of
    y = labels_of(spec.y, base, "y", len(x), spec.classes)
    if spec.test_x is None or spec.test_y is None:
        return replace(_split(x, y, spec.test, unit, seed), least=spec.classes or 2)
    test_x, test_unit = _rows_of(spec.test_x, base, "test_x")
    if test_x.shape[1:] != x.shape[1:] or test_unit != unit:
        wrong = f"rows of shape {test_x.shape[1:]} and {test_x.dtype}, but those of x are {x.shape[1:]} and {x.dtype}"
        raise SourceError(f"params.data.test_x: {wrong}")
    test_y = labels_of(spec.test_y, base, "test_y", len(test_x), spec.classes or int(y.max()) + 1)
    return Data(x, y, test_x, test_y, unit, least=spec.classes or 2)


def write(data: Data, path: Path) -> None:
    """As one file, which `read` takes."""
    arrays = {"x": data.x, "y": data.y, "test_x": data.test_x, "test_y": data.test_y, "unit": np.array([data.unit])}
    arrays["least"] = np.array([data.least])
    if data.born is not None:
        names = np.frombuffer(msgspec.json.encode(data.born.names), np.uint8)
        arrays |= {"start": data.born.start.astype("<f4"), "names": names}
    durable.write_durably(path, save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def read(path: Path) -> Data:
    """What `write` wrote; DamagedError where it is not that."""
    try:
        arrays = _mapped(path)
        rows = arrays["x"], arrays["y"], arrays["test_x"], arrays["test_y"]
        data = Data(*rows, float(arrays["unit"][0]), _born(arrays), int(arrays["least"][0]))
    except (SourceError, msgspec.MsgspecError, OSError, KeyError, IndexError, ValueError, TypeError) as error:
        raise DamagedError(f"{path.name}: no data set: {error}", "submit the job again") from None
    fits = len(data.x) == len(data.y) and len(data.test_x) == len(data.test_y) and data.x.dtype in ("u1", "<f4")
    if not fits or min(len(data.x), len(data.test_x)) < 1:
        raise DamagedError(f"{path.name}: no data set: its arrays do not fit each other", "submit the job again")
    return data


def _mapped(path: Path) -> dict[str, Array]:
    """A safetensors file's arrays where they lie, so that all workers of a machine share them."""
    with path.open("rb") as file:
        listed = safetensors.members(file, path.stat().st_size, path.name)
    whole = np.asarray(np.memmap(path, np.uint8, "r"))
    headers = [(one.name, one.header) for one in listed if isinstance(one.header, Header)]
    return {name: whole[at.offset : at.offset + at.nbytes].view(at.dtype).reshape(at.shape) for name, at in headers}


def _born(arrays: dict[str, Array]) -> Born | None:
    if "start" not in arrays:
        return None
    return Born(arrays["start"], msgspec.json.decode(arrays["names"].tobytes(), type=list[tuple[str, list[int]]]))


def born_in(path: Path) -> Born:
    """What `write` wrote of a torch module; DamagedError where there is none."""
    born = read(path).born
    if born is None:
        raise DamagedError(f"{path.name}: a data set without a module's first weights", "submit the job again")
    return born


def _digits(seed: int) -> Data:
    from sklearn.datasets import load_digits

    found = load_digits()
    return _split(found.images.astype(np.uint8), found.target.astype(np.int64), DIGITS_TEST, DIGITS_UNIT, seed)


def _split(x: Array, y: Array, share: float, unit: float, seed: int) -> Data:
    """Some rows held out, the same for equal seeds."""
    count = round(len(x) * share)
    if not 0 < count < len(x):
        raise SourceError(f"params.data.test: a share of {share} of {len(x)} rows leaves no training or no test set")
    order = sampling.order_of(sampling.bits_of(seed, sampling.SPLIT), len(x))
    test, train = order[:count], order[count:]
    return Data(x[train], y[train], x[test], y[test], unit)


def _array(name: str, base: Path, field: str) -> Array:
    return array_files.read(located(base, name), f"params.data.{field}: {one_line(name)}")


def _rows_of(name: str, base: Path, field: str) -> tuple[Array, float]:
    """Rows as uint8 or float32, and what one unit of them is to a model."""
    x, where = _array(name, base, field), f"params.data.{field}: {one_line(name)}"
    if x.ndim < 2 or 0 in x.shape or len(x) >= ROWS_LIMIT:
        raise SourceError(f"{where}: shape {x.shape} is no rows of numbers", "rows are the first axis")
    if x.dtype == np.uint8:
        return x, PIXEL
    with np.errstate(over="ignore"):
        floats = x.astype(np.float32)
    if not np.isfinite(floats).all():
        row = int(np.flatnonzero(~np.isfinite(floats.reshape(len(floats), -1)).all(axis=1))[0])
        raise SourceError(f"{where}: row {row} has a number that is not finite")
    return floats, 1.0


def _numbers_of(name: str, base: Path, field: str, rows: int, classes: int | None) -> Array:
    """What is to be found for each row, where it is a number."""
    y, where = _array(name, base, field), f"params.data.{field}: {one_line(name)}"
    if y.dtype.kind not in "iuf" or y.shape != (rows,):
        raise SourceError(f"{where}: {y.dtype} of shape {y.shape} for {rows} rows", "one number for each row")
    if not np.isfinite(y).all():
        raise SourceError(f"{where}: that of row {int(np.flatnonzero(~np.isfinite(y))[0])} is not finite")
    return y.astype(np.float64)


def _labels_of(name: str, base: Path, field: str, rows: int, classes: int | None) -> Array:
    y, where = _array(name, base, field), f"params.data.{field}: {one_line(name)}"
    if y.dtype.kind not in "iu" or y.ndim != 1:
        hint = "labels are whole numbers from 0 on, one per row"
        raise SourceError(f"{where}: {y.dtype} of shape {y.shape} is no labels", hint)
    if len(y) != rows:
        raise SourceError(f"{where}: {len(y)} labels for {rows} rows")
    if field == "y" and len(y) and y.min() == y.max():
        raise SourceError(f"{where}: every label is {y[0]}: there is nothing to learn")
    most = (classes or min(rows, CLASSES_LIMIT)) - 1
    bad = np.flatnonzero((y < 0) | (y > most))
    if len(bad):
        raise SourceError(f"{where}: the label of row {bad[0]} is {y[bad[0]]}, expected 0 to {most}")
    return y.astype(np.int64)
