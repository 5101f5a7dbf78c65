"""Whatever shards are missing: where `ok` says so there is what a whole merge has, and elsewhere a blank."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.jobs.common.errors import IncompleteError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.kind import Ragged, Result, Total, Written
from muster.jobs.contract.plan import Layer, MadeSource, Output
from muster.jobs.parts.manifest import Partial, read_manifest
from muster.jobs.parts.part_file import item_bytes, unit_bytes
from muster.jobs.results.merge import Incomplete, bytes_of, merge_layer, merge_partly, survey_partly
from muster.jobs.results.open_result import MergedLayer, RaggedRows, WrittenFiles, open_result, verify_layer
from muster.jobs.results.outputs import blank
from tests.support.shards import layer_of, write_part

DTYPES = ("<f2", "<f4", "<f8", "|i1", "<u2", "<i8", "|b1", "<c8", "|S3", "<U2", "<M8[s]")
SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (2, 2), (0,))
FORMS = ("rows", "rows", "ragged", "sum", "files")

Array = np.ndarray[Any, Any]


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Output, ...]:
    forms = draw(st.lists(st.sampled_from(FORMS), max_size=5))
    return tuple(draw(output(f"out{i}", form)) for i, form in enumerate(forms)) + draw(st.sampled_from([(), OWN_OK]))


OWN_OK = (Output("ok", "rows", "|b1"),)


@st.composite
def output(draw: st.DrawFn, name: str, form: Any) -> Output:
    if form == "files":
        return Output(name, form, "|u1")
    if form == "sum":
        return Output(name, form, "<i4", draw(st.sampled_from(SHAPES)))
    shapes = [shape for shape in SHAPES if form == "rows" or 0 not in shape]
    return Output(name, form, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(shapes)))


def numbers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Any bytes that are values of this dtype."""
    if dtype == "|b1":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype[1] in "SU":
        return rng.integers(0, 99, shape).astype(dtype)
    raw = rng.integers(0, 100, (*shape, item_bytes(dtype)), np.uint8)
    return raw.reshape(-1).view(dtype).reshape(shape)


@dataclass(frozen=True)
class Made:
    """A layer, its shards that are there, and its bundles."""

    layer: Layer
    there: list[int]
    whole: list[Path]
    some: list[Path]


def result_of(layer: Layer, number: int, folder: Path) -> Result:
    rng, rows = np.random.default_rng(number), layer.rows_of(number)
    found: dict[str, Any] = {}
    for one in layer.outputs or ():
        if one.form == "rows":
            found[one.name] = numbers(rng, one.dtype, (rows, *one.shape))
        elif one.form == "ragged":
            lengths = rng.integers(0, 4, rows)
            found[one.name] = Ragged(lengths, numbers(rng, one.dtype, (int(lengths.sum()), *one.shape)))
        elif one.form == "sum":
            found[one.name] = Total(rng.integers(-9, 9, one.shape).astype("<i4"))
        else:
            place = folder / f"{one.name}-{number}"
            place.mkdir()
            names = [f"{layer.first_row(number) + row}.txt" for row in range(rows)]
            for name in names:
                (place / name).write_text(name * number)
            found[one.name] = Written(place, list(enumerate(names)))
    return found


def made(layer: Layer, there: Sequence[int], folder: Path, seed: int) -> Made:
    results = {number: result_of(layer, number, folder) for number in layer.numbers}
    rng = random.Random(seed)
    dealt: dict[int, list[int]] = {}
    for number in there:
        dealt.setdefault(rng.randrange(3), []).append(number)
    some = [write_part(folder / f"some-{i}", layer, [(n, results[n]) for n in mine]).path for i, mine in dealt.items()]
    whole = write_part(folder / "whole", layer, sorted(results.items())).path
    return Made(layer, sorted(there), [whole], some)


def merged(found: Made, folder: Path) -> tuple[MergedLayer, MergedLayer]:
    for name in ("serial", "partial"):
        (folder / name).mkdir()
    merge_layer(found.layer, found.whole, folder / "serial", job="job.1")
    merge_partly(survey_partly(found.layer, found.some), folder / "partial", job="job.1")
    return open_result(folder / "serial"), open_result(folder / "partial", partial=True)


def rows_there(found: Made) -> Array:
    """Row by row of the result, whether its shard is there: worked out one row after the other."""
    there = set(found.there)
    rows = [number in there for number in found.layer.numbers for _ in range(found.layer.rows_of(number))]
    return np.array(rows, bool)


def assert_holes(found: Made, serial: MergedLayer, partial: MergedLayer) -> None:
    there = rows_there(found)
    own = {one.name: one for one in found.layer.outputs or ()}
    if "ok" not in own:
        assert np.array_equal(np.array(partial.outputs["ok"]), there)
    for name, one in own.items():
        whole, part = serial.outputs[name], partial.outputs[name]
        if one.form == "rows":
            assert isinstance(whole, np.ndarray) and isinstance(part, np.ndarray)
            assert part.shape == whole.shape and part[there].tobytes() == np.array(whole)[there].tobytes()
            hole = np.full((int((~there).sum()), *one.shape), blank(one.dtype), one.dtype)
            assert part[~there].tobytes() == hole.tobytes()
            assert np.isnan(hole).all() if hole.dtype.kind == "f" else not hole.astype(bool).any()
        elif one.form == "ragged":
            assert isinstance(whole, RaggedRows) and isinstance(part, RaggedRows) and len(part) == len(whole)
            for row, is_there in enumerate(there.tolist()):
                assert part[row].tobytes() == (whole[row].tobytes() if is_there else b"")
        elif one.form == "files":
            assert isinstance(whole, WrittenFiles) and isinstance(part, WrittenFiles)
            assert list(part.rows()) == [row for row in whole.rows() if row.item is not None and there[row.item]]
            assert {name: part[name].read_bytes() for name in part} == {name: whole[name].read_bytes() for name in part}


