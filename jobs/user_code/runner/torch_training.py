"""A torch module as a flat vector, and its gradients, for a runner: numpy, torch, Python 3.8 or later; nothing of ours.

A call is one row of bytes: the length of a JSON (8 bytes), the JSON, row numbers (int64), weights (float32). What goes
up is what numpy's models give, see `muster.jobs.training.steps.trainer`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import random
import socket
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict  # noqa: UP035 (3.8)

import numpy as np

# By its path: a user's module may have the same name
loading = ModuleType("loading")
loading.__file__ = str(Path(__file__).with_name("loading.py"))
SourceFileLoader("loading", loading.__file__).exec_module(loading)

Arrays = Dict[str, Any]  # noqa: UP006 (3.8)
HEAD_BYTES = 8
JUDGED_ROWS = 500
HOOKS = ("loss", "augment", "evaluate")  # that the user's file may have beside the factory

_trainers: dict[str, Trainer] = {}


class MissingPackageError(ImportError):
    """torch is not here."""


class BadModelError(ValueError):
    """The module, or what its functions give, is not what it must be."""


def answer(rows: Any, **settings: Any) -> Arrays:
    """The runner's function: the settings are the same in every call, so one trainer lives as long as the process."""
    if "only" not in _trainers:
        _trainers["only"] = Trainer(**settings)
    raw = rows.tobytes()
    length = int.from_bytes(raw[:HEAD_BYTES], "little")
    asked = json.loads(raw[HEAD_BYTES : HEAD_BYTES + length])
    numbers_end = HEAD_BYTES + length + 8 * asked["rows"]
    numbers = np.frombuffer(raw[HEAD_BYTES + length : numbers_end], "<i8")
    weights = np.frombuffer(raw[numbers_end:], "<f4")
    told, values = _trainers["only"].act(asked, numbers, weights)
    text = json.dumps(told).encode()
    return {"told": np.frombuffer(text, np.uint8)[None], "values": values[None]}


