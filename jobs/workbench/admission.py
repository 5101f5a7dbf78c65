"""Whether this machine computes what a kind computes: its problem with a known answer, judged. Solves nothing."""

from __future__ import annotations

from typing import Any

from muster.jobs.contract.kind import Kind, RunnerLost

TOLERANCE = 1e-5  # of floats, by their size; where that is below one, as it is


class Unfit(RunnerLost):
    """This machine's answer to a problem of the kind is not the known one: it is to compute nothing of that kind."""


def admit(kind: Kind[Any]) -> None:
    """An Unfit that says what is wrong. Integers are to be equal; last bits of floats may differ between machines."""
    import numpy as np

    try:
        answers = kind.known_answers()
    except Exception as error:
        raise Unfit(f"a problem with a known answer ends with {type(error).__name__}: {error}") from None
    for name, (found, right) in answers.items():
        known = np.asarray(right)
        limit = TOLERANCE * np.maximum(np.abs(known), 1.0) if known.dtype.kind == "f" else 0
        if found.shape != known.shape or not (np.abs(found - known) <= limit).all():
            off = f"by {np.abs(found - known).max():.3g}" if found.shape == known.shape else "in their shape"
            raise Unfit(f"{name} of a problem with a known answer are off {off}")
