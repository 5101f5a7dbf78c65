"""A merged output far larger than the memory of daemon, helpers and merge: it streams, and their memory stays flat.

`make large` has 4 GB; by default there is a tenth of that. The limits are the same.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from muster.coordinator.commands.submit import submit
from muster.jobs.results.open_result import verify_layer
from tests.support import networks
from tests.support.farm import FarmHarness, running, until

OUTPUT_MB = int(os.environ.get("MUSTER_LARGE_MB", "400"))
LIMIT_MB = 300  # of one process, in all
GROWTH_MB = 30  # of one process, over what a small job of the same kind took
WIDTH, VALUES = 16, 4096  # of a row, and of its output
ROWS = OUTPUT_MB * 1_000_000 // (4 * VALUES)
SHARD_ROWS = 1024  # 17 MB of output
SAID_BY_THE_KERNEL = Path("/proc/self/status")


def peak_mb(pid: int) -> float:
    """Of a process, since it was started."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM:")), 0.0)


def watched(farm: FarmHarness) -> dict[str, float]:
    """The peaks of the daemon, of each helper of an agent, and of the merger."""
    assert farm.daemon is not None
    found = {"daemon": peak_mb(farm.daemon.pid)}
    for word in ("--role", "muster.coordinator.daemon.merge.merge_process"):
        for pid in farm.processes(word):
            try:
                found[f"{word} {pid}"] = peak_mb(pid)
            except OSError:  # it has ended
                continue
    return found


@pytest.mark.skipif(not SAID_BY_THE_KERNEL.exists(), reason="only Linux tells a process's peak")
def test_an_output_far_larger_than_memory_streams(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("f4")
    arrays = networks.weights(sizes=(WIDTH, VALUES))
    raw = networks.save_npz(tmp_path / "net.npz", arrays).read_bytes()
    with running(tmp_path / "farm") as farm:
        farm.join("one", "--cpus", "1")
        small = submit(farm.root, _job(farm, data[:SHARD_ROWS], raw))
        farm.wait(small, seconds=120)
        before, peaks = watched(farm), dict(watched(farm))

        def done() -> bool:
            peaks.update(watched(farm))
            return farm.status(job).state == "complete"

        job = submit(farm.root, _job(farm, data, raw))
        until(done, "the large result", 1200)
        assert len(peaks) >= 3, "the daemon, a helper and the merger were seen"
        _check(farm.root.job(job).result / "a", data, arrays)
    grown = {name: peak - before.get(name, peak) for name, peak in peaks.items()}
    print(f"{OUTPUT_MB} MB: peaks {peaks}, grown {grown}")
    assert max(peaks.values()) < LIMIT_MB and max(grown.values()) < GROWTH_MB, (peaks, grown)
    shutil.rmtree(tmp_path / "farm", ignore_errors=True)


def _job(farm: FarmHarness, data: np.ndarray[tuple[int, int], np.dtype[np.float32]], raw: bytes) -> Path:
    params = {"model": "net.npz"}
    return farm.job_file({"a": data}, SHARD_ROWS, kind="infer", params=params, files={"net.npz": raw})


def _check(
    folder: Path, data: np.ndarray[tuple[int, int], np.dtype[np.float32]], arrays: dict[str, networks.Array]
) -> None:
    assert verify_layer(folder) == []
    found = np.load(folder / "out.npy", mmap_mode="r")
    assert found.shape == (ROWS, VALUES)
    for rows in (slice(0, 10), slice(ROWS // 2, ROWS // 2 + 10), slice(ROWS - 10, ROWS)):
        wanted = networks.logits(data[rows], arrays)
        assert np.abs(found[rows] - wanted).max() <= 1e-5 * np.abs(wanted).max()
