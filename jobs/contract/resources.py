"""What a job wants of a machine, such as `torch>=2`, what one lacks of it, and how to get it. Looks at no machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from muster.jobs.contract.plan import Environment

OPTIONAL = ("onnxruntime", "torch")  # packages that some jobs need, not every machine has


def canonical(name: str) -> str:
    """A distribution's name as all spellings of it come out."""
    return re.sub(r"[-_.]+", "-", name).lower()


def checked(requirement: str) -> str:
    """In one spelling; a ValueError for what is no requirement."""
    from packaging.requirements import InvalidRequirement, Requirement

    shown = repr(requirement[:60])
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement as error:
        raise ValueError(f"expected such as torch>=2, got {shown}: {str(error).splitlines()[0]}") from None
    if parsed.url or parsed.marker or parsed.extras:
        raise ValueError(f"expected a name and perhaps versions, such as torch>=2, got {shown}")
    return f"{canonical(parsed.name)}{parsed.specifier}"


def lacking(there: Environment, wanted: Iterable[str]) -> dict[str, str]:
    """Requirement not met → the version that is there, "" for none."""
    from packaging.requirements import Requirement

    found = {}
    for text in wanted:
        requirement = Requirement(text)
        version = there.packages.get(canonical(requirement.name))
        if version is None or not _is_in(version, text):
            found[text] = version or ""
    return found


def _is_in(version: str, requirement: str) -> bool:
    """A version is what a machine says, and may be anything."""
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion

    specifier = Requirement(requirement).specifier
    try:
        return not specifier or specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def pip_line(package: str, python: str = "python") -> str:
    """The command that installs a package for the interpreter `python`; by its own name, as ours may be another's."""
    return f"{python} -m pip install {package}"


def limits_said(kinds: Sequence[str], *, no_code: bool) -> str:
    """What a machine was told to leave alone, for people; "" where that is nothing."""
    taken = [f"takes {', '.join(kinds)} alone"] if kinds else []
    return "; ".join([*taken, *(["runs no code of others"] if no_code else [])])


def apart(here: str, there: str) -> str:
    """What differs between two kernel fingerprints, for people: `numpy 2.4.5 AVX2 here, numpy 2.4.6 AVX2 there`."""
    mine, theirs = here.split(", "), there.split(", ")
    odd = [item for item in mine if item not in theirs], [item for item in theirs if item not in mine]
    return f"{', '.join(odd[0]) or 'nothing'} here, {', '.join(odd[1]) or 'nothing'} there"
