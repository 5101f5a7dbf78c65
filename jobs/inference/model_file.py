"""A model's file as it lies on a disk: its format, whether it is whole, its digest. Opens no model, runs nothing."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import xxhash

from muster.jobs.common import hashing
from muster.jobs.common.errors import DamagedError, JobFileError, RefusedError, SourceError
from muster.jobs.common.locations import located
from muster.jobs.common.units import format_size
from muster.jobs.common.validation import nearest, one_line
from muster.jobs.contract.plan import ModelFile
from muster.jobs.inference.params import SUFFIXES
from muster.jobs.sources.formats import safetensors

CHUNK_BYTES = 4 << 20
UNPACKED_ANYWAY, UNPACKED_FACTOR = 256 << 20, 16  # an archive's bytes, unpacked: so many, and of each so many more

NAMES = {
    "npz": "an .npz of arrays",
    "safetensors": "a .safetensors",
    "skops": "a skops file",
    "onnx": "an ONNX model",
    "torchscript": "a TorchScript archive",
    "torch": "a checkpoint of torch.save, which is a pickle",
    "pickle": "a pickle",
}
_HINTS = {
    "torch": "export it to .onnx, or save its state_dict as .safetensors: neither runs anything when opened",
    "npz": "name it {stem}.npz",
    "safetensors": "name it {stem}.safetensors",
    "skops": "name it {stem}.skops",
    "onnx": "name it {stem}.onnx",
    "torchscript": "name it {stem}.pt, and see what `trust_torchscript` means",
    "pickle": "name it {stem}.pkl, and see what `trust_pickle` means",
}


def find(name: str, base: Path, moved: Mapping[str, Path] | None = None) -> Path:
    """The file that `params.model` names; relative to the job file's folder. `moved`: files that are elsewhere now."""
    path = (moved or {}).get(name) or located(base, name)
    if path.is_file():
        return path
    near = nearest(path.name, (other.name for other in path.parent.glob("*"))) if path.parent.is_dir() else None
    why = "is a folder, not a file" if path.is_dir() else "there is no such file"
    hint = f"did you mean {near!r}?" if near else "it is relative to the job file"
    raise JobFileError(one_line(f"params.model: {name}: {why}"), hint)


def format_of(path: Path) -> str:
    """By its name, where its bytes agree and are all there; a JobFileError otherwise."""
    named = SUFFIXES.get(path.suffix.lower())
    if named is None:
        known = ", ".join(sorted(SUFFIXES))
        raise _wrong(path, f"the name of a model ends in one of {known}", "save it in one of these formats")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = _sniffed(file, size, path)
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}", "see that you may read it") from None
    if found is None:
        raise _wrong(path, f"is not {NAMES[named]}", "save it again, or correct the name")
    if found != named:
        raise _wrong(path, f"is {NAMES[found]}, not {NAMES[named]}", _HINTS[found].format(stem=path.stem))
    return named


def _sniffed(file: BinaryIO, size: int, path: Path) -> str | None:
    """What the bytes are, whatever the name says; None for nothing known."""
    start = file.read(16)
    if not size:
        raise _wrong(path, "is empty", "save it again")
    if start.startswith(b"PK"):
        return _kind_of_archive(file, size, path)
    if start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05":
        return "pickle"
    if start[8:9] == b"{":
        return _checked_safetensors(file, size, path)
    if path.suffix.lower() == ".onnx":
        return _checked_onnx(file, size, path)
    return None


def _truncated(path: Path, why: str) -> JobFileError:
    return _wrong(path, f"truncated or damaged: {why}", "copy or save it again")


def _wrong(path: Path, why: str, hint: str) -> JobFileError:
    return JobFileError(one_line(f"params.model: {path.name}: {why}"), hint)


def _kind_of_archive(file: BinaryIO, size: int, path: Path) -> str | None:
    """Three formats are zip archives."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.namelist()
            unpacked = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _truncated(path, str(error)) from None
    if unpacked > UNPACKED_ANYWAY + UNPACKED_FACTOR * size:
        said = f"{format_size(size)} that unpack to {format_size(unpacked)} are no model's"
        raise _wrong(path, said, "save it without compression")
    if "schema.json" in members:
        return "skops"
    if any(name.endswith("/data.pkl") for name in members):
        return "torchscript" if any(name.endswith("/constants.pkl") for name in members) else "torch"
    return "npz" if members and all(name.endswith(".npy") for name in members) else None


def _checked_safetensors(file: BinaryIO, size: int, path: Path) -> str:
    """Its header agrees with its size."""
    file.seek(0)
    try:
        safetensors.read_header(file, size, path.name)
    except SourceError as error:
        raise JobFileError(one_line(f"params.model: {error.message}"), error.hint) from None
    return "safetensors"


def _checked_onnx(file: BinaryIO, size: int, path: Path) -> str | None:
    """A protobuf message: its outermost fields have to end where the file does, and one of them is the graph."""
    file.seek(0)
    fields: set[int] = set()
    try:
        while file.tell() < size:
            key = _varint(file)
            fields.add(key >> 3)
            _skip_field(file, key & 7)
    except ValueError:
        return None if 7 not in fields else _raise_truncated(path, size)
    if file.tell() != size:
        return _raise_truncated(path, size) if fields & {1, 7} else None
    return "onnx" if 7 in fields else None


def _raise_truncated(path: Path, size: int) -> str:
    raise _truncated(path, f"it goes on behind its {size} bytes")


def _skip_field(file: BinaryIO, wire: int) -> None:
    if wire == 0:
        _varint(file)
    elif wire == 2:
        file.seek(_varint(file), os.SEEK_CUR)
    elif wire in (1, 5):
        file.seek(8 if wire == 1 else 4, os.SEEK_CUR)
    else:
        raise ValueError("no protobuf")


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("ends within a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number beyond 64 bits")


# --- its bytes -----------------------------------------------------------------------------------------------


def described(path: Path, name: str) -> ModelFile:
    """The file as a plan knows it."""
    try:
        with path.open("rb", buffering=0) as file:
            digest = hashing.of_file(file.fileno())
            nbytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}", "see that you may read it") from None
    return ModelFile(name, digest, nbytes)


def copy(source: Path, target: Path, wanted: ModelFile) -> None:
    """A copy of its own, durable and read-only; a RefusedError where it is no longer what was planned."""
    digest = xxhash.xxh3_128()
    with source.open("rb") as file, target.open("xb") as out:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    target.chmod(0o400)
    if digest.hexdigest() != wanted.digest:
        raise RefusedError(f"{source} was written to while it was submitted", "submit again once it is whole")


def check(path: Path, wanted: ModelFile) -> None:
    """A DamagedError unless this copy is what was planned."""
    try:
        found = described(path, wanted.name)
    except JobFileError as error:
        raise DamagedError(error.message) from None
    if found != wanted:
        raise DamagedError(f"the copy of the model {wanted.name} is not what was submitted")
