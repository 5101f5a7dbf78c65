"""The wheel of the version that runs here, made of its own installed files: no build tool and no network is needed."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from muster import VERSION
from muster.jobs.common.errors import UsageError

DISTRIBUTION = "muster-farm"
NAME = f"muster_farm-{VERSION}-py3-none-any.whl"
_INFO = f"muster_farm-{VERSION}.dist-info"
_WHEEL = "Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_DATE = (1980, 1, 1, 0, 0, 0)  # the same files are the same wheel
_PARTS = (".py", "py.typed", ".html", ".css", ".js", ".svg")


def files() -> Iterator[tuple[str, Path]]:
    """Every file of the package, by its name in a wheel."""
    top = Path(__file__).parents[1]
    for folder, folders, names in os.walk(top, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if name.endswith(_PARTS):
                path = Path(folder, name)
                yield f"muster/{path.relative_to(top)}", path


def stamp() -> str:
    """A digest of all that the wheel would hold."""
    found = hashlib.sha256(_metadata().encode())
    for name, path in files():
        found.update(f"\0{name}\0".encode() + path.read_bytes())
    return found.hexdigest()[:32]


def build(stamp: str) -> str:
    """What an environment with it is called."""
    return f"{VERSION}-{stamp[:8]}"


def make(folder: Path) -> Path:
    """The wheel, written into `folder`."""
    here = distribution(DISTRIBUTION)
    wheel, record = folder / NAME, []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:

        def put(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")

        for name, path in files():
            put(name, path.read_bytes())
        put(f"{_INFO}/METADATA", _metadata().encode())
        put(f"{_INFO}/WHEEL", _WHEEL.encode())
        put(f"{_INFO}/entry_points.txt", (here.read_text("entry_points.txt") or "").encode())
        record.append(f"{_INFO}/RECORD,,\n")
        archive.writestr(zipfile.ZipInfo(f"{_INFO}/RECORD", _DATE), "".join(record))
    return wheel


def requirements(without: str) -> str:
    """What the wheel wants to be installed with, a line each, but for one package and for what is optional."""
    found = [Requirement(text) for text in distribution(DISTRIBUTION).requires or []]
    return "\n".join(str(one) for one in found if one.name != without and "extra" not in str(one.marker))


def _metadata() -> str:
    """What pip wrote down at install, or, run from a source tree, what its build left there under an older name."""
    here = distribution(DISTRIBUTION)
    found = here.read_text("METADATA") or here.read_text("PKG-INFO")
    if not found:
        raise UsageError(
            f"nothing here says what {DISTRIBUTION} is made of", "install it with pip, then run this again"
        )
    return found
