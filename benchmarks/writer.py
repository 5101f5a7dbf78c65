"""Rows into a layer by `LayerWriter`, beside the same rows through a buffer of 8 KiB, and as text.

    python -m benchmarks.writer [--mib 512] [--values 1024] [--runs 3]

A row of float32 is appended at a time; the file is synced at the end on each side. The peer is Python's `open` with a
buffer of 8 KiB, its default, and `row.tobytes()`. Text: a line of `repr` of each value, a hundredth of the rows.
`ratio`: our MiB of float32 per second over the peer's; `parts` has those of text.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import alternate, machine, report
from muster import LayerWriter

Array = np.ndarray[Any, Any]
BUFFER_BYTES = 8 << 10
LESS_TEXT = 100  # times fewer rows


def by_writer(path: Path, rows: Array) -> None:
    with LayerWriter(path, rows.shape[1:], rows.dtype) as layer:
        for row in rows:
            layer.append(row)


def by_buffer(path: Path, rows: Array, buffering: int = BUFFER_BYTES) -> None:
    with path.open("wb", buffering=buffering) as file:
        for row in rows:
            file.write(row.tobytes())
        file.flush()
        os.fsync(file.fileno())


def as_text(path: Path, rows: Array) -> None:
    with path.open("w") as file:
        for row in rows:
            file.write(" ".join(map(repr, row.tolist())) + "\n")
        file.flush()
        os.fsync(file.fileno())


def rate(write: Callable[[Path, Array], None], path: Path, rows: Array) -> float:
    """MiB of float32 a second; the file is gone afterwards."""
    began = time.monotonic()
    write(path, rows)
    took = time.monotonic() - began
    path.unlink()
    return float(rows.nbytes / 2**20 / took)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mib", type=int, default=512)
    options.add_argument("--values", type=int, default=1024, help="of a row")
    options.add_argument("--runs", type=int, default=3)
    given = options.parse_args()
    print(machine(), flush=True)
    rows = np.random.default_rng(1).normal(size=((given.mib << 18) // given.values, given.values)).astype("f4")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        path = Path(folder) / "layer.npy"
        rates = alternate(
            given.runs,
            ours=lambda: rate(by_writer, path, rows),
            peer=lambda: rate(by_buffer, path, rows),
            text=lambda: rate(as_text, path, rows[::LESS_TEXT]),
        )
    text = max(rates["text"])
    parts = {"text MiB/s": round(text, 1), "over text": round(max(rates["ours"]) / text)}
    report(max(rates["ours"]), max(rates["peer"]), parts)


if __name__ == "__main__":
    main()
