"""Outputs as a job file declares them, for kinds that run what others wrote. Computes nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import BYTES, RESERVED
from muster.jobs.sources.formats import npy

_OUTPUT = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
AXES_LIMIT = 16  # of one row
Length = Annotated[int, Meta(ge=0, le=1 << 40)]


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output: of `rows` and `ragged` for one row or value, of `sum` for all."""

    dtype: str = ""
    shape: Annotated[list[Length], Meta(max_length=AXES_LIMIT)] = []
    form: Literal["rows", "ragged", "sum", "files"] = "rows"
    scale: float | None = None  # of a sum of floats


def check(
    outputs: Mapping[str, Declared] | None, reserved: Iterable[str] = (), forms: Collection[str] = ("rows",)
) -> None:
    """Refuse names, dtypes and forms that no result could have."""
    taken = {*RESERVED, *reserved}
    for name, output in (outputs or {}).items():
        if not _OUTPUT.fullmatch(name) or name in taken:
            raise JobFileError(f"params.outputs: {name[:80]!r} cannot be an output", "use letters, digits and `_`")
        if output.form not in forms:
            hint = f"one of {', '.join(forms)}" if len(forms) > 1 else "leave `form` out"
            raise JobFileError(f"params.outputs.{name}.form: {output.form} cannot be here", hint)
        _check_one(f"params.outputs.{name}", output)
    if sum(output.form == "files" for output in (outputs or {}).values()) > 1:
        raise JobFileError("params.outputs: files are one output", "write all of them into the one folder `out`")


def _check_one(path: str, output: Declared) -> None:
    if output.form == "files":
        if output.dtype or output.shape or output.scale is not None:
            raise JobFileError(f"{path}: files have no dtype, shape or scale", "{form: files}")
        return
    dtype = npy.canonical_dtype(output.dtype)
    if dtype is None:
        wrong = f"expected something like float32 or int64, got {output.dtype[:40]!r}"
        raise JobFileError(f"{path}.dtype: {wrong}", npy.DTYPES_HINT)
    floats = dtype[1] == "f"
    if (output.scale is not None) != (output.form == "sum" and floats):
        raise JobFileError(f"{path}.scale: what a sum of floats has, and nothing else", "scale: 1000000")
    if output.scale is not None and not 0 < output.scale < math.inf:
        raise JobFileError(f"{path}.scale: expected a number above 0", "sums are kept as round(x * scale)")
    if output.form == "ragged" and 0 in output.shape:
        raise JobFileError(f"{path}.shape: values without any number cannot be counted", "leave `shape` out")


def as_outputs(outputs: Mapping[str, Declared] | None) -> tuple[Output, ...] | None:
    """Checked ones, by name; None where the first shard is to tell."""
    if outputs is None:
        return None
    return tuple(_as_output(name, one) for name, one in sorted(outputs.items()))


def _as_output(name: str, one: Declared) -> Output:
    if one.form == "files":
        return Output(name, "files", BYTES)
    return Output(name, one.form, _little(one.dtype), tuple(one.shape), one.scale)


def _little(dtype: str) -> str:
    """As results are stored, whatever order the job file says."""
    name = npy.canonical_dtype(dtype)
    assert name is not None, "checked"
    return name.replace(">", "<")
