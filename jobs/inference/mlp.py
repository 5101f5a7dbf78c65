"""A multilayer perceptron: its weights out of an .npz or .safetensors, and rows through it; or another network that
such a file has. Knows no job, no shard."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from muster.jobs.inference import conv1
from muster.jobs.inference.network import BYTE_SECONDS, Array, BadWeights, Network

NAMING = "name them w0, b0, w1, b1, ... (weights in x out), or as torch does 0.weight, 0.bias, 2.weight, ... (out x in)"
UNIT = "unit"  # of what was trained here, an array or a text beside them: see `Network`
TREE = "tree"  # of the state of a user's function: what lies where
_OURS = re.compile(r"([wb])(\d{1,4})", re.ASCII)
_TORCHS = re.compile(r"(.*?)(\d*)\.?(weight|bias)", re.ASCII)


class Mlp(Network):
    """Layers applied one after the other: x @ w + b, `activation` between them, `final` after the last."""

    def __init__(
        self, layers: list[tuple[Array, Array | None]], activation: str, final: str, unit: float | None = None
    ) -> None:
        first, last = layers[0][0], layers[-1][0]
        super().__init__(first.dtype, first.shape[0], last.shape[1], final, unit)
        self.layers = layers
        self._activation = activation

    @property
    def row_values(self) -> int:
        return int(self.width + sum(weights.shape[1] for weights, _ in self.layers))

    @property
    def row_seconds(self) -> float:
        return sum(weights.nbytes for weights, _ in self.layers) * BYTE_SECONDS

    def batch(self, rows: Array) -> Array:
        x = self._converted(rows)
        for i, (weights, bias) in enumerate(self.layers):
            out = self._buffer(i + 1, len(rows), weights.shape[1])
            np.matmul(x, weights, out=out)
            if bias is not None:
                np.add(out, bias, out=out)
            if i + 1 < len(self.layers):
                activate(out, self._activation)
            x = out
        return x


def activate(x: Array, name: str) -> None:
    """In place."""
    if name == "relu":
        np.maximum(x, 0, out=x)
    elif name == "tanh":
        np.tanh(x, out=x)
    elif name == "sigmoid":
        with np.errstate(over="ignore"):  # exp(-x) of a large negative is inf, and 1 / inf the right 0
            np.negative(x, out=x)
            np.exp(x, out=x)
        x += 1
        np.reciprocal(x, out=x)


# --- weights -------------------------------------------------------------------------------------------------


def load(path: Path, form: str, activation: str, final: str) -> Network:
    """The network in a file; BadWeights says what is wrong with it."""
    arrays = _npz(path) if form == "npz" else _safetensors(path)
    if TREE in arrays:
        raise BadWeights("the state of a function of yours, as a search kept it: say with `code` which one takes it")
    unit = _unit(arrays.pop(UNIT, None))
    if conv1.is_conv1(arrays):
        return conv1.Conv1(arrays, activation, final, unit)
    return Mlp(layers_of(arrays), activation, final, unit)


def _told_unit(text: str) -> Array:
    try:
        return np.array(float(text))
    except ValueError:
        raise BadWeights(f"{UNIT} is {text[:80]!r}, expected a number") from None


def _unit(array: Array | None) -> float | None:
    if array is None:
        return None
    if array.size != 1 or array.dtype.kind != "f" or not np.isfinite(array).all():
        raise BadWeights(f"{UNIT} is {array.dtype} of shape {array.shape}, expected one finite float")
    return float(array.reshape(()))


def layers_of(arrays: Mapping[str, Array]) -> list[tuple[Array, Array | None]]:
    """The layers in order, of one dtype, each fitting the one before."""
    if not arrays:
        raise BadWeights("there is no array in it")
    found: dict[str, dict[str, Array]] = {}
    torchs = not all(_OURS.fullmatch(name) for name in arrays)
    for name, array in arrays.items():
        key, role = _torchs_name(name) if torchs else _our_name(name)
        found.setdefault(key, {})[role] = _number_array(name, array, role)
    dtype = np.result_type(np.float32, *(array.dtype for parts in found.values() for array in parts.values()))
    layers = [_layer(key, found[key], torchs, dtype) for key in sorted(found, key=_natural)]
    for i, ((first, _), (second, _)) in enumerate(pairwise(layers)):
        if first.shape[1] != second.shape[0]:
            raise BadWeights(f"layer {i} gives {first.shape[1]} numbers, layer {i + 1} takes {second.shape[0]}")
    return layers


def _our_name(name: str) -> tuple[str, str]:
    match = _OURS.fullmatch(name)
    assert match is not None, "looked at before"
    return str(int(match[2])), match[1]


def _torchs_name(name: str) -> tuple[str, str]:
    match = _TORCHS.fullmatch(name)
    if match is None:
        raise BadWeights(f"the array {name[:80]!r} is no weight or bias of an MLP")
    return name.removesuffix(match[3]), "w" if match[3] == "weight" else "b"


def _natural(name: str) -> list[tuple[int, str]]:
    """10 behind 9."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def _number_array(name: str, array: Array, role: str) -> Array:
    axes = 2 if role == "w" else 1
    if array.dtype.kind != "f" or array.dtype.itemsize > 8 or array.ndim != axes or not array.size:
        wanted = f"floats with {axes} axes"
        raise BadWeights(f"{name[:80]} is {array.dtype} of shape {array.shape}, expected {wanted}")
    return array


def _layer(key: str, parts: dict[str, Array], torchs: bool, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
    if "w" not in parts:
        raise BadWeights(f"layer {key!r} has a bias and no weights")
    weights = np.ascontiguousarray(parts["w"].T if torchs else parts["w"], dtype=dtype)
    bias = parts.get("b")
    if bias is None:
        return weights, None
    if len(bias) != weights.shape[1]:
        raise BadWeights(f"layer {key!r} has {weights.shape[1]} outputs and {len(bias)} biases")
    return weights, np.ascontiguousarray(bias, dtype=dtype)


def _npz(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zipfile.error) as error:
        raise BadWeights(f"truncated or damaged: {error}") from None


def _safetensors(path: Path) -> dict[str, Array]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            told = (file.metadata() or {}).get(UNIT)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no mapping
        return arrays if told is None else {**arrays, UNIT: _told_unit(told)}
    except (SafetensorError, OSError) as error:
        raise BadWeights(f"truncated or damaged: {error}") from None
    except (KeyError, TypeError) as error:
        raise BadWeights(f"holds numbers numpy does not have: {error}; save them as float32") from None
