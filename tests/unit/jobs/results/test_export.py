"""What `result --as` makes of a layer: files that numpy, csv readers, pyarrow and pandas open, with its values."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.coordinator.client.results import Result
from muster.jobs.common.errors import NotFoundError, RefusedError, UsageError
from muster.jobs.parts.manifest import CSV, FORMAT, MANIFEST, File, Merged, Product, encode_manifest
from muster.jobs.results import export as exports
from muster.jobs.results import tables
from muster.jobs.results.export import export, print_csv
from muster.jobs.sources.discover import SourceSpec, discover

ROWS = 7
LENGTHS = [0, 2, 1, 0, 3, 0, 1]
OFFSETS = np.cumsum([0, *LENGTHS])
ITEMS = [["a,b.txt", "1"], ['quo"ted', "2"], ["new\nline", "3"], ["007", "4"], ["NA", "5"], ["ü", "6"], ["z", "7"]]
PRINTED = "one\ntwo,\xfc".encode() + b"\xff"
OUTPUTS: dict[str, Any] = {
    "score": np.linspace(0, 1, ROWS, dtype="<f4"),
    "label": np.arange(ROWS, dtype=">i8"),
    "good": np.arange(ROWS) % 2 == 0,
    "half": np.linspace(-1, 1, ROWS, dtype="<f2"),
    "centers": np.arange(ROWS * 6, dtype="<f8").reshape(ROWS, 3, 2),
    "words": (OFFSETS, np.arange(7, dtype="<i4")),
    "stdout": (np.array([0, len(PRINTED), *[len(PRINTED)] * (ROWS - 1)]), np.frombuffer(PRINTED, "u1")),
}


def merged(folder: Path, outputs: dict[str, Any], items: list[list[str]] | None = None, sums: Any = None) -> Path:
    """A layer as the merge leaves it."""
    folder.mkdir(parents=True)
    products = []
    for name, value in outputs.items():
        parts = {f"{name}.offsets": value[0], f"{name}.values": value[1]} if isinstance(value, tuple) else {name: value}
        form = "ragged" if isinstance(value, tuple) else "rows"
        products.append(Product(name, form, tuple(_saved(folder, part, array) for part, array in parts.items())))  # type: ignore[arg-type]
    if sums is not None:
        products.append(Product("total", "sum", (_saved(folder, "total", sums),)))
    listed = None
    if items is not None:
        with (folder / "items.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([["name", "bytes"], *items])
        listed = File("items.csv", CSV, (len(items), 2), 0, "0" * 32)
    table = _saved(folder, "shards", np.zeros(1, [("rows", "<i8")]))
    told = Merged(FORMAT, "j.1", folder.name, "0" * 32, ROWS, 1, tuple(products), table, (), listed)
    (folder / MANIFEST).write_bytes(encode_manifest(told))
    return folder


def _saved(folder: Path, name: str, array: Any) -> File:
    np.save(folder / f"{name}.npy", array)
    return File(f"{name}.npy", array.dtype.str if array.dtype.names is None else "", array.shape, 0, "0" * 32)


def made(folder: Path, form: str, target: Path, *layers: str) -> list[exports.Exported]:
    return list(export(folder, layers or ("items",), form, target))


@pytest.fixture(params=[tables.BATCH_BYTES, 1, 200], ids=["at once", "a row", "some rows"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH_BYTES", request.param)


def test_an_archive_has_every_array_and_is_a_source_again(tmp_path: Path) -> None:
    merged(tmp_path / "r" / "deep" / "conv", OUTPUTS, sums=np.arange(3))
    [one] = made(tmp_path / "r", "npz", tmp_path / "out", "deep/conv")
    assert (one.path, one.left_out) == (tmp_path / "out" / "deep" / "conv.npz", [])
    with np.load(one.path) as found:
        assert set(found.files) == {*(set(OUTPUTS) - {"words", "stdout"}), "total", "words.offsets", "words.values",
                                    "stdout.offsets", "stdout.values"}  # fmt: skip
        for name in ("score", "label", "good", "half", "centers"):
            assert found[name].dtype == OUTPUTS[name].dtype and np.array_equal(found[name], OUTPUTS[name])
        assert np.array_equal(found["words.values"], OUTPUTS["words"][1])
    assert "centers" in {layer.name for layer in discover(SourceSpec(str(one.path)), tmp_path).layers}
    assert [path.name for path in one.path.parent.iterdir()] == ["conv.npz"]


@pytest.mark.usefixtures("batches")
def test_a_csv_has_a_line_for_each_row(tmp_path: Path) -> None:
    merged(tmp_path / "items", OUTPUTS, ITEMS, sums=np.arange(3))
    [one] = made(tmp_path, "csv", tmp_path / "x.csv")
    assert (one.path, one.left_out) == (tmp_path / "x.csv", ["total"])
    with one.path.open(newline="") as file:
        header, *lines = csv.reader(file)
    centers = [f"centers.{i}.{j}" for i in range(3) for j in range(2)]
    assert header == ["name", "bytes", "score", "label", "good", "half", *centers, "words", "stdout"]
    found = [dict(zip(header, line, strict=True)) for line in lines]
    assert [[line["name"], line["bytes"]] for line in found] == ITEMS
    assert [np.float32(line["score"]) for line in found] == OUTPUTS["score"].tolist()
    assert [int(line["label"]) for line in found] == list(range(ROWS))
    assert [line["good"] for line in found] == [str(one) for one in OUTPUTS["good"]]
    assert [line["words"] for line in found][:3] == ["[]", "[0, 1]", "[2]"]
    assert [float(line["centers.2.1"]) for line in found] == OUTPUTS["centers"][:, 2, 1].tolist()
    assert found[0]["stdout"] == PRINTED.decode(errors="replace") and found[1]["stdout"] == ""
    shown = io.StringIO()
    assert print_csv(tmp_path / "items", shown) == ["total"]
    assert shown.getvalue().encode() == one.path.read_bytes()


@pytest.mark.usefixtures("batches")
def test_parquet_has_lists(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    merged(tmp_path / "items", OUTPUTS, ITEMS)
    [one] = made(tmp_path, "parquet", tmp_path)
    table = parquet.read_table(one.path)
    assert one.path == tmp_path / "items.parquet" and table.num_rows == ROWS
    found = table.to_pydict()
    assert found["name"] == [name for name, _ in ITEMS] and found["bytes"] == list(range(1, ROWS + 1))
    assert str(table.schema.field("score").type) == "float" and found["label"] == list(range(ROWS))
    assert found["centers"] == OUTPUTS["centers"].tolist() and found["good"] == OUTPUTS["good"].tolist()
    assert [len(one) for one in found["words"]] == LENGTHS and found["words"][4] == [3, 4, 5]
    assert found["half"] == OUTPUTS["half"].astype("f4").tolist() and found["stdout"][0].startswith("one\n")


def test_a_data_frame_has_a_column_for_each_number(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    merged(tmp_path / "items", OUTPUTS, ITEMS)
    frame = Result("j.1", tmp_path, ["items"]).dataframe()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == ROWS and frame.index.name == "row"
    assert frame["name"].tolist() == [name for name, _ in ITEMS]
    assert frame["score"].dtype == np.float32 and frame["label"].tolist() == list(range(ROWS))
    assert frame["centers.1.0"].tolist() == OUTPUTS["centers"][:, 1, 0].tolist()
    assert frame["words"][4].tolist() == [3, 4, 5] and frame["stdout"][1] == ""
    assert frame[frame["good"]]["label"].tolist() == [0, 2, 4, 6]


def test_data_frames_of_several_layers_are_one(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    for name, start in (("a", 0), ("b", 10)):
        merged(tmp_path / name, {"x": np.arange(start, start + ROWS)})
    result = Result("j.1", tmp_path, ["a", "b"])
    frame = result.dataframe()
    assert frame.index.names == ["layer", "row"] and frame.loc[("b", 3), "x"] == 13
    assert result.dataframe("b")["x"].tolist() == list(range(10, 17))
    with pytest.raises(NotFoundError, match="no layer 'c'"):
        result.dataframe("c")


def test_an_output_that_is_called_as_a_column_of_the_items(tmp_path: Path) -> None:
    merged(tmp_path / "items", {"bytes": np.arange(ROWS)}, ITEMS)
    shown = io.StringIO()
    print_csv(tmp_path / "items", shown)
    assert shown.getvalue().splitlines()[0] == "name,bytes,bytes_out"


def test_what_no_table_can_have_is_refused(tmp_path: Path) -> None:
    merged(tmp_path / "sums", {}, sums=np.arange(3))
    merged(tmp_path / "wide", {"x": np.zeros((ROWS, tables.COLUMNS_LIMIT + 1), "u1")})
    for form in ("csv", "parquet"):
        with pytest.raises(RefusedError, match="none of its outputs has an entry for each row"):
            made(tmp_path, form, tmp_path / "out", "sums")
    with pytest.raises(RefusedError, match="a row has 16,385 numbers") as caught:
        made(tmp_path, "csv", tmp_path / "out", "wide")
    assert "`--as parquet`" in caught.value.hint
    with pytest.raises(UsageError, match="is one file, and there are 2 layers"):
        made(tmp_path, "csv", tmp_path / "x.csv", "sums", "wide")
    merged(tmp_path / "made", {})
    for form in ("npz", "csv", "parquet"):
        with pytest.raises(RefusedError, match="made has no arrays, but files of its own"):
            made(tmp_path, form, tmp_path / "out", "made")
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match="cannot be written"):
        made(tmp_path, "npz", tmp_path / "file", "sums")
    assert not any((tmp_path / "out").iterdir())


def test_a_missing_library_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(tmp_path / "items", {"x": np.arange(ROWS)})
    for name in ("pandas", "pyarrow"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(RefusedError, match="pyarrow is not installed") as caught:
        made(tmp_path, "parquet", tmp_path)
    assert "pip install pyarrow" in caught.value.hint
    with pytest.raises(RefusedError, match="pandas is not installed"):
        Result("j.1", tmp_path, ["items"]).dataframe()
