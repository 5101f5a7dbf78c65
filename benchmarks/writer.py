"""Rows into a layer by `LayerWriter`, beside the same rows through a buffer of 8 KiB, and as text.

    python -m benchmarks.writer [--mib 512] [--values 1024] [--runs 3]

A row of float32 is appended at a time; the file is synced at the end on each side. The peer is Python's `open` with a
buffer of 8 KiB, its default, and `row.tobytes()`. Text: a line of `repr` of each value, a hundredth of the rows.
`ratio`: our MiB of float32 per second over the peer's; `parts` has those of text, and over a buffer of 64 MiB.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
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


WAYS: dict[str, Callable[[Path, Array], None]] = {
    "LayerWriter": by_writer,
    "8KiB": by_buffer,
    "64MiB": partial(by_buffer, buffering=64 << 20),
    "text": as_text,
}


def rates_of(folder: Path, mib: int, values: int, runs: int) -> dict[str, list[float]]:
    """MiB of float32 a second, by each way in turn."""
    rows = random_rows(mib, values)
    sides = {name: partial(rate, write, folder / "layer.npy", given_to(name, rows)) for name, write in WAYS.items()}
    return alternate(runs, **sides)


def random_rows(mib: int, values: int) -> Array:
    return np.random.default_rng(1).normal(size=((mib << 18) // values, values)).astype("f4")


def given_to(way: str, rows: Array) -> Array:
    """Text takes so long that it gets fewer."""
    return rows[::LESS_TEXT] if way == "text" else rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mib", type=int, default=512)
    options.add_argument("--values", type=int, default=1024, help="of a row")
    options.add_argument("--runs", type=int, default=3)
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        best = {name: max(rates) for name, rates in rates_of(Path(folder), given.mib, given.values, given.runs).items()}
    ours, text = best["LayerWriter"], best["text"]
    parts = {
        "text MiB/s": round(text, 1),
        "over text": round(ours / text),
        "over 64 MiB": round(ours / best["64MiB"], 2),
    }
    report(ours, best["8KiB"], parts)


if __name__ == "__main__":
    main()
