"""What the kernel's out-of-memory killer takes is told with its figure: a real group of processes with a real limit."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

MEGABYTE = 1 << 20
LIMIT = 300 * MEGABYTE
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
GREEDY = """
import sys
from pathlib import Path
import numpy as np
from muster.jobs.contract.kind import RunnerLost, ShardFailure
from muster.jobs.user_code.sandbox import Sandbox

group, folder = map(Path, sys.argv[1:])
(group / "cgroup.procs").write_text("0")
sandbox = Sandbox(sys.executable, folder, "work.py:grow", folder / "scratch")
try:
    sandbox.call(0, 0, np.zeros((2, 2)), None)
except (RunnerLost, ShardFailure) as error:
    print(type(error).__name__, getattr(error, "code", ""), error)
"""
WORK = """
def grow(rows):
    taken = []
    while True:
        taken.append(bytearray(b"x" * (1 << 20)))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of processes that may take so much memory."""
    base, limit = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    folder = base / f"muster-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no group of processes can be made here: {error}")
    yield folder
    folder.rmdir()


@pytest.mark.root
def test_code_that_the_kernel_took_for_its_memory_is_a_failure_with_the_figure(group: Path, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    done = subprocess.run(
        [sys.executable, "-c", GREEDY, str(group), str(tmp_path)],
        env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ShardFailure memory the function: the kernel's out-of-memory killer took")
    assert "its group may take 300 MiB" in done.stdout
