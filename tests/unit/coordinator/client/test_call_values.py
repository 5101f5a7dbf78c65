"""What travels of a session: values as text, pickles by a closed list of names, pieces that go up apart."""

from __future__ import annotations

import collections
import datetime
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.client.calls import known, opening
from muster.coordinator.client.calls.errors import CallFailed, FarTraceback, RemoteError
from muster.coordinator.client.calls.shipping import (
    BLOB_BYTES,
    PickleShipper,
    TextShipper,
    outcome,
    pack,
    replies,
    shipper_of,
)
from muster.jobs.common.errors import UsageError
from muster.jobs.kinds.calls import INSIDE
from muster.jobs.user_code.runner import calls as far

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(),
    st.builds(np.float32, st.floats(width=32, allow_nan=False)),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(), inner, max_size=4),
        st.dictionaries(st.one_of(st.integers(), st.tuples(st.text())), inner, max_size=4),
    ),
    max_leaves=12,
)


def by_text(value: Any) -> Any:
    return far.from_text([bytes(piece) for piece in far.to_text(value)])


@given(VALUES)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = by_text(value)
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.array(["a", "bc"]),
        np.array(["2026-11-19"], "M8[D]"),
        np.zeros((0, 3), "i2"),
        np.array(5),
        np.array([True, False]),
        np.array([1 + 2j]),
    ],
)
def test_arrays_come_back_as_they_were(array: Any) -> None:
    back = by_text({"one": [array]})["one"][0]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype and back.shape == array.shape


class Odd:
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Odd(), "a Odd cannot travel as text"),
        ({1, 2}, "a set cannot travel as text"),
        (np.array([Odd()]), "an array of object cannot travel as text"),
        (open, "a builtin_function_or_method cannot travel"),
    ],
)
def test_what_is_neither_plain_nor_an_array_is_refused_by_its_name(value: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        far.to_text([value])
    with pytest.raises(TypeError, match="ship='pickle'"):
        TextShipper().call((value,), {})


def test_a_value_within_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="too deep"):
        far.to_text(endless)


@given(VALUES)
def test_known_values_are_opened(value: Any) -> None:
    back = known.opened(far.to_pickle(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(100_000.0),
        np.arange(6).reshape(2, 3).T,
        np.dtype("<f4"),
        np.float64(3),
        collections.OrderedDict(a=1),
        collections.defaultdict(list, {"a": [1]}),
        datetime.datetime(2026, 11, 19, tzinfo=datetime.timezone.utc),
        {1, 2},
        1j,
        Path("/a/b"),
    ],
)
def test_common_results_are_opened(value: Any) -> None:
    back = known.opened(far.to_pickle(value))
    np.testing.assert_equal(back, value)
    assert type(back) is type(value)


def test_known_errors_are_opened() -> None:
    error = known.opened(far.to_pickle(ValueError("no", 3)))
    assert isinstance(error, ValueError) and error.args == ("no", 3)


