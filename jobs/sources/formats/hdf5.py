"""Datasets that lie in an HDF5 file as they are: contiguous ones, found by h5py where a job is planned. Reads no data.

Machines read such rows as any others, and need no h5py.
"""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

from muster.jobs.common.errors import SourceError
from muster.jobs.common.validation import one_line
from muster.jobs.contract.requirements import pip_line
from muster.jobs.sources.formats import npy, unreadable
from muster.jobs.sources.formats.header import Header, Member, NoRows, check_rows, check_spans, named

SUFFIXES = (".h5", ".hdf5")
MAGIC = b"\x89HDF\r\n\x1a\n"


def members(file: BinaryIO, size: int, where: str) -> list[Member]:
    """Every dataset of a file of `size` bytes, by its path; a SourceError that starts with `where` if it is none."""
    try:
        import h5py
    except ImportError:
        raise SourceError(f"{where}: HDF5, and h5py is not installed here", pip_line("h5py", sys.executable)) from None
    found: list[Member] = []

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        try:
            found.append(Member(name, _header(item, size, named(where, name))))
        except (TypeError, ValueError) as error:  # a type that numpy has nothing for
            problem = SourceError(f"{named(where, name)}: {one_line(str(error))[:200]}", npy.DTYPES_HINT)
            found.append(Member(name, problem))

    try:
        with h5py.File(file, "r") as opened:  # through `file`, so that it is the one whose stamp was taken
            opened.visititems(visit)
    except (OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
        why = f"not an HDF5 file, or a damaged one: {one_line(str(error))[:200]}"
        raise SourceError(f"{where}: {why}", "copy or write the file again") from None
    _check_apart(found, size, where)
    return found


def _header(dataset: Any, size: int, where: str) -> Header | SourceError:
    shape = dataset.shape
    try:
        check_rows(shape or (), where)
    except NoRows as error:
        return error
    dtype = npy.canonical_dtype(dataset.dtype.str) if dataset.dtype.names is None else None
    if dtype is None or not _is_plain(dataset):
        return SourceError(f"{where}: holds {one_line(str(dataset.dtype))[:80]}", npy.DTYPES_HINT)
    if why := _elsewhere(dataset):
        return unreadable.as_items(f"{where}: {why}", 'files: "*.h5"')
    offset = dataset.id.get_offset()
    if offset is None:
        return SourceError(f"{where}: nothing was written to it", "write it, or leave it out with `source.layers`")
    if offset + dataset.nbytes > size:
        return SourceError(f"{where}: goes on behind the file", "copy or write the file again")
    return Header(dtype, tuple(int(length) for length in shape), int(offset))


def _is_plain(dataset: Any) -> bool:
    """Whether its values are stored just as numpy has them, and not in fewer bits of as many bytes."""
    import h5py

    own = dataset.id.get_type()
    return bool(own == h5py.h5t.py_create(dataset.dtype, logical=True) or own == h5py.h5t.py_create(dataset.dtype))


def _elsewhere(dataset: Any) -> str:
    """Why its rows do not lie one behind the other in this file; "" where they do."""
    import h5py

    plan = dataset.id.get_create_plist()
    layout = plan.get_layout()
    if layout == h5py.h5d.CHUNKED:
        filtered = dataset.compression or ("filtered" if plan.get_nfilters() else "")
        return f"in chunks that are compressed ({filtered})" if filtered else "in chunks, and not in one piece"
    if layout == h5py.h5d.COMPACT:
        return "compact, in the file's own header"
    if layout != h5py.h5d.CONTIGUOUS:
        return "virtual, in other datasets"
    return "in external files" if plan.get_external_count() else ""


def _check_apart(found: list[Member], size: int, where: str) -> None:
    headers = [(one.header, one.name) for one in found if isinstance(one.header, Header)]
    check_spans([(one.offset, one.offset + one.nbytes, name) for one, name in headers], size, where)
