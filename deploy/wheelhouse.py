"""A folder of wheels for machines that have no index of packages: fetched by pip here, and what of it fits a machine.

pip fetches for another Python than its own, but judges by its own which requirements hold: a pip of 3.11 does not fetch
what a package wants before 3.11. So what came is read, and pip is asked again for what is missing.
"""

from __future__ import annotations

import email
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging import tags
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from muster.deploy import wheel
from muster.deploy.steps import WheelFit
from muster.jobs.common.errors import LinkError
from muster.jobs.common.ssh import last_line

FETCH_SECONDS = 1800.0
PATCHES = (0, 99)  # third numbers of a Python, of which only two are known


def fetch(folder: Path, fit: WheelFit, *more: str) -> None:
    """What Muster is installed with on such machines, and what `more` asks for, into a folder that may have some."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as made:
        wanted, seen = [str(wheel.make(Path(made))), *more], [folder, Path(made)]
        while True:
            into = Path(tempfile.mkdtemp(dir=made))
            _download(into, fit, wanted, seen)
            missing = unmet(into.glob("*.whl"), [wheel.DISTRIBUTION, *more], fit) - set(wanted)
            if not missing:
                break
            wanted += sorted(missing)
            seen.append(into)
        for file in into.glob("*.whl"):
            if file.name != wheel.NAME:
                file.replace(folder / file.name)


def unmet(wheels: Iterable[Path], wanted: Iterable[str], fit: WheelFit) -> set[str]:
    """What such a machine would miss of these requirements, and of what they require, had it these wheels alone."""
    environments = [_environment(fit, patch) for patch in PATCHES]
    there = {(named := parse_wheel_filename(file.name))[0]: (named[1], file) for file in wheels}
    left = [Requirement(one) for one in wanted]
    missing: set[str] = set()
    seen: set[str] = set()
    while left:
        one = left.pop()
        one.marker = None
        if str(one) in seen:
            continue
        seen.add(str(one))
        version, file = there.get(canonicalize_name(one.name), (None, None))
        if version is None or file is None or version not in one.specifier:
            missing.add(str(one))
            continue
        asked = [{**each, "extra": extra} for each in environments for extra in ("", *one.extras)]
        left += [new for new in _requires(file) if new.marker is None or any(map(new.marker.evaluate, asked))]
    return missing


def fitting(wheels: Sequence[Path], python: str, platforms: Sequence[str]) -> list[Path]:
    """Those that pip would take for a Python such as 3.11 on these platforms."""
    major, minor = map(int, python.split("."))
    own = tags.cpython_tags((major, minor), platforms=platforms)
    taken = {*own, *tags.compatible_tags((major, minor), f"cp{major}{minor}", platforms)}
    return [file for file in wheels if taken & _tags(file)]


def _download(into: Path, fit: WheelFit, wanted: Sequence[str], seen: Sequence[Path]) -> None:
    fits = [word for tag in fit.tags for word in ("--platform", tag)]
    which = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", fit.python, *fits]
    known = [word for folder in seen for word in ("--find-links", str(folder))]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command = [*pip, *which, *known, "--dest", str(into), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    if done.returncode:
        raise LinkError(f"pip cannot fetch for Python {fit.python} on {fit.machine}: {last_line(done.stderr)}")


def _environment(fit: WheelFit, patch: int) -> dict[str, str]:
    """What decides there which requirements hold."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{fit.python}.{patch}",
        "os_name": "posix",
        "platform_machine": fit.machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{fit.python}.{patch}",
        "python_version": fit.python,
        "sys_platform": "linux",
    }


def _requires(file: Path) -> list[Requirement]:
    """What a wheel says that it is to be installed with."""
    with zipfile.ZipFile(file) as archive:
        [name] = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA") and one.count("/") == 1]
        said = email.message_from_bytes(archive.read(name))
    return [Requirement(line) for line in said.get_all("Requires-Dist", [])]


def _tags(file: Path) -> frozenset[tags.Tag]:
    """What the name of a wheel says it fits; nothing where it is no name of a wheel."""
    try:
        return parse_wheel_filename(file.name)[3]
    except InvalidWheelFilename:
        return frozenset()
