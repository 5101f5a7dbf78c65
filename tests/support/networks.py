"""Small models in every format, written to files, for tests of `infer`."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SIZES = (6, 5, 3)


def weights(seed: int = 0, sizes: tuple[int, ...] = SIZES, dtype: str = "f4") -> dict[str, Array]:
    """Of an MLP, under our names."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for i, (first, second) in enumerate(pairwise(sizes)):
        found[f"w{i}"] = (rng.normal(size=(first, second)) / np.sqrt(first)).astype(dtype)
        found[f"b{i}"] = rng.normal(size=second).astype(dtype)
    return found


def logits(rows: Array, arrays: dict[str, Array], hidden: Any = lambda x: np.maximum(x, 0)) -> Array:
    """What plain numpy makes of it, in float64."""
    x = rows.reshape(len(rows), -1).astype("f8")
    last = len(arrays) // 2 - 1
    for i in range(last + 1):
        x = x @ arrays[f"w{i}"].astype("f8") + arrays[f"b{i}"].astype("f8")
        x = hidden(x) if i < last else x
    return np.asarray(x)


def save_npz(path: Path, arrays: dict[str, Array]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def save_torch_names(path: Path, arrays: dict[str, Array]) -> Path:
    """As `nn.Sequential.state_dict()` names and lays them out."""
    from safetensors.numpy import save_file

    roles = {"w": "weight", "b": "bias"}
    renamed = {f"net.{2 * int(name[1:])}.{roles[name[0]]}": array.T for name, array in arrays.items()}
    save_file({name: np.ascontiguousarray(array) for name, array in renamed.items()}, path)
    return path


def save_torchscript(path: Path, arrays: dict[str, Array]) -> Path:
    import torch

    layers: list[Any] = []
    for i in range(len(arrays) // 2):
        linear = torch.nn.Linear(*arrays[f"w{i}"].shape)
        linear.weight.data = torch.from_numpy(arrays[f"w{i}"].T.copy())
        linear.bias.data = torch.from_numpy(arrays[f"b{i}"].copy())
        layers += [linear, torch.nn.ReLU()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(torch.nn.Sequential(*layers[:-1]), torch.zeros(2, len(arrays["w0"]))).save(str(path))
    return path


def save_torchscript_that_writes(path: Path, written: Path) -> Path:
    """One that doubles its rows, and makes the file `written` whenever it is opened."""
    import torch

    class Writes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.there = str(written)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @torch.jit.export
        def __getstate__(self) -> tuple[str, bool]:
            return self.there, self.training

        @torch.jit.export
        def __setstate__(self, state: tuple[str, bool]) -> None:
            self.there = state[0]
            self.training = state[1]
            torch.save(torch.zeros(1), state[0])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Writes()).save(str(path))
    return path


def save_onnx(path: Path, arrays: dict[str, Array], rows: int | str = "n") -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, name, count = [], "x", len(arrays) // 2
    for i in range(count):
        given = name
        name = "logits" if i == count - 1 else f"z{i}"
        nodes.append(helper.make_node("Gemm", [given, f"w{i}", f"b{i}"], [name]))
        if i < count - 1:
            nodes.append(helper.make_node("Relu", [name], [f"h{i}"]))
            name = f"h{i}"
    first, last = len(arrays["w0"]), len(arrays[f"b{count - 1}"])
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, first])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [rows, last])],
        [numpy_helper.from_array(array, key) for key, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def fitted(kind: str = "linear") -> tuple[Any, Array]:
    """An estimator, and rows for it."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(1)
    rows = rng.normal(size=(40, SIZES[0])).astype("f4")
    labels = (rows.sum(axis=1) > 0) * 1
    if kind == "text":
        labels = np.where(labels, "yes", "no")
    model = RandomForestClassifier(5, random_state=0) if kind == "forest" else LogisticRegression()
    return model.fit(rows, labels), rows
