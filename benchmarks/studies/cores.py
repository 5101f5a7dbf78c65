"""Which cores of this machine a study's programs have, so that one core can be a machine. Measures nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_CORE = sorted(os.sched_getaffinity(0))


@contextmanager
def held_to(cores: int) -> Iterator[None]:
    """This thread, and all that it starts meanwhile, have the first cores alone."""
    os.sched_setaffinity(0, EVERY_CORE[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, EVERY_CORE)


def on_core(number: int) -> list[str]:
    """What to put before a command that is to have that core alone."""
    return ["taskset", "-c", str(EVERY_CORE[number])]
