"""How agents get from one round's weights to the next: quantised, and both ends agree on every bit."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

from muster.jobs.training.aggregation import fixed_point
from muster.jobs.training.aggregation.fixed_point import BadValues

Array = np.ndarray[Any, Any]


class Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With 32 bits the next weights whole; with fewer, what to add to the last ones."""

    round: int  # that it leads to
    bits: Literal[8, 16, 32]
    scale: float  # units of 1.0 in the parameters
    buffer_scale: float
    payload: bytes


class Compressor:
    """The driver's end: what rounding cuts off one update is added to the next, so nothing is lost for good."""

    def __init__(self, dim: int, stepped: int, bits: Literal[8, 16, 32]) -> None:
        self.residual = np.zeros(dim if bits < 32 else 0, np.float32)
        self._stepped = stepped
        self._bits: Literal[8, 16, 32] = bits

    def update(self, round_: int, old: Array, new: Array) -> Update:
        """What leads from `old` to `new`, as near as these bits allow; `new` becomes where it really leads."""
        if self._bits == 32:
            return Update(round_, 32, 1.0, 1.0, new.astype("<f4", copy=False).tobytes())
        wanted = new - old
        wanted += self.residual
        scales = [_finest(wanted[part], self._bits) for part in _parts(self._stepped)]
        values = np.empty(len(wanted), fixed_point.DTYPES[self._bits])
        for part, scale in zip(_parts(self._stepped), scales, strict=True):
            values[part] = np.rint(wanted[part] * np.float32(scale))
        update = Update(round_, self._bits, scales[0], scales[1], fixed_point.pack(values))
        new[:] = old
        moved = _floats(values, update, self._stepped)
        new += moved
        np.subtract(wanted, moved, out=self.residual)
        return update


def apply(update: Update, weights: Array, stepped: int) -> Array:
    """The next weights. BadValues where the update does not fit; whether it was the right one, a hash must tell."""
    dim = len(weights)
    if update.bits == 32:
        if len(update.payload) != 4 * dim:
            raise BadValues(f"{len(update.payload)} bytes where {dim} weights were expected")
        return np.frombuffer(update.payload, "<f4")
    values = fixed_point.unpack(update.payload, dim, update.bits, (1 << update.bits - 1) - 1)
    moved = _floats(values, update, stepped)
    moved += weights
    return moved


def _parts(stepped: int) -> tuple[slice, slice]:
    return slice(0, stepped), slice(stepped, None)


def _finest(wanted: Array, bits: int) -> float:
    """The scale at which the largest value just fits."""
    peak = fixed_point.peak_of(wanted)
    largest = float((1 << bits - 1) - 1)
    most = 2.0**fixed_point.EXPONENTS
    if largest >= peak * most:  # the smallest floats: their quotient is none
        return most if peak > 0 else 1.0
    return float(np.nextafter(np.float32(largest / peak), np.float32(0)))


def _floats(values: Array, update: Update, stepped: int) -> Array:
    floats = values.astype(np.float32)
    for part, scale in zip(_parts(stepped), (update.scale, update.buffer_scale), strict=True):
        floats[part] *= np.float32(1 / scale)
    return floats


class Patch(msgspec.Struct, frozen=True, array_like=True):
    """Leads from one round's weights to the next."""

    stepped: int  # how many of them are parameters
    update: Update


def patch_of(update: Update, stepped: int) -> bytes:
    return msgspec.msgpack.encode(Patch(stepped, update))


def patched(sheet: bytes, patch: bytes) -> bytes:
    """The weights it leads to, as bytes; a ValueError where it does not fit."""
    try:
        found = msgspec.msgpack.decode(patch, type=Patch)
    except msgspec.DecodeError as error:
        raise ValueError(f"no patch: {error}") from None
    return apply(found.update, np.frombuffer(sheet, "<f4"), found.stepped).tobytes()
