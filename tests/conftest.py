"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import sshd
from tests.support.farm import FarmHarness, running
from tests.support.sshd import Sshd

# No test asserts a time: an example that a busy machine holds up is no slow one.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell that starts us in the background has us ignore Ctrl-C, and so all that we start, of which some is to heed it.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The agents of a test have plain processes for workers; if it is marked `ray`, Ray's, and no others instead."""
    os.environ["MUSTER_POOL"] = "ray" if item.get_closest_marker("ray") else "processes"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    """A farm of real processes that is being served; nothing of it is left afterwards."""
    with running(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An sshd with nothing odd about it."""
    with sshd.running(tmp_path_factory.mktemp("sshd")) as daemon:
        yield daemon


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Makes an sshd with lines of its own."""
    made: list[Sshd] = []

    def make(*options: str, path: str | None = None) -> Sshd:
        sshd.require()
        made.append(Sshd(tmp_path / f"sshd-{len(made)}", options, path))
        return made[-1].start()

    yield make
    for daemon in made:
        daemon.stop()
