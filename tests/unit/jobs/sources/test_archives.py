"""Sources of several arrays in a file: which layers they give, that a window has the library's own bytes, and what is
refused with what to do instead."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from muster.coordinator.client.arrays import Outgoing, mapped
from muster.jobs.common.errors import SourceError
from muster.jobs.contract.plan import BF16, ArraySource, Layer, Window
from muster.jobs.sources.carried import carried
from muster.jobs.sources.discover import Discovered, FoundLayer, SourceSpec, discover
from muster.jobs.sources.read_rows import read_window, widened
from tests.support.halves import floats_of, halves_of, safetensors_of

Array = np.ndarray[Any, Any]
ARRAYS = {
    "fc.weight": np.arange(35, dtype="<f4").reshape(7, 5),
    "fc.bias": np.arange(7, dtype="<f8"),
    "deep/ids": np.arange(13, dtype="<i2"),
}


def rows_of(layer: FoundLayer, shard_rows: int = 3) -> Array:
    """All rows of a layer as its shards are read."""
    source = layer.source
    row_bytes = int(np.prod(source.shape[1:], dtype=int)) * int((source.stored or source.dtype)[-1])
    count = -(-source.shape[0] // shard_rows)
    plan = Layer(layer.name, "0" * 32, source, source.shape[0], shard_rows, count, shard_rows * row_bytes, 0, None)
    windows = [msgspec.convert(plan.window(number), Window) for number in range(count)]
    rows = [read_window(window)[0] for window in windows]
    raw = Path(source.path).read_bytes()
    assert all(carried(one).tobytes() == raw[one.offset : one.offset + one.nbytes] for one in windows)
    return np.concatenate(rows)


def same(found: Discovered, wanted: dict[str, Array]) -> None:
    assert [layer.name for layer in found.layers] == sorted(wanted)
    for layer in found.layers:
        rows = rows_of(layer)
        assert rows.dtype == wanted[layer.name].dtype and np.array_equal(rows, wanted[layer.name]), layer.name


def refused(spec: SourceSpec, base: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        discover(spec, base)
    assert caught.value.message.isprintable() and caught.value.hint.isprintable()
    return caught.value


def test_each_tensor_of_a_file_is_a_layer(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "net.safetensors")
    same(discover(SourceSpec("net.safetensors"), tmp_path), load_file(tmp_path / "net.safetensors"))
    (tmp_path / "blob").write_bytes((tmp_path / "net.safetensors").read_bytes())
    (tmp_path / "link.safetensors").symlink_to("blob")
    same(discover(SourceSpec("link.safetensors"), tmp_path), ARRAYS)


def test_each_member_of_an_archive_is_a_layer(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **ARRAYS)  # type: ignore[arg-type]
    with np.load(tmp_path / "x.npz") as arrays:
        same(discover(SourceSpec("x.npz"), tmp_path), dict(arrays))


def test_each_dataset_is_a_layer(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.update(ARRAYS)
    with h5py.File(tmp_path / "x.h5") as file:
        same(discover(SourceSpec("x.h5"), tmp_path), {name: file[name][...] for name in ARRAYS})


@pytest.mark.parametrize("odd", [0, 1])
def test_halves_are_float32_where_they_are_read(tmp_path: Path, odd: int) -> None:
    values = np.array([[0.0, -0.0, 1.0], [np.inf, -np.inf, np.nan], [1e-40, 3.0e38, -1.5]], "<f4")
    halves = halves_of(values)
    even = len(safetensors_of("w", halves)) % 2
    (tmp_path / "net.safetensors").write_bytes(safetensors_of("w", halves, even ^ odd))
    [layer] = discover(SourceSpec("net.safetensors"), tmp_path).layers
    assert (layer.source.dtype, layer.source.stored, layer.source.offset % 2) == ("<f4", BF16, odd)
    rows = rows_of(layer, 2)
    assert rows.dtype == np.float32 and rows.tobytes() == floats_of(halves).tobytes()
    sent = Outgoing(mapped(layer.source), "w", widen=True)
    whole = b"".join(map(bytes, sent.pieces(0)))
    assert len(whole) == sent.nbytes and np.load(io.BytesIO(whole)).tobytes() == rows.tobytes()


def test_halves_are_what_torch_makes_of_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torchs

    halves = torch.randn(50, 7, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    save_torchs({"w": halves}, tmp_path / "net.safetensors")
    [layer] = discover(SourceSpec("net.safetensors"), tmp_path).layers
    assert np.array_equal(rows_of(layer, 8), halves.float().numpy())
    assert np.array_equal(widened(halves.view(torch.uint16).numpy()), halves.float().numpy())


def test_a_plan_without_halves_is_as_it_was() -> None:
    """So that layers keep their digests."""
    source = discover(SourceSpec(__file__, None, "u1", [-1]), Path()).layers[0].source
    assert "stored" not in msgspec.to_builtins(source)
    assert msgspec.convert(msgspec.to_builtins(source), ArraySource) == source


def model(folder: Path) -> None:
    """In two files and an index, as large ones come, with links to where they are kept."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "here").mkdir()
    files = {"m-1-of-2.safetensors": ["fc.weight"], "m-2-of-2.safetensors": ["fc.bias", "deep/ids"]}
    for number, (name, tensors) in enumerate(files.items()):
        save_file({one: ARRAYS[one] for one in tensors}, folder / "blobs" / str(number))
        (folder / "here" / name).symlink_to(f"../blobs/{number}")
    index = {"weight_map": {tensor: name for name, tensors in files.items() for tensor in tensors}}
    (folder / "blobs" / "index").write_text(json.dumps(index))
    (folder / "here" / "m.safetensors.index.json").symlink_to("../blobs/index")


