"""What every worker finds in its environment, however it is started: one thread for arithmetic, and our module path."""

from __future__ import annotations

import os
from pathlib import Path

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def settings() -> dict[str, str]:
    """Workers are started in another folder than we: PYTHONPATH means the same there, but for an empty entry, which
    would be the current folder and is left out."""
    found = dict.fromkeys(THREADS, "1")
    if "PYTHONPATH" in os.environ:
        entries = os.environ["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in entries if entry)
    return found
