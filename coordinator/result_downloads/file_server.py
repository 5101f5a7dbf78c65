"""Files of a merged result over a pipe: a request names one, the answer is a frame and its bytes. Opens what a manifest
names and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import JobFolder
from muster.coordinator.protocol.frames import frame
from muster.coordinator.result_downloads.stream import Messages, Read, pieces
from muster.jobs.common.errors import IncompleteError, NotFoundError
from muster.jobs.common.names import LAYER_NAME_LIMIT
from muster.jobs.contract.plan import Plan
from muster.jobs.parts.manifest import MANIFEST, Merged, read_manifest
from muster.jobs.parts.part_file import CHUNK
from muster.jobs.sources.items import NAME_BYTES, is_path


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a layer's result, from a byte on."""

    layer: Annotated[str, Meta(max_length=LAYER_NAME_LIMIT)]
    file: Annotated[str, Meta(max_length=NAME_BYTES + 256)]  # of written files: OUTPUT/NAME
    start: Annotated[int, Meta(ge=0, le=1 << 53)] = 0


class Coming(msgspec.Struct, frozen=True):
    """What follows it."""

    nbytes: int


_messages = Messages(msgspec.msgpack.Decoder(Coming))


def layers_of(folder: JobFolder, plan: Plan | None = None) -> tuple[list[str], list[str]]:
    """The layers that are merged, and those that are not. `plan`: where it was read already."""
    names = [layer.name for layer in (plan or plans.load(folder)).layers]
    merged = [name for name in names if (folder.result / name / MANIFEST).is_file()]
    there = set(merged)
    return merged, [name for name in names if name not in there]


def answer(
    folder: JobFolder,
    layers: Collection[str],
    wanted: Wanted,
    write: Callable[[bytes], object],
    flush: Callable[[], object],
    partial: bool = False,
) -> None:
    """The file as it is now; a reader compares it with the manifest it knows. `layers`: the names of the job's.
    `partial`: of its partial result."""
    if wanted.layer not in layers:
        raise NotFoundError(f"{folder.path.name} has no layer {wanted.layer!r}")
    place = (folder.partial if partial else folder.result) / wanted.layer
    if wanted.file != MANIFEST and not _is_named(read_manifest(place, partial=partial), wanted.file):
        raise NotFoundError(f"{wanted.layer} has no file {wanted.file!r}", "its manifest.json names them")
    try:
        file = (place / wanted.file).open("rb", buffering=0)
    except FileNotFoundError:
        raise IncompleteError(f"{wanted.layer} is not merged", "ask for it again once it is") from None
    with file:
        start = min(wanted.start, os.fstat(file.fileno()).st_size)
        left = os.fstat(file.fileno()).st_size - start
        write(frame(msgspec.msgpack.encode(Coming(left))))
        file.seek(start)
        while left > 0 and (piece := file.read(min(left, CHUNK))):
            write(piece)
            left -= len(piece)
        flush()


def _is_named(manifest: Merged, file: str) -> bool:
    """What is in a folder of written files is named by the folder: there is nothing else in it."""
    folder, _, name = file.partition("/")
    if name:
        return folder in manifest.folders and is_path(name)
    return file in {one.file for one in manifest.files}


def received(read: Read) -> tuple[int, Iterator[bytes]]:
    """How many bytes come, and they."""
    coming = _messages.next(read, within=True)
    assert coming is not None  # the end of the stream is an error within an answer
    return coming.nbytes, pieces(read, coming.nbytes, "a file")
