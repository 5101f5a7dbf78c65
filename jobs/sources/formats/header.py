"""What a file says of an array in it: dtype, shape, where its bytes lie; which of that can be rows. Reads no file."""

from __future__ import annotations

import math
from typing import NamedTuple

from muster.jobs.common.errors import SourceError
from muster.jobs.common.validation import one_line

AXES_LIMIT = 32
NAME_CHARS = 80  # of an array's name, in an error


class Header(NamedTuple):
    """An array in a file, once checked against the file's size."""

    dtype: str  # canonical, or `muster.jobs.contract.plan.BF16`
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype[-1])


class NoRows(SourceError):
    """A single value, or none at all: nothing that could be cut into rows."""


class Member(NamedTuple):
    """One of the arrays in a file that may have several, or why it can be no layer."""

    name: str
    header: Header | SourceError


def check_rows(shape: tuple[int, ...], where: str) -> None:
    """Refuse what has no rows."""
    if not shape:
        raise NoRows(f"{where}: a single value, without rows", "save `array.reshape(1)` or an array of rows")
    if 0 in shape:
        raise NoRows(f"{where}: empty: its shape is {shape}", "leave it out, or save an array that has rows")


def named(where: str, name: str) -> str:
    """What an error about an array in a file begins with."""
    return f"{where}: {one_line(name[:NAME_CHARS])}"


def check_spans(spans: list[tuple[int, int, str]], end: int, where: str) -> None:
    """Refuse arrays of which two have bytes in common, or that go on behind the file's `end`. Spans are the first byte,
    the byte behind the last one, and a name."""
    at, before = 0, ""
    for first, last, name in sorted(spans):
        if first < at:
            raise SourceError(f"{named(where, name)} and {one_line(before[:NAME_CHARS])} overlap", "write it again")
        at, before = last, name
        if last > end:
            raise SourceError(f"{named(where, name)} ends {last - end} bytes behind the file", "copy or write it again")
