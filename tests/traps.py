"""Modules planted in a folder, called as ours and as what we use are: whoever imports one is told on, and fails."""

from __future__ import annotations

from pathlib import Path

NAMES = ("agent", "coordinator", "deploy", "jobs", "click", "msgspec", "numpy", "psutil", "ray", "signal", "yaml")
_TRAP = 'open(__file__ + ".sprung", "w").close()\nraise ImportError("planted")\n'


def plant(folder: Path, *names: str) -> Path:
    """All of them, if none is named."""
    folder.mkdir(parents=True)
    for name in names or NAMES:
        (folder / f"{name}.py").write_text(_TRAP)
    return folder


def sprung(folder: Path) -> list[str]:
    """Those that were imported."""
    return sorted(path.name.partition(".")[0] for path in folder.glob("*.sprung"))
