"""A short run of chaos; `make chaos SEED=n KILLS=m` is a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import Chaos

SEED, FAULTS = 11, 12


@pytest.mark.ray
def test_whatever_dies_the_results_are_the_serial_runs(tmp_path: Path) -> None:
    Chaos(tmp_path, SEED, FAULTS).run()
