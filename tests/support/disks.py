"""Small disks of their own for a farm's root, as root on Linux: one that gets full, one whose power is cut."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.farm import FarmHarness, until
from tests.support.needs import skip_for

EXT4_SHUTDOWN = 0x8004587D
PIECE_BYTES, BLOCK_BYTES = 1 << 16, 1 << 12
NO_LOG_FLUSH = 2  # what was not synced is lost, as when the power goes


def obstacle(*programs: str) -> str:
    """Why there can be none here, or ""."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs to be root on Linux"
    missing = [name for name in programs if shutil.which(name) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def require(*programs: str) -> None:
    """Skip where there can be none; a program that is not there for root in CI is a failure."""
    skip_for(obstacle(*programs), fails_in_ci=os.geteuid() == 0)


@contextlib.contextmanager
def small(folder: Path, megabytes: int, inodes: int = 0) -> Iterator[Path]:
    """A file system in memory at `folder`; `inodes`: so many files at most, 0 for as many as there is room for."""
    folder.mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,nr_inodes={inodes},mode=700", "none", folder)
    try:
        yield folder
    finally:
        _run("umount", "--lazy", folder)


def grow(folder: Path, megabytes: int) -> None:
    """A `small` one has so much room from now on."""
    _run("mount", "-o", f"remount,size={megabytes}m", folder)


class Ballast:
    """Files that take a disk's room, of bytes or of inodes; whoever else uses the disk may take and give back some."""

    def __init__(self, disk: Path, what: str = "bytes") -> None:
        self._folder, self._what = disk / "ballast", what
        self._made = 0

    def fill(self) -> None:
        """Until there is no room left."""
        self._folder.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):
            while True:
                path = self._folder / str(self._made)
                with path.open("wb", buffering=0) as file:
                    self._made += 1
                    while self._what == "bytes" and file.tell() < PIECE_BYTES:
                        file.write(bytes(BLOCK_BYTES))

    def give_back(self, pieces: int) -> None:
        """So many files or, of bytes, pieces of 64 KiB."""
        for _ in range(min(pieces, self._made)):
            self._made -= 1
            (self._folder / str(self._made)).unlink()

    def leave(self, nbytes: int) -> None:
        """Take all the bytes but so many."""
        self.drop()
        self._folder.mkdir()
        with (self._folder / "all").open("wb") as file:
            until(lambda: self._grow(file.fileno(), nbytes), "the disk to be full")

    def _grow(self, fd: int, nbytes: int) -> bool:
        """Take all but `nbytes`; False where somebody else took some of it meanwhile."""
        try:
            os.posix_fallocate(fd, 0, shutil.disk_usage(self._folder).free - nbytes)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return False
        return True

    def drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._made = 0


class Cuttable:
    """An ext4 in a file, mounted at `folder`."""

    def __init__(self, folder: Path, megabytes: int = 256) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".img")
        folder.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", self._image)
        self._mount()
        (folder / "lost+found").rmdir()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", self._image, self.folder)

    def cut(self) -> None:
        """The power goes: only what was synced is still there once it is `back`."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def cut_beneath(self, farm: FarmHarness, check: bool = False) -> None:
        """Everything on the server of this farm's root stops at once; the disk comes back, the daemon does not yet."""
        self.cut()
        farm.kill()
        for agent in farm.agents:
            agent.hang_up(kill=True)
        until(lambda: not farm.processes(), "every process on the disk to be gone")
        self.back(check)

    def back(self, check: bool = False) -> None:
        """Mounted again; nobody may use it meanwhile. `check`: first by fsck, as at a start."""
        _run("umount", self.folder)
        self._leave_behind()
        if check:
            done = subprocess.run(["fsck.ext4", "-p", str(self._image)], capture_output=True, check=False)
            assert done.returncode in {0, 1}, f"fsck says {done.returncode}: {done.stdout!r}"
        self._mount()

    def _leave_behind(self) -> None:
        """A mount namespace that somebody made meanwhile has the mount too, and a mount of the same image would be that
        one, shut down as it is: then go on with a copy."""
        if subprocess.run(["losetup", "-j", str(self._image)], capture_output=True, check=True).stdout:
            copy = self._image.with_name(f"{self._image.name}+")
            _run("cp", "--sparse=always", self._image, copy)
            self._image.unlink()
            self._image = copy

    def close(self) -> None:
        _run("umount", "--lazy", self.folder)
        self._image.unlink()


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
