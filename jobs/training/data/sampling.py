"""Which rows a virtual worker sees, and the noise it rounds with: from (seed, round, worker) alone. Holds no state."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROWS, NOISE, AUGMENT = 0, 1, 2
WEIGHTS = (1 << 62) + 1  # in place of a round, for streams that belong to none
SPLIT = WEIGHTS + 1


def bits_of(seed: int, round_: int, worker: int = 0, purpose: int = ROWS) -> np.random.PCG64:
    """The stream of raw bits for one purpose. Only raw bits are promised to be the same in every numpy."""
    return np.random.PCG64(np.random.SeedSequence((seed, round_, worker, purpose)))


def rows_of(source: np.random.PCG64, count: int, limit: int) -> Array:
    """`count` row numbers below `limit` (which is below 2**32), drawn with replacement."""
    raw = source.random_raw(count)
    raw >>= np.uint64(32)
    raw *= np.uint64(limit)
    raw >>= np.uint64(32)
    return raw.astype(np.int64)


def number_of(source: np.random.PCG64) -> int:
    """A seed for generators that are not ours, below 2**63."""
    return int(source.random_raw()) >> 1


def order_of(source: np.random.PCG64, count: int) -> Array:
    """A permutation of `count` rows."""
    return np.argsort(source.random_raw(count), kind="stable")


def normals_of(source: np.random.PCG64, count: int) -> Array:
    """`count` numbers of the standard normal distribution, as float32 (Box and Muller's way)."""
    half = (count + 1) // 2
    raw = (source.random_raw(2 * half) >> np.uint64(11)).astype(np.float64)
    radius = np.sqrt(-2 * np.log((raw[:half] + 1) * 2.0**-53))
    angle = raw[half:] * (2.0**-52 * np.pi)
    found: Array = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].astype(np.float32)
    return found
