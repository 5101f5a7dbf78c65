"""Muster of another version in an environment of its own, for tests of two versions beside each other.

An environment has one tree's product and, for all else, the packages of this one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import skip_for

ROOT = Path(__file__).parents[2]
PRODUCT = ("muster-", "muster_farm-", "__editable__")  # what an install of it leaves beside other packages
TREE = ("muster", "agent", "coordinator", "deploy", "jobs", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
INSTALL_SECONDS = 300.0


@dataclass(frozen=True)
class OtherVersion:
    """One that is installed."""

    version: str
    python: Path

    def run(self, *words: str) -> str:
        """What Python says there."""
        command = [str(self.python), *words]
        return subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout.strip()


def of_revision(revision: str, folder: Path, version: str) -> OtherVersion:
    """What the repository had at that commit, under another number; skips where its history is not here."""
    told = subprocess.run(
        ["git", "-C", ROOT, "cat-file", "-e", f"{revision}^{{commit}}"], capture_output=True, check=False
    )
    if told.returncode:
        skip_for(f"commit {revision[:10]} is not in this repository's history", fails_in_ci=False)
    tree = folder / "tree"
    tree.mkdir(parents=True)
    with subprocess.Popen(["git", "-C", ROOT, "archive", revision], stdout=subprocess.PIPE) as packed:
        subprocess.run(["tar", "-x", "-C", tree], stdin=packed.stdout, check=True)
    return _installed(tree, folder / "venv", version)


def of_this_tree(folder: Path, version: str) -> OtherVersion:
    """What is here, under another number."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    subprocess.run(["cp", "-a", *(str(ROOT / name) for name in TREE), tree], check=True)
    return _installed(tree, folder / "venv", version)


def _installed(tree: Path, environment: Path, version: str) -> OtherVersion:
    for name, pattern in (("setup.cfg", r"(?m)^version = .*$"), ("muster/__init__.py", r'(?m)^VERSION = "[^"]*"')):
        text = (tree / name).read_text()
        said = f"version = {version}" if name == "setup.cfg" else f'VERSION = "{version}"'
        (tree / name).write_text(re.sub(pattern, said, text, count=1))
    venv.EnvBuilder(with_pip=False, symlinks=True).create(environment)
    [packages] = (environment / "lib").glob("python*/site-packages")
    (packages / "shared.pth").write_text(f"{_shared(environment / 'shared')}\n")
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-installed"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", str(tree)], cwd="/", check=True, timeout=INSTALL_SECONDS
    )  # fmt: skip
    made = OtherVersion(version, python)
    assert made.run("-c", "import muster; print(muster.VERSION)") == version
    return made


def _shared(folder: Path) -> Path:
    """Links to all that this process finds installed but the product, whose entry points would be found beside."""
    folder.mkdir()
    for path in map(Path, sys.path):
        if path.is_dir() and any(path.glob("*.dist-info")):
            for entry in path.iterdir():
                if not entry.name.startswith(PRODUCT) and not (folder / entry.name).exists():
                    (folder / entry.name).symlink_to(entry)
    return folder
