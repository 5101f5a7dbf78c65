"""How programs of ours are started, whatever PATH and current folder are, and left to themselves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from muster.jobs.common.durable import naming_space
from muster.jobs.common.errors import MusterError

START_SECONDS = 60.0  # for a detached program to work
POLL_SECONDS = 0.05
ROOM_BYTES = 64 << 10  # for what it prints while it starts

# `-m` would put the current folder, here anybody's, before our own packages
_START = "import sys; sys.path[:] = [p for p in sys.path if p]; from {0} import {1}; sys.exit({1}())"


def python(entry: str, *args: str) -> list[str]:
    """The command line that runs "module:function" (`main` where none is named) with `args` in this interpreter."""
    module, _, function = entry.partition(":")
    return [sys.executable, "-c", _START.format(module, function or "main"), *args]


def detach(
    command: list[str], words: Path, works: Callable[[int], bool], late: MusterError, cwd: str | None = None
) -> tuple[int, int | None]:
    """Start a program and leave it to itself once it works; its pid, and its exit code should it end before.

    What it prints goes to the file `words`, and is shown if it ends. `works` is asked with its pid, and may raise what
    its starter is to be told; the program goes on then.
    """
    import subprocess

    with naming_space(words), words.open("wb") as out:
        out.write(bytes(ROOM_BYTES))  # its words would be lost on a full disk, and its end be a riddle
        out.flush()
        out.truncate(0)
        out.seek(0)
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, start_new_session=True
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            sys.stderr.write(words.read_text(errors="replace"))
            if not words.stat().st_size:
                why = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
                raise MusterError(f"process {child.pid} ended with {why} and no word", "run it without --detach")
            return child.pid, child.returncode
        if works(child.pid):
            child.returncode = 0  # it is on its own now: nobody waits for it
            return child.pid, None
        time.sleep(POLL_SECONDS)
    raise late
