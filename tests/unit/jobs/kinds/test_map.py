"""The kind `map`: what its parameters may be, what it declares, and that the user's function gets what was said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import Bench, Items, Listed, Ragged, Runner, Shape, Shard, ShardFailure, Written
from muster.jobs.contract.plan import Output
from muster.jobs.kinds import registry
from muster.jobs.kinds.map import Map, MapParams
from muster.jobs.results.outputs import settle

SHAPE = Shape((3,), "<f4")
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def params(**given: Any) -> MapParams:
    return msgspec.convert(given, MapParams)


@contextmanager
def opened(tmp_path: Path, source: str, **given: Any) -> Iterator[Runner]:
    (tmp_path / "work.py").write_text(source)
    bench = Bench(params(**given), cpus=1, timeout=20.0, scratch=tmp_path / "scratch", code=tmp_path, entry="work.py:f")
    runner = Map().open(bench)
    try:
        yield runner
    finally:
        runner.close()


def test_it_is_found_by_its_name() -> None:
    kind = registry.load("map")
    assert isinstance(kind, Map) and kind.wants_code and kind.kernel == 1


def test_declares_what_the_job_file_says_sorted_and_little_endian() -> None:
    given = params(outputs={"b": {"dtype": ">f8", "shape": [2, 3]}, "a": {"dtype": "uint8"}})
    Map().check(given, SHAPE)
    assert Map().declare(given, SHAPE) == (Output("a", "rows", "|u1"), Output("b", "rows", "<f8", (2, 3)))


def test_declares_nothing_by_itself() -> None:
    assert Map().declare(params(), SHAPE) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"outputs": {"../x": {"dtype": "<f4"}}}, "params.outputs: '../x'"),
        ({"outputs": {"shards": {"dtype": "<f4"}}}, "params.outputs: 'shards'"),
        ({"outputs": {"x": {"dtype": "complex64"}}}, "params.outputs.x.dtype: expected something like float32"),
        ({"args": {"not one": 1}}, "params.args: 'not one'"),
        ({"args": {"class": 1}}, "params.args: 'class'"),
    ],
)
def test_refuses_what_could_never_run(given: dict[str, Any], text: str) -> None:
    with pytest.raises(JobFileError) as caught:
        Map().check(params(**given), SHAPE)
    assert text in caught.value.message


@pytest.mark.parametrize(
    "given",
    [
        {"output": {}},
        {"outputs": {}},
        {"outputs": {"x": {"dtype": "<f4", "shape": [-1]}}},
        {"outputs": {"x": {"dtype": "<f4", "size": 1}}},
        {"args": [1]},
    ],
)
def test_refuses_what_is_not_of_its_form(given: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        params(**given)


def test_runs_the_function_with_its_args(tmp_path: Path) -> None:
    source = "def f(rows, scale, first_row):\n print('row', first_row)\n return {'sum': rows.sum(1) * scale}"
    with opened(tmp_path, source, args={"scale": 10}) as runner:
        result = runner.run(Shard("layer", 3, 6, ROWS))
        assert runner.peak > 1 << 20
        assert runner.printed == "row 6\n"
    declared, [raw] = settle(result, None, 2)
    assert declared == (Output("sum", "rows", "<f4"),)
    assert np.frombuffer(raw, "<f4").tolist() == [30, 120]


def test_what_is_not_as_declared_says_both(tmp_path: Path) -> None:
    given = {"outputs": {"out": {"dtype": "float32", "shape": [2]}}}
    declared = Map().declare(params(**given), SHAPE)
    with opened(tmp_path, "def f(rows): return rows.astype('f8')", **given) as runner:
        result = runner.run(Shard("layer", 0, 0, ROWS))
    with pytest.raises(ShardFailure, match=r"<f8 of shape \(2, 3\), but <f4 of shape \(2, 2\) is declared") as caught:
        settle(result, declared, 2)
    assert caught.value.code == "output"


def test_what_cannot_start_is_the_first_shards_failure(tmp_path: Path) -> None:
    unexpected = pytest.raises(ShardFailure, match="unexpected keyword argument 'more'")
    with opened(tmp_path, "def f(rows): pass", args={"more": 1}) as runner, unexpected as caught:
        runner.run(Shard("layer", 0, 0, ROWS))
    assert caught.value.code == "exception"


# --- what a function may return, by form ------------------------------------------------------------------


def outputs_of(tmp_path: Path, source: str, shard: Shard, **given: Any) -> dict[str, Any]:
    with opened(tmp_path, source, **given) as runner:
        return dict(runner.run(shard))


def items(tmp_path: Path, **files: bytes) -> Items:
    folder = tmp_path / "items"
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Items(folder, names=sorted(files))


def item_shard(tmp_path: Path, **files: bytes) -> Shard:
    return Shard("items", 0, 10, None, items=items(tmp_path, **files))


def ragged(value: Any) -> list[list[float]]:
    assert isinstance(value, Ragged)
    return [part.tolist() for part in np.split(value.values, np.cumsum(value.lengths)[:-1])]


def test_ragged_as_values_and_offsets_or_declared_as_a_list(tmp_path: Path) -> None:
    source = "import numpy as np\ndef f(rows):\n return {'a': (np.arange(5), [0, 2, 5]), 'b': [[1.5], [2.5, 3.5, 4.5]]}"
    given = {"outputs": {"a": {"dtype": "int64", "form": "ragged"}, "b": {"dtype": "float64", "form": "ragged"}}}
    result = outputs_of(tmp_path, source, Shard("layer", 0, 0, ROWS), **given)
    assert ragged(result["a"]) == [[0, 1], [2, 3, 4]] and ragged(result["b"]) == [[1.5], [2.5, 3.5, 4.5]]
    declared = Map().declare(params(**given), SHAPE)
    assert [output.form for output in settle(result, declared, 2)[0]] == ["ragged", "ragged"]


@pytest.mark.parametrize(
    "returned",
    ["(rows, [0, 1])", "(rows, [0, 1, 3])", "(rows, [1, 1, 2])", "(rows, [0, 3, 2])", "(rows, [0., 1., 2.])"],
)
def test_offsets_that_cannot_be(tmp_path: Path, returned: str) -> None:
    with pytest.raises(ShardFailure, match="is a tuple; of values and offsets, with 3 offsets"):
        outputs_of(tmp_path, f"def f(rows): return {returned}", Shard("layer", 0, 0, ROWS))


def test_sums_are_declared(tmp_path: Path) -> None:
    given = {
        "outputs": {
            "n": {"dtype": "int64", "form": "sum"},
            "x": {"dtype": "float32", "form": "sum", "shape": [3], "scale": 100},
        }
    }
    source = "import numpy as np\ndef f(rows): return {'n': len(rows), 'x': rows.sum(0)}"
    result = outputs_of(tmp_path, source, Shard("layer", 0, 0, ROWS), **given)
    declared, segments = settle(result, Map().declare(params(**given), SHAPE), 2)
    assert declared == (Output("n", "sum", "<i8"), Output("x", "sum", "<f4", (3,), 100))
    assert [np.frombuffer(raw, "<i8").tolist() for raw in segments] == [[2], [300, 500, 700]]


def test_a_function_writes_files_under_the_names_of_its_items(tmp_path: Path) -> None:
    source = (
        "def f(paths, out):\n for path in paths: (out / path).with_suffix('.up').write_bytes(path.read_bytes().upper())"
    )
    with opened(tmp_path, source) as runner:
        found = runner.run(item_shard(tmp_path, a=b"x", b=b"y"))["files"]
        assert isinstance(found, Written) and found.files == [(0, "a.up"), (1, "b.up")]
        assert (found.folder / "b.up").read_bytes() == b"Y"
    assert not found.folder.exists()


def test_a_function_over_rows_has_nowhere_to_write(tmp_path: Path) -> None:
    with pytest.raises(ShardFailure, match="no folder to write to"):
        outputs_of(tmp_path, "def f(rows, out): return rows", Shard("layer", 0, 0, ROWS))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": {"dtype": "float32", "form": "sum"}}, "x.scale: what a sum of floats has"),
        ({"x": {"dtype": "int32", "form": "sum", "scale": 2}}, "x.scale"),
        ({"x": {"dtype": "float32", "scale": 2}}, "x.scale"),
        ({"x": {"dtype": "float32", "form": "sum", "scale": 0}}, "x.scale: expected a number above 0"),
        ({"x": {"dtype": "float32", "form": "ragged", "shape": [0]}}, "x.shape"),
        ({"x": {"form": "rows"}}, "x.dtype: expected something like float32"),
        ({"x": {"form": "files"}}, "x.form: files cannot be here"),
    ],
)
def test_forms_that_cannot_be(given: dict[str, Any], text: str) -> None:
    with pytest.raises(JobFileError) as caught:
        Map().check(params(outputs=given), SHAPE)
    assert text in caught.value.message


def test_files_are_declared_once_and_for_items() -> None:
    given = params(outputs={"thumbs": {"form": "files"}})
    assert Map().declare_items(given, Listed((), lambda: iter(()))) == (Output("thumbs", "files", "|u1"),)
    for wrong in ({"a": {"form": "files"}, "b": {"form": "files"}}, {"a": {"form": "files", "dtype": "int8"}}):
        with pytest.raises(JobFileError):
            Map().declare_items(params(outputs=wrong), Listed((), lambda: iter(())))


# --- on_item_error: record --------------------------------------------------------------------------------

PICKY = """
import ctypes, os
import numpy as np
def f(paths, out, first_row):
    raw = [path.read_bytes() for path in paths]
    for path, one in zip(paths, raw):
        (out / path.name).write_bytes(one)
        if one == b"bad": raise ValueError(path.name)
        if one == b"exit": os._exit(3)
        if one == b"crash": ctypes.string_at(0)
    values = [np.arange(len(one)) for one in raw]
    return {"len": [len(one) for one in raw], "mean": [float(first_row + i) for i in range(len(raw))],
            "each": (np.concatenate(values), np.cumsum([0] + [len(one) for one in raw])), "n": len(raw)}
