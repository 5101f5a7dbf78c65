"""What a view is made of, and what of it is new to a browser: blocks of markup with cells that change. Pure.

A block's skeleton changes where rows come or go; else only cells do, and only those travel that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec


class Block(NamedTuple):
    """Markup whose elements with the ids NAME.0, NAME.1, … are empty, and what belongs into each of them."""

    name: str
    skeleton: str
    cells: Sequence[str]


def changes(known: Mapping[str, Block], now: Sequence[Block]) -> dict[str, Any]:
    """What makes what a browser knows into what is so now; empty where nothing is new. With other blocks than before
    all begins anew, in the `order` that is given."""
    names = [block.name for block in now]
    found: dict[str, Any] = {}
    if list(known) != names:
        known, found = {}, {"order": names}
    whole, cells = {}, {}
    for block in now:
        old = known.get(block.name)
        if old is None or old.skeleton != block.skeleton or len(old.cells) != len(block.cells):
            whole[block.name] = [block.skeleton, list(block.cells)]
        else:
            pairs = enumerate(zip(old.cells, block.cells, strict=True))
            cells.update({f"{block.name}.{i}": after for i, (before, after) in pairs if before != after})
    if whole:
        found["whole"] = whole
    if cells:
        found["cells"] = cells
    return found


def event(change: Mapping[str, Any]) -> bytes:
    """A server-sent event with one line of JSON."""
    return b"data: " + msgspec.json.encode(change) + b"\n\n"
