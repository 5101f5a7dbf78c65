"""Ray in an environment of its own, of another version or for another Python: as a cluster has it that is not ours.
Fetches it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.needs import skip_for

INSTALL_SECONDS = 600.0


def python_of(version: str) -> str:
    """An interpreter such as 3.12; skips where this machine has none."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")) or sorted(
        Path("/usr/bin").glob(f"python{version}")
    )
    if not found:
        skip_for(f"there is no Python {version}", fails_in_ci=False)
    return str(found[-1])


def made(python: str, ray: str, folder: Path) -> str:
    """Its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    made = str(folder / "bin" / "python")
    subprocess.run([made, "-m", "pip", "install", "--quiet", f"ray=={ray}"], check=True, timeout=INSTALL_SECONDS)
    return made
