"""What every registered kind promises: the same bytes again, however rows are split, as declared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.coordinator.daemon.jobs.drivers import GROUP
from muster.coordinator.report import drawing
from muster.jobs.contract.kind import JobPlace, Kind, Shape
from muster.jobs.contract.pictures import TextTable
from muster.jobs.contract.plan import ArraySource, Layer, ModelFile, Work
from muster.jobs.contract.shard_size import RowCost
from muster.jobs.inference import model_file
from muster.jobs.kinds import registry
from muster.jobs.parts.part_file import read_index
from muster.jobs.results.merge import merge_layer
from muster.jobs.results.open_result import open_result, verify_layer
from muster.jobs.sources.discover import stamp_of
from muster.jobs.workbench.serial import run_serially
from tests.plugin.muster_chain import Chain, ChainParams
from tests.support import networks

A_KIND = Path(__file__).parents[2] / "docs" / "examples" / "kind"
ROWS = 7
RNG = np.random.default_rng(3)

WORK_PY = """
import numpy as np

def f(rows):
    return {"means": rows.mean(axis=1), "signs": np.sign(rows).astype("int8")}
"""

NET_PY = """
class f:
    def __init__(self, path, device):
        assert path.endswith("net.npz") and device == "cpu"

    def __call__(self, batch):
        return {"double": batch * 2, "first": batch[:, 0]}
"""
MODEL = {"model": "net.npz", "activation": "relu", "final": "none"}


@dataclass(frozen=True)
class Example:
    """A small job of a kind."""

    kind: str
    rows: np.ndarray[Any, Any]
    params: dict[str, Any] = field(default_factory=dict)
    code: str | None = None
    model: bool = False  # net.npz lies beside the code

    def __str__(self) -> str:
        return f"{self.kind}-{self.rows.ndim}d-{self.rows.dtype}-{len(self.params)}"

    @property
    def shape(self) -> Shape:
        return Shape(self.rows.shape[1:], self.rows.dtype.str)


EXAMPLES = [
    Example("cluster", RNG.normal(size=(ROWS, 400)).astype("<f4"), {"n_clusters": 5, "random_state": 0}),
    Example("cluster", RNG.integers(0, 9, (ROWS, 60)).astype(">i2"), {"n_clusters": 3, "random_state": 1}),
    Example("cluster", RNG.normal(size=(ROWS, 50, 2)), {"n_clusters": 3, "random_state": 0}),
    Example("cluster", RNG.normal(size=(ROWS, 60)), {"n_clusters": 3, "init": "k-means++", "labels": True}),
    Example(
        "cluster", np.where(RNG.random((ROWS, 60)) < 0.01, np.nan, 1.5), {"n_clusters": 3, "on_item_error": "record"}
    ),
    Example("map", RNG.normal(size=(ROWS, 6)).astype("<f4"), code=WORK_PY),
    Example(
        "map",
        RNG.normal(size=(ROWS, 6)),
        {"outputs": {"means": {"dtype": "<f8"}, "signs": {"dtype": "|i1", "shape": [6]}}},
        code=WORK_PY,
    ),
    # A batch of one row sees the same product however rows are split; with more, cuts along batches do not show.
    Example("infer", RNG.normal(size=(ROWS, 6)).astype("<f4"), MODEL | {"batch": 1}, model=True),
    Example(
        "infer",
        RNG.normal(size=(ROWS, 2, 3)),
        MODEL | {"batch": 1, "nan": "keep", "outputs": {"out": {"dtype": "<f4", "shape": [3]}}},
        model=True,
    ),
    Example("infer", RNG.normal(size=(ROWS, 6)), {"model": "net.npz", "batch": 2}, code=NET_PY, model=True),
    Example(
        "infer",
        RNG.normal(size=(ROWS, 6)),
        {"batch": 2, "nan": "keep"},
        code=WORK_PY.replace(
            "def f(rows):", "class f:\n  def __init__(self, path, device): pass\n  def __call__(self, rows):"
        ),
    ),
]
ITEMS_ALONE = {"command"}  # tests/unit/jobs/kinds/test_command.py has the same promises of it


def test_every_kind_has_an_example() -> None:
    """But those whose shards a driver makes, which have tests of their own."""
    over_rows = {name for name in registry.names() if not registry.load(name).driven}
    assert over_rows == {example.kind for example in EXAMPLES} | ITEMS_ALONE


def test_every_kind_whose_shards_a_driver_makes_has_one() -> None:
    driven = {name for name in registry.names() if registry.load(name).driven}
    assert driven == {point.name for point in entry_points(group=GROUP)}
    assert all(callable(point.load()) for point in entry_points(group=GROUP))


@pytest.fixture(params=EXAMPLES, ids=str)
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


@pytest.fixture
def kind(example: Example) -> Kind[Any]:
    return registry.load(example.kind)


def layer_of(example: Example, shard_rows: int, folder: Path) -> Layer:
    path = folder / "source.bin"
    if not path.exists():
        path.write_bytes(example.rows.tobytes())
    source = ArraySource(str(path), 0, example.rows.dtype.str, example.rows.shape, stamp_of(path.stat()))
    row_bytes = example.rows.nbytes // ROWS
    return Layer("layer", "c" * 32, source, ROWS, shard_rows, -(-ROWS // shard_rows), shard_rows * row_bytes, 0, None)


def run(example: Example, kind: Kind[Any], shard_rows: int, folder: Path) -> tuple[Layer, Path]:
    """The example's serial part."""
    run_folder = folder / f"{shard_rows}-{len(list(folder.iterdir()))}"
    run_folder.mkdir()
    if example.code is not None:
        (run_folder / "work.py").write_text(example.code)
    entry = "work.py:f" if example.code is not None else None
    path = networks.save_npz(run_folder / "net.npz", networks.weights()) if example.model else None
    model = model_file.described(path, path.name) if path else None
    work = Work(example.kind, kind.kernel, example.params, None, entry, None, 1, None, 60.0, model)
    layer = layer_of(example, shard_rows, folder)
    code = str(run_folder) if entry else None
    return layer, run_serially(layer, work, run_folder, code=code, model=str(path) if path else None)


