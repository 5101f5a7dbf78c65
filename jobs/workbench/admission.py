"""Whether this machine computes what a kind computes: its problem with a known answer, judged. Solves nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from muster.jobs.contract.kind import Kind, RunnerLost
from muster.jobs.kinds import registry

if TYPE_CHECKING:
    import numpy as np

TOLERANCE = 1e-5  # of floats, by their size; where that is below one, as it is


class Unfit(RunnerLost):
    """This machine's answer to a problem of the kind is not the known one: it is to compute nothing of that kind."""


def admit(kind: Kind[Any]) -> tuple[str, str] | None:
    """An Unfit that says what is wrong. Integers are to be equal; last bits of floats may differ between machines. So
    digests of the problem and of this answer's bits are returned, for others to compare; None where nothing is known.
    """
    import numpy as np

    try:
        answers = kind.known_answers()
    except Exception as error:
        raise Unfit(f"a problem with a known answer ends with {type(error).__name__}: {error}") from None
    problem, bits = xxhash.xxh3_128(_c_library().encode()), xxhash.xxh3_128()
    for name, (found, right) in answers.items():
        known = np.asarray(right)
        limit = TOLERANCE * np.maximum(np.abs(known), 1.0) if known.dtype.kind == "f" else 0
        if found.shape != known.shape or not (np.abs(found - known) <= limit).all():
            off = f"by {np.abs(found - known).max():.3g}" if found.shape == known.shape else "in their shape"
            raise Unfit(f"{name} of a problem with a known answer are off {off}")
        problem.update(_as_bytes(name, known))
        bits.update(_as_bytes(name, found))
    return (problem.hexdigest(), bits.hexdigest()) if answers else None


def _c_library() -> str:
    """Its exp and log may round otherwise than another one's, and no fingerprint names it: such answers are to two
    problems, and are not compared."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError):
        return "another"


def _as_bytes(name: str, array: np.ndarray[Any, Any]) -> bytes:
    return f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes()


def answers(kinds: Iterable[str]) -> dict[str, tuple[str, str]]:
    """What `admit` returns of each kind of which something is known, and that this machine solves. What it does not
    is for its workers to find out and to say, so that no kind keeps a machine from joining."""
    found: dict[str, tuple[str, str]] = {}
    for name in kinds:
        with suppress(Exception):
            if answer := admit(registry.load(name)):
                found[name] = answer
    return found
