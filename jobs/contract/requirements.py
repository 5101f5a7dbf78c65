"""What a job wants of a machine, such as `torch>=2`, what one lacks of it, and how to get it. Looks at no machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from muster.jobs.contract.plan import Environment

COMMON = ("jax", "numba", "onnxruntime", "scipy", "tensorflow", "torch")  # what users' numerics often rest on
OPTIONAL = ("onnxruntime", "torch")  # packages that some jobs need, not every machine has
PYTHON = "python"  # among packages: the version of the interpreter itself


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
        raise ValueError(f"expected something like torch>=2, got {shown}: {str(error).splitlines()[0]}") from None
    if parsed.url or parsed.marker or parsed.extras:
        raise ValueError(f"expected a name and perhaps versions, such as torch>=2, got {shown}")
    return f"{canonical(parsed.name)}{parsed.specifier}"


def lacking(there: Environment, wanted: Iterable[str]) -> dict[str, str]:
    """Requirement not met → the version that is there, "" for none."""
    from packaging.requirements import Requirement

    found = {}
    for text in wanted:
        requirement = Requirement(text)
        name = canonical(requirement.name)
        version = there.python if name == PYTHON else there.packages.get(name)
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


def named(requirement: str) -> str:
    """The package that a requirement is of."""
    from packaging.requirements import Requirement

    return canonical(Requirement(requirement).name)


def rest_of(env: str | None, there: Environment | None, rests_on: Iterable[str] | None) -> str:
    """What a fingerprint says after a machine's own numpy, BLAS and scikit-learn: `, torch 2.9.1`, as far as these are
    there; and where code runs in an environment, its Python and numpy: `, nlp python 3.11.4, nlp numpy 1.26.4`."""
    if rests_on is None:
        return ""
    if there is None:
        return f", {env or 'packages'} not known"
    if env is None:
        versions = {name: there.packages.get(name) for name in rests_on if name not in ("numpy", "scikit-learn")}
        return "".join(f", {name} {version}" for name, version in versions.items() if version)
    found = {name: there.packages.get(name) for name in ("numpy", *rests_on)}
    return "".join(f", {env} {name} {one}" for name, one in [("python", there.python), *found.items()] if one)


def apart(here: str, there: str) -> str:
    """What differs between two kernel fingerprints, for people: `numpy 2.4.5 AVX2 here, numpy 2.4.6 AVX2 there`."""
    mine, theirs = here.split(", "), there.split(", ")
    odd = [item for item in mine if item not in theirs], [item for item in theirs if item not in mine]
    return f"{', '.join(odd[0]) or 'nothing'} here, {', '.join(odd[1]) or 'nothing'} there"