def test_a_model_in_several_files_is_one(tmp_path: Path) -> None:
    model(tmp_path)
    same(discover(SourceSpec("here/m.safetensors.index.json"), tmp_path), ARRAYS)
    below = {f"m/{name}": array for name, array in ARRAYS.items()}
    same(discover(SourceSpec("here"), tmp_path), below)
    same(discover(SourceSpec("here", ["m/fc.*"]), tmp_path), {name: below[name] for name in below if "fc" in name})
    (tmp_path / "here" / "m-2-of-2.safetensors").unlink()
    assert "No such file" in refused(SourceSpec("here"), tmp_path).message
    save_file({"fc.bias": ARRAYS["fc.bias"]}, tmp_path / "here" / "m-2-of-2.safetensors")
    assert "m-2-of-2.safetensors has no deep/ids" in refused(SourceSpec("here"), tmp_path).message


def test_a_folder_has_layers_of_one_format(tmp_path: Path) -> None:
    (tmp_path / "w" / "deep").mkdir(parents=True)
    np.savez(tmp_path / "w" / "x.npz", a=np.zeros(3), b=np.ones(4))
    np.savez(tmp_path / "w" / "deep" / "y.npz", a=np.zeros(3))
    names = ["deep/y/a", "x/a", "x/b"]
    there = discover(SourceSpec("w"), tmp_path)
    assert ([layer.name for layer in there.layers], there.notes) == (names, ())
    save_file({"t": np.zeros(3)}, tmp_path / "w" / "net.safetensors")
    there = discover(SourceSpec("w"), tmp_path)
    told = 'skipped: 2 .npz files, as there are others; `source.pattern: "**/*.npz"` has them as layers'
    assert ([layer.name for layer in there.layers], there.notes) == (["net/t"], (told,))
    np.save(tmp_path / "w" / "n.npy", np.zeros(3))
    there = discover(SourceSpec("w"), tmp_path)
    assert [layer.name for layer in there.layers] == ["n"] and len(there.notes) == 2
    there = discover(SourceSpec("w", pattern="**/*.npz"), tmp_path)
    assert ([layer.name for layer in there.layers], there.notes) == (names, ())
    for globs, chosen in [(["x/*"], names[1:]), (["net/t"], ["net/t"]), (["n"], ["n"])]:
        assert [layer.name for layer in discover(SourceSpec("w", globs), tmp_path).layers] == chosen


def test_what_has_no_rows_is_left_out_and_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", step=3, nothing=np.zeros((0, 4)), w=np.zeros(3))
    there = discover(SourceSpec("x.npz"), tmp_path)
    assert [layer.name for layer in there.layers] == ["w"]
    assert there.notes == ("skipped: 2 arrays without rows, such as step",)
    assert discover(SourceSpec("x.npz", ["w"]), tmp_path).notes == ()
    np.savez(tmp_path / "y.npz", step=3)
    assert "no array that has rows" in refused(SourceSpec("y.npz"), tmp_path).message


