"""The kinds that are installed here, found by name. Each is registered under the entry point group `muster.kinds`.

A kind is one file, and another package can add one.
"""

from __future__ import annotations

from typing import Any

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import Kind

GROUP = "muster.kinds"


def names() -> dict[str, str]:
    """Every kind installed here: its name and where its class is."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


def load(name: str) -> Kind[Any]:
    """The kind called `name`, or an error that names the nearest one."""
    from difflib import get_close_matches
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        near = get_close_matches(name, found, 1)
        hint = f"did you mean `kind: {near[0]}`?" if near else f"kinds here: {', '.join(sorted(found))}"
        raise JobFileError(f"kind: there is no kind {name!r}", hint)
    kind: Kind[Any] = found[name].load()()
    return kind


def kernels() -> dict[str, int]:
    """Each installed kind's kernel version. A kind that does not import is not there."""
    from importlib.metadata import entry_points

    versions = {}
    for point in entry_points(group=GROUP):
        try:
            versions[point.name] = int(point.load().kernel)
        except Exception:  # another package's kind must not keep ours from running
            continue
    return versions