"""
COUNTED = {"n": {"dtype": "int64", "form": "sum"}}


def test_an_item_that_fails_is_recorded_and_the_others_count(tmp_path: Path) -> None:
    contents = {"a": b"12", "b": b"bad", "c": b"1", "d": b"exit", "e": b"", "f": b"crash"}
    outputs = COUNTED | {"len": {"dtype": "int64"}, "mean": {"dtype": "float64"}, "files": {"form": "files"}}
    outputs["each"] = {"dtype": "int64", "form": "ragged"}
    with opened(tmp_path, PICKY, outputs=outputs, on_item_error="record") as runner:
        result = dict(runner.run(item_shard(tmp_path, **contents)))
        declared = Map().declare_items(params(outputs=outputs, on_item_error="record"), Listed((), lambda: iter(())))
        assert settle(result, declared, 6)[0] == declared
        assert result["files"].files == [(0, "a"), (2, "c"), (4, "e")]
    assert result["ok"].tolist() == [True, False, True, False, True, False]
    assert result["len"].tolist() == [2, 0, 1, 0, 0, 0]
    assert np.array_equal(np.array(result["mean"]), [10, np.nan, 12, np.nan, 14, np.nan], equal_nan=True)
    assert ragged(result["each"]) == [[0, 1], [], [0], [], [], []] and result["n"] == 3


def test_where_nothing_fails_all_is_ok_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    source = "def f(rows): return rows.sum(1)"
    plain = outputs_of(tmp_path, source, Shard("layer", 0, 0, ROWS))
    recorded = outputs_of(tmp_path, source, Shard("layer", 0, 0, ROWS), on_item_error="record")
    assert recorded.pop("ok").tolist() == [True, True] and np.array_equal(recorded["out"], plain["out"])


def test_rows_of_arrays_are_recorded_too(tmp_path: Path) -> None:
    source = "def f(rows, first_row):\n assert 4 not in rows, first_row\n return rows.astype('i4')"
    result = outputs_of(tmp_path, source, Shard("layer", 0, 7, ROWS), on_item_error="record")
    assert result["ok"].tolist() == [True, False] and result["out"].tolist() == [[0, 1, 2], [0, 0, 0]]


def test_what_is_left_out_is_among_what_was_printed(tmp_path: Path) -> None:
    source = "def f(rows, first_row):\n print('at', first_row)\n assert first_row == 7 and len(rows) == 1\n return rows"
    with opened(tmp_path, source, on_item_error="record") as runner:
        runner.run(Shard("layer", 0, 7, ROWS))
        assert runner.printed == "at 7\nat 8\nrow 8 is left out: AssertionError\n"


def test_if_nobody_knows_the_outputs_the_first_failure_stands(tmp_path: Path) -> None:
    source = "def f(rows, first_row): raise ValueError(first_row)"
    with pytest.raises(ShardFailure, match="ValueError: 7"):
        outputs_of(tmp_path, source, Shard("layer", 0, 7, ROWS), on_item_error="record")
    known = {"outputs": {"out": {"dtype": "float32", "shape": [2]}}, "on_item_error": "record"}
    result = outputs_of(tmp_path, source, Shard("layer", 0, 7, ROWS), **known)
    assert np.isnan(result["out"]).all() and result["out"].shape == (2, 2) and not result["ok"].any()


def test_a_bug_in_the_file_is_not_recorded(tmp_path: Path) -> None:
    known = {"outputs": {"out": {"dtype": "float32"}}, "on_item_error": "record"}
    with pytest.raises(ShardFailure, match="SyntaxError"):
        outputs_of(tmp_path, "def f(rows): return (", Shard("layer", 0, 7, ROWS), **known)


def test_rows_that_differ_from_each_other_fail(tmp_path: Path) -> None:
    source = "def f(rows, first_row):\n assert len(rows) == 1\n return rows[:, :first_row]"
    with pytest.raises(ShardFailure, match="output out: its rows are float32 of shape"):
        outputs_of(tmp_path, source, Shard("layer", 0, 1, ROWS), on_item_error="record")


def test_an_output_of_ones_own_cannot_say_what_is_ok(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="'ok' cannot be an output"):
        Map().check(params(outputs={"ok": {"dtype": "int8"}}, on_item_error="record"), SHAPE)
    with pytest.raises(ShardFailure, match="may not be called ok"):
        outputs_of(tmp_path, "def f(rows): return {'ok': rows}", Shard("l", 0, 0, ROWS), on_item_error="record")
