"""A .safetensors with a tensor of bfloat16, which numpy lacks, and the float32 that its values are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def halves_of(values: Array) -> Array:
    """The upper halves of float32."""
    return (values.view("<u4") >> 16).astype("<u2")


def floats_of(halves: Array) -> Array:
    found: Array = (halves.astype("<u4") << 16).view("<f4")
    return found


def safetensors_of(name: str, halves: Array, fill: int = 0) -> bytes:
    """With so many bytes more in its header."""
    line = {"dtype": "BF16", "shape": halves.shape, "data_offsets": [0, halves.nbytes]}
    header = json.dumps({name: line}).encode() + b" " * fill
    return len(header).to_bytes(8, "little") + header + halves.tobytes()
