"""A `coordinator` command on a root of this machine, run to its end as a process of its own. Knows none of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common import configuration, ssh
from muster.jobs.common.errors import error_class


def run(root: Root, name: str, words: Sequence[str]) -> bytes:
    """What it prints; its error where it ends with one."""
    env = {**os.environ, configuration.VARIABLE: ""}
    done = subprocess.run(
        [*roots.command(name, root.path), *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace")
        message, hint = ssh.our_error(said) or (ssh.last_line(said) or f"`coordinator {name}` died", "see daemon.log")
        raise error_class(done.returncode)(message, hint)
    return done.stdout
