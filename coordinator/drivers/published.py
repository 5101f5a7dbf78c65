"""A result that a driver makes by itself: files in a folder, their manifest last, renamed into place at once."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import xxhash

from muster.coordinator.drivers.driver import Drive
from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.durable import fsync_folder, naming_space, write_durably
from muster.jobs.parts.manifest import FORMAT, MANIFEST, SHARDS, File, Merged, Product, encode_manifest

Array = np.ndarray[Any, Any]
Written = tuple[Sequence[Product], Sequence[File]]  # arrays, and files in formats of their own


def publish(drive: Drive, write: Callable[[Path], Written], kernels: Mapping[str, int] | None = None) -> None:
    """All files durable in a folder of their own, the manifest last; then that is renamed into the result. `kernels`:
    fingerprints of what computed it, with in how many rounds each had a part."""
    layer = drive.state.layer
    folder, tmp = drive.place.result / layer, drive.place.result / f".{layer}.tmp"
    shutil.rmtree(tmp, ignore_errors=True)
    with naming_space(folder):
        tmp.mkdir()
        products, more = write(tmp)
        write_durably(tmp / MANIFEST, encode_manifest(_manifest(drive, tmp, products, more, kernels or {})))
        fsync_folder(tmp)
        shutil.rmtree(folder, ignore_errors=True)  # of a life that ended before it could say so
        tmp.rename(folder)
        fsync_folder(folder.parent)


def unit_of(drive: Drive, by_itself: float = 1.0) -> float:
    """What 1 of the data's rows was to what was trained: rows of uint8 are scaled, others are taken as they are.
    `by_itself`: of data that each machine has by itself, where the job has none."""
    root, data = Root(drive.place.path.parents[1]), plans.load(drive.place).work.model
    if data is None:
        return by_itself
    with safetensors.safe_open(root.model(data.digest), "np") as opened:
        return float(opened.get_tensor("unit")[0])


def _manifest(
    drive: Drive, tmp: Path, products: Sequence[Product], more: Sequence[File], kernels: Mapping[str, int]
) -> Merged:
    table = np.zeros(0, "<i8")
    return Merged(
        format=FORMAT,
        job=drive.job,
        layer=drive.state.layer,
        digest=drive.state.digest,
        rows=0,
        shards=0,
        outputs=tuple(products),
        table=write_file(tmp, SHARDS, npy_bytes(table), table),
        fingerprints=tuple(sorted(kernels)),
        more=tuple(more),
        rounds=tuple(kernels[one] for one in sorted(kernels)),
    )


def npy_bytes(array: Array) -> bytes:
    raw = io.BytesIO()
    np.save(raw, array)
    return raw.getvalue()


def write_file(folder: Path, name: str, raw: bytes, array: Array | None = None) -> File:
    write_durably(folder / name, raw)
    digest = xxhash.xxh3_128_hexdigest(raw)
    return File(
        name, array.dtype.str if array is not None else "", array.shape if array is not None else (), len(raw), digest
    )
