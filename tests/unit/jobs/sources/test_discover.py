"""Discovering layers: folders, single files, raw binary, and everything a folder may hold that is not a layer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.common.errors import SourceError
from muster.jobs.contract.plan import Stamp
from muster.jobs.sources.discover import SourceSpec, discover
from muster.jobs.sources.globs import leads_into, matches


def save(path: Path, rows: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.zeros((rows, 4), "<f4"))
    return path


def found(base: Path, spec: SourceSpec | None = None) -> list[str]:
    return [layer.name for layer in discover(spec or SourceSpec("w"), base).layers]


def refused(base: Path, spec: SourceSpec | None = None) -> SourceError:
    with pytest.raises(SourceError) as caught:
        discover(spec or SourceSpec("w"), base)
    assert caught.value.message.isprintable()
    return caught.value


def test_a_nested_folder(tmp_path: Path) -> None:
    for name in ["b/conv.0.weight", "b/a", "fc", "a"]:
        save(tmp_path / "w" / f"{name}.npy")
    (tmp_path / "w" / "README.txt").write_text("not a layer")
    layers = discover(SourceSpec("w"), tmp_path).layers
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
    [layer] = discover(SourceSpec("v.npy"), tmp_path).layers
    assert (layer.source.dtype, layer.source.shape) == (">i2", (5,))


def test_symlinks_are_stored_resolved(tmp_path: Path) -> None:
    real = save(tmp_path / "data" / "real.npy").resolve()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "one.npy").symlink_to("../data/real.npy")
    (tmp_path / "w" / "sub").symlink_to("../data")
    layers = discover(SourceSpec("w"), tmp_path).layers
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


PIECES = st.sampled_from(["a", "b", "ab", "*", "?", "a*", "[ab]", "**"])


@given(st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5), st.lists(PIECES, min_size=1, max_size=5))
def test_a_glob_leads_into_each_folder_of_a_layer_that_it_matches(parts: list[str], pieces: list[str]) -> None:
    name, glob = "/".join(parts), "/".join(pieces)
    folders = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    assert not matches(name, glob) or all(leads_into(folder, glob) for folder in folders)
    if "**" not in pieces and len(pieces) <= len(parts):
        assert not leads_into(name, glob)


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
    folder.mkdir(exist_ok=True)
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
    (_empty, "no array below this folder"),
    (_only_text, "no array below this folder"),
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
        [layer] = discover(SourceSpec("w.f32.bin", None, "float32", shape), tmp_path).layers
        assert (layer.name, layer.source.shape, layer.source.dtype, layer.source.offset) == ("w.f32", (6, 4), "<f4", 0)
    [layer] = discover(SourceSpec("w.f32.bin", None, ">i2", [-1]), tmp_path).layers
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


# --- a folder of raw files ---------------------------------------------------------------------------------

RAW = SourceSpec("w", None, "<f4", [-1, 4])


def raw(base: Path, name: str, rows: int = 3, extra: int = 0) -> Path:
    path = base / "w" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(rows * 16 + extra))
    return path


def test_a_folder_of_raw_files_has_a_layer_for_each(tmp_path: Path) -> None:
    for number, name in enumerate(["a.bin", "deep/b.f32", "deep/er/c", "v 1.2,x=3.raw"]):
        raw(tmp_path, name, number + 1)
    raw(tmp_path, ".hidden.bin", extra=1)
    layers = discover(RAW, tmp_path).layers
    assert [(one.name, one.source.shape) for one in layers] == [
        ("a", (1, 4)), ("deep/b", (2, 4)), ("deep/er/c", (3, 4)), ("v 1.2,x=3", (4, 4)),
    ]  # fmt: skip
    assert {(one.source.dtype, one.source.offset) for one in layers} == {("<f4", 0)}


def test_raw_files_of_one_name_keep_their_suffixes(tmp_path: Path) -> None:
    for name in ["conv.0.weight", "conv.0.bias", "fc.weight", "d/conv.0.weight"]:
        raw(tmp_path, name)
    assert found(tmp_path, RAW) == ["conv.0.bias", "conv.0.weight", "d/conv.0", "fc"]
    one = SourceSpec("w", ["conv.0.weight"], "<f4", [-1, 4])
    assert found(tmp_path, one) == ["conv.0.weight"]


def test_raw_files_through_links(tmp_path: Path) -> None:
    real = raw(tmp_path, "real.bin").rename(tmp_path / "real.bin")
    (tmp_path / "w" / "one.bin").symlink_to(real)
    (tmp_path / "w" / "gone.bin").symlink_to("nothing")
    (tmp_path / "w" / "loop.bin").symlink_to("loop.bin")
    (tmp_path / "w" / "self").symlink_to(".")
    layers = discover(SourceSpec("w", ["one"], "<f4", [-1, 4]), tmp_path).layers
    assert [(one.name, one.source.path) for one in layers] == [("one", str(real))]
    for name, message in [("gone", "No such file"), ("loop", "symbolic links"), ("self/**", "through a symlink")]:
        error = refused(tmp_path, SourceSpec("w", ["one", name], "<f4", [-1, 4]))
        assert message in error.message, name


@pytest.mark.parametrize(
    ("shape", "rows", "extra", "message"),
    [
        ([-1, 4], 3, 1, "odd.bin: 49 bytes are not a whole number of rows of 16 bytes"),
        ([-1, 4], 0, 0, "odd.bin: the file is empty"),
        ([3, 4], 4, 0, "odd.bin: longer than it claims"),
        ([3, 4], 2, 0, "odd.bin: truncated"),
    ],
)
def test_one_raw_file_that_does_not_fit_is_named_and_can_be_left_out(
    tmp_path: Path, shape: list[int], rows: int, extra: int, message: str
) -> None:
    raw(tmp_path, "good.bin")
    raw(tmp_path, "odd.bin", rows, extra)
    assert message in refused(tmp_path, SourceSpec("w", None, "<f4", shape)).message
    assert found(tmp_path, SourceSpec("w", ["good"], "<f4", shape)) == ["good"]


def test_arrays_that_say_their_own_shape_are_no_raw_files(tmp_path: Path) -> None:
    raw(tmp_path, "a.bin")
    for name in ["b", "c"]:
        save(tmp_path / "w" / f"{name}.npy")
    there = discover(RAW, tmp_path)
    assert [layer.name for layer in there.layers] == ["a"]
    own = "which say their own dtype and shape; a job without `source.dtype` and `source.shape` has them"
    assert there.notes == (f"skipped: 2 .npy files, {own}",)
    (tmp_path / "w" / "a.bin").unlink()
    assert "a .npy says its own dtype" in refused(tmp_path, RAW).message
    (tmp_path / "e").mkdir()
    assert "no file below this folder" in refused(tmp_path, SourceSpec("e", None, "<f4", [-1])).message


# --- what nobody asked for ---------------------------------------------------------------------------------


def _archive(folder: Path) -> None:
    np.savez(folder / "x.npz", a=np.zeros(3))


def _folder_of_itself(folder: Path) -> None:
    (folder / "again").symlink_to(".")


def _link_to_itself(folder: Path) -> None:
    (folder / "link").symlink_to("link")


def _too_deep(folder: Path) -> None:
    deep = folder
    for _ in range(6):
        deep = deep / ("d" * 100)
    deep.mkdir(parents=True)


BAD_NEIGHBOURS = [
    _archive, _bad_name, _folder_named_like_an_array, _folder_of_itself, _link_to_itself, _no_name, _not_utf8,
    _npy_twice, _pipe, _too_deep, _twice,
]  # fmt: skip


@pytest.mark.parametrize("make", BAD_NEIGHBOURS)
@pytest.mark.parametrize("globs", [["good*"], ["good", "in/*"]])
def test_a_bad_neighbour_blocks_no_layer_that_was_asked_for(
    tmp_path: Path, make: Callable[[Path], None], globs: list[str]
) -> None:
    for name in ["good", "in/good"]:
        save(tmp_path / "w" / f"{name}.npy")
    make(tmp_path / "w")
    wanted = ["good", "in/good"] if len(globs) > 1 else ["good"]
    there = discover(SourceSpec("w", globs), tmp_path)
    assert ([layer.name for layer in there.layers], there.notes) == (wanted, ())


def test_a_folder_that_may_not_be_read_blocks_what_may_lie_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ["good", "locked/a", "open/b"]:
        save(tmp_path / "w" / f"{name}.npy")
    scan = os.scandir

    def refuses(folder: Path) -> Any:
        """As the system does for a user who is not root."""
        if Path(folder).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scan(str(folder))

    monkeypatch.setattr("muster.jobs.sources.discover.os.scandir", refuses)
    assert found(tmp_path, SourceSpec("w", ["good", "open/*"])) == ["good", "open/b"]
    for globs in (None, ["**"], ["*/a"], ["good", "l*/**"]):
        assert "locked: Permission denied" in refused(tmp_path, SourceSpec("w", globs)).message


@pytest.mark.parametrize("make", [_bad_name, _not_utf8])
def test_a_bad_name_that_a_glob_asks_for_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "w")
    save(tmp_path / "w" / "good.npy")
    error = refused(tmp_path, SourceSpec("w", ["*"]))
    assert "cannot be a layer's name" in error.message and "leave it out" in error.hint


def test_a_pattern_says_which_files_of_a_folder_are_looked_at(tmp_path: Path) -> None:
    for name in ["a.f32", "b.f32", "deep/c.f32"]:
        raw(tmp_path, name)
    raw(tmp_path, "README.txt", extra=1)
    assert "README.txt: 49 bytes are not a whole number" in refused(tmp_path, RAW).message
    for pattern, names in [("*.f32", ["a", "b"]), ("**/*.f32", ["a", "b", "deep/c"]), ("deep/*", ["deep/c"])]:
        assert found(tmp_path, SourceSpec("w", None, "<f4", [-1, 4], pattern=pattern)) == names
    chosen = SourceSpec("w", ["b"], "<f4", [-1, 4], pattern="*.f32")
    assert found(tmp_path, chosen) == ["b"]
    none = refused(tmp_path, SourceSpec("w", None, "<f4", [-1, 4], pattern="*.f64"))
    assert "no file below this folder" in none.message and "`source.pattern`" in none.hint
    one = refused(tmp_path, SourceSpec("w/a.f32", None, "<f4", [-1, 4], pattern="*"))
    assert "source.pattern: " in one.message and "is no folder" in one.message