class Trainer:
    """One module and the job's data. Its state is overwritten by each call."""

    def __init__(self, model: str, code: str | None, args: dict[str, Any], **settings: Any) -> None:
        self._torch = torch = _torch()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        if settings["deterministic"]:
            torch.use_deterministic_algorithms(True)
        self._settings = settings
        self._data = _tensors(settings["data"])
        self._unit = float(self._data["unit"][0])
        _seed_all(torch, settings["seed"])
        factory, self._hooks = _users(settings["folder"], code) if code is not None else (BUILT_IN[model], {})
        self._module = _module_of(torch, factory, args, settings["shape"], settings["classes"])
        self._flat, self._grads, self._stepped = _flattened(torch, self._module)
        self._start = self._flat.clone()
        self._counters = [buffer for buffer in self._module.buffers() if not buffer.is_floating_point()]

    def act(self, asked: dict[str, Any], numbers: Any, weights: Any) -> tuple[dict[str, Any], Any]:
        """What a call asks for: a few values, and a vector."""
        if asked["what"] == "start":
            told = {"stepped": self._stepped, "names": self._names()}
            return told, self._start.numpy()
        self._load(weights)
        if asked["what"] == "judge":
            right, loss = self._judge(len(self._data["test_y"]))
            return {"right": right, "loss": _number(loss)}, np.zeros(1, np.float32)
        if asked["what"] == "try":
            self._gradient(numbers)
            self._judge(min(len(numbers), len(self._data["test_y"])))
            return {}, np.zeros(1, np.float32)
        _seed_all(self._torch, asked["seed"])
        if asked["steps"] == 1:
            loss = self._gradient(numbers)
            values = self._grads.numpy().copy()
            values[: self._stepped] *= len(numbers)
            values[self._stepped :] = (self._flat.numpy()[self._stepped :] - weights[self._stepped :]) * len(numbers)
            return {"loss": _number(loss)}, values
        loss = self._steps(asked, numbers)
        moved = weights - self._flat.numpy()
        moved[self._stepped :] *= -1
        return {"loss": _number(loss)}, moved

    def _names(self) -> list[Any]:
        """Of the vector's pieces, in its order, with their shapes."""
        pieces = [*self._module.named_parameters(), *self._module.named_buffers()]
        return [[name, list(piece.shape)] for name, piece in pieces if piece.is_floating_point()]

    def _load(self, weights: Any) -> None:
        if len(weights) != len(self._flat):
            raise BadModelError(f"{len(weights)} weights for a module of {len(self._flat)}")
        with self._torch.no_grad():
            self._flat.copy_(self._torch.from_numpy(weights.copy()))
        for counter in self._counters:
            counter.zero_()

    def _gradient(self, numbers: Any) -> float:
        """The mean gradient over these rows, in `_grads`; buffers move on. The loss summed over the rows."""
        self._module.train()
        self._grads.zero_()
        x, y = self._batch("", numbers)
        if "augment" in self._hooks:
            x = self._hooks["augment"](x)
        loss = self._loss(self._module(x), y)
        loss.backward()
        return float(loss.detach()) * len(numbers)

    def _steps(self, asked: dict[str, Any], numbers: Any) -> float:
        torch, settings, loss = self._torch, self._settings, 0.0
        named = {"lr": asked["rate"], "weight_decay": settings["weight_decay"]}
        if settings["optimizer"] == "adamw":
            betas = (settings["momentum"] or 0.9, settings["beta2"])
            optimizer = torch.optim.AdamW(self._module.parameters(), betas=betas, **named)
        else:
            named.update(momentum=settings["momentum"], nesterov=settings["nesterov"])
            optimizer = torch.optim.SGD(self._module.parameters(), **named)
        batch = len(numbers) // asked["steps"]
        for first in range(0, len(numbers), batch):
            loss += self._gradient(numbers[first : first + batch])
            optimizer.step()
        return loss

    def _judge(self, count: int) -> tuple[int, float]:
        """How many of so many rows of the test set are classified rightly, and the loss summed over them."""
        self._module.eval()
        right, loss = 0, 0.0
        with self._torch.no_grad():
            for first in range(0, count, JUDGED_ROWS):
                x, y = self._batch("test_", np.arange(first, min(first + JUDGED_ROWS, count)))
                outputs = self._module(x)
                loss += float(self._loss(outputs, y)) * len(y)
                if "evaluate" in self._hooks:
                    right += _count_of(self._hooks["evaluate"](outputs, y))
                else:
                    right += int((outputs.argmax(dim=1) == y).sum())
        return right, loss

    def _batch(self, part: str, numbers: Any) -> tuple[Any, Any]:
        """Rows as float32 and labels; images have their channels first."""
        torch = self._torch
        x = torch.from_numpy(self._data[part + "x"][numbers].astype(np.float32))
        x *= self._unit
        if x.dim() == 3:
            x = x.unsqueeze(1)
        elif x.dim() == 4:
            x = x.permute(0, 3, 1, 2).contiguous()
        return x, torch.from_numpy(self._data[part + "y"][numbers].astype(np.int64))

    def _loss(self, outputs: Any, y: Any) -> Any:
        """The mean over the rows."""
        if "loss" not in self._hooks:
            return self._torch.nn.functional.cross_entropy(outputs, y)
        loss = self._hooks["loss"](outputs, y)
        if not isinstance(loss, self._torch.Tensor) or loss.dim() != 0:
            raise BadModelError("loss(outputs, labels) must give a tensor with one number, the mean over the rows")
        return loss


def _number(loss: float) -> float | None:
    """JSON has no other than finite ones."""
    return loss if math.isfinite(loss) else None


def _count_of(found: Any) -> int:
    try:
        return int(found)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise BadModelError("evaluate(outputs, labels) must give one number, how many rows are right") from None


# --- what is opened ---------------------------------------------------------------------------------------


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != "torch":
            raise  # it is there, and lacks something itself
        line = f"{sys.executable} -m pip install torch"
        raise MissingPackageError(f"torch is not installed on {socket.gethostname()}: `{line}`") from None


