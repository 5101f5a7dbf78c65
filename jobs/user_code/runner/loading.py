"""Files loaded by their path: a user's, and those beside this one. For a runner: standard library, Python 3.8 or later;
nothing of ours. What a function is called with is no affair of this."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


class NoFunctionError(ValueError):
    """The user's code does not have what the job names."""


def named(folder: str, entry: str, what: str = "function") -> Any:
    """The module and the function that `work.py:name` names, in the user's folder; `what` it should be, for people."""
    file, _, name = entry.partition(":")
    module = module_of(Path(folder), file)
    function = getattr(module, name, None)
    if not callable(function):
        raise NoFunctionError(f"{file} has no {what} called {name!r}")
    return module, function


def module_of(folder: Path, file: str) -> Any:
    """The file under its own module name: `pkg.work` inside a package, else `work`, its own folder importable."""
    path = folder / file
    root, parts = path.parent, [path.stem]
    while root != folder and (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    sys.path[:0] = list(dict.fromkeys([str(folder), str(root)]))
    sys.argv = [str(path)]
    importlib.invalidate_caches()
    if len(parts) > 1:
        return importlib.import_module(".".join(parts))
    # By its path: a file called like a module that is loaded already would otherwise never be found.
    spec = importlib.util.spec_from_file_location(path.stem, str(path))
    if spec is None or spec.loader is None:
        raise NoFunctionError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def sibling(name: str) -> Any:
    """A file beside this one, whatever modules of its name there are."""
    spec = importlib.util.spec_from_file_location(name, str(Path(__file__).with_name(name + ".py")))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
