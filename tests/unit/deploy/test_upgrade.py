"""`deploy upgrade`: what it will not interrupt."""

from __future__ import annotations

import pytest

from muster.coordinator.api.status import Progress, Tally
from muster.deploy.commands.upgrade import _refuse_during
from muster.jobs.common.errors import RefusedError
from tests.unit.coordinator.submission.test_eta import job

TRAINING = Progress(done=3, total=10, unit="round")


def test_a_training_that_runs_is_not_set_back_unasked() -> None:
    with pytest.raises(RefusedError, match="last checkpoint"):
        _refuse_during([job(Tally(), state="running", progress=TRAINING)])
    _refuse_during([job(Tally(), state="running"), job(Tally(), state="complete", progress=TRAINING)])
