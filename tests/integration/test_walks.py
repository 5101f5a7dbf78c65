"""The walks of README.md and docs/examples, run as people would: each block that has a name is a file, each `sh` block
is run, and what a `text` block shows must be among what the one before it printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.farm import FarmHarness, running

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = README.parent / "docs" / "examples"
SECONDS = 120
_BLOCK = re.compile(r"^```(?P<language>\w+)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.join("one", "--cpus", "2")
        yield made


@pytest.mark.parametrize("page", [README, *sorted(EXAMPLES.glob("*.md"))], ids=lambda page: page.stem)
def test_a_walk_goes_as_its_page_says(page: Path, farm: FarmHarness, tmp_path: Path) -> None:
    printed = ""
    in_text = re.findall(r"`(muster run [^`]+)`", page.read_text())
    for block in _BLOCK.finditer(page.read_text()):
        if block["name"]:
            (tmp_path / block["name"]).write_text(block["text"])
        elif block["language"] == "sh":
            printed = walk(block["text"], farm, tmp_path)
        elif block["language"] == "text":
            for line in block["text"].splitlines():
                assert line in printed, f"{line!r} is not in:\n{printed}"
    for line in in_text if page == README else ():
        assert walk(line, farm, tmp_path) == "2\n", "of work.py"


def walk(commands: str, farm: FarmHarness, folder: Path) -> str:
    """What they print."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    env = {**farm.environment(), "PATH": path, "MUSTER_ROOT": str(farm.root.path), "COLUMNS": "200"}
    done = subprocess.run(
        ["sh", "-ec", commands], cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}\n{farm.said()}"
    return done.stdout + done.stderr
