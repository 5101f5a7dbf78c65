"""`deploy upgrade`: what it will not interrupt."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.coordinator.api.status import JobStatus, Progress, Tally
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.deploy.commands.upgrade import obstacles_of
from muster.jobs.contract.plan import Plan, Work, encode_plan
from muster.jobs.kinds.registry import kernels
from tests.unit.coordinator.submission.test_eta import job

TRAINING = Progress(done=3, total=10, unit="round")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return roots.prepare(tmp_path / "farm")


def planned(root: Root, kernel: int, **more: object) -> JobStatus:
    """A job that was planned with this version of its kind's numerics."""
    status = job(Tally(), **more)
    work = Work("cluster", kernel, {}, None, None, None, 1, None, None)
    plan = Plan(1, "weights", work, (), 3, 10, 1, None)
    folder = root.job(status.id)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.plan.write_bytes(encode_plan(plan))
    return status


def test_a_training_that_runs_is_not_set_back_unasked(root: Root) -> None:
    now = kernels()["cluster"]
    [said] = obstacles_of(root, [planned(root, now, state="running", progress=TRAINING)])
    assert "last checkpoint" in said
    assert obstacles_of(root, [planned(root, now, state="running"), planned(root, now, state="complete")]) == []


def test_a_job_that_only_the_version_before_can_finish_is_named(root: Root) -> None:
    now = kernels()["cluster"]
    [said] = obstacles_of(root, [planned(root, now - 1, state="running")])
    assert said.endswith(f"planned with version {now - 1} of kind cluster, this version has {now}")
    assert obstacles_of(root, [planned(root, now - 1, state="complete")]) == []