def body_of(part: Path) -> bytes:
    return part.read_bytes()[: read_index(part).body_bytes]


def merged(layer: Layer, part: Path) -> dict[str, bytes]:
    """The outputs' files."""
    out = part.parent / "out"
    out.mkdir()
    manifest = merge_layer(layer, [part], out, job="job.1")
    assert verify_layer(out) == [] and set(open_result(out).outputs) == {product.name for product in manifest.outputs}
    return {file.file: (out / file.file).read_bytes() for product in manifest.outputs for file in product.files}


def test_it_is_what_it_says_it_is(example: Example, kind: Kind[Any]) -> None:
    assert kind.name == example.kind and kind.kernel >= 1 and registry.kernels()[kind.name] == kind.kernel
    assert kind.wants_code or kind.may_have_code if example.code is not None else not kind.wants_code
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(example.params | {"no_such_field": 1}, kind.Params)


def test_its_report_has_a_row_and_a_value_for_each_job(example: Example, kind: Kind[Any], tmp_path: Path) -> None:
    """Of one that is merged, and of one of which there is nothing yet."""
    (tmp_path / "run").mkdir()
    layer, part = run(example, kind, 3, tmp_path / "run")
    out = tmp_path / "result" / layer.name
    out.mkdir(parents=True)
    merge_layer(layer, [part], out, job="job.1")
    nothing = JobPlace(tmp_path / "none", tmp_path / "none")
    found = kind.report({"job.1": JobPlace(tmp_path / "result", nothing.checkpoints), "job.2": nothing}, None)
    assert len(found.rows) == len(found.values) == 2 and all(len(row) == len(found.header) for row in found.rows)
    msgspec.json.encode(list(found.values))
    for picture in found.pictures:
        assert picture.title and (isinstance(picture, TextTable) or drawing.picture(picture))
    if found.header:
        assert 0 < int(found.rows[0][0]) <= len(example.rows) and found.rows[1][0] == "0"


def test_its_outputs_are_as_declared(example: Example, kind: Kind[Any], tmp_path: Path) -> None:
    params = msgspec.convert(example.params, kind.Params)
    kind.check(params, example.shape)
    declared = kind.declare(params, example.shape)
    _, part = run(example, kind, 3, tmp_path)
    found = read_index(part).outputs
    assert found and declared in (None, found)


