"""Files that are whole or not there, and durable: tmp → fsync → close → rename → fsync of the folder.

The only place that knows this order; where a power cut does no harm, it is tmp → close → rename.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from muster.jobs.common.errors import SpaceError

if TYPE_CHECKING:
    from typing_extensions import Buffer  # the type checker's; nothing to install

_T = TypeVar("_T")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CANNOT = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV})
_HERE = -100  # AT_FDCWD: a relative path starts at the current folder


def is_full(error: OSError) -> bool:
    """Whether the system said that a disk or a quota is full."""
    return error.errno in FULL


@contextmanager
def naming_space(path: Path, hint: str | None = None) -> Iterator[None]:
    """Within it, a full disk or quota is a SpaceError that names `path`."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise SpaceError(f"{path}: {os.strerror(error.errno or 0)}", hint) from error


def fsync(fd: int) -> None:
    """Bytes of an open file onto the medium. After an error the kernel may have dropped them: never ask again."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):  # not every file system has it
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


def fsync_folder(folder: Path) -> None:
    """Names in `folder` onto the medium."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def sync_tree(folder: Path) -> None:
    """Everything below `folder` onto the medium, at once: a sync for each of many small files would take minutes."""
    if sys.platform == "linux":
        import ctypes

        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
        finally:
            os.close(fd)
        return
    for root, _, names in os.walk(folder):
        for name in names:
            with Path(root, name).open("rb") as file:
                fsync(file.fileno())
        fsync_folder(Path(root))


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """`folder` and what is missing above it, each name durable."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    with naming_space(folder):
        folder.mkdir(mode, exist_ok=True)
        fsync_folder(folder.parent)


def write_all(fd: int, data: Buffer) -> None:
    """Every byte of `data` at the file's position."""
    with memoryview(data) as whole, whole.cast("B") as view:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:])


def write_durably(final: Path, data: bytes | Iterable[Buffer], tmp: Path | None = None, mode: int = 0o666) -> None:
    """`data` under the name `final`, whole or not at all. `tmp` must be on the same file system."""
    tmp = tmp or _beside(final)
    with naming_space(final), _removed_on_error(tmp):
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            for chunk in [data] if isinstance(data, bytes) else data:
                write_all(fd, chunk)
            fsync(fd)
        finally:
            os.close(fd)
        _rename(tmp, final)


def write_once(final: Path, data: bytes, mode: int = 0o600) -> bool:
    """`data` under the name `final`, whole and durable, where nothing has that name yet; whether it was so. Of several
    who try one succeeds."""
    tmp = final.with_name(f".{final.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with naming_space(final), _removed_on_error(tmp):
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            write_all(fd, data)
            fsync(fd)
        finally:
            os.close(fd)
        try:
            final.hardlink_to(tmp)
        except FileExistsError:
            is_new = False
        else:
            is_new = True
        tmp.unlink()
        fsync_folder(final.parent)  # of another's file as well: whoever finds it may rely on it
    return is_new


def write_private(final: Path, data: Buffer) -> None:
    """`data` under the name `final`, whole or not at all, for us alone. It outlives any process, not a power cut."""
    tmp = _beside(final)
    with _removed_on_error(tmp):
        tmp.touch(0o600)
        tmp.write_bytes(data)
        tmp.replace(final)


def read_json(file: Path, kind: type[_T]) -> _T | None:
    """What a small file says; None where there is none, or none that can be read: torn by its writer's death."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def publish(tmp: Path, final: Path) -> None:
    """A file somebody else wrote, durable under its final name; `tmp` is gone if that fails."""
    with naming_space(final), _removed_on_error(tmp):
        fd = os.open(tmp, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fsync(fd)
        finally:
            os.close(fd)
        _rename(tmp, final)


def replace_folder(made: Path, final: Path) -> None:
    """`made`, which is durable, under the name `final`; what had that name before is then at `made`. Where the system
    cannot exchange two names, there is no `final` for a moment, and never half of one."""
    with naming_space(final):
        if not final.exists():
            made.rename(final)
        elif not _exchange(made, final):
            old = made.with_name(f"{made.name}-before")
            final.rename(old)
            made.rename(final)
            old.rename(made)
        fsync_folder(final.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Two names for each other, at once; whether the system and the file system can."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        failed = libc.renameat2(_HERE, names[0], _HERE, names[1], 2)
    elif sys.platform == "darwin":
        failed = libc.renamex_np(*names, 2)
    else:
        return False
    if failed and ctypes.get_errno() not in _CANNOT:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
    return not failed


def local_commit(tmp: Path, done: Path) -> None:
    """Atomic but not durable: outlives any process, not a power cut. For what can be computed again."""
    with naming_space(done):
        tmp.replace(done)


def _beside(final: Path) -> Path:
    return final.with_name(f".{final.name}.{os.getpid()}.tmp")


def _rename(tmp: Path, final: Path) -> None:
    tmp.replace(final)
    fsync_folder(final.parent)


@contextmanager
def _removed_on_error(tmp: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            tmp.unlink()
        raise
