"""Merged layers from a server into a folder of this machine: LAYER/OUTPUT.npy, its manifest last. Opens no array.

A file that was cut short goes on where it ended; one that is there and still the server's is not asked for again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from muster.coordinator.client.backends.retry import Patience
from muster.coordinator.client.backends.ssh import Ssh, SshTalk
from muster.coordinator.client.bars import byte_bar
from muster.coordinator.result_downloads.file_server import Wanted, received
from muster.jobs.common import hashing
from muster.jobs.common.durable import naming_space, publish, write_all, write_durably
from muster.jobs.common.errors import DamagedError, MusterError, ProtocolError, SpaceError
from muster.jobs.common.names import is_layer
from muster.jobs.common.units import shortage
from muster.jobs.parts.manifest import MANIFEST, File, decode_manifest
from muster.jobs.results.open_result import FileRow, WrittenFiles, written_files

if TYPE_CHECKING:
    from tqdm import tqdm

AHEAD = 64  # files asked for at once
MANIFEST_LIMIT = 16 << 20  # bytes


class Download:
    """One job's result, or what was made of it where shards were missing. `folder` is made."""

    def __init__(self, ssh: Ssh, job: str, folder: Path, partial: bool = False) -> None:
        self._ssh = ssh
        self._job = job
        self.folder = folder
        self._partial = partial
        self._patience = Patience()

    def run(self, layers: list[str], progress: bool) -> None:
        """Until all of these layers are here. A cut connection is made again."""
        left = list(layers)
        with byte_bar(progress, self._job, 0) as bar:
            while left:
                try:
                    self._take(left, bar)
                except MusterError as error:
                    self._patience.endure(error)

    def _take(self, left: list[str], bar: tqdm[Any]) -> None:
        """Over one connection; what is done goes from the end of `left`."""
        options = ["--partial"] if self._partial else []
        with self._ssh.talk("fetch", *options, "--", self._job) as talk, naming_space(self.folder):
            while left:
                _Layer(talk, left[-1], self.folder, self._patience, self._partial).take(bar)
                left.pop()


class _Layer:
    """One layer over an open connection."""

    def __init__(self, talk: SshTalk, name: str, folder: Path, patience: Patience, partial: bool) -> None:
        if not is_layer(name):
            raise ProtocolError(f"the server calls a layer {name[:80]!r}")
        self._talk, self._name, self._folder, self._patience = talk, name, folder / name, patience
        self._partial = partial

    def take(self, bar: tqdm[Any]) -> None:
        raw = self._manifest()
        seal = self._folder / MANIFEST
        if seal.is_file() and seal.read_bytes() == raw:
            return
        manifest = decode_manifest(raw, f"the manifest of {self._name}", self._partial)
        self._folder.mkdir(parents=True, exist_ok=True)
        seal.unlink(missing_ok=True)
        for file in manifest.files:
            self._take_files([file], bar)
        for product in manifest.outputs:
            if product.form == "files":
                self._take_written(written_files(self._folder, product), bar)
        write_durably(seal, raw)

    def _take_written(self, written: WrittenFiles, bar: tqdm[Any]) -> None:
        """Each file that the table names; those that are here and whole stay. What no table names any more goes."""
        wanted = {row.name: row for row in written.rows()}
        folders = {parent.as_posix() for name in wanted for parent in PurePosixPath(name).parents}
        if (bad := next((name for name in wanted if name in folders), None)) is not None:
            raise ProtocolError(f"{self._name}: a table with {bad[:80]!r} as a file and as a folder")
        for path in [path for path in written.folder.rglob("*") if not path.is_dir()]:
            if path.relative_to(written.folder).as_posix() not in wanted:
                path.unlink()
        written.folder.mkdir(exist_ok=True)
        missing = []
        for name, row in wanted.items():
            if not _is_same(written.folder / name, row):
                (written.folder / name).parent.mkdir(parents=True, exist_ok=True)
                missing.append(File(f"{written.folder.name}/{name}", "", (), row.bytes, row.digest))
        for start in range(0, len(missing), AHEAD):
            self._take_files(missing[start : start + AHEAD], bar)

    def _manifest(self) -> bytes:
        nbytes, pieces = self._ask(MANIFEST, 0)
        if nbytes > MANIFEST_LIMIT:
            raise ProtocolError(f"a manifest of {nbytes} bytes")
        return b"".join(pieces)

    def _ask(self, file: str, start: int) -> tuple[int, Iterator[bytes]]:
        self._request(file, start)
        self._talk.flush()
        return received(self._talk.read)

    def _request(self, file: str, start: int) -> None:
        self._talk.write(msgspec.json.encode(Wanted(self._name, file, start)) + b"\n")

    def _take_files(self, files: Sequence[File], bar: tqdm[Any]) -> None:
        """All are asked for before the first answer is taken: many small ones do not wait a round trip each."""
        parts = [_Part(self._folder, file) for file in files]
        asked = [part for part in parts if part.there < part.file.bytes]
        self._check_room(sum(part.file.bytes - part.there for part in asked))
        for part in asked:
            self._request(part.file.file, part.there)
        self._talk.flush()
        for part in parts:
            bar.total = max(bar.total or 0, bar.n + part.file.bytes - part.there)
            if part.there < part.file.bytes:
                self._append(part, bar)
            if not part.is_whole():
                part.path.unlink()
                raise DamagedError(f"{self._name}/{part.file.file} came otherwise than its manifest says", _AGAIN)
            publish(part.path, self._folder / part.file.file)

    def _check_room(self, nbytes: int) -> None:
        """Before all of it came: a server may say any number."""
        if nbytes > (free := shutil.disk_usage(self._folder).free):
            raise SpaceError(shortage(f"layer {self._name}", nbytes, free, f"in {self._folder}"))

    def _append(self, part: _Part, bar: tqdm[Any]) -> None:
        nbytes, pieces = received(self._talk.read)
        if nbytes != part.file.bytes - part.there:
            whole = f"{nbytes + part.there} bytes, not {part.file.bytes}"
            raise DamagedError(f"{self._name}/{part.file.file} has {whole}", _AGAIN)
        with part.path.open("ab", buffering=0) as file:
            for piece in pieces:
                write_all(file.fileno(), piece)
                bar.update(len(piece))
                self._patience.progress()


class _Part:
    """A file that is coming, under a name that its digest is part of until it is whole."""

    def __init__(self, folder: Path, file: File) -> None:
        name = file.file if "/" not in file.file else xxhash.xxh3_64_hexdigest(file.file.encode())
        self.file = file
        self.path = folder / f".{name}.{file.digest}.part"
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self.there = os.fstat(fd).st_size
        os.close(fd)

    def is_whole(self) -> bool:
        with self.path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return size == self.file.bytes and hashing.of_file(file.fileno()) == self.file.digest


_AGAIN = "ask for the result again: the layer may have been computed anew meanwhile"


def _is_same(path: Path, row: FileRow) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            return os.fstat(file.fileno()).st_size == row.bytes and hashing.of_file(file.fileno()) == row.digest
    except FileNotFoundError:
        return False
