"""What requests and answers on the local socket are made of: bounded names, numbers and states. Values only."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from muster.coordinator.protocol.values import Count

JobId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\.[1-9][0-9]{0,8}$")]
LayerName = Annotated[str, Meta(max_length=512)]
LayerNames = Annotated[list[LayerName], Meta(max_length=65_536)]
Created = Annotated[list[tuple[Count, bytes]], Meta(max_length=65_536)]  # shard number, payload
Submission = Annotated[str, Meta(pattern=r"^submit-[0-9a-f]{8,64}$")]
BundleFile = Annotated[str, Meta(pattern=r"^[0-9]{1,12}-[0-9]{1,12}\.part$")]
Weight = Annotated[int, Meta(ge=1, le=1000)]
Sheet = Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
# How many there are in each bucket of `muster.coordinator.figures.histogram`
Histogram = Annotated[dict[Annotated[int, Meta(ge=-1024, le=1024)], Count], Meta(max_length=2049)]
FAILURES_LIMIT = 500  # in one answer: with the evidence's own limit it stays below a frame's
LARGEST = 1 << 53  # of a Count
LONGEST = 1e10  # of Seconds
_NUMBERS = (int, float)
_S = TypeVar("_S", bound=msgspec.Struct)


def bounded(value: _S) -> _S:
    """The same, no number of it beyond what the wire takes: machines report what they like, and it is added up."""
    for number in msgspec.structs.astuple(value):  # a plain loop, as all machines of a farm may be told of at once
        if type(number) in _NUMBERS and number > LONGEST:
            return _cut(value)
    return value


def _cut(value: _S) -> _S:
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    large: dict[str, float] = {name: LARGEST for name, n in fields.items() if isinstance(n, int) and n > LARGEST}
    large |= {name: LONGEST for name, n in fields.items() if isinstance(n, float) and n > LONGEST}
    return msgspec.structs.replace(value, **large)
