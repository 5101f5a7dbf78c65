"""What becomes a session: the fields of its job, what it needs of machines, why there is none. Sends nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from muster.coordinator.client.backends.base import Backend
from muster.coordinator.client.calls.errors import NoAgentError
from muster.jobs.common.errors import UsageError
from muster.jobs.contract.requirements import canonical, named
from muster.jobs.kinds.calls import INSIDE

SHIPS, RESULTS = ("text", "pickle"), ("known", "any")
SHOWN = 5  # machines that are named in an error


def check(ship: str, results: str, more: Collection[str] = ()) -> None:
    """Refuse what cannot be, before anything is sent. `more`: other arguments that are given."""
    if "max_workers" in more:
        raise UsageError(
            "max_workers: a farm makes as many calls at once as its machines have slots",
            "leave it out; `at_once` is how many batches may run at the most",
        )
    if ship not in SHIPS:
        raise UsageError(f"ship={ship!r}: expected 'text' or 'pickle'", "ship='text' sends source and plain values")
    if results not in RESULTS:
        raise UsageError(f"results={results!r}: expected 'known' or 'any'", "'known' opens plain values and arrays")
    if results == "any" and ship == "text":
        raise UsageError("results='any' is of pickles, and the session has ship='text'", "leave `results` out")
    if ship == "pickle" and find_spec("cloudpickle") is None:
        raise UsageError("ship='pickle' wants cloudpickle, which is not here", "python -m pip install cloudpickle")
    if os.environ.get(INSIDE):
        raise UsageError(
            "a call opens a session of its own: it would wait for the slot that it has itself",
            "return what is to be called next, and call it from where the session is",
        )


def fields(ship: str, packages: str | Sequence[str], linger: float, more: Mapping[str, Any]) -> dict[str, Any]:
    """Of the job file."""
    wanted = listed(packages) if ship == "text" else pinned(listed(packages))
    given = {"kind": "calls", "params": {"ship": ship, "linger": linger}, "packages": wanted or None, **more}
    return {name: value for name, value in given.items() if value is not None}


def listed(names: str | Sequence[str]) -> list[str]:
    """One name, or several."""
    return [names] if isinstance(names, str) else [*names]


def pinned(packages: Sequence[str]) -> list[str]:
    """What a pickle of this process can be opened with: this Python, and each package as it is here where no version is
    said."""
    major, minor, _ = platform.python_version_tuple()
    found = {"python": f"python=={major}.{minor}.*", "cloudpickle": "cloudpickle"}
    found["numpy"] = f"numpy=={metadata.version('numpy').partition('.')[0]}.*"
    for text in packages:
        name = named(text)
        found[name] = text if canonical(text) != name else f"{name}=={_version(name)}"
    return list(found.values())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise UsageError(f"packages: there is no {package} here", "name packages that are installed here") from None


def no_agent(place: Backend, job: str, seconds: float) -> NoAgentError:
    """Who is there, and what each lacks."""
    there = [one for one in place.agents() if one.state == "live"]
    if not there:
        return NoAgentError(f"no machine of {place} is at work", "join one with `agent join`, then open it again")
    lacks = [f"{one.name}: {one.ineligible.get(job, 'it lends no processor now')}" for one in there]
    more = f"; and {len(lacks) - SHOWN} more" if len(lacks) > SHOWN else ""
    return NoAgentError(f"no machine suits {job} within {seconds:g} s: {'; '.join(lacks[:SHOWN])}{more}")
