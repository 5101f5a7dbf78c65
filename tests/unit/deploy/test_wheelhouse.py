"""Wheels for machines without an index of packages: all that another Python wants, and what fits a machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.deploy import wheel, wheelhouse
from muster.deploy.steps import WheelFit
from muster.jobs.common.errors import LinkError
from tests.support.wheelhouse import small, small_index

OTHER = "3.10" if sys.version_info[:2] != (3, 10) else "3.12"
FIT = WheelFit("x86_64", OTHER, ("manylinux_2_28_x86_64", "manylinux2014_x86_64"))


def names(folder: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in folder.iterdir()}


def test_what_packages_want_in_the_python_there_is_fetched_and_what_these_want_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = f'python_version == "{OTHER}"'
    small_index(
        tmp_path / "index",
        uvicorn=[f'older[all]>=2; {there} and sys_platform == "linux"', 'never; python_version < "3.0"'],
        older=[f"oldest; {there}", 'more; extra == "all"', 'other; extra == "none"'],
        oldest=['last; python_full_version >= "3.10.1"'],
        more=[], last=["older"], never=[], other=[],
    )  # fmt: skip
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    wheelhouse.fetch(tmp_path / "wheels", FIT)
    asked = {line.partition(">")[0].replace("-", "_") for line in wheel.requirements(without="").splitlines()}
    assert names(tmp_path / "wheels") == asked | {"older", "oldest", "more", "last"}
    wheelhouse.fetch(tmp_path / "wheels", FIT, "other")
    assert names(tmp_path / "wheels") == asked | {"older", "oldest", "more", "last", "other"}


def test_what_there_is_not_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_index(tmp_path / "index", uvicorn=[f'gone; python_version == "{OTHER}"'])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    with pytest.raises(LinkError, match=f"pip cannot fetch for Python {OTHER} on x86_64: .*gone"):
        wheelhouse.fetch(tmp_path / "wheels", FIT)
    assert names(tmp_path / "wheels") == set()


def test_pip_takes_a_small_wheel_for_one(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index"]
    made = small(tmp_path, "some-thing")
    subprocess.run([*pip, "--target", tmp_path / "there", made], check=True, capture_output=True, timeout=120)


def test_of_a_wheelhouse_a_machine_gets_what_fits_it() -> None:
    wheels = [
        "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "a-1-cp312-cp312-manylinux_2_17_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_17_aarch64.whl",
        "a-1-cp311-cp311-musllinux_1_2_x86_64.whl",
        "b-1-cp37-abi3-manylinux_2_28_x86_64.whl",
        "c-1-py3-none-any.whl",
        "d-1-py3-none-manylinux1_x86_64.whl",
        "notes.whl",
    ]
    platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux1_x86_64")
    taken = wheelhouse.fitting([Path(name) for name in wheels], "3.11", platforms)
    assert [str(one) for one in taken] == [wheels[0], *wheels[4:7]]
