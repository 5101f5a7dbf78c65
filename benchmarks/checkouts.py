"""Two checkouts side by side: the tree of a revision, environments with a tree's own product, and what runs in them.

A tree's product is installed as editable into an environment of its own, which sees the packages of this one. Programs
run where neither tree is, beside links to one tree's `benchmarks` and what these use: so they may be of another tree
than the product, which is never found by the current folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 120.0  # for a benchmark to end what it started
PRODUCT = ("muster-", "muster_farm-", "__editable__")  # what an install of it leaves beside other packages
LINKED = ("benchmarks", "tests", "docs")  # the tests use an example of the docs
# Prints where each of our packages is, whatever a revision calls them; one at least must be there
WHERE = """
import importlib.util
for name in ("muster", "jobs", "coordinator", "agent"):
    spec = importlib.util.find_spec(name)
    if spec is not None:
        print(name, spec.origin or list(spec.submodule_search_locations)[0], sep="\\t")
"""


class CheckoutError(Exception):
    """No environment can be made of a tree, or what it starts would be another tree's."""


@dataclass(frozen=True)
class Checkout:
    """A tree and the environment that has its product."""

    name: str
    tree: Path
    environment: Path

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """This process's, without what would bring other code in, and with this environment's commands first."""
        kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
        path = f"{self.environment / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
        return {**kept, "VIRTUAL_ENV": str(self.environment), "PATH": path}

    def start(self, code: Path, *words: str) -> subprocess.Popen[str]:
        """Python with these words in the folder `code`, in a session of its own: Ctrl-C reaches this process alone."""
        command = [str(self.python), *words]
        return subprocess.Popen(
            command, cwd=code, env=self.variables(), stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def check(self) -> None:
        """Every package of ours that is found there lies in this tree, as for the programs that a benchmark starts."""
        command = [str(self.python), "-c", WHERE]
        said = subprocess.run(command, cwd="/", env=self.variables(), stdout=subprocess.PIPE, text=True, check=True)
        found = [line.split("\t") for line in said.stdout.splitlines()]
        if not found:
            raise CheckoutError(f"{self.name}: no package of ours is importable")
        for name, where in found:
            if not Path(where).resolve().is_relative_to(self.tree.resolve()):
                raise CheckoutError(f"{self.name}: {name} comes from {where}, not from {self.tree}")


@contextlib.contextmanager
def tree_of(repository: Path, revision: str, target: Path) -> Iterator[Path]:
    """The revision's tree, as a worktree at `target` that git knows while this is open."""
    git = ["git", "-C", str(repository), "worktree"]
    try:
        _run([*git, "add", "--quiet", "--detach", str(target), revision])
        yield target
    finally:
        subprocess.run([*git, "remove", "--force", str(target)], capture_output=True, check=False)


def installed(name: str, tree: Path, environment: Path) -> Checkout:
    """A new environment with the tree's product and nothing else of its own, checked."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(environment)
    checkout = Checkout(name, tree, environment)
    (_own_packages(environment) / "shared.pth").write_text(f"{_shared_packages(environment / 'shared')}\n")
    # --ignore-installed: or pip looks at the product in the environment that is seen from there
    options = ["--quiet", "--disable-pip-version-check", "--ignore-installed", "--no-deps", "--no-build-isolation"]
    _run([str(checkout.python), "-m", "pip", "install", *options, "-e", str(tree)], checkout.variables())
    checkout.check()
    _compile(checkout)
    return checkout


def linked_code(tree: Path, folder: Path) -> Path:
    """A folder with nothing of the tree but its benchmarks and what they use beside the product."""
    folder.mkdir()
    for name in LINKED:
        if (tree / name).is_dir():
            (folder / name).symlink_to(tree / name)
    return folder


@contextlib.contextmanager
def stopped_at_end(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Interrupted if it still runs, as by Ctrl-C, and waited for: a benchmark ends all that it started."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()


def _compile(checkout: Checkout) -> None:
    """Bytecode for all packages of the tree. A new tree has none, and where PYTHONDONTWRITEBYTECODE is set it would
    never have any: every process that a benchmark starts would compile, on one side only."""
    folders = sorted(str(path.parent) for path in checkout.tree.glob("*/__init__.py"))
    _run([str(checkout.python), "-m", "compileall", "-q", *folders], checkout.variables())


def _own_packages(environment: Path) -> Path:
    return next((environment / "lib").glob("python*/site-packages"))


def _shared_packages(folder: Path) -> Path:
    """A folder with links to all that this process finds installed but the product: the entry points of that would be
    found beside those of the tree's own, whatever distribution either is."""
    folder.mkdir()
    for path in sys.path:
        if Path(path).name in {"site-packages", "dist-packages"} and Path(path).is_dir():
            for entry in Path(path).iterdir():
                if not entry.name.startswith(PRODUCT) and not (folder / entry.name).exists():
                    (folder / entry.name).symlink_to(entry)
    return folder


def _run(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckoutError(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
