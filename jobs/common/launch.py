"""How programs of ours are started, whatever PATH and current folder are. Starts none."""

from __future__ import annotations

import sys

# `-m` would put the current folder, here anybody's, before our own packages
_START = "import sys; sys.path[:] = [p for p in sys.path if p]; from {0} import {1}; sys.exit({1}())"


def python(entry: str, *args: str) -> list[str]:
    """The command line that runs "module:function" (`main` where none is named) with `args` in this interpreter."""
    module, _, function = entry.partition(":")
    return [sys.executable, "-c", _START.format(module, function or "main"), *args]
