"""How a measured farm is served and waited for. Measures nothing itself."""

from __future__ import annotations

import time

from tests.farm import Farm

TIMING = {"heartbeat": 5.0, "lease": 60.0, "tick": 1.0}  # as served by default
ASK_SECONDS = 0.1  # each answer takes processor time from what is measured


def finish(farm: Farm, job: str) -> None:
    """Until the job is complete."""
    while farm.status(job).state == "running":
        time.sleep(ASK_SECONDS)
    farm.wait(job)
