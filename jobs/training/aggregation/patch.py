"""An update as it goes down to machines that have the last round's weights. Chooses nothing."""

from __future__ import annotations

import msgspec
import numpy as np

from muster.jobs.training.aggregation.weights_delta import Update, apply


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
