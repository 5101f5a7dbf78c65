"""Environments for users' code: what an interpreter tells of itself, and what a job may want of it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from muster.jobs.common.errors import RefusedError, UsageError
from muster.jobs.contract.plan import Environment
from muster.jobs.contract.requirements import checked, lacking
from muster.jobs.user_code import environments

HERE = Environment("3.11.2", {"numpy": "2.1.3", "torch": "2.0.1+cpu", "odd": "not a version", "my-tool": "0.9"})


def test_an_interpreter_tells_its_version_and_its_packages() -> None:
    found = environments.probe("own", sys.executable)
    assert found.packages["numpy"] == np.__version__
    assert found.python == environments.own().python
    assert found.packages["pytest"] == environments.own().packages["pytest"]


def test_what_its_start_prints_is_no_part_of_the_answer(tmp_path: Path) -> None:
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\necho hello there\nexec {sys.executable} "$@"\n')
    noisy.chmod(0o700)
    assert environments.probe("noisy", str(noisy)).packages["numpy"]


@pytest.mark.parametrize(
    ("script", "words"),
    [("exit 0", "is no Python"), ("echo '{}' >&2; echo nonsense; exit 3", "is no Python: {} nonsense")],
)
def test_what_is_no_python_is_refused(tmp_path: Path, script: str, words: str) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "python").chmod(0o700)
    with pytest.raises(RefusedError, match=words):
        environments.probe("odd", str(tmp_path / "python"))


def test_a_python_without_numpy_is_refused_with_what_to_do(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # no site-packages
    bare.chmod(0o700)
    with pytest.raises(RefusedError, match="has no numpy") as refused:
        environments.probe("bare", str(bare))
    assert refused.value.hint == f"{bare} -m pip install numpy"


def test_an_environment_is_named_by_its_interpreter_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "nlp" / "bin").mkdir(parents=True)
    link = tmp_path / "nlp" / "bin" / "python"
    link.symlink_to(sys.executable)
    assert environments.parse(f"nlp={link}") == ("nlp", str(link)), "the link itself: it makes the venv"
    assert environments.parse(f"nlp={tmp_path / 'nlp'}") == ("nlp", str(link))
    on_path = shutil.which("sh")
    assert environments.parse("sh=sh") == ("sh", on_path)


@pytest.mark.parametrize("text", ["nlp", "nlp=", "=python", "a b=python", "nlp=/no/such/python", "a/b=python"])
def test_what_names_no_environment_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        environments.parse(text)


def test_another_interpreter_gets_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "RAY_X", "KEPT"):
        monkeypatch.setenv(name, "x")
    theirs = environments.variables("/opt/nlp/bin/python")
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "RAY_X"} & theirs.keys() and theirs["KEPT"] == "x"
    assert theirs["PATH"].startswith(f"/opt/nlp/bin{os.pathsep}")
    assert environments.variables(sys.executable)["PYTHONPATH"] == "x"


def test_users_code_gets_neither_keys_nor_tokens_nor_the_places_of_our_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_CONNECTION", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", "MUSTER_ROOT"}
    hidden |= {"GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY", "PYTHONBREAKPOINT"}
    for name in (*hidden, "HF_TOKEN", "MUSTER_SEAT"):
        monkeypatch.setenv(name, "x")
    for python in ("/opt/nlp/bin/python", sys.executable):
        seen = environments.variables(python)
        assert not hidden & seen.keys()
        assert seen["HF_TOKEN"] == "x", "what its owner gave it"
        assert seen["MUSTER_SEAT"] == "x", "by which a runner that outlives its worker is found"


@pytest.mark.parametrize(
    ("text", "meant"),
    [("torch", "torch"), ("Torch >= 2", "torch>=2"), ("My_Tool<1,>0.5", "my-tool<1,>0.5"), ("a.b==1.*", "a-b==1.*")],
)
def test_requirements_have_one_spelling(text: str, meant: str) -> None:
    assert checked(text) == meant


@pytest.mark.parametrize("text", ["", "torch>=", "torch[cuda]", "torch; python_version>'3'", "a @ file:///x", "-r x"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        checked(text)


def test_what_came_to_an_environment_counts_and_what_was_there_stands() -> None:
    known = {"": Environment("3.11", {"numpy": "1.0"}), "nlp": Environment("3.9", {"numpy": "1.1"})}
    seen = {"": Environment("3.11", {"numpy": "2.0", "torch": "2.1"})}
    assert environments.grown(known, seen) == {
        "": Environment("3.11", {"numpy": "1.0", "torch": "2.1"}),
        "nlp": known["nlp"],
    }


def test_what_an_environment_lacks_is_told_with_what_it_has() -> None:
    wanted = ["torch>=2", "torch>=2.1", "numpy", "odd", "odd>=1", "my-tool<1", "absent"]
    assert lacking(HERE, wanted) == {"torch>=2.1": "2.0.1+cpu", "odd>=1": "not a version", "absent": ""}
