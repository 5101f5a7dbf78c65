"""File systems of this machine: which one a path is on, and whether that is a network's. Decides nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"}
    | {"9p", "virtiofs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.s3fs", "fuse.juicefs"}
)
MOUNTS = Path("/proc/self/mountinfo")


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system `path` is or would be on; "" where the system does not say."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for point, found in _mounted(mounts):
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # a later mount on the same point covers the earlier
            best, kind = point, found
    return kind


def network_file_system(path: Path) -> str:
    """The type of the network file system `path` is on, "" if it is a local one."""
    kind = file_system(path)
    return kind if kind in NETWORK_FILE_SYSTEMS else ""


def _mounted(table: Path) -> Iterator[tuple[str, str]]:
    """Every mount point and the type of what is mounted there, in the order of mounting."""
    if sys.platform != "linux" and not table.exists():
        import psutil

        yield from ((disk.mountpoint, disk.fstype) for disk in psutil.disk_partitions(all=True))
        return
    with suppress(OSError):
        for line in table.read_text(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            yield left.split()[4].replace("\\040", " ").replace("\\011", "\t"), right.split()[0]