def _seed_all(torch: Any, seed: int) -> None:
    """Whatever a module, an augmentation or a dropout draws from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def _tensors(path: str) -> Arrays:
    """A safetensors file's arrays, mapped: all runners of a machine share them."""
    with open(path, "rb") as file:  # noqa: PTH123
        length = int.from_bytes(file.read(HEAD_BYTES), "little")
        listed = json.loads(file.read(length))
    kinds = {"U8": "u1", "F32": "<f4", "F64": "<f8", "I64": "<i8"}
    base, found = HEAD_BYTES + length, {}
    for name, entry in listed.items():
        if name != "__metadata__":
            shape, offset = tuple(entry["shape"]), base + entry["data_offsets"][0]
            found[name] = np.memmap(path, kinds[entry["dtype"]], "r", offset, shape)
    return found


def _users(folder: str, entry: str) -> tuple[Callable[..., Any], dict[str, Callable[..., Any]]]:
    """The user's factory, and the functions of known names beside it."""
    name = entry.rpartition(":")[2]
    module, factory = loading.named(folder, entry)
    hooks = {hook: getattr(module, hook) for hook in HOOKS if hook != name and callable(getattr(module, hook, None))}
    return factory, hooks


def _module_of(torch: Any, factory: Callable[..., Any], args: Any, shape: Any, classes: int) -> Any:
    """What the factory makes; it may ask for `shape` (of a row, channels first) and `classes`."""
    facts = {"shape": _channels_first(shape), "classes": classes}
    try:
        named = set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # written in C
        named = set()
    wanted = {name: facts[name] for name in facts if name in named and name not in args}
    module = factory(**args, **wanted)
    if not isinstance(module, torch.nn.Module):
        raise BadModelError(f"the factory gave a {type(module).__name__}, not a torch.nn.Module")
    return module


def _channels_first(shape: Any) -> Any:
    if len(shape) == 2:
        return (1, *shape)
    return (shape[2], *shape[:2]) if len(shape) == 3 else tuple(shape)


def _flattened(torch: Any, module: Any) -> tuple[Any, Any, int]:
    """The module's numbers become windows into one vector, parameters before buffers; so do their gradients."""
    parameters = list(module.parameters())
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    for piece in [*parameters, *buffers]:
        if piece.dtype != torch.float32 or piece.device.type != "cpu":
            raise BadModelError(
                f"a module of float32 on the CPU is needed, this one has {piece.dtype} on {piece.device}"
            )
    if not all(piece.requires_grad for piece in parameters) or not parameters:
        raise BadModelError("every parameter must require a gradient; what must not move is a buffer")
    pieces = [*parameters, *buffers]
    flat = torch.empty(sum(piece.numel() for piece in pieces))
    grads, at = torch.zeros(len(flat)), 0
    with torch.no_grad():
        for piece in pieces:
            window = flat[at : at + piece.numel()].view(piece.shape)
            window.copy_(piece)
            piece.data = window
            if piece.requires_grad:
                piece.grad = grads[at : at + piece.numel()].view(piece.shape)
            at += piece.numel()
    return flat, grads, sum(piece.numel() for piece in parameters)


# --- models of ours ---------------------------------------------------------------------------------------


def resnet18(shape: Any, classes: int) -> Any:
    """As for CIFAR: a 3x3 stem without pooling, four stages of two blocks."""
    nn = _torch().nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, ins: int, outs: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(ins, outs, 3, stride, 1, bias=False), nn.BatchNorm2d(outs))
            self.second = nn.Sequential(nn.Conv2d(outs, outs, 3, 1, 1, bias=False), nn.BatchNorm2d(outs))
            self.short = nn.Sequential()
            if stride != 1 or ins != outs:
                self.short = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs))

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.second(nn.functional.relu(self.first(x))) + self.short(x))

    layers = [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    ins = 64
    for outs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(ins, outs, stride), Block(outs, outs, 1)]
        ins = outs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def vgg16(shape: Any, classes: int) -> Any:
    """Thirteen convolutions with BatchNorm, and one dense layer: 32x32 is a single spot after five poolings."""
    nn = _torch().nn
    layers: list[Any] = []
    ins = shape[0]
    for outs in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if outs:
            layers += [nn.Conv2d(ins, outs, 3, 1, 1), nn.BatchNorm2d(outs), nn.ReLU()]
            ins = outs
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


BUILT_IN = {"resnet18": resnet18, "vgg16": vgg16}
