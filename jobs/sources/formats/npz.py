"""Arrays that lie in an .npz as they are: members of the archive that are stored, not deflated. Unpacks nothing."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import BinaryIO

from muster.jobs.common.errors import SourceError
from muster.jobs.common.validation import one_line
from muster.jobs.sources.formats import npy
from muster.jobs.sources.formats.header import Header, Member, check_spans, named

SUFFIX = ".npz"
_LOCAL = struct.Struct("<4s22xHH")  # of a member's own header: its magic, the lengths of its name and extra field
_ENCRYPTED = 1
_HEAD_BYTES = 12 + npy.HEADER_LIMIT  # that a .npy's header ends within, or is too long

# What zipfile raises on archives that nobody wrote, and what its arithmetic on them runs into
_BROKEN = (zipfile.BadZipFile, struct.error, NotImplementedError, EOFError)
_DAMAGED = (*_BROKEN, OSError, ArithmeticError, ValueError, LookupError)


def members(file: BinaryIO, size: int, where: str) -> list[Member]:
    """Every array of an archive of `size` bytes; a SourceError that starts with `where` if it is none."""
    try:
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
    except _DAMAGED as error:
        raise _no_archive(where, str(error)) from None
    if any(one.filename.endswith("/data.pkl") for one in listed):
        raise SourceError(f"{where}: a checkpoint of torch.save, which is a pickle", "name it by its own suffix, .pt")
    arrays = [one for one in listed if one.filename.endswith(npy.SUFFIX)]
    placed = [(one, _start(file, one, where)) for one in arrays]
    check_spans([(at, at + one.compress_size, one.filename) for one, at in placed], size, where)
    return [_member(file, one, at, where) for one, at in placed]


def _start(file: BinaryIO, member: zipfile.ZipInfo, where: str) -> int:
    """Where a member's bytes begin. By its own header: the directory's may have another extra field, as numpy's has."""
    try:
        file.seek(member.header_offset)
        magic, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    except _DAMAGED as error:
        raise _no_archive(where, str(error)) from None
    if magic != npy.ARCHIVE_MAGIC:
        raise _no_archive(where, f"{one_line(member.filename[:80])} is not where it is said to be")
    return member.header_offset + _LOCAL.size + int(name) + int(extra)


def _member(file: BinaryIO, member: zipfile.ZipInfo, start: int, where: str) -> Member:
    name = member.filename.removesuffix(npy.SUFFIX)
    return Member(name, _header(file, member, start, named(where, name)))


def _header(file: BinaryIO, member: zipfile.ZipInfo, start: int, where: str) -> Header | SourceError:
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        return SourceError(f"{where}: compressed, its rows are not in the file as they are", "save it by `np.savez`")
    if member.flag_bits & _ENCRYPTED:
        return SourceError(f"{where}: encrypted", "save it by `np.savez`")
    file.seek(start)
    head = io.BytesIO(file.read(min(member.file_size, _HEAD_BYTES)))
    try:
        found = npy.read_header(head, member.file_size, where)
    except SourceError as error:
        return error
    return found._replace(offset=start + found.offset)


def _no_archive(where: str, why: str) -> SourceError:
    return SourceError(f"{where}: not an .npz, or a damaged one: {one_line(why)[:200]}", "copy or save it again")
