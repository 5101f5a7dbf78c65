"""Results against their declarations, and declarations from results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muster.jobs.contract.kind import Ragged, Result, ShardFailure
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import Layout
from muster.jobs.results.outputs import Sums, SumTooLarge, same, settle

ROWS = 3


def failure_of(result: Any, *outputs: Output) -> str:
    with pytest.raises(ShardFailure) as caught:
        settle(result, outputs or None, ROWS)
    assert caught.value.code == "output"
    return caught.value.message


def segments_of(result: Result, *outputs: Output) -> list[bytes]:
    return [bytes(segment) for segment in settle(result, outputs or None, ROWS)[1]]


def test_the_first_result_declares() -> None:
    values = np.zeros((4, 2), ">f8")
    result: Result = {
        "a": np.zeros((ROWS, 5), "f4"),
        "b": Ragged(np.array([1, 0, 3]), values),
        "c": np.zeros(ROWS, bool),
    }
    declared, segments = settle(result, None, ROWS)
    assert declared == (
        Output("a", "rows", "<f4", (5,)),
        Output("b", "ragged", "<f8", (2,)),
        Output("c", "rows", "|b1"),
    )
    assert [segment.nbytes for segment in segments] == [60, 24, 64, 3]
    assert same(declared, settle(result, declared, ROWS)[0])


def test_segments_are_the_arrays_own_bytes_where_they_can_be() -> None:
    array = np.arange(6, dtype="<f4").reshape(ROWS, 2)
    segment = settle({"a": array}, None, ROWS)[1][0]
    assert np.shares_memory(np.frombuffer(segment, np.uint8), array)


@pytest.mark.parametrize("dtype", [">f4", "<f4", "<U2", "<M8[s]", "<c8", "|S3", "<f2"])
def test_segments_are_little_endian_and_in_order(dtype: str) -> None:
    array = np.arange(12).astype("<i8").reshape(4, ROWS).astype(dtype).T
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
    assert segments_of({"a": array}) == [little.tobytes()]


def test_rows_of_nothing() -> None:
    assert segments_of({"a": np.zeros((ROWS, 0), "f4")}) == [b""]
    assert settle({"a": np.zeros((0, 4), "f4")}, None, 0)[1][0].nbytes == 0
    assert settle({}, None, ROWS) == ((), [])


def test_sums_come_last_as_int64() -> None:
    outputs = (Output("n", "sum", "<i4"), Output("x", "sum", "<f4", (2,), scale=4.0), Output("r", "rows", "|u1"))
    result = {"n": np.array(-7, "i4"), "x": np.array([0.3, -1.25], "f4"), "r": np.arange(ROWS, dtype="u1")}
    rows, number, scaled = segments_of(result, *outputs)
    assert rows == b"\0\1\2" and np.frombuffer(number, "<i8") == -7
    assert np.frombuffer(scaled, "<i8").tolist() == [1, -5]


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30])
def test_sums_that_fixed_point_cannot_hold(value: float) -> None:
    assert "scale" in failure_of({"x": np.array(value)}, Output("x", "sum", "<f8", scale=2.0))


def test_sums_that_are_not_integers() -> None:
    assert "scale" in failure_of({"x": np.array(1.5)}, Output("x", "sum", "<f8"))
    assert "int64" in failure_of({"x": np.array(1 << 63, "u8")}, Output("x", "sum", "<u8"))


DECLARED = Output("a", "rows", "<f4", (2,))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((ROWS, 3), "f4"), ["(3, 3)", "(3, 2)"]),
        (np.zeros((2, 2), "f4"), ["(2, 2)", "(3, 2)"]),
        (np.zeros((ROWS, 2), "f8"), ["<f8", "<f4"]),
        ([[1.0, 2.0]] * ROWS, ["list"]),
        (Ragged(np.zeros(ROWS, "i8"), np.zeros(0)), ["Ragged"]),
    ],
)
def test_both_what_came_and_what_was_declared_are_said(value: Any, said: list[str]) -> None:
    message = failure_of({"a": value}, DECLARED)
    assert all(text in message for text in said), message


def test_outputs_too_many_or_too_few() -> None:
    good = np.zeros((ROWS, 2), "f4")
    assert failure_of({"a": good, "b": good}, DECLARED) == "gave a, b, but a are declared"
    assert failure_of({}, DECLARED) == "gave nothing, but a are declared"


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 2)),
        np.array(1.0),
        np.array([object()] * ROWS),
        "text",
        None,
        Ragged(np.array([1, 1]), np.zeros(2)),
        Ragged(np.array([1, 1, 1.0]), np.zeros(3)),
        Ragged(np.array([2, -1, 1]), np.zeros(2)),
        Ragged(np.array([1, 1, 1]), np.zeros(2)),
        Ragged(np.array([0, 0, 0]), np.array(1.0)),
    ],
)
def test_what_no_output_can_be(value: Any) -> None:
    assert "a" in failure_of({"a": value})


def test_names_that_no_output_can_have() -> None:
    assert "../a" in failure_of({"../a": np.zeros(ROWS)})


def test_sums_are_exact_and_say_when_they_cannot_be() -> None:
    outputs = (Output("n", "sum", "<i8"), Output("x", "sum", "<f4", (2,), scale=8.0))
    sums = Sums(Layout(outputs))
    for n in (3, -5):
        sums.add(np.array([n, n, 12], "<i8").tobytes())
    number, scaled = sums.shown()
    assert number == -2 and scaled.tolist() == [-0.25, 3.0] and scaled.dtype == np.dtype("f4")
    sums.add(np.array([(-1 << 63) + 2, 0, 0], "<i8").tobytes())
    with pytest.raises(SumTooLarge, match="output n"):
        sums.add(np.array([-1, 0, 0], "<i8").tobytes())


def test_narrow_sums_travel_as_they_are_and_say_when_they_overflow() -> None:
    output = Output("g", "sum", "<i2", (3,), narrow=True)
    (segment,) = segments_of({"g": np.array([1, -2, 30_000], "<i2")}, output)
    layout = Layout((output,))
    assert len(segment) == 6 and layout.sum_sizes == (6,)
    sums = Sums(layout)
    sums.add(segment)
    assert sums.raw() == segment and sums.shown()[0].dtype == np.dtype("<i2")
    with pytest.raises(SumTooLarge, match="16 bits"):
        sums.add(segment)
    for wrong in (Output("g", "sum", "<f4", narrow=True), Output("g", "rows", "<i2", narrow=True)):
        with pytest.raises(ValueError, match="narrow"):
            Layout((wrong,))


@pytest.mark.parametrize("lengths", [[1 << 62, 1 << 62, 1 << 62, (1 << 62) + 2], [1 << 63, 1 << 63, 2, 0]])
def test_lengths_that_add_up_around_the_end_of_int64_are_no_lengths(lengths: list[int]) -> None:
    values = np.zeros(2, "f4")
    with pytest.raises(ShardFailure, match="its lengths"):
        settle({"a": Ragged(np.array(lengths, "u8"), values)}, None, 4)
