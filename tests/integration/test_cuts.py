"""Jobs that leave their cut open, on a farm of real processes: many shards, on all slots; what was measured counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from muster.coordinator.client import Farm
from tests.support.farm import Array, FarmHarness, running, until

ROWS = np.arange(2000, dtype="f8")[:, None]
SLEEPS = """
import time
from pathlib import Path

Path(__file__).with_name("imported").touch()

def slow(rows):
    time.sleep(0.05 * len(rows))
    return rows * 2
"""


def doubled(rows: Array) -> Array:
    return rows * 2


def settled(rows: Array) -> Array:
    import time

    time.sleep(0.02 * len(rows))
    return rows


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as farm:
        farm.join("one", "--cpus", "2")
        until(lambda: farm.is_live("one"), "the agent to join")
        yield farm


def test_two_thousand_rows_of_a_map_are_many_shards(farm: FarmHarness) -> None:
    job = Farm(farm.root.path).map(doubled, ROWS, progress=False)
    np.testing.assert_array_equal(job.result(progress=False).array(), ROWS * 2)
    assert job.status().totals.shards == 65
    assert farm.plan(job.id).cut.startswith("65 shards of 31 rows: for many machines to share")


def test_the_same_job_again_has_the_same_layers_and_another_is_cut_by_what_rows_took(farm: FarmHarness) -> None:
    here = Farm(farm.root.path)
    first = here.map(settled, ROWS[:64], progress=False)
    first.wait(progress=False)
    again = here.map(settled, ROWS[:64], progress=False)
    assert [one.digest for one in farm.plan(again.id).layers] == [one.digest for one in farm.plan(first.id).layers]
    assert farm.plan(again.id).cut.endswith(f"as {first.id} has the same layer")
    more = here.map(settled, np.zeros((100_000, 1)), progress=False)
    here.job(more.id).cancel()
    plan = farm.plan(more.id)
    assert 100 <= plan.layers[0].shard_rows <= 500
    assert plan.cut.endswith((f"ms as in {first.id}", f"ms as in {again.id}"))


def test_a_plan_runs_nothing_and_cuts_by_what_was_tried(farm: FarmHarness, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(SLEEPS)
    np.save(tmp_path / "rows.npy", np.zeros((100_000, 1)))
    file = tmp_path / "job.yaml"
    file.write_text("name: sleeps\nkind: map\nsource: rows.npy\nshard: auto\ncode: work.py:slow\n")
    said = farm.coordinator("plan", str(file))
    assert "  cut      65 shards of 1,539 rows: for many machines to share;" in said.stdout, said.stderr
    small = tmp_path / "small.yaml"
    small.write_text(file.read_text().replace("shard: auto", "shard: {rows: 4}"))
    tried = farm.coordinator("try", str(small))
    assert tried.returncode == 0, tried.stderr
    assert "  cut      as the job file says" in tried.stdout
    seen = json.loads(farm.coordinator("plan", str(file), "--json").stdout)
    assert "as `coordinator try` measured" in seen["cut"] and 400 <= seen["shards"] <= 1000
    assert not (tmp_path / "imported").exists()


def test_archives_beside_arrays_are_named_at_plan_and_at_submit(farm: FarmHarness) -> None:
    file = farm.job_file({"a": np.zeros((8, 4), "f4")}, kind="cluster", params={"n_clusters": 2}, shard="auto")
    np.savez(file.parent / "arrays" / "x.npz", x=np.zeros(3))
    assert "  note     skipped: 1 .npz file, as there are others" in farm.coordinator("plan", str(file)).stdout
    done = farm.coordinator("submit", str(file), "--wait")
    assert done.returncode == 0 and "skipped: 1 .npz file" in done.stderr


def test_a_folder_of_raw_files_is_computed(farm: FarmHarness, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {name: rng.normal(size=(rows, 16)).astype("<f4") for name, rows in (("a", 10), ("b", 20))}
    (tmp_path / "raw").mkdir()
    for name, array in arrays.items():
        (tmp_path / "raw" / f"{name}.bin").write_bytes(array.tobytes())
    (tmp_path / "raw" / "odd\n.bin").write_bytes(b"x")
    source = {"path": str(tmp_path / "raw"), "layers": ["a", "b"], "dtype": "<f4", "shape": [-1, 16]}
    job = farm.coordinator("submit", str(farm.job_file({}, source=source))).stdout.strip()
    farm.wait(job)
    farm.check_result(job)
    assert [layer.rows for layer in farm.plan(job).layers] == [10, 20]
