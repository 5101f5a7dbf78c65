"""The script for Slurm: its syntax, and its life under a stand-in for sbatch, which is no Slurm: an array of jobs, each
with the variables that Slurm gives, told to end as `--signal` says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.farm import FarmHarness, arrays, until

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "slurm.sh"
OPTIONS = {
    "job-name",
    "ntasks",
    "cpus-per-task",
    "mem",
    "time",
    "signal",
    "output",
}  # of sbatch, as its manual has them


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    made = FarmHarness(tmp_path / "farm")
    yield made
    made.close()


def directives() -> dict[str, str]:
    """What the script asks of Slurm."""
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", SCRIPT.read_text(), re.M))


def sbatch(farm: FarmHarness, job: int, *args: str) -> subprocess.Popen[bytes]:
    """One of the array, as a compute node starts it: by bash, with Slurm's variables. Its options are made small."""
    asked = directives()
    memory = int(asked["mem"].removesuffix("G")) << 10
    given = {
        "SLURM_JOB_ID": str(job), "SLURM_ARRAY_TASK_ID": str(job % 10), "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_NODE": str(memory), "SLURM_TMPDIR": str(farm.folder / f"node{job}"),
    }  # fmt: skip
    Path(given["SLURM_TMPDIR"]).mkdir()
    env = [f"{name}={value}" for name, value in given.items()]
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["env", *env, path, "bash", str(SCRIPT), *args]
    return farm.run(command, f"slurm-{job}.out")


def test_the_script_is_one_that_bash_and_sbatch_read() -> None:
    done = subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(directives()) == OPTIONS
    assert SCRIPT.read_text().count("#SBATCH") == len(OPTIONS)
    seconds = int(directives()["signal"].removeprefix("B:TERM@"))
    assert 60 <= seconds < 4 * 3600


def test_without_a_server_it_says_how_it_is_used(tmp_path: Path) -> None:
    done = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0 and "sbatch --array=1-10 slurm.sh me@server" in done.stderr


def test_two_of_an_array_work_and_one_is_told_to_end(farm: FarmHarness) -> None:
    farm.start()
    first, second = (sbatch(farm, job, str(farm.root.path)) for job in (41, 42))
    until(lambda: farm.is_live("slurm-41") and farm.is_live("slurm-42"), "both agents", 90.0)
    shown = farm.agent_status("slurm-41")
    assert shown is not None and shown.cpus == 1
    job = farm.submit(arrays(layers=3, rows=96), shard_rows=2)
    first.send_signal(signal.SIGTERM)  # to the shell alone, as `--signal=B:TERM@300` does
    assert first.wait(60.0) == 0
    assert list((farm.folder / "node41").iterdir()) == []
    farm.wait(job, seconds=90.0)
    farm.check_result(job)
    second.send_signal(signal.SIGTERM)
    assert second.wait(60.0) == 0
