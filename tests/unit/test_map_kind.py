"""The kind `map`: what its parameters may be, what it declares, and that the user's function gets what was said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from jobs import kinds
from jobs.errors import JobFileError
from jobs.kinds import Bench, Runner, Shape, Shard, ShardFailure
from jobs.kinds.map import Map, MapParams
from jobs.model import Output
from jobs.outputs import settle

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
    kind = kinds.load("map")
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
        ({"outputs": {"x": {"dtype": "complex64"}}}, "params.outputs.x.dtype: expected such as float32"),
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
        assert runner.printed == "row 6\n"  # type: ignore[attr-defined]
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
