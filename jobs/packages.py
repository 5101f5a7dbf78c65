"""Packages that some jobs need and not every machine has: which are here, and how to get the others. Imports none."""

from __future__ import annotations

PIP = {"onnxruntime": "muster[onnx]", "torch": "muster[torch]"}


def installed() -> list[str]:
    """Those of them that can be imported here."""
    from importlib.util import find_spec

    return [name for name in sorted(PIP) if find_spec(name) is not None]


def pip_line(name: str) -> str:
    """How to install it."""
    return f"pip install '{PIP.get(name, name)}'"