class Calling:
    """Its pickle calls something."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Calling(eval, "1"), "builtins.eval"),
        (Calling(getattr, "a", "upper"), "builtins.getattr"),
        (Odd(), "Odd"),
        (Odd, "Odd"),
        (Calling(pickle.loads, b""), "_pickle.loads"),
        (np.frombuffer, "frombuffer"),
        (SystemExit(3), "builtins.SystemExit"),
    ],
)
def test_a_pickle_that_names_anything_else_is_not_opened(value: Any, named: str) -> None:
    with pytest.raises(known.UnknownNameError) as caught:
        known.opened(far.to_pickle(value))
    assert caught.value.what.endswith(named)


def test_no_dotted_name_leads_on_from_a_known_one() -> None:
    """Protocol 4 lets a name have dots: `str.format` is not `str`."""
    raw = b"\x80\x04\x8c\x08builtins\x8c\x0astr.format\x93."
    with pytest.raises(known.UnknownNameError):
        known.opened([raw])


# --- batches ------------------------------------------------------------------------------------------------


def test_large_pieces_go_up_apart_under_their_digest_and_the_others_go_along() -> None:
    large, small = bytes(BLOB_BYTES), b"small"
    packed = pack([small, large])
    digest = xxhash.xxh3_128_hexdigest(large)
    assert packed.digests == ("", digest) and packed.nbytes == len(small)
    assert packed.places({digest: 7}) == [len(small), [7, BLOB_BYTES]]
    many = pack([bytes(200 << 10)] * 6 + [b"x"])
    assert all(many.digests[:6]) and not many.digests[6], "together they would be too much"


def run(ship: str, function: Callable[..., Any], *calls: Any, folder: Path) -> list[tuple[Any, BaseException | None]]:
    """What a runner makes of calls, here."""
    shipper = shipper_of(ship, "known")  # type: ignore[arg-type]
    made, packed = shipper.function(function), [shipper.call(args, {}) for args in calls]
    sheet, offsets = b"", dict[str, int]()
    for one in (made, *packed):
        for digest, piece in one.blobs.items():
            if digest not in offsets:
                offsets[digest] = len(sheet)
                sheet += bytes(piece)
    if sheet:
        (folder / "sheet").write_bytes(sheet)
    head = {"key": made.key, "function": made.places(offsets), "calls": [one.places(offsets) for one in packed]}
    payload = far.written(head, [piece for one in (made, *packed) for piece in one.inline])
    outer = far.written({"sheet": str(folder / "sheet") if sheet else ""}, [payload])
    raw = far.Calls(ship, None, str(folder)).run(memoryview(outer))
    return [outcome(shipper, said, "m") for said in replies(bytearray(raw), len(calls))]


def half(number: int) -> float:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number / 2


@pytest.mark.parametrize("ship", ["text", "pickle"])
def test_a_batch_has_a_result_or_an_error_for_each_call(ship: str, tmp_path: Path) -> None:
    (first, _), (_, error), (last, _) = run(ship, half, (4,), (3,), (8,), folder=tmp_path)
    assert (first, last) == (2.0, 4.0)
    cause = error.__cause__ if error is not None else None
    assert isinstance(cause, FarTraceback) and "3 is odd" in str(cause) and "in half" in str(cause)
    if ship == "pickle":
        assert isinstance(error, ValueError) and str(error) == "3 is odd"
    else:
        assert isinstance(error, RemoteError) and error.type_name == "ValueError" and "3 is odd" in error.message


def total(array: Any, by: int = 1) -> tuple[float, bool]:
    return float(array.sum()) * by, bool(array.flags.writeable)


@pytest.mark.parametrize("ship", ["text", "pickle"])
def test_large_arrays_are_mapped_and_cannot_be_written_to(ship: str, tmp_path: Path) -> None:
    array = np.ones(100_000)
    ((found, error),) = run(ship, total, (array,), folder=tmp_path)
    assert error is None and found == (100_000.0, False)


def odd() -> Any:
    return Odd()


def test_a_result_that_is_not_on_the_list_fails_its_call_and_is_named(tmp_path: Path) -> None:
    ((_, error),) = run("pickle", odd, (), folder=tmp_path)
    assert isinstance(error, CallFailed) and error.code == "output" and "Odd" in error.message
    assert "results='any'" in error.hint


def test_a_result_that_cannot_travel_as_text_fails_its_call_and_is_named(tmp_path: Path) -> None:
    ((_, error),) = run("text", set, ([1],), folder=tmp_path)
    assert isinstance(error, CallFailed) and error.code == "output" and "a set" in error.message


def test_a_library_or_builtin_function_is_imported_there(tmp_path: Path) -> None:
    assert run("text", pow, (2, 5), folder=tmp_path) == [(32, None)]
    ((found, _),) = run("text", np.linalg.norm, (np.array([3.0, 4.0]),), folder=tmp_path)
    assert found == 5.0


@pytest.mark.parametrize("calls", [None, [], [{}], [{"sizes": [9]}], [{"sizes": [-1]}], [{"sizes": [[0, 1]]}]])
def test_what_no_runner_wrote_is_refused(calls: object) -> None:
    with pytest.raises(ValueError):
        replies(bytearray(), 1)
    raw = far.written({"calls": calls}, [])
    with pytest.raises(ValueError):
        replies(bytearray(raw), 1)


# --- opening one --------------------------------------------------------------------------------------------


def test_pickles_want_this_python_and_the_packages_as_they_are_here() -> None:
    found = opening.pinned(["scikit-learn", "joblib>=1"])
    assert found[0].startswith("python==3.") and "cloudpickle" in found and "joblib>=1" in found
    assert any(text.startswith("scikit-learn==") for text in found)
    with pytest.raises(UsageError, match="there is no nothing-of-the-kind here"):
        opening.pinned(["nothing-of-the-kind"])


@pytest.mark.parametrize(("ship", "results"), [("mail", "known"), ("pickle", "all"), ("text", "any")])
def test_ways_that_there_are_not_are_refused(ship: str, results: str) -> None:
    with pytest.raises(UsageError):
        opening.check(ship, results)


def test_a_call_opens_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSIDE, "1")
    with pytest.raises(UsageError, match="a call opens a session"):
        opening.check("text", "known")


def test_an_argument_that_cannot_be_pickled_is_a_type_error() -> None:
    class Locked:
        def __reduce__(self) -> Any:
            raise OSError("the connection is mine")

    with pytest.raises(TypeError, match="the connection is mine"):
        PickleShipper("known").call((Locked(),), {})
