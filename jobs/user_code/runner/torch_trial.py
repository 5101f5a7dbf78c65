"""A torch module as a trial of a search, for a runner: numpy, torch, Python 3.8 or later; nothing of ours.

The user's factory makes it of a configuration; the optimizer's parameters are taken out of that first.
"""

from __future__ import annotations

import inspect
import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Callable  # noqa: UP035 (3.8)

import numpy as np

# By its path: a user's module may have the same name
loading = ModuleType("loading")
loading.__file__ = str(Path(__file__).with_name("loading.py"))
SourceFileLoader("loading", loading.__file__).exec_module(loading)

OURS = ("lr", "momentum", "weight_decay", "batch", "optimizer")  # parameters that no factory gets
JUDGED_ROWS = 512
SEED_LIMIT = 1 << 32


def maker(folder: str, entry: str, data: Any, seed: int, codec: Any) -> Callable[[Any], Any]:
    """What makes a trial of a configuration. `codec`: a state as bytes, and back."""
    training = loading.sibling("torch_training")
    factory, hooks = training._users(folder, entry)
    return lambda config: TorchTrial(training, factory, hooks, config, data, seed, codec)


class TorchTrial:
    """An iteration is an epoch. What the module draws follows from the seed and the iteration alone."""

    def __init__(self, training: Any, factory: Any, hooks: Any, config: Any, data: Any, seed: int, codec: Any) -> None:
        self._training, self._hooks, self._data, self._seed, self._codec = training, hooks, data, seed, codec
        self._torch = torch = training._torch()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._done, self._batch = 0, int(config.get("batch", 128))
        self._draw()
        asked = {name: value for name, value in config.items() if name not in OURS or _names(factory, name)}
        self._module = training._module_of(torch, factory, asked, data.x.shape[1:], data.classes)
        self._optimizer = self._made_optimizer(config)

    def load(self, state: bytes, start: int) -> None:
        self._done, found = start, self._codec[1](state)
        self._module.load_state_dict({name: self._tensor(one) for name, one in found["module"].items()})
        moments = self._mapped(found["optimizer"], np.ndarray, self._tensor)
        self._optimizer.load_state_dict(moments)

    def save(self) -> bytes:
        torch = self._torch
        module = {name: one.detach().numpy().copy() for name, one in self._module.state_dict().items()}
        moments = self._mapped(self._optimizer.state_dict(), torch.Tensor, lambda one: one.detach().numpy().copy())
        raw: bytes = self._codec[0]({"module": module, "optimizer": moments})
        return raw

    def step(self) -> dict[str, float]:
        self._draw()
        self._module.train()
        order = np.random.Generator(np.random.PCG64((self._seed, 2, self._done))).permutation(len(self._data.x))
        right, loss = 0, 0.0
        for first in range(0, len(order), self._batch):
            x, y = self._rows(self._data.x, self._data.y, order[first : first + self._batch])
            x = self._hooks["augment"](x) if "augment" in self._hooks else x
            self._optimizer.zero_grad()
            outs = self._module(x)
            lost = self._loss(outs, y)
            lost.backward()
            self._optimizer.step()
            right, loss = right + int((outs.argmax(dim=1) == y).sum()), loss + float(lost.detach()) * len(y)
        self._done += 1
        seen = {"train_accuracy": right / len(order), "train_loss": loss / len(order)}
        return {**seen, **self._judged(self._data.valid_x, self._data.valid_y)}

    def score(self) -> dict[str, float]:
        return self._judged(*self._data.test())

    def _judged(self, x: Any, y: Any) -> dict[str, float]:
        self._module.eval()
        right, loss = 0, 0.0
        with self._torch.no_grad():
            for first in range(0, len(x), JUDGED_ROWS):
                some, labels = self._rows(x, y, np.arange(first, min(first + JUDGED_ROWS, len(x))))
                outs = self._module(some)
                loss += float(self._loss(outs, labels)) * len(labels)
                right += int((outs.argmax(dim=1) == labels).sum())
        return {"accuracy": right / len(x), "loss": loss / len(x)}

    def _rows(self, x: Any, y: Any, numbers: Any) -> Any:
        """Rows and labels; images have their channels first."""
        rows = self._torch.from_numpy(np.ascontiguousarray(x[numbers]))
        if rows.dim() == 3:
            rows = rows.unsqueeze(1)
        elif rows.dim() == 4:
            rows = rows.permute(0, 3, 1, 2).contiguous()
        return rows, self._torch.from_numpy(np.ascontiguousarray(y[numbers]))

    def _loss(self, outs: Any, y: Any) -> Any:
        loss = self._hooks.get("loss", self._torch.nn.functional.cross_entropy)
        return loss(outs, y)

    def _draw(self) -> None:
        """Whatever the module or an augmentation draws in this iteration."""
        bits = np.random.SeedSequence((self._seed, 1, self._done)).generate_state(1)
        self._training._seed_all(self._torch, int(bits[0]) % SEED_LIMIT)

    def _made_optimizer(self, config: Any) -> Any:
        optim, decay = self._torch.optim, float(config.get("weight_decay", 0.0))
        lr, momentum = float(config.get("lr", 0.1)), float(config.get("momentum", 0.0))
        if config.get("optimizer", "sgd") == "adamw":
            return optim.AdamW(self._module.parameters(), lr=lr, betas=(momentum or 0.9, 0.999), weight_decay=decay)
        return optim.SGD(self._module.parameters(), lr=lr, momentum=momentum, weight_decay=decay)

    def _tensor(self, array: Any) -> Any:
        return self._torch.from_numpy(np.array(array))

    def _mapped(self, value: Any, kind: Any, change: Any) -> Any:
        """A nested state with each of a kind changed."""
        if isinstance(value, (kind, np.generic)):
            return change(value)
        if isinstance(value, dict):
            return {key: self._mapped(one, kind, change) for key, one in value.items()}
        return [self._mapped(one, kind, change) for one in value] if isinstance(value, (list, tuple)) else value


def _names(factory: Any, parameter: str) -> bool:
    """Whether the factory itself asks for one of ours."""
    try:
        return parameter in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # written in C
        return False
