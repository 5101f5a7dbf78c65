"""CPython's own tests of executors, of `wait` and `as_completed`, with a farm's (tests/support/stdlib_suite.py has what
does not apply): in this Python where its tests are here, and in others that `make suites` finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stdlib_suite import DOES_NOT_APPLY, NO_SUITE_EXIT

PYTHONS = [sys.executable, *os.environ.get("MUSTER_SUITE_PYTHONS", "").split()]
LEAST = 20  # tests that there were in any version


@pytest.mark.parametrize("python", PYTHONS)
def test_cpythons_own_tests_pass_with_a_farm(python: str) -> None:
    done = subprocess.run(
        [python, "-m", "tests.support.stdlib_suite"], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    if done.returncode == NO_SUITE_EXIT:
        pytest.skip(f"{done.stdout.strip()}: `make suites` takes others")
    assert done.returncode == 0, done.stderr[-5_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ran"] >= LEAST and set(told["skipped"]) == set(DOES_NOT_APPLY)
