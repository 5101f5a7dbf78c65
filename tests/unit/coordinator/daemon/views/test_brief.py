"""A brief answer is no longer for all the jobs that a farm ever had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from muster.coordinator.daemon.views import status


def test_of_ended_jobs_it_has_the_newest() -> None:
    numbers = range(1, 1001)
    jobs = {f"j.{i}": SimpleNamespace(id=f"j.{i}", ended=i % 2 == 0) for i in numbers}
    engine: Any = SimpleNamespace(
        state=SimpleNamespace(jobs=jobs), jobs={f"j.{i}": SimpleNamespace(created=float(i)) for i in numbers}
    )
    older = {int(job.removeprefix("j.")) for job in status._older(engine)}
    assert older == set(range(2, 1002 - 2 * status.ENDED_MOST, 2))
