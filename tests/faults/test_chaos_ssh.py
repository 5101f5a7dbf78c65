"""A short run of chaos over ssh; `make chaos SSH=1 SEED=n KILLS=m` is a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos_ssh import ChaosOverSsh
from tests.support import sshd

SEED, FAULTS = 11, 12


@pytest.mark.ray
def test_whatever_dies_and_whichever_link_the_results_are_the_serial_runs(tmp_path: Path) -> None:
    sshd.require()
    ChaosOverSsh(tmp_path, SEED, FAULTS).run()