@settings(deadline=None, max_examples=150)
@given(
    declared=outputs(),
    rows=st.integers(1, 40),
    shard_rows=st.integers(1, 7),
    only=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_holes_are_blank_and_all_else_is_the_serial_result(
    declared: tuple[Output, ...], rows: int, shard_rows: int, only: bool, seed: int
) -> None:
    rng = random.Random(seed)
    layer = layer_of(rows, shard_rows, declared)
    if only and not any(one.form == "files" for one in declared):  # then a file's item is not its row
        chosen = RangeSet.of(n for n in range(layer.count) if rng.random() < 0.7) or RangeSet([(0, 1)])
        layer = msgspec.structs.replace(layer, only=tuple(chosen.pairs()))
    there = [number for number in layer.numbers if rng.random() < rng.choice([0.1, 0.5, 0.9, 1.0])]
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = made(layer, there, folder, seed)
        serial, partial = merged(found, folder)
        assert_holes(found, serial, partial)
        assert_manifest(found, serial, partial)
        survey = survey_partly(layer, found.some)
        arrays = sum(file.bytes for file in partial.manifest.files) + sum(one.bytes for one in partial.manifest.outputs)
        assert arrays <= bytes_of(survey) + 512 * (len(partial.manifest.files) + rows)
        for one in declared:
            if one.form == "rows":
                assert unit_bytes(one) * survey.rows <= bytes_of(survey)


def assert_manifest(found: Made, serial: MergedLayer, partial: MergedLayer) -> None:
    manifest, there = partial.manifest, rows_there(found)
    assert isinstance(manifest, Partial) and manifest.partial and manifest.rows == serial.manifest.rows == len(there)
    gone = [row for start, stop in manifest.missing_rows for row in range(start, stop)]
    assert gone == np.flatnonzero(~there).tolist()
    starts, stops = [s for s, _ in manifest.missing_rows], [e for _, e in manifest.missing_rows]
    assert all(stop < start for stop, start in zip(stops, starts[1:], strict=False)), "two ranges that are one"
    assert manifest.shards == len(found.there) == len(partial.shards)
    assert manifest.missing_shards == serial.manifest.shards - manifest.shards
    assert partial.shards["shard"].tolist() == found.there
    table = {line["shard"]: line["out_digest"].tobytes() for line in serial.shards}
    assert all(line["out_digest"].tobytes() == table[line["shard"]] for line in partial.shards)


def test_sums_are_those_of_the_shards_that_are_there(tmp_path: Path) -> None:
    layer = layer_of(9, 2, (Output("hits", "sum", "<i4"),))
    _, partial = merged(made(layer, [0, 3], tmp_path, 1), tmp_path)
    expected = sum(int(np.random.default_rng(n).integers(-9, 9, ()).astype("<i4")) for n in (0, 3))
    assert partial.outputs["hits"] == expected


def test_an_output_that_is_called_ok_and_is_something_else_stays_what_it_is(tmp_path: Path) -> None:
    layer = layer_of(4, 2, (Output("ok", "ragged", "<i4"),))
    found = made(layer, [1], tmp_path, 1)
    serial, partial = merged(found, tmp_path)
    assert_holes(found, serial, partial)
    assert isinstance(partial.manifest, Partial) and partial.manifest.missing_rows == ((0, 2),)


def test_outputs_that_no_shard_told_are_not_there_and_ok_says_why(tmp_path: Path) -> None:
    merge_partly(survey_partly(layer_of(5, 2, None), []), tmp_path, job="job.1")
    found = open_result(tmp_path, partial=True)
    assert list(found.outputs) == ["ok"] and np.array(found.outputs["ok"]).tolist() == [False] * 5


def test_a_partial_layer_is_no_result_to_anybody_who_does_not_ask_for_one(tmp_path: Path) -> None:
    layer = layer_of(5, 2)
    merge_partly(survey_partly(layer, []), tmp_path, job="job.1")
    for read in (read_manifest, open_result):
        with pytest.raises(IncompleteError, match="while shards of it were missing"):
            read(tmp_path)
    [problem] = verify_layer(tmp_path, "job.1", layer)
    assert "missing" in problem
    assert msgspec.json.decode((tmp_path / "manifest.json").read_bytes())["format"] == 2  # which older versions refuse


def test_a_shard_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    layer = layer_of(4, 2, OWN_OK)
    parts = [write_part(tmp_path / f"{i}", layer, [(1, result_of(layer, 1, tmp_path))]).path for i in range(2)]
    with pytest.raises(Incomplete, match="there twice"):
        survey_partly(layer, parts)


def test_made_shards_have_a_row_each(tmp_path: Path) -> None:
    layer = Layer("made", "f" * 32, MadeSource(), 0, 1, 4, 0, 0, (Output("x", "rows", "<f8"),))
    found = made(layer, [0, 3], tmp_path, 1)
    serial, partial = merged(found, tmp_path)
    assert_holes(found, serial, partial)
