"""A package that is installed after an agent joined: the job that waits for it runs, and nobody joins again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.farm import arrays, running, until

# What a test waits for instead of a user's minute
PATCHED = """
import sys
sys.path[:] = [p for p in sys.path if p]
from muster.agent import process
process.PACKAGES_SECONDS = 0.5
from muster.agent.cli import main
sys.exit(main())
"""
WORK = """
def same(rows):
    import late
    return rows
"""


def test_a_package_installed_after_joining_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]))
    with running(tmp_path / "farm") as farm:
        options = ["--name", "desk", "--spool", str(tmp_path / "spool"), "--cpus", "1"]
        farm.real["desk"] = farm.run([sys.executable, "-c", PATCHED, "join", str(farm.root.path), *options], "desk.out")
        until(lambda: farm.is_live("desk"), "the agent to be there")
        fields = {"kind": "map", "code": "work.py:same", "packages": ["late>=1"]}
        job = farm.submit(arrays(1, 8, 8), 4, WORK, **fields)
        until(lambda: "has no late>=1" in farm.coordinator("status", job).stdout, "the job to wait for the package")
        (packages / "late.py").touch()
        (packages / "late-1.0.dist-info").mkdir()
        (packages / "late-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
        farm.wait(job)
        assert farm.status(job).failures == 0
        assert "packages were installed: late" in (tmp_path / "spool" / "agent.log").read_text()
