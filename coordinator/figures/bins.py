"""What happened to a job over time, a row a machine, in bins whose width doubles whenever they are full. Pure.

A row keeps a few hundred numbers however long its job runs. All rows of a job share its axis: time since its first
grant, and one width.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from math import floor

# Of what happened in a bin.
SUMS = ("lent", "busy", "waiting", "paused", "in_bytes", "out_bytes", "committed", "failed")
LARGEST = ("memory",)  # of which the most that was seen counts
COLUMNS_MOST, COLUMNS_LEAST = 240, 32
CELLS = 90_000  # columns of all machines' rows together: with four bytes a cell of nine kinds, some 3.3 MB
SECONDS_MOST = 1e10


def columns_for(machines: int) -> int:
    """How many bins a row may have."""
    return max(COLUMNS_LEAST, min(COLUMNS_MOST, CELLS // max(1, machines)))


class Row:
    """The bins of one machine; a kind of number that was never anything but 0 takes no room."""

    def __init__(self, kept: Mapping[str, bytes] | None = None) -> None:
        self.values: dict[str, array[float]] = {}
        for name, raw in (kept or {}).items():
            if name in SUMS + LARGEST:
                self.values[name] = _unpacked(raw)

    def packed(self) -> dict[str, bytes]:
        """Little-endian float32."""
        return {name: _packed(values) for name, values in self.values.items()}

    def add(self, name: str, first: float, last: float, amount: float) -> None:
        """Spread an amount evenly from `first` to `last`, in bins from the axis's beginning; to one bin if equal."""
        if amount <= 0:
            return
        first, last = max(0.0, first), max(0.0, first, last)
        low, high = floor(first), floor(last)
        values = self._reaching(name, high)
        if low == high:
            values[low] += amount
            return
        density = amount / (last - first)
        values[low] += density * (low + 1 - first)
        for column in range(low + 1, high):
            values[column] += density
        values[high] += density * (last - high)

    def raise_to(self, name: str, at: float, amount: float) -> None:
        """Something was seen to be so much."""
        if amount > 0:
            values = self._reaching(name, floor(max(0.0, at)))
            column = floor(max(0.0, at))
            values[column] = max(values[column], amount)

    def _reaching(self, name: str, column: int) -> array[float]:
        values = self.values.setdefault(name, array("f"))
        if len(values) <= column:
            values.extend([0.0] * (column + 1 - len(values)))
        return values

    def widen(self) -> None:
        """Merge neighbours."""
        for name, values in self.values.items():
            if len(values) % 2:
                values.append(0.0)
            pairs = zip(values[::2], values[1::2], strict=True)
            self.values[name] = array("f", (max(a, b) if name in LARGEST else a + b for a, b in pairs))


class Axis:
    """One job's time, and its machines' rows."""

    def __init__(self, width: float = 1.0, rows: Mapping[str, Row] | None = None) -> None:
        self.width = width  # seconds of a bin
        self.rows: dict[str, Row] = dict(rows or {})

    def row(self, machine: str, until: float) -> Row:
        """The machine's row, with room for what happens `until` so many seconds after the beginning."""
        if machine not in self.rows:
            self.rows[machine] = Row()
        self.fit(until)
        return self.rows[machine]

    def fit(self, until: float) -> bool:
        """Widen all rows until a moment is on the axis. Whether that was needed."""
        columns, until, before = columns_for(len(self.rows)), min(until, SECONDS_MOST), self.width
        while until >= columns * self.width:
            self.width *= 2
            for row in self.rows.values():
                row.widen()
        return self.width != before

    def add(self, machine: str, name: str, first: float, last: float, amount: float) -> None:
        """Spread an amount over some seconds since the beginning."""
        row = self.row(machine, max(first, last))
        row.add(name, first / self.width, last / self.width, amount)

    def raise_to(self, machine: str, name: str, at: float, amount: float) -> None:
        self.row(machine, at).raise_to(name, max(0.0, at) / self.width, amount)


def _packed(values: array[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _unpacked(raw: bytes) -> array[float]:
    count = len(raw) // 4
    return array("f", struct.unpack_from(f"<{count}f", raw))
