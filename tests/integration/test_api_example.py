"""The examples of README.md and docs/api.md, run as people would: as a script, and cell by cell in a notebook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import sshd
from tests.support.farm import FarmHarness, running

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "api.py"
README = Path(__file__).parents[2] / "README.md"
SECONDS = 120


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.join("one", "--cpus", "2")
        yield made


def test_as_a_script_by_folder(farm: FarmHarness) -> None:
    command = [sys.executable, str(EXAMPLE), str(farm.root.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "{'conv1': (200, 8), 'fc': (100, 8)}" in done.stdout


def test_the_readme_to_the_letter(farm: FarmHarness, tmp_path: Path) -> None:
    (tmp_path / ".muster").symlink_to(farm.root.path)
    [block] = re.findall(r"^```python\n(import numpy .*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "script.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True,
        text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *shards, whole = done.stdout.splitlines()
    assert (sorted(shards), whole) == (["0 (40, 32)", "40 (40, 32)"], "(80, 32)")


def test_as_a_notebook_over_ssh(farm: FarmHarness, tmp_path: Path, monkeypatch: Any) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    with sshd.running(tmp_path / "sshd") as daemon:
        monkeypatch.setenv("FARM", f"{sshd.HOST}:{farm.root.path}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        text = EXAMPLE.read_text().replace("else where)", f"else where, ssh_config={str(daemon.ssh_config())!r})")
        _, *cells = text.split("# %% ")
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"# {cell}") for cell in cells])
        nbclient.NotebookClient(book, timeout=SECONDS, kernel_name="python3").execute()
    said = "".join(out.get("text", "") for cell in book.cells for out in cell.outputs)
    assert "{'conv1': (200, 8), 'fc': (100, 8)}" in said
    assert "complete []" in said