def test_an_array_that_cannot_be_a_layer_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"odd\nname": np.zeros(3)}
    np.savez(tmp_path / "x.npz", text=np.array(["a"]), w=np.zeros(3), **odd)
    assert "odd" in refused(SourceSpec("x.npz"), tmp_path).message
    assert "x.npz: text: holds text" in refused(SourceSpec("x.npz", ["text"]), tmp_path).message
    assert [layer.name for layer in discover(SourceSpec("x.npz", ["w"]), tmp_path).layers] == ["w"]
    np.savez_compressed(tmp_path / "z.npz", w=np.zeros(3))
    error = refused(SourceSpec("z.npz"), tmp_path)
    assert "z.npz: w: compressed" in error.message and "`np.savez`" in error.hint
    wrong = refused(SourceSpec("x.npz", ["tex"]), tmp_path)
    assert "'tex' matches no layer" in wrong.message and wrong.hint == "did you mean `text`?"
    own = refused(SourceSpec("x.npz", None, "<f4", [-1]), tmp_path)
    assert "a .npz says its own dtype" in own.message


def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    import zipfile

    raw = io.BytesIO()
    np.save(raw, np.zeros(3))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for _ in range(2):
            archive.writestr("a.npy", raw.getvalue())
    assert "two arrays give the layer a" in refused(SourceSpec("x.npz"), tmp_path).message


def _parquet(folder: Path) -> str:
    (folder / "x.parquet").write_bytes(b"PAR1....PAR1")
    return "x.parquet"


def _arrow(folder: Path) -> str:
    (folder / "x.table").write_bytes(b"ARROW1\0\0")
    return "x.table"


def _folder_of_parquet(folder: Path) -> str:
    (folder / "d").mkdir()
    (folder / "d" / "README").write_text("tables")
    (folder / "d" / "x.parquet").write_bytes(b"PAR1")
    return "d"


def _zarr(folder: Path) -> str:
    (folder / "z").mkdir()
    (folder / "z" / "zarr.json").write_text("{}")
    return "z"


def _folder_of_zarr(folder: Path) -> str:
    (folder / "d" / "x.zarr").mkdir(parents=True)
    return "d"


TABLES = [(_parquet, "Parquet"), (_arrow, "Arrow"), (_folder_of_parquet, ".parquet"), (_zarr, "zarr")]


@pytest.mark.parametrize(("make", "word"), [*TABLES, (_folder_of_zarr, ".zarr")])
def test_what_only_a_library_reads_is_refused_with_the_example(
    tmp_path: Path, make: Callable[[Path], str], word: str
) -> None:
    error = refused(SourceSpec(make(tmp_path)), tmp_path)
    assert word in error.message and "`kind: map`" in error.hint and "docs/examples/tables.md" in error.hint


def test_a_store_beside_arrays_is_passed_over(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "x.zarr" / "c").mkdir(parents=True)
    np.save(tmp_path / "x.zarr" / "c" / "b.npy", np.zeros(3))
    assert [layer.name for layer in discover(SourceSpec("."), tmp_path).layers] == ["a"]


def test_a_checkpoint_is_refused_with_the_line_that_converts_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tied = torch.arange(12.0).reshape(3, 4)
    torch.save({"a": tied, "b": tied.T, "half": tied.to(torch.bfloat16)}, tmp_path / "my net.pt")
    hints = {refused(SourceSpec(name), tmp_path).hint for name in ("my net.pt", ".")}
    assert len(hints) == 1
    line = hints.pop().removeprefix("convert it: ")
    subprocess.run([sys.executable, *shlex.split(line)[1:]], check=True, timeout=120)
    found = {layer.name: rows_of(layer) for layer in discover(SourceSpec("my net.safetensors"), tmp_path).layers}
    assert {name: array.tolist() for name, array in found.items()} == {
        "a": tied.tolist(), "b": tied.T.tolist(), "half": tied.tolist(),
    }  # fmt: skip