def test_what_it_says_a_row_takes_can_be_true(example: Example, kind: Kind[Any]) -> None:
    params = msgspec.convert(example.params, kind.Params)
    model = ModelFile("net.npz", "0" * 32, 1000) if example.model else None
    code = "c" * 32 if example.code is not None else None
    work = Work(example.kind, kind.kernel, example.params, code, None, None, 1, None, None, model)
    cost = kind.row_cost(params, example.shape, work)
    assert cost.least >= 1 and (cost.seconds is None or 0 < cost.seconds < 1)
    assert code is None or cost == RowCost(), "nobody knows what users' code takes"


def test_a_second_run_gives_the_same_bytes(example: Example, kind: Kind[Any], tmp_path: Path) -> None:
    assert body_of(run(example, kind, 3, tmp_path)[1]) == body_of(run(example, kind, 3, tmp_path)[1])


def test_rows_split_anyhow_merge_to_the_same_bytes(example: Example, kind: Kind[Any], tmp_path: Path) -> None:
    expected = merged(*run(example, kind, ROWS, tmp_path))
    for shard_rows in (1, 3):
        assert merged(*run(example, kind, shard_rows, tmp_path)) == expected


@pytest.fixture
def quantiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """The example of docs/kinds.md, as if it was installed."""
    points = re.findall(r'\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"', (A_KIND / "pyproject.toml").read_text())
    info = tmp_path / "site" / "muster_quantiles-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: muster-quantiles\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {at}\n" for group, name, at in points))
    for folder in (A_KIND, info.parent):
        monkeypatch.syspath_prepend(folder)
    return Example("quantiles", RNG.normal(size=(ROWS, 3, 4)).astype("<f4"), {"at": [0.1, 0.5]})


def test_the_kind_that_the_documents_show_keeps_what_kinds_promise(quantiles: Example, tmp_path: Path) -> None:
    kind = registry.load("quantiles")
    test_it_is_what_it_says_it_is(quantiles, kind)
    for number, check in enumerate(
        (
            test_its_outputs_are_as_declared,
            test_a_second_run_gives_the_same_bytes,
            test_rows_split_anyhow_merge_to_the_same_bytes,
        )
    ):
        (folder := tmp_path / str(number)).mkdir()
        check(quantiles, kind, folder)
    _, part = run(quantiles, kind, ROWS, tmp_path)
    expected = np.quantile(quantiles.rows.reshape(ROWS, -1).astype("<f8"), [0.1, 0.5], axis=1).T
    assert body_of(part).startswith(np.ascontiguousarray(expected).tobytes())


VOUCHED_FOR = [
    ("cluster", {}, Shape((9,), "<f4"), 4, False, True),
    ("cluster", {}, Shape((9, 2), "<f4"), 1, False, True),
    ("cluster", {}, Shape((9, 2), "<f4"), 4, False, False),  # scikit-learn's threads
    ("infer", MODEL | {"batch": 1}, Shape((6,), "<f4"), 2, False, True),
    ("infer", {"model": "net.safetensors", "batch": 1}, Shape((6,), "<f4"), 2, False, True),
    ("infer", {"model": "net.onnx", "batch": 1}, Shape((6,), "<f4"), 1, False, False),
    ("infer", {"model": "net.skops", "batch": 1}, Shape((6,), "<f4"), 1, False, False),
    ("infer", {"model": "net.npz", "batch": 1}, Shape((6,), "<f4"), 1, True, False),
    ("infer", {"batch": 1}, Shape((6,), "<f4"), 1, True, False),
    ("map", {}, Shape((6,), "<f4"), 1, True, False),
    ("command", {"run": "gzip < {} > {out}"}, None, 1, False, False),
    ("train", {"model": "mlp"}, None, 1, False, True),
    ("train", {"model": "conv1", "mode": "local"}, None, 1, False, True),
    ("train", {"mode": "async"}, None, 1, False, False),
    ("train", {"model": "resnet18"}, None, 1, False, False),
    ("train", {"model": "code"}, None, 1, True, False),
]


@pytest.mark.parametrize(("name", "params", "shape", "threads", "has_code", "vouched"), VOUCHED_FOR)
def test_kinds_vouch_for_what_their_own_code_computes(
    name: str, params: dict[str, Any], shape: Shape | None, threads: int, has_code: bool, vouched: bool
) -> None:
    kind = registry.load(name)
    assert kind.repeats(msgspec.convert(params, kind.Params), shape, threads, has_code) is vouched


def test_another_packages_kind_that_says_nothing_vouches_for_nothing() -> None:
    assert not Chain().repeats(ChainParams(), None, 1, False)
