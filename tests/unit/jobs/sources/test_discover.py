"""Discovering layers: folders, single files, raw binary, and everything a folder may hold that is not a layer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from muster.jobs.common.errors import SourceError
from muster.jobs.contract.plan import Stamp
from muster.jobs.sources.discover import SourceSpec, discover
from muster.jobs.sources.globs import matches


def save(path: Path, rows: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.zeros((rows, 4), "<f4"))
    return path


def found(base: Path, spec: SourceSpec | None = None) -> list[str]:
    return [layer.name for layer in discover(spec or SourceSpec("w"), base)]


def refused(base: Path, spec: SourceSpec | None = None) -> SourceError:
    with pytest.raises(SourceError) as caught:
        discover(spec or SourceSpec("w"), base)
    assert caught.value.message.isprintable()
    return caught.value


def test_a_nested_folder(tmp_path: Path) -> None:
    for name in ["b/conv.0.weight", "b/a", "fc", "a"]:
        save(tmp_path / "w" / f"{name}.npy")
    (tmp_path / "w" / "README.txt").write_text("not a layer")
    layers = discover(SourceSpec("w"), tmp_path)
    assert [layer.name for layer in layers] == ["a", "b/a", "b/conv.0.weight", "fc"]
    source = layers[1].source
    path = tmp_path.resolve() / "w" / "b" / "a.npy"
    status = path.stat()
    assert (source.path, source.offset, source.dtype, source.shape) == (str(path), 128, "<f4", (3, 4))
    assert source.stamp == Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def test_one_file_and_absolute_and_home_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "x" / "conv1.v2.npy")
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ["conv1.v2.npy", str(path), "../x/conv1.v2.npy", "~/x/conv1.v2.npy"]:
        assert found(tmp_path / "x", SourceSpec(text)) == ["conv1.v2"]


def test_dots_are_passed_over_and_case_is_not(tmp_path: Path) -> None:
    for name in [".hidden.npy", ".git/a.npy", "._conv.npy", "A.NPY"]:
        target = tmp_path / "w" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        save(tmp_path / "x.npy").rename(target)
    assert found(tmp_path) == ["A"]


def test_one_dimension_has_scalar_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.arange(5, dtype=">i2"))
    [layer] = discover(SourceSpec("v.npy"), tmp_path)
    assert (layer.source.dtype, layer.source.shape) == (">i2", (5,))


def test_symlinks_are_stored_resolved(tmp_path: Path) -> None:
    real = save(tmp_path / "data" / "real.npy").resolve()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "one.npy").symlink_to("../data/real.npy")
    (tmp_path / "w" / "sub").symlink_to("../data")
    layers = discover(SourceSpec("w"), tmp_path)
    assert [(layer.name, layer.source.path) for layer in layers] == [("one", str(real)), ("sub/real", str(real))]


@pytest.mark.parametrize("target", [".", "..", "loop", "gone.npy"])
def test_symlinks_that_lead_nowhere(tmp_path: Path, target: str) -> None:
    save(tmp_path / "w" / "a.npy")
    name = "gone.npy" if target == "gone.npy" else "loop"
    (tmp_path / "w" / name).symlink_to(target)
    message = refused(tmp_path).message
    assert "through a symlink" in message or "symbolic links" in message


def test_a_dangling_symlink(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.npy").symlink_to("nothing.npy")
    assert "No such file" in refused(tmp_path).message


GLOBS = [
    (["conv*"], ["conv1", "conv2"]),
    (["fc", "b/*"], ["b/conv1", "fc"]),
    (["*/conv?"], ["b/conv1"]),
    (["**"], ["b/c/d", "b/conv1", "conv1", "conv2", "fc"]),
    (["**/conv1"], ["b/conv1", "conv1"]),
    (["b/**"], ["b/c/d", "b/conv1"]),
    (["conv[2-9]", "conv*"], ["conv1", "conv2"]),
]


@pytest.mark.parametrize(("globs", "names"), GLOBS)
def test_globs(tmp_path: Path, globs: list[str], names: list[str]) -> None:
    for name in ["conv1", "conv2", "fc", "b/conv1", "b/c/d"]:
        save(tmp_path / "w" / f"{name}.npy")
    assert found(tmp_path, SourceSpec("w", globs)) == names


def test_a_glob_that_matches_nothing_names_the_nearest(tmp_path: Path) -> None:
    for name in ["conv1", "conv2", "fc"]:
        save(tmp_path / "w" / f"{name}.npy")
    error = refused(tmp_path, SourceSpec("w", ["conv1", "cnov2"]))
    assert error.message == "source.layers[1]: 'cnov2' matches no layer"
    assert error.hint == "did you mean `conv2`?"
    assert refused(tmp_path, SourceSpec("w", ["zzz"])).hint == "layers here: conv1, conv2, fc"


def test_what_no_glob_wants_is_not_opened(tmp_path: Path) -> None:
    save(tmp_path / "w" / "good.npy")
    (tmp_path / "w" / "bad.npy").write_bytes(b"nonsense")
    assert found(tmp_path, SourceSpec("w", ["g*"])) == ["good"]
    assert "not a .npy file" in refused(tmp_path).message


@pytest.mark.parametrize("glob", ["*" * 500, "a*" * 200, "**/" * 12 + "x"])
def test_odd_globs_end(glob: str) -> None:
    assert matches("a" * 128, glob) == (glob == "*" * 500)
    assert not matches("/".join("a" * 250), "**/a/" * 100 + "b")


def _empty(folder: Path) -> None:
    folder.mkdir()


def _only_text(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.txt").write_text("x")


def _missing(folder: Path) -> None:
    pass


def _folder_named_like_an_array(folder: Path) -> None:
    (folder / "a.npy").mkdir(parents=True)


def _pipe(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "a.npy")


def _twice(folder: Path) -> None:
    save(folder / "a.npy")
    save(folder / "b.npy").rename(folder / "a.NPY")


def _bad_name(folder: Path) -> None:
    save(folder / "b.npy").rename(folder / "a\nb.npy")


def _not_utf8(folder: Path) -> None:
    save(folder / "b.npy").rename(folder / os.fsdecode(b"\xff.npy"))


def _npy_twice(folder: Path) -> None:
    save(folder / "a.npy.npy")


def _no_name(folder: Path) -> None:
    save(folder / "sub" / "x.npy").rename(folder / "sub" / "manifest.json.npy")


BAD_FOLDERS: list[tuple[Callable[[Path], None], str]] = [
    (_empty, "no .npy below this folder"),
    (_only_text, "no .npy below this folder"),
    (_missing, "No such file or directory"),
    (_folder_named_like_an_array, "a folder, named like an array"),
    (_pipe, "not a regular file"),
    (_twice, "two files give the layer a"),
    (_bad_name, "cannot be a layer's name"),
    (_not_utf8, "cannot be a layer's name"),
    (_npy_twice, "cannot be a layer's name"),
    (_no_name, "cannot be a layer's name"),
]


@pytest.mark.parametrize(("make", "message"), BAD_FOLDERS)
def test_bad_folders(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "w")
    assert message in refused(tmp_path).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("what", ["w", "w/a.npy"])
def test_what_may_not_be_read(tmp_path: Path, what: str) -> None:
    save(tmp_path / "w" / "a.npy")
    (tmp_path / what).chmod(0)
    assert "Permission denied" in refused(tmp_path).message
    (tmp_path / what).chmod(0o700)


def test_raw_binary(tmp_path: Path) -> None:
    (tmp_path / "w.f32.bin").write_bytes(bytes(96))
    for shape in ([-1, 4], [6, 4]):
        [layer] = discover(SourceSpec("w.f32.bin", None, "float32", shape), tmp_path)
        assert (layer.name, layer.source.shape, layer.source.dtype, layer.source.offset) == ("w.f32", (6, 4), "<f4", 0)
    [layer] = discover(SourceSpec("w.f32.bin", None, ">i2", [-1]), tmp_path)
    assert (layer.source.shape, layer.source.dtype) == ((48,), ">i2")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([-1, 5], "96 bytes are not a whole number of rows of 20 bytes"),
        ([7, 4], "truncated: its shape (7, 4) needs 112 bytes of data, the file has 96"),
        ([5, 4], "longer than it claims: its shape (5, 4) needs 80 bytes of data, the file has 96"),
    ],
)
def test_raw_binary_that_does_not_fit(tmp_path: Path, shape: list[int], message: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(96))
    assert message in refused(tmp_path, SourceSpec("w.bin", None, "<f4", shape)).message


def test_raw_binary_without_bytes_or_a_shape(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"")
    assert "the file is empty" in refused(tmp_path, SourceSpec("w.bin", None, "<f4", [-1])).message
    (tmp_path / "w.bin").write_bytes(b"x" * 64)
    assert "not a .npy file" in refused(tmp_path, SourceSpec("w.bin")).message


def test_a_shape_for_what_has_its_own(tmp_path: Path) -> None:
    save(tmp_path / "w" / "a.npy")
    for path in ["w", "w/a.npy"]:
        assert "says its own dtype" in refused(tmp_path, SourceSpec(path, None, "<f4", [-1])).message
