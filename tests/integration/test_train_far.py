"""A training on an agent by folder and one behind a real sshd: weights come down to it, and the result is the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.test_remote import Remote
from tests.integration.test_train import at_round, check, submit
from tests.support.farm import FarmHarness, running, until
from tests.support.sshd import Sshd


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, server: Sshd) -> Iterator[tuple[FarmHarness, Remote]]:
    """One farm and two agents for all tests: workers take seconds to start."""
    with running(tmp_path_factory.mktemp("farm")) as farm:
        farm.join("near", "--cpus", "1")
        far = Remote(farm, server).join()
        until(lambda: farm.is_live("near"), "the near agent")
        until(far.is_at_work, "the far agent to work")
        yield farm, far


def share_of(farm: FarmHarness, job: str) -> dict[str, int]:
    return {agent.name: agent.shards for agent in farm.status(job).agents}


@pytest.mark.parametrize(
    "params", [{}, {"bits": 16}, {"bits": 8, "workers": 4}, {"mode": "local", "local_steps": 2, "bits": 16}], ids=str
)
def test_near_and_far_machines_train_one_model(shared: tuple[FarmHarness, Remote], params: dict[str, Any]) -> None:
    farm, far = shared
    job = submit(farm, rounds=400, checkpoint_rounds=100, eval_every=100, **params)
    at_round(farm, job, 10)
    near = ("--spool", str(farm.folder / "spools" / "near"))
    assert farm.agent_command("pause", *near).returncode == 0
    until(
        lambda: share_of(farm, job)["far"] > 20,
        "the far machine to do rounds alone, which its link may be too slow for",
    )
    assert farm.agent_command("resume", *near).returncode == 0
    check(farm, job)
    until(lambda: not list((far.spool / "run" / "sheets").glob("*/*")), "its sheets to go")


def test_a_far_machine_is_killed_in_the_middle(shared: tuple[FarmHarness, Remote]) -> None:
    farm, far = shared
    job = submit(farm, rounds=400, bits=16, checkpoint_rounds=100, eval_every=100)
    at_round(farm, job, 40)
    os.kill(far.process.pid, signal.SIGKILL)
    check(farm, job)
