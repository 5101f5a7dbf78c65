"""What sshd looks at before it reads this account's authorized_keys (its StrictModes). Reads, and changes nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from muster.jobs.common.ssh import quote

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def key_obstacles(home: Path, uid: int) -> list[str]:
    """Why no key of the file there lets anybody in, each with the command that mends it; none where there is no file.
    It, its folder and the home must be this account's or root's, and writable for nobody else."""
    keys = home / ".ssh" / "authorized_keys"
    try:
        checked = [(path, path.stat()) for path in (home, keys.parent, keys)]
    except OSError:
        return []
    lines = []
    for path, found in checked:
        if found.st_uid not in (0, uid):
            lines.append(f"{path} is of another user: `sudo chown {uid} {quote(os.fspath(path))}`")
        if found.st_mode & OTHERS_WRITE:
            lines.append(f"{path} is writable for others: `chmod go-w {quote(os.fspath(path))}`")
    return lines
