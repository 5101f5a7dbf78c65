"""joblib's own tests of its backends, those that take a backend's name, with ours.

One of each; with every number of jobs and way of returning in `make suites`."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from muster.coordinator.client import Farm
from muster.coordinator.client.calls.joblib_backend import FarmBackend
from tests.support.farm import running, until

parallel = pytest.importorskip("joblib.parallel")
theirs = pytest.importorskip("joblib.test.test_parallel", reason="this joblib was installed without its tests")

pytestmark = pytest.mark.filterwarnings("ignore")  # of what joblib withdraws

OURS = "muster"
INNER = frozenset({"child_backend", "inner_backend"})  # of calls within a call, where there is no farm: one of theirs
ALL = bool(os.environ.get("MUSTER_ALL_SUITES"))

DOES_NOT_APPLY = {
    "test_auto_memmap_on_arrays_from_generator": "large arrays are mapped by the session, as plain read-only arrays",
    "test_memmapping_leaks": "there is no folder of mapped arrays on this machine",
    "test_backend_context_manager": "as many jobs run as the farm has slots, whatever n_jobs says",
    "test_dispatch_multiprocessing": "a multiprocessing.Manager lets in its own process's children alone",
    "test_initializer_context": "a runner has no initializer, and a function is no field of a job",
    "test_initializer_parallel": "a runner has no initializer",
    "test_error_capture": "looks into a pool of workers; a call that raises KeyboardInterrupt is a CallFailed",
    "test_nested_backend_context_manager": "what a call nests runs one after the other, and not in threads",
    "test_nested_parallelism_limit": "the same, and it makes the backend's class of its name",
    "test_parallel_with_interactively_defined_functions": "starts a Python that does not import muster",
    "test_parallel_with_unpicklable_functions_in_args": "the same",
}
EXPECTED = {  # of ours, where the test says what it expects of each of theirs
    "test_multiple_generator_call_separated_gc": {"error": False},  # another Parallel's end is nothing to this one
    "test_nested_parallel_warnings": {"expected": False},  # a call may open a pool of processes
}

Case = tuple[str, dict[str, Any]]


def cases(name: str, test: Callable[..., None]) -> Iterator[Case]:
    """Sets of arguments with our backend in the place of one of theirs; none of a test that takes no backend."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    names = [[one.strip() for one in mark.args[0].split(",")] for mark in marks]
    if not any(_is_backend(one) for group in names for one in group):
        return
    values = [_values(group, mark.args[1]) for group, mark in zip(names, marks, strict=True)]
    found = [
        {**dict(itertools.chain(*map(dict.items, some))), **EXPECTED.get(name, {})}
        for some in itertools.product(*values)
    ]
    found.sort(key=lambda one: one.get("n_jobs") != 2)  # with one job joblib asks no backend
    for i, one in enumerate(found if ALL else found[:1]):
        if one not in found[:i]:
            yield name, one


def _is_backend(name: str) -> bool:
    return name == "backend" or name.endswith("_backend")


def _values(names: list[str], given: Any) -> list[dict[str, Any]]:
    rows = [dict(zip(names, row if len(names) > 1 else [row], strict=True)) for row in given]
    for row in rows:
        row |= {name: OURS for name in names if _is_backend(name) and name not in INNER}
    return [row for i, row in enumerate(rows) if row not in rows[:i] and OURS not in map(row.get, INNER)]


CASES = [case for name, test in sorted(vars(theirs).items()) if name.startswith("test_") for case in cases(name, test)]


@pytest.fixture(scope="module", autouse=True)
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with running(tmp_path_factory.mktemp("farm")) as harness:
        harness.join("one", "--cpus", "2")
        until(lambda: harness.is_live("one"), "the agent to join")
        place = Farm(harness.root.path)

        class OnThisFarm(FarmBackend):
            def __init__(self, **more: Any) -> None:
                super().__init__(place, results="any", **more)

        before = parallel.BACKENDS[OURS]
        parallel.register_parallel_backend(OURS, OnThisFarm)
        yield
        FarmBackend(place, results="any").executor.shutdown()
        parallel.register_parallel_backend(OURS, before)


@pytest.mark.parametrize(("name", "given"), CASES, ids=[name for name, _ in CASES])
def test_of_joblib_passes(name: str, given: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if name in DOES_NOT_APPLY:
        pytest.skip(DOES_NOT_APPLY[name])
    test = getattr(theirs, name)
    for mark in test.pytestmark:
        if mark.name == "skipif" and mark.args[0]:
            pytest.skip(mark.kwargs["reason"])
    fixtures = inspect.signature(test).parameters.keys() - given.keys()
    test(**given, **{fixture: request.getfixturevalue(fixture) for fixture in fixtures})


def test_what_does_not_apply_or_is_expected_is_there() -> None:
    assert DOES_NOT_APPLY.keys() | EXPECTED.keys() <= {name for name, _ in CASES}
