"""A job's result as mappings: layer → output → array, mapped and not loaded. Downloads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from muster.coordinator.client.notebook import ROWS_SHOWN, page
from muster.coordinator.display.tables import short
from muster.jobs.common.errors import NotFoundError, UsageError
from muster.jobs.results.open_result import MergedLayer, RaggedRows, WrittenFiles, open_result

Array = np.ndarray[Any, Any]
Values = Array | RaggedRows | WrittenFiles
NAMES_SHOWN = 8
REPR_WIDTH = 70


class Result(Mapping[str, Mapping[str, Values]]):
    """`result["conv1"]["centers"]` is an `np.memmap`. A ragged output is a `RaggedRows`, whose `[i]` has the values of
    row i."""

    def __init__(self, job: str, folder: Path, layers: list[str], partial: bool = False) -> None:
        self.job = job
        self.partial = partial  # whether layers may have holes
        self.folder = folder  # LAYER/OUTPUT.npy below it
        self._opened: dict[str, MergedLayer | None] = dict.fromkeys(layers)

    def __getitem__(self, name: str) -> Mapping[str, Values]:
        return self.layer(name).outputs

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)

    def __contains__(self, name: object) -> bool:
        return name in self._opened

    def __repr__(self) -> str:
        return f"<Result of {self.job}: {short(_listed(self), REPR_WIDTH)}>"

    def _repr_html_(self) -> str:
        layers = list(self)[: ROWS_SHOWN + 1]
        rows = [(name, output, *_described(value)) for name in layers for output, value in self[name].items()]
        return page(f"result of {self.job}", ("layer", "output", "type", "shape"), rows, [str(self.folder)])

    def layer(self, name: str) -> MergedLayer:
        """A layer with its manifest, its outputs and the table of its shards."""
        if name not in self._opened:
            raise KeyError(name)
        found = self._opened[name]
        if found is None:
            found = self._opened[name] = open_result(self.folder / name, self.partial)
        return found

    def array(self, output: str | None = None, layer: str | None = None) -> Array:
        """The only array of the result, or the only one of this output or this layer."""
        outputs = self[_only(self, layer, "layer")]
        found = outputs[_only(outputs, output, "output")]
        if isinstance(found, RaggedRows):
            raise UsageError("a ragged output is not one array", "result[LAYER][OUTPUT] has its `offsets` and `values`")
        if isinstance(found, WrittenFiles):
            raise UsageError("files are not an array", "result[LAYER][OUTPUT][NAME] is the path of one")
        return found

    def dataframe(self, layer: str | None = None) -> Any:
        """A `pandas.DataFrame` of what each row is of and of the outputs that have an entry for it: of one layer, or of
        all, whose index then has the layer before the row. An output of several numbers in a row has a column for each,
        `centers.0`, `centers.1`. All of it is in memory."""
        from muster.jobs.results import tables

        names = list(self) if layer is None else [_only(self, layer, "layer")]
        frames = {name: tables.Table(self.folder / name, self.layer(name)).dataframe() for name in names}
        return frames[names[0]] if len(names) == 1 else tables.joined(frames)


def _described(value: Values) -> tuple[str, str]:
    if isinstance(value, RaggedRows):
        return f"{value.values.dtype}, ragged", f"{len(value):,} rows"
    if isinstance(value, WrittenFiles):
        return "files", f"{len(value):,} files"
    return str(value.dtype), str(value.shape)


def _only(known: Mapping[str, object], name: str | None, what: str) -> str:
    if name is not None and name not in known:
        raise NotFoundError(f"there is no {what} {name!r}", f"there are {_listed(known)}")
    if name is not None:
        return name
    if len(known) != 1:
        raise UsageError(f"there are {len(known)} {what}s: {_listed(known)}", f"name one: array({what}=...)")
    return next(iter(known))


def _listed(known: Mapping[str, object]) -> str:
    names = list(known)
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
