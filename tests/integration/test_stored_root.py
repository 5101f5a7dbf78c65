"""A root that an older version left behind, whose daemon was killed: this version serves it, and all its jobs end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from muster.coordinator.daemon.jobs.live import recalled
from muster.jobs.kinds.cluster import Cluster
from muster.jobs.training import checkpoint
from muster.jobs.training.aggregation.synchronous import SynchronousRounds
from muster.jobs.training.data import dataset
from muster.jobs.training.params import TrainParams
from muster.jobs.training.serial import run_serially
from muster.jobs.training.steps.models import open_model
from tests.support.farm import FarmHarness
from tests.support.stored_root import CLUSTERING, COMPLETE, HALF, LINES, MERGE, TRAINING, unpacked

LEASE_SECONDS = 4.0  # for so long shards of the killed agents are nobody else's


@pytest.fixture
def old(tmp_path: Path) -> Iterator[FarmHarness]:
    """A farm of that root. It is not served yet."""
    assert unpacked(tmp_path).path == tmp_path / "root"
    farm = FarmHarness(tmp_path, lease=LEASE_SECONDS)
    try:
        yield farm
    finally:
        farm.close()


def test_the_jobs_in_a_root_of_0_1_0_end_with_what_a_serial_run_gives(old: FarmHarness) -> None:
    wanted = trained_serially(old, TRAINING)
    old.start()
    totals = {job.id: job.totals for job in old.jobs()}
    assert totals[CLUSTERING].committed == totals[MERGE].committed == HALF
    assert 0 < totals[LINES].committed < totals[LINES].shards
    assert (old.status(COMPLETE).state, old.status(TRAINING).state) == ("complete", "running")
    old.join("new", "--cpus", "1")
    for job in (COMPLETE, LINES):
        old.wait(job)
        old.check_result(job)
        assert old.coordinator("verify", job).returncode == 0
    old.wait(MERGE)
    kernel = old.plan(CLUSTERING).work.kernel  # an older one, so that no machine of today takes part
    assert f"the job wants {kernel}" in old.coordinator("explain", CLUSTERING).stdout
    assert old.status(CLUSTERING).totals.committed == HALF
    old.wait(TRAINING)
    training = json.loads((old.root.job(TRAINING).result / "made" / "training.json").read_text())
    assert training["digest"] == wanted


def test_what_was_committed_before_is_not_computed_again(old: FarmHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    old.start()
    kernel = old.plan(CLUSTERING).work.kernel
    monkeypatch.setattr(Cluster, "kernel", kernel)  # as a machine of that version has it
    agent = old.agent("new", kinds={"cluster": kernel})
    agent.work(lambda: old.status(CLUSTERING).state == "complete")
    assert len(agent.computed) == HALF
    old.wait(MERGE)


def test_how_far_a_training_of_0_1_0_came_is_known_before_its_driver_says_so(old: FarmHarness) -> None:
    stored = old.stored()[TRAINING].news
    assert stored is not None and (known := recalled(stored)) is not None
    assert (0 < known.done < known.total, known.total, known.unit) == (True, 400, "round")
    assert recalled(stored[:-1]) is recalled(b"\x80") is None


def trained_serially(farm: FarmHarness, job: str) -> str:
    """The weights that the stored checkpoint leads to. From the start, this machine's kernels might give others."""
    plan = farm.plan(job)
    params = msgspec.convert(plan.work.params, TrainParams)
    assert params.facts is not None and plan.work.model is not None
    given = farm.root.model(plan.work.model.digest)
    model = open_model(params, params.facts, given)
    copy = farm.folder / "checkpoints"  # looking for the latest deletes what is later than it
    shutil.copytree(farm.root.job(job).checkpoints, copy)
    found, refused = checkpoint.latest(copy, params, model.stepped, model.dim)
    assert found is not None and isinstance(found.outer, SynchronousRounds) and not refused
    assert 0 < found.outer.round < params.rounds
    return run_serially(params, dataset.read(given), begun=found.outer).digest


def test_what_there_is_of_its_jobs_can_be_had_before_anybody_serves_it(old: FarmHarness) -> None:
    for job, half in ((MERGE, HALF), (CLUSTERING, HALF), (LINES, None)):
        done = old.coordinator("result", job, "--partial", "--json")
        assert done.returncode == 0, done
        [part] = json.loads(done.stdout)["parts"]
        assert part["shards"] == half or (half is None and part["shards"] > 0 and part["missing_rows"])
    assert old.coordinator("result", TRAINING, "--partial").returncode == 7
    assert json.loads(old.coordinator("result", COMPLETE, "--partial", "--json").stdout)["parts"] == []
