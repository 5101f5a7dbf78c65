"""The mark says which shard a slot is running, even after its writer was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from muster.jobs.workbench.slot_marker import SIZE, Mark, read


def test_start_and_idle_are_read_back(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "mark")
    told = read(tmp_path / "mark")
    assert told and not told.running
    mark.start(1 << 40, 3, 7)
    told = read(tmp_path / "mark")
    assert told and (told.running, told.number, told.boot, told.attempt) == (True, 1 << 40, 3, 7)
    assert told.started > 1e9 and told.monotonic > 0
    mark.idle()
    again = read(tmp_path / "mark")
    assert again and not again.running and again.number == told.number
    mark.close()


def test_no_file_and_a_torn_one_say_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "none") is None
    Mark(tmp_path / "mark").start(1, 2, 3)
    raw = (tmp_path / "mark").read_bytes()
    assert len(raw) == SIZE
    for cut in range(44):
        (tmp_path / "torn").write_bytes(raw[:cut])
        assert read(tmp_path / "torn") is None
        flipped = bytearray(raw)
        flipped[cut] ^= 1
        (tmp_path / "torn").write_bytes(flipped)
        assert read(tmp_path / "torn") is None


def test_it_survives_a_kill_of_its_writer(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from muster.jobs.workbench.slot_marker import Mark;"
        "Mark(Path(sys.argv[1])).start(5, 1, 2); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "mark")], check=False, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    told = read(tmp_path / "mark")
    assert told and told.running and told.number == 5
