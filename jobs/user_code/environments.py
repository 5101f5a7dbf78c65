"""Python environments for users' code on this machine: what one has, told by its own interpreter. Installs nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from muster.jobs.common.errors import RefusedError, UsageError
from muster.jobs.common.locations import expand
from muster.jobs.common.names import is_environment
from muster.jobs.contract.plan import Environment
from muster.jobs.contract.requirements import OPTIONAL, canonical

PROBE_SECONDS = 120.0  # a conda environment on a cold disk takes long to import numpy
LEAST_PYTHON = (3, 8)
# How variables begin that are the pool's, our own interpreter's, or say where our sockets are
OURS = ("RAY_", "SPT_", "PYTHONBREAKPOINT", "PYTHONHOME", "__PYVENV", "MUSTER_ROOT", "MUSTER_FARM", "MUSTER_CONFIG")
LOGIN = ("SSH_", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY")  # of who started us: the way to his keys
OTHERS = ("PYTHONPATH", "VIRTUAL_ENV")  # of the environment we run in: nothing to another one
_SAID_LIMIT = 300  # characters of what it printed

# Run there: Python 3.8 or later, numpy, nothing of ours. What its start prints goes to stdout; the answer does not.
_PROBE = """
import json, os, platform, sys
if sys.version_info < {least}:
    found = {{"python": platform.python_version(), "packages": {{}}}}
else:
    from importlib.metadata import distributions
    packages = {{}}
    for one in distributions():
        name = one.metadata["Name"]
        if name:
            packages.setdefault(name.lower().replace("_", "-").replace(".", "-"), one.version or "")
    try:
        import numpy
        packages["numpy"] = numpy.__version__
    except ImportError:
        packages.pop("numpy", None)
    found = {{"python": platform.python_version(), "packages": packages}}
os.write({fd}, json.dumps(found).encode())
"""


def parse(text: str) -> tuple[str, str]:
    """`nlp=/opt/nlp/bin/python` is a name and an interpreter that is here."""
    name, equals, python = text.partition("=")
    if not equals or not is_environment(name) or not python:
        raise UsageError(f"--env {text!r}: expected NAME=PYTHON", "such as --env nlp=/opt/conda/envs/nlp/bin/python")
    path = expand(python)
    found = shutil.which(path / "bin" / "python" if path.is_dir() else path)
    if found is None:
        raise UsageError(f"--env {name}: there is no program {python}", "name the environment's Python interpreter")
    return name, str(Path(found).absolute())  # not resolved: a venv's interpreter is a link


def variables(python: str) -> dict[str, str]:
    """What a process of this interpreter finds around it: what we do, without what is ours, or his alone who started
    us. Programs of its environment come first."""
    found = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, *LOGIN))}
    if python != sys.executable:
        found = {name: value for name, value in found.items() if name not in OTHERS}
        found["PATH"] = os.pathsep.join([str(Path(python).parent), found.get("PATH", os.defpath)])
    return found


def own() -> Environment:
    """The one this process runs in."""
    from importlib.metadata import distributions
    from platform import python_version

    packages: dict[str, str] = {}
    for one in distributions():
        name = one.metadata["Name"]
        if name:
            packages.setdefault(canonical(name), one.version or "")
    return Environment(python_version(), packages)


def installed() -> list[str]:
    """The packages that some jobs need, and not every machine has, that can be imported here. Imports none."""
    from importlib.util import find_spec

    return [name for name in OPTIONAL if find_spec(name) is not None]


def grown(known: Mapping[str, Environment], seen: Mapping[str, Environment]) -> dict[str, Environment]:
    """What is known of each environment, with the packages that came to it since. One that had been there stands as it
    was, whatever is installed now: processes that run may have it in memory."""
    return {
        name: msgspec.structs.replace(there, packages={**seen[name].packages, **there.packages})
        if name in seen
        else there
        for name, there in known.items()
    }


def probe(name: str, python: str) -> Environment:
    """What an interpreter has; a RefusedError where it cannot run users' code."""
    found = _asked(name, python)
    version = tuple(int(part) for part in re.findall(r"\d+", found.python)[:2])
    if version < LEAST_PYTHON:
        raise RefusedError(f"--env {name}: {python} is Python {found.python}", "it takes 3.8 or later")
    if "numpy" not in found.packages:
        raise RefusedError(f"--env {name}: {python} has no numpy", f"{python} -m pip install numpy")
    return found


def _asked(name: str, python: str) -> Environment:
    with tempfile.TemporaryFile() as answer:
        probe = _PROBE.format(fd=answer.fileno(), least=LEAST_PYTHON)
        try:
            done = subprocess.run(
                [python, "-c", probe], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=[answer.fileno()], env=variables(python), timeout=PROBE_SECONDS, check=False, cwd="/",
            )  # fmt: skip
            answer.seek(0)
            return msgspec.json.decode(answer.read(), type=Environment)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RefusedError(f"--env {name}: {python} does not run: {error}", "name a Python interpreter") from None
        except msgspec.DecodeError:
            said = " ".join(done.stdout.decode(errors="replace").split())[-_SAID_LIMIT:]
            raise RefusedError(f"--env {name}: {python} is no Python: {said}", "name an interpreter") from None
