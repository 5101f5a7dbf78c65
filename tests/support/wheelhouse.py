"""Wheels for machines of tests that have no index of packages; and small ones, of which a test makes an index."""

from __future__ import annotations

import platform
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from muster.deploy import steps, wheel, wheelhouse
from muster.deploy.steps import MachineFacts

GLIBC = "2.36"


def fill(folder: Path, pythons: Sequence[str], *more: str) -> None:
    """`folder` with what `deploy wheels` fetches for machines such as this one, and with what `more` asks for; one that
    was filled with the same is left alone."""
    done = folder / f"{'-'.join([*pythons, *more])}.fetched"
    wanted = wheel.requirements(without="")
    if done.exists() and done.read_text() == wanted:
        return
    for python in pythons:
        here = MachineFacts(platform=f"Linux {platform.machine()} glibc {GLIBC}", pythons=((python, ""),))
        fit = steps.kind_of(here)
        assert fit is not None
        wheelhouse.fetch(folder, fit, *more)
    done.write_text(wanted)


def small(folder: Path, name: str, *requires: str) -> Path:
    """A wheel with nothing in it but what it requires."""
    info = f"{name.replace('-', '_')}-999.dist-info"
    lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 999\n{lines}",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    file = folder / f"{name.replace('-', '_')}-999-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for part, text in files.items():
            archive.writestr(f"{info}/{part}", text)
        archive.writestr(f"{info}/RECORD", "".join(f"{info}/{part},,\n" for part in (*files, "RECORD")))
    return file


def small_index(folder: Path, **requires: Sequence[str]) -> None:
    """One for each package that Muster wants; `requires`: of some, and others that these want."""
    folder.mkdir()
    for line in wheel.requirements(without="").splitlines():
        name = Requirement(line).name
        small(folder, name, *requires.pop(name, ()))
    for name, lines in requires.items():
        small(folder, name, *lines)
