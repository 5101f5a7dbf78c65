"""Merged layers from a server into a folder of this machine: LAYER/OUTPUT.npy, its manifest last. Opens no array.

A file that was cut short goes on where it ended; one that is there and still the server's is not asked for again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.client.patience import Patience
from coordinator.client.ssh import Ssh, Talk
from coordinator.fetching import Wanted, received
from jobs import checksum
from jobs.commit import naming_space, publish, write_all, write_durably
from jobs.errors import DamagedError, MusterError, ProtocolError
from jobs.items import is_path
from jobs.names import is_layer, is_plain
from jobs.result import MANIFEST, File, FileRow, Merged, WrittenFiles, written_files

if TYPE_CHECKING:
    from tqdm import tqdm

NAME_SHOWN = 128  # characters of a name that is not whole yet
MANIFEST_LIMIT = 16 << 20  # bytes


class Download:
    """One job's result. `folder` is made."""

    def __init__(self, ssh: Ssh, job: str, folder: Path) -> None:
        self._ssh = ssh
        self._job = job
        self.folder = folder
        self._patience = Patience()

    def run(self, layers: list[str], progress: bool) -> None:
        """Until all of these layers are here. A cut connection is made again."""
        from tqdm.auto import tqdm

        left = list(layers)
        with tqdm(desc=self._job, total=0, unit="B", unit_scale=True, unit_divisor=1024, disable=not progress) as bar:
            while left:
                try:
                    self._take(left, bar)
                except MusterError as error:
                    self._patience.endure(error)

    def _take(self, left: list[str], bar: tqdm[Any]) -> None:
        """Over one connection; what is done goes from the end of `left`."""
        with self._ssh.talk("fetch", "--", self._job) as talk, naming_space(self.folder):
            while left:
                _Layer(talk, left[-1], self.folder, self._patience).take(bar)
                left.pop()


class _Layer:
    """One layer over an open connection."""

    def __init__(self, talk: Talk, name: str, folder: Path, patience: Patience) -> None:
        if not is_layer(name):
            raise ProtocolError(f"the server calls a layer {name[:80]!r}")
        self._talk, self._name, self._folder, self._patience = talk, name, folder / name, patience

    def take(self, bar: tqdm[Any]) -> None:
        raw = self._manifest()
        seal = self._folder / MANIFEST
        if seal.is_file() and seal.read_bytes() == raw:
            return
        manifest = _decoded(raw, self._name)
        self._folder.mkdir(parents=True, exist_ok=True)
        seal.unlink(missing_ok=True)
        for file in manifest.files:
            self._take_file(file, bar)
        for product in manifest.outputs:
            if product.form == "files":
                self._take_written(written_files(self._folder, product), bar)
        write_durably(seal, raw)

    def _take_written(self, written: WrittenFiles, bar: tqdm[Any]) -> None:
        """Each file that the table names; those that are here and whole stay. What no table names any more goes."""
        wanted = {row.name: row for row in written.rows()}
        if not all(is_path(name) for name in wanted):
            raise ProtocolError(f"{self._name}: a table with a name that leads elsewhere")
        for path in [path for path in written.folder.rglob("*") if not path.is_dir()]:
            if path.relative_to(written.folder).as_posix() not in wanted:
                path.unlink()
        written.folder.mkdir(exist_ok=True)
        for name, row in wanted.items():
            if not _is_same(written.folder / name, row):
                (written.folder / name).parent.mkdir(parents=True, exist_ok=True)
                place = f"{written.folder.name}/{name}"
                self._take_file(File(place, "", (), row.bytes, row.digest), bar)

    def _manifest(self) -> bytes:
        nbytes, pieces = self._ask(MANIFEST, 0)
        if nbytes > MANIFEST_LIMIT:
            raise ProtocolError(f"a manifest of {nbytes} bytes")
        return b"".join(pieces)

    def _ask(self, file: str, start: int) -> tuple[int, Iterator[bytes]]:
        self._talk.write(msgspec.json.encode(Wanted(self._name, file, start)) + b"\n")
        self._talk.flush()
        return received(self._talk.read)

    def _take_file(self, file: File, bar: tqdm[Any]) -> None:
        """Under a name that its digest is part of, until it is whole."""
        part = self._folder / f".{Path(file.file).name[:NAME_SHOWN]}.{file.digest}.part"
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            self._append(fd, file, bar)
            damaged = os.fstat(fd).st_size != file.bytes or checksum.of_file(fd) != file.digest
        finally:
            os.close(fd)
        if damaged:
            part.unlink()
            raise DamagedError(f"{self._name}/{file.file} came otherwise than its manifest says", _AGAIN)
        publish(part, self._folder / file.file)

    def _append(self, fd: int, file: File, bar: tqdm[Any]) -> None:
        there = os.fstat(fd).st_size
        bar.total = max(bar.total or 0, bar.n + file.bytes - there)
        if there >= file.bytes:
            return
        nbytes, pieces = self._ask(file.file, there)
        if nbytes != file.bytes - there:
            raise DamagedError(f"{self._name}/{file.file} has {nbytes + there} bytes, not {file.bytes}", _AGAIN)
        for piece in pieces:
            write_all(fd, piece)
            bar.update(len(piece))
            self._patience.progress()


_AGAIN = "ask for the result again: the layer may have been computed anew meanwhile"


def _is_same(path: Path, row: FileRow) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            return os.fstat(file.fileno()).st_size == row.bytes and checksum.of_file(file.fileno()) == row.digest
    except FileNotFoundError:
        return False


def _decoded(raw: bytes, layer: str) -> Merged:
    """A manifest that names nothing elsewhere than beside it."""
    try:
        manifest = msgspec.json.decode(raw, type=Merged)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProtocolError(f"the manifest of {layer} does not decode: {error}") from None
    for file in manifest.files:
        known = file.file.endswith((".npy", ".csv"))
        if not known or "/" in file.file or file.file.startswith(".") or "\0" in file.file:
            raise ProtocolError(f"the manifest of {layer} names {file.file[:80]!r}")
    for folder in manifest.folders:
        if not is_plain(folder):
            raise ProtocolError(f"the manifest of {layer} names the folder {folder[:80]!r}")
    return manifest
