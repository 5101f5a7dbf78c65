"""Wheels for machines of tests that have no index of packages: what this version depends on, for several Pythons."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from muster.deploy import wheel

DOWNLOAD_SECONDS = 1800.0
NEWEST_GLIBC, OLDEST_GLIBC = 36, 17


def fill(folder: Path, pythons: list[str], *more: str) -> Path:
    """`folder` with them, and with what `more` asks for; a folder that was filled with the same is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / f"{'-'.join([*pythons, *more])}.filled"
    wanted = wheel.requirements(without="")
    if done.exists() and done.read_text() == wanted:
        return folder
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
    tags += [f"manylinux2014_{machine}", *([f"manylinux1_{machine}"] if machine == "x86_64" else [])]
    fits = [word for tag in tags for word in ("--platform", tag)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory(prefix="muster-wheel-") as made:
        for python in pythons:
            for one in (str(wheel.make(Path(made))), *more):
                which = ["--implementation", "cp", "--python-version", python, *fits, "--find-links", str(folder)]
                command = [*pip, *which, "--dest", str(folder), one]
                subprocess.run(command, check=True, timeout=DOWNLOAD_SECONDS)
    done.write_text(wanted)
    return folder
