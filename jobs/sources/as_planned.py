"""Whether a layer's source still is what was planned: a look at its files, whose contents it does not read."""

from __future__ import annotations

import os
from pathlib import Path

from muster.jobs.common.errors import DamagedError
from muster.jobs.contract.plan import ArraySource, ItemsSource, Layer, Stamp
from muster.jobs.sources import items


def difference(layer: Layer, listed: Path) -> str:
    """The first file that is not as planned, and how; "" where all are. `listed`: the job's list of items."""
    source = layer.source
    if isinstance(source, ArraySource):
        return _differs(source.path, source.stamp)
    if not isinstance(source, ItemsSource) or not source.folder:
        return ""  # made by a driver, or lines that are in the list itself
    for number in range(layer.count):
        window = items.located(layer.window(number), listed)
        try:
            files = items.files_in(items.records(window))  # type: ignore[arg-type]
        except (OSError, DamagedError) as error:
            return f"the list of items: {error}"
        for file in files:
            if why := _differs(f"{source.folder}/{file.name}", file.stamp):
                return why
    return ""


def _differs(path: str, planned: Stamp) -> str:
    try:
        found = os.stat(path)  # noqa: PTH116 a million of them
    except OSError as error:
        return f"{path}: {error.strerror}"
    same = Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino) == planned
    return "" if same else f"{path} is not the file that was planned"
