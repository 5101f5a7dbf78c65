"""The fingerprint says what decides the bits, briefly, and loads no sklearn for it."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from muster.jobs.workbench import fingerprint as room
from muster.jobs.workbench.fingerprint import fingerprint


def test_it_names_the_kernels() -> None:
    text = fingerprint()
    assert f"numpy {np.__version__} " in text and f"sklearn {version('scikit-learn')}" in text
    assert platform.machine() in text and text.isprintable() and len(text) < 200
    assert platform.python_version() not in text


def test_it_does_not_change_while_threads_are_limited() -> None:
    before = fingerprint()
    with threadpool_limits(1):
        fingerprint.cache_clear()
        assert fingerprint() == before


def test_it_loads_no_sklearn() -> None:
    use = "from muster.jobs.workbench.fingerprint import fingerprint; fingerprint()"
    code = f"import sys; {use}; print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_missing_package_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert room._version("no-such-distribution") == "none"
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert room._blas() == "blas unknown"
