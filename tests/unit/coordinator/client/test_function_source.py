"""Functions as text: what goes along, that it runs elsewhere, and what is refused by its name."""

from __future__ import annotations

import functools
import math
import os.path
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Callable
from math import pi as PI
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import exp

from muster.coordinator.client.function_source import ship
from muster.jobs.common.errors import UsageError
from tests.support import shards as own_module
from tests.support.farm import until as own_function

Array = np.ndarray[Any, Any]
FACTOR, TABLE, LIMITS = 3, {"a": [1, (2.5, None)], "b": {"x"}}, (float("inf"), -1j)
LOADED, HALF = np.arange(2.0) + 1, np.float32(0.5)
OBJECTS = np.array([object()])
DTYPE = np.float32


def double(x: Array) -> Array:
    return x * 2


twice = double


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **more: Any) -> Any:
        return function(*args, **more)

    return wrapped


@noted
def helper(x: Array) -> Array:
    return double(x) + FACTOR


class Scaler:
    """Of this file."""

    def __init__(self, by: float = FACTOR) -> None:
        self.by = by

    def __call__(self, x: Array) -> Array:
        return twice(x) * self.by


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n != 0 and even(n - 1)


def many(rows: Array, offset: float = PI) -> list[float]:
    found = [float(exp(0.0)), float(math.floor(offset)), float(helper(np.ones(1))[0]), float(Scaler()(1.0))]  # type: ignore[arg-type]
    tree = xml.etree.ElementTree.fromstring("<a/>")
    found += [float(len(TABLE["a"])), float(even(4)), float(LIMITS[0]), float(DTYPE(1.5))]
    return [*found, float(tree.tag == "a"), float(len(os.path.sep))]


def run_elsewhere(function: Callable[..., Any], tmp_path: Path) -> str:
    """What it prints in a process that knows nothing of this one."""
    bundle = ship(function)
    for file, raw in bundle.files.items():
        (tmp_path / file).write_bytes(raw)
    name = bundle.entry.partition(":")[2]
    code = f"import numpy, work; print(work.{name}(numpy.ones((2, 2))))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": "/bin"}
    )
    assert found.returncode == 0, found.stderr + (tmp_path / "work.py").read_text()
    return found.stdout.strip()


def test_what_a_function_needs_goes_along(tmp_path: Path) -> None:
    assert run_elsewhere(many, tmp_path) == str(many(np.ones((2, 2))))


def test_a_closure_over_literals_and_functions_goes_along(tmp_path: Path) -> None:
    def made(by: float) -> Callable[..., Any]:
        def inner(x: Array) -> Array:
            return x + by

        def outer(rows: Array) -> float:
            return float(inner(rows).sum() + FACTOR)

        return outer

    assert run_elsewhere(made(0.5), tmp_path) == "9.0"


def test_a_decorated_function_goes_with_its_decorator(tmp_path: Path) -> None:
    assert run_elsewhere(helper, tmp_path) == str(helper(np.ones((2, 2))))


def test_the_same_function_is_the_same_text() -> None:
    assert ship(many) == ship(many)
    assert ship(many).digest == ship(many).digest


def uses_array(rows: Array) -> Array:
    return (rows + LOADED) * HALF


def uses_objects(rows: Array) -> Any:
    return OBJECTS


def uses_own_module(rows: Array) -> Any:
    return own_module.__doc__


def uses_own_function(rows: Array) -> Any:
    return own_function(lambda: rows, "")


def uses_nothing_known(rows: Array) -> Any:
    return nowhere(rows)  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (uses_objects, "uses_objects refers to `OBJECTS`, an array of object"),
        (uses_own_module, "uses_own_module refers to `own_module` of .*a file of yours"),
        (uses_own_function, "uses_own_function refers to `own_function` of .*a file of yours"),
        (uses_nothing_known, "`nowhere`, which is not defined"),
        (lambda rows: rows, "a lambda"),
        (len, "builtin_function"),
        (functools.partial(double), "partial"),
        (Scaler(), "Scaler"),
    ],
)
def test_what_cannot_be_written_down_is_refused_by_name(function: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ship(function)


def test_closures_over_more_are_refused_by_name() -> None:
    def over(value: Any) -> Callable[..., Any]:
        def inner(rows: Array) -> Any:
            return value

        return inner

    for value, what in [(object(), "object"), (lambda: 1, "lambda"), (open, None), ([{}], None), (LOADED, None)]:
        if what is None:
            ship(over(value))
        else:
            with pytest.raises(UsageError, match=f"`value`, an? {what}"):
                ship(over(value))
    with pytest.raises(UsageError, match=r"`value`, .* characters"):
        ship(over("x" * (2 << 20)))


def test_arrays_that_a_function_refers_to_go_along_as_they_are(tmp_path: Path) -> None:
    assert run_elsewhere(uses_array, tmp_path) == str(uses_array(np.ones((2, 2))))
    assert ship(uses_array).digest == ship(uses_array).digest


def test_arrays_that_are_too_large_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.coordinator.client.function_source.ARRAYS_LIMIT", 8)
    with pytest.raises(UsageError, match="`LOADED`: with it the arrays") as raised:
        ship(uses_array)
    assert "np.load" in raised.value.hint


@pytest.mark.parametrize("function", [np.linalg.norm, np.sqrt, np.mean, np.sort, np.fft.fft])
def test_a_library_function_is_imported_where_it_runs(function: Any, tmp_path: Path) -> None:
    assert run_elsewhere(function, tmp_path) == str(function(np.ones((2, 2))))


def test_a_name_that_means_two_things_is_refused() -> None:
    def made() -> Callable[..., Any]:
        FACTOR = 4

        def inner(rows: Array) -> Array:
            return helper(rows) * FACTOR

        return inner

    with pytest.raises(UsageError, match="`FACTOR` means two things"):
        ship(made())


def test_a_function_without_a_source_is_refused() -> None:
    names: dict[str, Any] = {"__name__": "nobody"}
    exec("def f(rows):\n    return rows\n", names)
    with pytest.raises(UsageError, match="source of `f` cannot be found"):
        ship(names["f"])
