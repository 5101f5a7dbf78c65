"""Floats as fixed-point integers of 32, 16 or 8 bits, and those as bytes. Knows no round, no worker, no model."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from muster.jobs.training.aggregation import fixed_point

Array = np.ndarray[Any, Any]
DTYPES: dict[int, np.dtype[Any]] = {8: np.dtype("i1"), 16: np.dtype("<i2"), 32: np.dtype("<i4")}
COMPRESSION = 1  # zlib's level: 2 and more cost more time than a 1 Gbit/s link takes for what they save
HEADROOM = {8: 1.25, 16: 2.0, 32: 4.0}  # room above the largest value seen of late
GUESS = {8: 1.0, 16: 4.0, 32: 16.0}  # that the first scale has room for, in the mean of a worker's rows
COARSE = {8: 4, 16: 64, 32: 4096}  # a first guess that wastes more than this factor of the range is not worth a round
EXPONENTS = 96  # of two: scales beyond would leave float32
NOISE_UNIT = np.float32(2.0**-16)
REMEMBERED = 8  # rounds, or pushes


class BadValues(ValueError):
    """Bytes or numbers that no peer of ours would send."""


class Quantiser:
    """Rounds vectors of one length; its buffers are used again, and so is what it returns."""

    def __init__(self, dim: int, bits: int, limit: int) -> None:
        self._bits = bits
        self._limit = limit
        self._floats = np.empty(dim, np.float32)
        self._integers = np.empty(dim, DTYPES[bits])

    def rounded(self, values: Array, scale: float, peak: float, noise: np.random.PCG64 | None) -> Array:
        """round(values * scale), clipped where `peak`, their largest, passes the limit; with `noise` by chance."""
        scaled, integers = self._floats[: len(values)], self._integers[: len(values)]
        np.multiply(values, np.float32(scale), out=scaled)
        if noise is not None:
            scaled += _chances(noise, len(values))
            np.floor(scaled, out=scaled)
        else:
            np.rint(scaled, out=scaled)
        if saturates(peak, scale, self._bits, self._limit):
            np.clip(scaled, -_floored(self._limit), _floored(self._limit), out=scaled)
        np.copyto(integers, scaled, casting="unsafe")
        return integers


def _chances(noise: np.random.PCG64, count: int) -> Array:
    """`count` numbers in [0, 1), each a multiple of 2**-16."""
    raw: Array = noise.random_raw((count + 3) // 4).astype("<u8", copy=False).view("<u2")[:count]
    chances: Array = raw * NOISE_UNIT
    return chances


def _floored(limit: int) -> Any:
    """The largest float32 that is not above."""
    near = np.float32(limit)
    return near if int(near) <= limit else np.nextafter(near, np.float32(0))


def peak_of(values: Array) -> float:
    """The largest magnitude; NaN where there is one."""
    return float(max(values.max(), -values.min())) if len(values) else 0.0


def saturates(peak: float, scale: float, bits: int, limit: int) -> bool:
    """Whether a value of this magnitude may pass the limit, rounded up by chance or not. In float32, as rounding is."""
    scaled = float(np.float32(peak) * np.float32(scale))
    return not (np.ceil(scaled) if bits == 8 else np.rint(scaled)) <= limit


def scale_for(peak: float, bits: int, limit: int) -> float:
    """The scale that leaves room above `peak`."""
    return finest_scale(limit / (peak * HEADROOM[bits]), bits) if peak > 0 else 1.0


def finest_scale(wanted: float, bits: int) -> float:
    """The largest up to that; for 16 and 32 bits a power of two, which itself loses nothing."""
    wanted = min(max(wanted, 2.0**-EXPONENTS), 2.0**EXPONENTS)
    return float(np.float32(wanted)) if bits == 8 else float(2.0 ** np.floor(np.log2(wanted)))


def pack(values: Array) -> bytes:
    """Integers as bytes; 8 bits compress well."""
    raw = values.astype(DTYPES[values.dtype.itemsize * 8], copy=False)
    return zlib.compress(raw.data, COMPRESSION) if raw.itemsize == 1 else raw.tobytes()


def unpack(data: bytes | memoryview, dim: int, bits: int, most: int) -> Array:
    """What `pack` made of `dim` integers of at most this magnitude; anything else is BadValues."""
    dtype = DTYPES[bits]
    raw = _inflated(data, dim) if bits == 8 else data
    if len(raw) != dim * dtype.itemsize:
        raise BadValues(f"{len(raw)} bytes where {dim} integers of {bits} bits were expected")
    values = np.frombuffer(raw, dtype)
    check(values, most)
    return values


def check(values: Array, most: int) -> None:
    """Refuse integers no sum of ours can be."""
    if len(values) and (int(values.max()) > most or int(values.min()) < -most):
        raise BadValues(f"a sum beyond {most}, the most its parts can come to")


def _inflated(data: bytes | memoryview, length: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, length + 1)
    except zlib.error as error:
        raise BadValues(f"no zlib stream: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise BadValues("a zlib stream that is cut, or has something behind it")
    return raw


class Scale:
    """One segment's scale. The first is a guess, and the work done again where it turns out coarse or saturated."""

    def __init__(self, bits: int, limit: int, samples: int) -> None:
        """`samples`: rows behind one virtual worker's sum."""
        self.peaks: list[float] = []
        self.value = fixed_point.finest_scale(limit / (samples * fixed_point.GUESS[bits]), bits)
        self._bits = bits
        self._limit = limit

    def is_coarse(self, peak: float, guess: float) -> bool:
        """Whether a guess wasted too much of the range."""
        return 0 < peak * guess < self._limit / fixed_point.COARSE[self._bits]

    def learn(self, peak: float) -> None:
        """For what comes next."""
        self.peaks = [*self.peaks, peak][-REMEMBERED:]
        if max(self.peaks) > 0:
            self.value = fixed_point.scale_for(max(self.peaks), self._bits, self._limit)
