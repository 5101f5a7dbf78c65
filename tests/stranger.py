"""Another user of this machine: a child of ours that gives up being root, and tries things. As root only."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NOBODY = 65534
SECONDS = 30.0
_DROP = "import os, socket, sys\nos.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root, to play another user")


def run(code: str, *args: str, uid: int = NOBODY) -> str:
    """What `code`, which finds `args` in sys.argv from 2 on, prints as the user `uid`."""
    with start(code, *args, uid=uid) as child:
        try:
            said, _ = child.communicate(timeout=SECONDS)
        finally:
            child.kill()
    assert child.returncode == 0
    return said


def start(code: str, *args: str, uid: int = NOBODY) -> subprocess.Popen[str]:
    """The same, to be talked with while it runs."""
    command = [sys.executable, "-I", "-c", _DROP + code, str(uid), *args]
    return subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True)
