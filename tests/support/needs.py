"""How a test goes on where the machine lacks what it needs."""

from __future__ import annotations

import os

import pytest


def skip_for(obstacle: str, fails_in_ci: bool = True) -> None:
    """Skip the test if there is an obstacle. In CI, which has everything, an obstacle is a failure."""
    if obstacle and fails_in_ci and os.environ.get("CI") == "true":
        pytest.fail(obstacle)
    if obstacle:
        pytest.skip(obstacle)
