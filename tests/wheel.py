"""The wheel as people get it: made from the sdist alone, installed into an empty environment, and put to work there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from muster import VERSION

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
INSTALL_SECONDS = 900  # Ray and scikit-learn, where they are not at hand
SECONDS = 120
NAMES = "import muster; from muster import Farm, Job, LayerWriter; print(muster.__file__)"


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    say("building the sdist, and the wheel from it")
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT, cwd=ROOT, seconds=INSTALL_SECONDS)
    [sdist], [wheel] = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    look_through(sdist, wheel)
    with TemporaryDirectory(prefix="muster-wheel-") as made:
        venv, folder = Path(made, "venv"), Path(made, "empty")
        folder.mkdir()
        say(f"installing {wheel.name} into an empty environment")
        run(sys.executable, "-m", "venv", venv, cwd=folder)
        pip = (venv / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "install", wheel, cwd=folder, seconds=INSTALL_SECONDS)
        run(*pip, "check", cwd=folder)
        put_to_work(venv, folder)
    say(f"{sdist.name} and {wheel.name} in {DIST} are good")
    return 0


def look_through(sdist: Path, wheel: Path) -> None:
    """Fail unless the wheel has every module of the tree and what its page is made of and nothing else, and the sdist
    what the wheel is made of."""
    tree = {
        str(Path(at, file).relative_to(ROOT))
        for at, _, files in os.walk(ROOT / "muster", followlinks=True)
        for file in files
        if file.endswith((".py", "py.typed")) or Path(at).name in {"static", "templates"}
    }
    page = "muster/coordinator/page/static/page.js"
    assert {"muster/py.typed", "muster/jobs/user_code/runner/runner.py", page} <= tree
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(f"muster_farm-{VERSION}.dist-info/")}
    assert names == tree, f"the wheel: {sorted(names ^ tree)}"
    with tarfile.open(sdist) as packed:
        packs = {name.partition("/")[2]: packed.getmember(name) for name in packed.getnames()}
    missing = (tree | {"setup.cfg", "pyproject.toml", "README.md", "LICENSE"}) - set(packs)
    assert not missing, f"the sdist lacks {sorted(missing)}"
    assert not any(one.issym() or one.islnk() for one in packs.values()), "links in the sdist"


def put_to_work(venv: Path, folder: Path) -> None:
    """From an empty folder: each command, the imports, and a farm whose result is compared with scikit-learn's."""
    program = venv / "bin"
    say("trying the commands and a farm")
    assert run(program / "muster", "--version", cwd=folder) == f"muster {VERSION}\n"
    assert run(program / "agent", "--help", cwd=folder).startswith("Usage: agent ")
    assert run(program / "python", "-c", NAMES, cwd=folder).startswith(str(venv))
    print(run(program / "python", ROOT / "docs" / "examples" / "demo.py", folder / "demo", cwd=folder), end="")
    planned = run(program / "coordinator", "plan", folder / "demo" / "job.yaml", cwd=folder)
    assert "embeddings" in planned, planned


def run(*command: str | Path, cwd: Path, seconds: float = SECONDS) -> str:
    """What a command prints, which knows nothing of this tree; its end other than well is ours."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MUSTER", "VIRTUAL"))}
    out, both = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, cwd=cwd, env=env, stdout=out, stderr=both, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise SystemExit(f"wheel: {' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def say(text: str) -> None:
    print(f"wheel: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
