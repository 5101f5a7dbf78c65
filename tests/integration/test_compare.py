"""Two revisions of a small product compared for real: whose code each side runs, the verdict, and what is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.checkouts import CheckoutError, installed, linked_code
from benchmarks.compare import HELP, TREE
from tests.support.farm import until

SETUP = (
    "[metadata]\nname = muster\nversion = 0.1.0\n[options]\npackages = find:\n[options.packages.find]\ninclude = {}\n"
)
BUILD = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
# The figure is what a process has that is started as the daemon is: by `-c`, elsewhere
BENCHMARK = """
import argparse, json, subprocess, sys, time
from pathlib import Path
from {package} import SPEED
options = argparse.ArgumentParser()
options.add_argument("--no-peer", action="store_true")
options.add_argument("--pause", type=Path)
given = options.parse_args()
if given.pause:
    given.pause.touch()
    try:
        time.sleep(600)
    finally:
        given.pause.unlink()
command = [sys.executable, "-c", "from {package} import SPEED; print(SPEED)"]
said = subprocess.run(command, cwd="/", stdout=subprocess.PIPE, check=True).stdout
print(json.dumps({{"ours": float(said), "peer": 0 if given.no_peer else 1}}))
"""
MAIN = """
import sys
from pathlib import Path
from benchmarks.compare import main
sys.exit(main(sys.argv[2:], Path(sys.argv[1])))
"""


class Repository:
    """A product in git whose benchmark says how fast it is."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        tree.mkdir()
        self._git("init", "--quiet")
        (tree / "pyproject.toml").write_text(BUILD)
        (tree / ".gitignore").write_text("__pycache__/\n*.egg-info/\n")

    def commit(self, speed: float, package: str = "jobs") -> None:
        """A version of this speed. The package is `jobs`, or `muster.jobs`: then a link to the same folder."""
        self._write("jobs/__init__.py", f"SPEED = {speed}\n")
        self._write("benchmarks/__init__.py", "")
        self._write("benchmarks/toy.py", BENCHMARK.format(package=package))
        outer = package.split(".", maxsplit=1)[0]
        if outer != "jobs":
            self._write(f"{outer}/__init__.py", "")
            (self.tree / outer / "jobs").symlink_to("../jobs")
        (self.tree / "setup.cfg").write_text(SETUP.format(f"{outer}*"))
        self._git("add", "--all")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", f"{speed}")

    def worktrees(self) -> list[str]:
        return self._git("worktree", "list").splitlines()

    def _write(self, name: str, text: str) -> None:
        (self.tree / name).parent.mkdir(exist_ok=True)
        (self.tree / name).write_text(text)

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", str(self.tree), *words], capture_output=True, text=True, check=True).stdout

    def compare(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MAIN, str(self.tree), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def compared(self, *words: str) -> tuple[int, str, dict[str, Any]]:
        """The exit code, all that was said, and its last line."""
        process = self.compare(*words)
        said, errors = process.communicate(timeout=120)
        assert said, errors
        return process.returncode, said, json.loads(said.splitlines()[-1])


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "tree")


def test_each_side_runs_its_own_product(repository: Repository) -> None:
    repository.commit(100.0)
    repository.commit(80.0)
    code, said, found = repository.compared("--pairs", "5", "HEAD~1", "toy")
    assert (code, found["worse"], found["ours"]["median"]) == (1, True, 0.8)
    assert found["ours"]["old"] == [100.0] * 5 and found["ours"]["new"] == [80.0] * 5
    first = [line.split()[1] for line in said.splitlines() if " ours " in line]
    assert first == ["old", "new", "old", "new", "old"]
    assert len(repository.worktrees()) == 1


def test_a_move_into_another_package_is_compared_by_each_ones_own_benchmark(repository: Repository) -> None:
    repository.commit(100.0)
    repository.commit(101.0, package="muster.jobs")
    code, said, found = repository.compared("--pairs", "5", "HEAD~1", "toy")
    assert "the old side runs its own benchmarks: ModuleNotFoundError: No module named 'muster'" in said
    assert (code, found["worse"], found["ours"]["old"], found["ours"]["new"]) == (0, False, [100.0] * 5, [101.0] * 5)


def test_too_few_pairs_are_no_pass(repository: Repository) -> None:
    repository.commit(100.0)
    code, _, found = repository.compared("--pairs", "2", "HEAD", "toy")
    assert (code, found["worse"]) == (3, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_leaves_nothing(repository: Repository, tmp_path: Path, number: int) -> None:
    repository.commit(100.0)
    running = tmp_path / "running"
    process = repository.compare("HEAD", "toy", "--pause", str(running))
    until(running.exists, "the benchmark to run")
    folder = Path(repository.worktrees()[1].split()[0]).parent
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not running.exists(), "the benchmark did not end in order"
    assert not folder.exists() and len(repository.worktrees()) == 1


def test_a_new_tree_has_its_bytecode_at_once(repository: Repository, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    repository.commit(1.0)
    installed("one", repository.tree, tmp_path / "environment")
    assert list((repository.tree / "jobs" / "__pycache__").glob("*.pyc"))


@pytest.mark.parametrize("module", sorted({known.args[0] for known in BENCHMARKS.values()}))
def test_every_benchmark_loads_beside_nothing_but_what_is_linked(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELP, f"benchmarks.{module}", "--help"]
    code = linked_code(TREE, tmp_path / "code")
    done = subprocess.run(command, cwd=code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\noptions:" in done.stdout


def test_a_product_of_another_tree_is_refused(tmp_path: Path) -> None:
    one, other = Repository(tmp_path / "one"), Repository(tmp_path / "other")
    one.commit(1.0)
    other.commit(2.0)
    checkout = installed("one", one.tree, tmp_path / "environment")
    mixed = type(checkout)("other", other.tree, checkout.environment)
    with pytest.raises(CheckoutError, match=r"other: jobs comes from .*/one/jobs/__init__\.py, not from .*/other"):
        mixed.check()
