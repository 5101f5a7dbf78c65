"""Outputs as a job file declares them, for kinds that run what others wrote. Computes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from jobs import npy
from jobs.errors import JobFileError
from jobs.model import Output
from jobs.parts import RESERVED

_OUTPUT = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
AXES_LIMIT = 16  # of one row
Length = Annotated[int, Meta(ge=0, le=1 << 40)]


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output, for one row."""

    dtype: str
    shape: Annotated[list[Length], Meta(max_length=AXES_LIMIT)] = []


def check(outputs: Mapping[str, Declared] | None, reserved: Iterable[str] = ()) -> None:
    """Refuse names and dtypes that no result could have."""
    taken = {*RESERVED, *reserved}
    for name, output in (outputs or {}).items():
        if not _OUTPUT.fullmatch(name) or name in taken:
            raise JobFileError(f"params.outputs: {name[:80]!r} cannot be an output", "use letters, digits and `_`")
        if npy.canonical_dtype(output.dtype) is None:
            wrong = f"expected such as float32 or int64, got {output.dtype[:40]!r}"
            raise JobFileError(f"params.outputs.{name}.dtype: {wrong}", npy.DTYPES_HINT)


def as_outputs(outputs: Mapping[str, Declared] | None) -> tuple[Output, ...] | None:
    """Checked ones, by name; None where the first shard is to tell."""
    if outputs is None:
        return None
    return tuple(Output(name, "rows", _little(one.dtype), tuple(one.shape)) for name, one in sorted(outputs.items()))


def _little(dtype: str) -> str:
    """As results are stored, whatever order the job file says."""
    name = npy.canonical_dtype(dtype)
    assert name is not None, "checked"
    return name.replace(">", "<")
