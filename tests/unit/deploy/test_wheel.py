"""The wheel that is made of what runs here: whole, the same each time, and good for pip."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from muster import VERSION
from muster.deploy import wheel

ROOT = Path(__file__).parents[3]


def test_it_has_every_module_and_is_the_same_each_time(tmp_path: Path) -> None:
    tree = {
        str(Path(at, file).relative_to(ROOT))
        for at, _, files in os.walk(ROOT / "muster", followlinks=True)
        for file in files
        if file.endswith((".py", "py.typed", ".html", ".css", ".js", ".svg"))
    }
    (tmp_path / "again").mkdir()
    first, second = wheel.make(tmp_path), wheel.make(tmp_path / "again")
    with zipfile.ZipFile(first) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == tree
    assert first.read_bytes() == second.read_bytes()
    assert wheel.stamp() == wheel.stamp()


def test_pip_installs_it(tmp_path: Path) -> None:
    made = wheel.make(tmp_path)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", tmp_path / "there", made], check=True, capture_output=True, timeout=120)
    code = "import muster.agent.cli; print(muster.VERSION, muster.__file__)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "there")}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, cwd="/")
    assert found.stdout.split() == [VERSION, str(tmp_path / "there" / "muster" / "__init__.py")]


def test_a_source_tree_that_was_built_in_says_the_same_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build leaves its own folder of facts beside the source, and Python finds that one first."""
    left = tmp_path / "muster_farm.egg-info"
    left.mkdir()
    (left / "PKG-INFO").write_text(f"Metadata-Version: 2.4\nName: muster-farm\nVersion: {VERSION}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with zipfile.ZipFile(wheel.make(tmp_path)) as archive:
        said = archive.read(f"muster_farm-{VERSION}.dist-info/METADATA").decode()
    assert "Name: muster-farm" in said.splitlines()


def test_what_is_installed_without_ray_is_all_else() -> None:
    lines = wheel.requirements(without="ray").splitlines()
    assert any(line.startswith("numpy>=") for line in lines) and any(line.startswith("msgspec") for line in lines)
    assert not any(line.startswith(("ray", "pytest", "torch", "ansible")) for line in lines)
