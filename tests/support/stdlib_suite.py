"""CPython's own tests of executors, with a farm's, in whatever Python runs this: its test package must be there, and
muster and cloudpickle installed. Prints one line of JSON, the tests and what became of each.

    python -m tests.support.stdlib_suite
"""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from importlib import import_module
from pathlib import Path
from typing import Any

from muster.coordinator.client import Farm
from tests.support.farm import running, until

SUITES = ("ExecutorTest", "WaitTests", "AsCompletedTests")
DOES_NOT_APPLY = {
    "test_max_workers_negative": "a farm has as many slots as machines lend; nobody asks for a number",
}
NO_SUITE_EXIT = 3


def suites() -> list[type]:
    """The mixins, which want an executor. They have been in one module, and in several since Python 3.12."""
    try:
        found = import_module("test.test_concurrent_futures")
        if hasattr(found, "WaitTests"):
            return [getattr(found, name) for name in SUITES]
        modules = [import_module(f"{found.__name__}.{name}") for name in ("executor", "test_wait", "test_as_completed")]
    except ImportError:
        return []
    return [getattr(module, name) for module, name in zip(modules, SUITES)]  # noqa: B905 (3.8 has no strict)


def cases(farm: Farm) -> list[type]:
    """A test case of each."""

    class OnAFarm(unittest.TestCase):
        executor: Any
        worker_count = 2

        def setUp(self) -> None:
            if self._testMethodName in DOES_NOT_APPLY:
                self.skipTest(DOES_NOT_APPLY[self._testMethodName])
            self.executor = farm.executor(name="suite", ship="pickle", results="any")
            self.addCleanup(self.executor.shutdown)

    return [type(suite.__name__, (suite, OnAFarm), {}) for suite in suites()]


def main() -> int:
    if not suites():
        print(f"Python {sys.version.split()[0]} is here without the tests of its library")
        return NO_SUITE_EXIT
    support: Any = import_module("test.support")
    support.use_resources = ["walltime"]  # tests that take seconds are run, too
    with tempfile.TemporaryDirectory(prefix="muster-suite-") as folder, running(Path(folder)) as harness:
        harness.join("one", "--cpus", "2", "--pool", "processes")
        until(lambda: harness.is_live("one"), "the agent to join")
        load = unittest.defaultTestLoader.loadTestsFromTestCase
        tests = unittest.TestSuite(load(case) for case in cases(Farm(harness.root.path)))
        result = unittest.TextTestRunner(sys.stderr, verbosity=2).run(tests)
    bad = [(test.id(), trace) for test, trace in [*result.failures, *result.errors]]
    skipped = {test.id().rpartition(".")[2]: why for test, why in result.skipped}
    print(json.dumps({"python": sys.version.split()[0], "ran": result.testsRun, "skipped": skipped, "failed": bad}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
