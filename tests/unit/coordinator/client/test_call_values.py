"""What travels of a session: values as text of a closed list of classes, pickles, pieces that go up apart."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
import pickle
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.coordinator.client.calls import opening
from muster.coordinator.client.calls.errors import CallFailed, FarTraceback, RemoteError
from muster.coordinator.client.calls.shipping import (
    BLOB_BYTES,
    PickleShipper,
    Reply,
    Said,
    TextShipper,
    outcome,
    pack,
    replies,
    shipper_of,
)
from muster.jobs.common.errors import UsageError
from muster.jobs.kinds.calls import INSIDE
from muster.jobs.user_code.runner import calls as far
from muster.jobs.user_code.runner import values

since_3_11 = pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of errors are newer")
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
    return values.from_text([bytes(piece) for piece in values.to_text(value)])


@given(VALUES)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = by_text(value)
    assert back == value and type(back) is type(value)


ROWS = np.zeros(3, np.dtype([("a", "<f4"), ("b", "S3", (2,)), ("c", [("d", "i1")])], align=True))
MANY = list(range(values.COLUMN_LENGTH))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.arange(6).reshape(2, 3).T,
        np.array(["a", "bc"]),
        np.array(["2026-11-19"], "M8[D]"),
        np.zeros((0, 3), "i2"),
        np.array(5),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array([[1, "a"], [None, b"b"]], object),
        ROWS,
    ],
)
def test_arrays_come_back_as_they_were(array: Any) -> None:
    back = by_text({"one": [array]})["one"][0]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.flags.f_contiguous == array.flags.f_contiguous or array.ndim < 2


@pytest.mark.parametrize(
    "value",
    [
        *(
            MANY,
            [float(one) for one in MANY],
            [*MANY, 1 << 63],
            [*MANY, 0.5],
            [1 << 70],
            1 << 63,
            -(1 << 200),
            10**5000,
        ),
        *(bytearray(b"a"), {1, 2}, frozenset([(3,)]), 1j, range(3, 9, 2), slice(1, None), {values.MARK: 1}, "\ud800"),
        collections.OrderedDict(b=1, a=2),
        collections.Counter("hello"),
        collections.defaultdict(list, {"a": [1]}),
        collections.deque([1, 2], 5),
        *(datetime.date(2026, 11, 19), datetime.time(1, 2, 3, 4, fold=1), datetime.timedelta(-5, 3, 2)),
        datetime.datetime(2026, 11, 19, tzinfo=datetime.timezone.utc),
        datetime.timezone(datetime.timedelta(hours=2), "there"),
        *(decimal.Decimal("1.50"), fractions.Fraction(1, 3), uuid.UUID(int=7), Path("/a/b"), PurePath("c")),
        *(np.float64(3), np.float16(0.1), np.bool_(True), np.int8(-3), np.complex64(1j), np.longdouble("1.1")),
        *(np.datetime64("2026-11-19"), np.str_("abc"), np.bytes_(b"abc"), ROWS[0], np.dtype("<f4"), ROWS.dtype),
        *(int, collections.OrderedDict, ValueError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_common_values_come_back_as_they_were(value: Any) -> None:
    back = by_text([value])[0]
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no", 3),
        OSError(2, "no such file", "name"),
        KeyError(Path("a")),
        UnicodeDecodeError("utf-8", b"abc", 1, 2, "bad"),
        ImportError("it", name="what"),
        pytest.param("ExceptionGroup('two', [ValueError(1), KeyError(2)])", marks=since_3_11),
    ],
    ids=lambda error: type(error).__name__,
)
def test_builtin_errors_come_back_as_they_were(error: Any) -> None:
    error = eval(error) if isinstance(error, str) else error
    error.seen = [1]
    back = by_text(error)
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)
    assert repr(back.args) == repr(error.args) and getattr(back, "name", None) == getattr(error, "name", None)


class Odd:
    pass


class OddInt(int):
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Odd(), "a Odd cannot travel as text"),
        (OddInt(3), "a OddInt cannot travel as text"),
        (Odd, "a type cannot travel as text"),
        (np.array([Odd()]), "a Odd cannot travel as text"),
        (np.zeros(2, [("a", object)]), "an array of .* cannot travel as text"),
        (np.ma.masked_array([1]), "a MaskedArray cannot travel as text"),
        (open, "a builtin_function_or_method cannot travel"),
    ],
)
def test_what_is_not_listed_is_refused_by_its_name(value: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        values.to_text([value])
    with pytest.raises(TypeError, match="ship='pickle'"):
        TextShipper().call((value,), {})


@pytest.mark.parametrize("shipper", [TextShipper(), PickleShipper("known")])
def test_a_future_as_an_argument_is_refused_with_what_to_pass(shipper: Any) -> None:
    for args, kwargs in (((Future(),), {}), ((), {"one": Future()})):
        with pytest.raises(TypeError, match=r"pass its `result\(\)`"):
            shipper.call(args, kwargs)


def test_a_value_within_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="too deep"):
        values.to_text(endless)


# --- what a machine may have written ------------------------------------------------------------------------------


def marked(which: object, of: object, **more: object) -> dict[str, object]:
    return {values.MARK: which, "of": of, **more}


ADDRESS = id(Odd).to_bytes(8, "little")
BILLIONS = marked("range", [0, 10**12, 1])


@pytest.mark.parametrize(
    "written",
    [
        *(marked("array", 1, dtype=dtype, shape=[1]) for dtype in ("O", "|O", "O8", "f8,O", "V0", "object", None, 8)),
        *(marked("array", 1, dtype=dtype, shape=[1]) for dtype in (["O", [1]], ["f8", ["O"]], [["O", [1]], [1]])),
        marked("array", 1, shape=[1], dtype={"names": ["a"], "formats": ["O"], "offsets": [0], "itemsize": 8}),
        marked("array", 1, shape=[1], dtype={"names": ["a"], "formats": ["f8"], "offsets": [4], "itemsize": 8}),
        *(marked("array", 1, dtype="<f8", shape=shape) for shape in ([2], [1 << 60], ["a"])),
        *(marked(which, 1, dtype="O", shape=[]) for which in ("scalar", "column", "by column")),
        *(marked("dtype", of) for of in ("O", "f8,O", ["O", [1]], {"names": ["a"], "formats": ["O"], "offsets": [0]})),
        *(marked("number", of, dtype="O") for of in (1, [1])),
        *(marked("class", of) for of in ("eval", "builtins.eval", "type", "object", "SystemExit", ["int"])),
        *(marked(which, ["1"]) for which in ("eval", "builtins.eval", "numpy.ndarray", "os.system", "open", "", 5)),
        *(marked("error", [name, ["1"]]) for name in ("eval", "SystemExit", "KeyboardInterrupt", "Odd", 3)),
        marked("error", ["ValueError", [], {"__class__": 1}]),
        marked("error", ["ExceptionGroup", marked("tuple", ["a", BILLIONS])]),
        marked("error", ["SyntaxError", marked("tuple", ["a", BILLIONS])]),
        marked("error", ["UnicodeDecodeError", marked("tuple", ["a", marked("bytes", 1), -(1 << 40), 1, "a"])]),
        marked("error", ["UnicodeEncodeError", ["a", "b", 0, 1, "a"], {"start": -(1 << 40)}]),
        marked("error", ["UnicodeTranslateError", ["b", 0, 1 << 40, "a"]]),
        *(marked(which, BILLIONS) for which in ("set", "frozenset", "tuple", "dict", "collections.deque", "objects")),
        *(marked(which, [BILLIONS]) for which in ("dict", "collections.OrderedDict", "collections.Counter")),
        marked("collections.defaultdict", ["eval"]),
        *(marked(f"datetime.{which}", [marked("bytes", 1)]) for which in ("date", "timedelta")),
        marked("fractions.Fraction", [marked("bytes", 1)]),
        *(marked(which, [None, 0, marked("bytes", 1)]) for which in ("datetime.time", "datetime.datetime")),
        marked("fractions.Fraction", ["1e999999999"]),
        [marked("bytes", 1), marked("bytes", 1)],
        marked("bytes", 2),
        *(marked("int", of) for of in ("", "0xg", 5)),
    ],
)  # fmt: skip
def test_what_no_runner_writes_is_not_opened(written: object) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError, OverflowError)):
        values.from_text([json.dumps(written).encode(), bytearray(ADDRESS)])


def test_no_pickle_is_opened_unless_the_user_asks_for_it() -> None:
    """Whatever a machine sends in place of text."""
    for shipper in (TextShipper(), PickleShipper("known")):
        found, error = outcome(shipper, Said(Reply([]), [pickle.dumps(1)]), "m")
        assert found is None and isinstance(error, CallFailed) and "cannot be opened" in error.message
        raised = outcome(shipper, Said(Reply([], code=far.RAISED, type="Odd"), [pickle.dumps(ValueError())]), "m")[1]
        assert isinstance(raised, RemoteError)


LISTED = {*values._TAKEN, *values.PLAIN, list, bytes, bytearray, np.ndarray, np.void}
OTHERS = ["bytes", "bytearray", "int", "class", "dtype", "array", "scalar", "number", "column", "objects"]
MARKS = st.sampled_from([*values._MADE, *OTHERS, "by column"])
SHAPES = st.lists(st.integers(-1, 3), max_size=2)
DTYPES = st.sampled_from(["<f8", "|u1", "O", "<U2", "V8", "|S0", "<M8[ns]", ["<f8", [2]], "T"])
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(list(values._CLASSES))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=3),
        st.builds(marked, MARKS, inner | st.lists(inner, max_size=7) | st.integers(0, 3)),
        st.builds(marked, MARKS, st.integers(0, 3) | inner, dtype=DTYPES, shape=SHAPES),
    ),
    max_leaves=12,
)  # fmt: skip


def parts(value: Any) -> list[Any]:
    """What stands in it."""
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return list(value)
    if isinstance(value, dict):
        return [*value.keys(), *value.values(), getattr(value, "default_factory", None)]
    if isinstance(value, BaseException):
        return [*value.args, *vars(value).values()]
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    return value.reshape(-1).tolist() if isinstance(value, np.ndarray) and value.dtype.kind == "O" else []


@settings(max_examples=500)
@given(JSON, st.lists(st.binary(max_size=32), max_size=3))
def test_whatever_is_written_only_what_is_listed_comes_of_it(written: Any, buffers: list[bytes]) -> None:
    try:
        found = [values.from_text([json.dumps(written).encode(), *buffers])]
    except Exception:
        return
    while found:
        value = found.pop()
        kind = type(value)
        assert kind in LISTED or (kind is type and value in values._NAMES) or isinstance(value, (np.generic, np.dtype))
        assert not getattr(getattr(value, "dtype", value), "hasobject", False) or kind is np.ndarray
        found += parts(value)


# --- batches ------------------------------------------------------------------------------------------------


def test_large_pieces_go_up_apart_under_their_digest_and_the_others_go_along() -> None:
    large, small = bytes(BLOB_BYTES), b"small"
    packed = pack([small, large])
    digest = xxhash.xxh3_128_hexdigest(large)
    assert packed.digests == ("", digest) and packed.nbytes == len(small)
    assert packed.places({digest: 7}) == [len(small), [7, BLOB_BYTES]]
    many = pack([bytes(200 << 10)] * 6 + [b"x"])
    assert all(many.digests[:6]) and not many.digests[6], "together they would be too much"


def run(
    ship: str, function: Callable[..., Any], *calls: Any, folder: Path, results: str = "known"
) -> list[tuple[Any, BaseException | None]]:
    """What a runner makes of calls, here."""
    shipper = shipper_of(ship, results)  # type: ignore[arg-type]
    made, packed = shipper.function(function), [shipper.call(args, {}) for args in calls]
    sheet, offsets = b"", dict[str, int]()
    for one in (made, *packed):
        for digest, piece in one.blobs.items():
            if digest not in offsets:
                offsets[digest] = len(sheet)
                sheet += bytes(piece)
    if sheet:
        (folder / "sheet").write_bytes(sheet)
    head = {
        "key": made.key,
        "function": made.places(offsets),
        "calls": [one.places(offsets) for one in packed],
        "pickles": shipper.answers_are_pickles,
    }
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


class Deep(Exception):
    """Pickled as what a package makes of errors that pickles their tracebacks, too."""

    def __reduce__(self) -> Any:
        return ValueError, (self.__traceback__ is None,)


def deep() -> None:
    raise Deep


def test_an_error_is_pickled_without_its_traceback(tmp_path: Path) -> None:
    ((_, error),) = run("pickle", deep, (), folder=tmp_path, results="any")
    assert isinstance(error, ValueError) and error.args == (True,)
    assert "in deep" in str(error.__cause__)


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
    ((_, error),) = run("text", iter, ([1],), folder=tmp_path)
    assert isinstance(error, CallFailed) and error.code == "output"
    assert error.message == "the result, a list_iterator, cannot travel: a list_iterator cannot travel as text"
    assert "ship='pickle'" in error.hint


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


def test_a_number_of_workers_is_refused_and_one_package_is_a_package() -> None:
    with pytest.raises(UsageError, match="as many calls at once as its machines have slots"):
        opening.check("text", "known", ["max_workers"])
    for packages in ("numpy", ["numpy"]):
        assert opening.fields("text", packages, 60.0, {})["packages"] == ["numpy"]


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
