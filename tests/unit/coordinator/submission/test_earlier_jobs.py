"""What a farm's earlier jobs say of a new one's cut: the same layer keeps it, and what rows took is known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.coordinator.api.status import AgentRate, JobStatus, Tally
from muster.coordinator.farm_root import tried_rows
from muster.coordinator.farm_root.paths import Root, prepare
from muster.coordinator.farm_root.tried_rows import TriedRows
from muster.coordinator.submission import earlier_jobs, reuse
from muster.coordinator.submission.earlier_jobs import EarlierJobs
from muster.coordinator.submission.submit import Planned, plan_file
from muster.jobs.contract.plan import ArraySource, encode_plan
from muster.jobs.job_file.digest import cost_digest

HEAD = "name: a\nkind: map\nsource: rows.npy\ncode: work.py:f\n"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return prepare(tmp_path / "root")


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.zeros((2000, 4)))
    (tmp_path / "work.py").write_text("def f(rows, x=0):\n    return rows\n")
    return tmp_path / "job.yaml"


def planned(job_file: Path, root: Root, more: str = "", **found: Any) -> Planned:
    job_file.write_text(HEAD + more)
    return plan_file(job_file, root, **found)


def cut(job_file: Path, root: Root, more: str = "", **found: Any) -> int:
    return planned(job_file, root, more, **found).plan.layers[0].shard_rows


def stored(root: Root, job: str, made: Planned) -> None:
    root.job(job).path.mkdir()
    root.job(job).plan.write_bytes(encode_plan(made.plan))


def told(monkeypatch: pytest.MonkeyPatch, job: str, **said: Any) -> None:
    """What the daemon says of a job."""
    status = JobStatus(job, "map", "running", "", 1, 1.0, 2.0, None, Tally(), 0)
    monkeypatch.setattr(EarlierJobs, "_statuses", {job: msgspec.structs.replace(status, **said)})


def test_without_a_farm_nothing_is_known(tmp_path: Path, job_file: Path) -> None:
    assert cut(job_file, Root(tmp_path / "none")) == 31
    assert not tried_rows.keep(Root(tmp_path / "none"), "0" * 32, TriedRows(1.0))
    assert not (tmp_path / "none").exists()


def test_a_layer_of_a_job_whose_numbers_were_given_keeps_them(root: Root, job_file: Path) -> None:
    first = planned(job_file, root, "shard: {rows: 300}\n")
    stored(root, "a.1", first)
    again = planned(job_file, root)
    assert again.plan.layers == first.plan.layers
    assert again.plan.cut == "7 shards of 300 rows: as a.1 has the same layer"
    assert cut(job_file, root, "shard: {rows: 20}\n") == 20


@pytest.mark.parametrize("more", ["params: {args: {x: 1}}\n", "env: nlp\n", "resources: {cpus: 2}\n"])
def test_any_other_work_is_cut_anew(root: Root, job_file: Path, more: str) -> None:
    stored(root, "a.1", planned(job_file, root, "shard: {rows: 300}\n"))
    assert cut(job_file, root, more) == 31


def test_a_file_that_changed_is_cut_anew(root: Root, job_file: Path) -> None:
    stored(root, "a.1", planned(job_file, root, "shard: {rows: 300}\n"))
    np.save(job_file.parent / "rows.npy", np.ones((2000, 4)))
    assert cut(job_file, root) == 31


def test_the_newest_job_counts_and_one_that_is_named_before_it(root: Root, job_file: Path) -> None:
    for number, rows in enumerate((300, 20), 1):
        stored(root, f"a.{number}", planned(job_file, root, f"shard: {{rows: {rows}}}\n"))
        os.utime(root.job(f"a.{number}").plan, ns=(number, number))
    assert cut(job_file, root) == 20
    assert cut(job_file, root, old="a.1") == 300


def test_what_an_older_version_cut_by_bytes_is_taken_over(root: Root, job_file: Path) -> None:
    said = f"name: a\nkind: cluster\nsource: {job_file.parent}/rows.npy\nparams: {{n_clusters: 2}}\n"
    job_file.write_text(said + "shard: {size: 128MiB}\n")
    stored(root, "a.1", plan_file(job_file))
    root.job("a.1").job_file.write_text(said)
    again = reuse.planned_from(root, "a.1", None, reuse.Wish())
    assert again.plan.layers[0].digest == plan_file(job_file).plan.layers[0].digest
    assert again.plan.cut == "1 shard of 2,000 rows: as a.1 has the same layer"
    other = reuse.planned_from(root, "a.1", None, reuse.Wish(sets=("n_clusters=3",)))
    assert "takes about 1.5 µs as the kind reckons" in other.plan.cut


def test_a_cancelled_job_has_no_layers_but_merged_ones(
    root: Root, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(root, "a.1", planned(job_file, root, "shard: {rows: 300}\n"))
    told(monkeypatch, "a.1", state="cancelled")
    assert cut(job_file, root) == 31
    monkeypatch.setattr(earlier_jobs, "is_merged", lambda *of: True)
    assert cut(job_file, root) == 300


@pytest.mark.parametrize("raw", [b"", b"nonsense", b"\x81\xa6format\x63"])
def test_plans_that_cannot_be_read_are_passed_over(root: Root, job_file: Path, raw: bytes) -> None:
    root.job("b.1").path.mkdir()
    root.job("b.1").plan.write_bytes(raw)
    root.job("b.2").path.mkdir()
    root.job("b.2").plan.mkdir()
    assert cut(job_file, root) == 31


def test_what_the_daemon_measured_of_a_cancelled_job_cuts_the_next(
    root: Root, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(root, "a.1", planned(job_file, root))
    rate = AgentRate("one", True, 1, 0, 0, 2, 40, 9, 9, 1.0, 40.0)
    told(monkeypatch, "a.1", state="cancelled", agents=[rate])
    made = planned(job_file, root).plan
    assert made.cut == "200 shards of 10 rows: about 10 s each; a row takes about 1.0 s as in a.1"
    assert cut(job_file, root, "params: {args: {x: 1}}\n") == 31


def test_what_was_tried_is_kept_and_cuts_the_next(root: Root, job_file: Path) -> None:
    plan = planned(job_file, root).plan
    source = plan.layers[0].source
    assert isinstance(source, ArraySource)
    digest = cost_digest(plan.work, source)
    assert tried_rows.keep(root, digest, TriedRows(2.0))
    assert planned(job_file, root).plan.cut.endswith("a row takes about 2.0 s as `coordinator try` measured")
    for raw in (b"{}", b"\xff", b'{"seconds": -1}', b'{"seconds": 1e99}'):
        (root.tried / f"{digest}.json").write_bytes(raw)
        assert cut(job_file, root) == 31


def test_of_what_was_tried_the_newest_is_kept(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried_rows, "KEPT", 3)
    for number in range(6):
        tried_rows.keep(root, f"{number:032x}", TriedRows(1.0))
        os.utime(root.tried / f"{number:032x}.json", ns=(number, number))
    assert sorted(path.stem for path in root.tried.iterdir()) == [f"{number:032x}" for number in (3, 4, 5)]
