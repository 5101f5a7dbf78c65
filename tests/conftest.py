"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.farm import Farm, running


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """A farm of real processes that is being served; nothing of it is left afterwards."""
    with running(tmp_path) as made:
        yield made
