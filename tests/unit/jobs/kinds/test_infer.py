"""The kind `infer`: every format of a model, what is refused at submit, batches, NaN, and numpy's own numbers."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract import requirements
from muster.jobs.contract.kind import ShardFailure
from muster.jobs.contract.plan import Plan
from muster.jobs.inference import plan_model
from muster.jobs.job_file.make_plan import make_plan
from muster.jobs.job_file.read import parse_job
from muster.jobs.results.merge import merge_layer
from muster.jobs.results.open_result import open_result
from muster.jobs.user_code.code_pack import collect
from muster.jobs.user_code.runner import models
from muster.jobs.workbench.serial import run_serially
from tests.support import networks

Array = np.ndarray[Any, Any]
ROWS = np.random.default_rng(5).normal(size=(37, networks.SIZES[0])).astype("f4")
TOLERANCE = 1e-5  # of the largest output, as docs/infer.md says


def has(module: str) -> pytest.MarkDecorator:
    from importlib.util import find_spec

    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")


def planned(
    folder: Path, text: str, rows: Array = ROWS, shard: int = 20, code: str | None = None, env: str | None = None
) -> Plan:
    """The plan of a job over `rows`. `text`: its parameters in yaml's short form."""
    np.save(folder / "rows.npy", rows)
    lines = ["name: i", "kind: infer", "source: rows.npy", f"shard: {{rows: {shard}}}", f"params: {{{text}}}"]
    if env is not None:
        lines.append(f"env: {env}")
    if code is not None:
        (folder / "work.py").write_text(code)
        lines.append("code: work.py:Net")
    job = parse_job("\n".join(lines), "job.yaml")
    bundle = collect("work.py:Net", [], folder) if code is not None else None
    return make_plan(job, folder, bundle)


def results(folder: Path, text: str, rows: Array = ROWS, shard: int = 20, code: str | None = None) -> dict[str, Array]:
    """The merged outputs of a job that was planned and run serially."""
    plan = planned(folder, text, rows, shard, code)
    [layer] = plan.layers
    run = folder / f"run-{len(list(folder.iterdir()))}"
    run.mkdir()
    model = plan.work.model
    path = str(folder / model.name) if model else None
    part = run_serially(layer, plan.work, run, code=str(folder) if code else None, model=path)
    out = run / "out"
    out.mkdir()
    merge_layer(layer, [part], out, job="i.1")
    return {name: np.asarray(array) for name, array in open_result(out).outputs.items()}


def refused(folder: Path, text: str, **more: Any) -> JobFileError:
    with pytest.raises(JobFileError) as caught:
        planned(folder, text, **more)
    return caught.value


def close_to(found: Array, wanted: Array) -> bool:
    return bool(np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max())


def softmax(x: Array) -> Array:
    powers = np.exp(x)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


# --- formats ---------------------------------------------------------------------------------------------------

WRITERS: list[Any] = [
    pytest.param("net.npz", networks.save_npz, id="npz"),
    pytest.param("net.safetensors", networks.save_torch_names, id="safetensors"),
    pytest.param("net.onnx", networks.save_onnx, id="onnx", marks=[has("onnx"), has("onnxruntime")]),
    pytest.param("net.pt", networks.save_torchscript, id="torchscript", marks=has("torch")),
]


def of(name: str) -> str:
    """The parameters of a job with this model, and the trust that its format needs."""
    return f"model: {name}, trust_torchscript: true" if name.endswith(".pt") else f"model: {name}"


@pytest.mark.parametrize(("name", "save"), WRITERS)
def test_every_format_gives_what_numpy_gives(name: str, save: Callable[..., Path], tmp_path: Path) -> None:
    arrays = networks.weights()
    save(tmp_path / name, arrays)
    found = results(tmp_path, f"{of(name)}, batch: 8")
    assert set(found) == {"out"} and found["out"].dtype == np.float32
    assert close_to(found["out"], networks.logits(ROWS, arrays))


@pytest.mark.parametrize(("name", "save"), WRITERS)
def test_the_plan_knows_the_outputs_and_the_batch(name: str, save: Callable[..., Path], tmp_path: Path) -> None:
    save(tmp_path / name, networks.weights())
    plan = planned(tmp_path, of(name))
    [output] = plan.layers[0].outputs or ()
    assert (output.name, output.dtype, output.shape) == ("out", "<f4", (3,))
    assert isinstance(plan.work.params["batch"], int)
    assert plan.work.model is not None and plan.work.model.nbytes == (tmp_path / name).stat().st_size


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("activation: tanh", lambda a: networks.logits(ROWS, a, np.tanh)),
        ("activation: sigmoid", lambda a: networks.logits(ROWS, a, lambda x: 1 / (1 + np.exp(-x)))),
        ("activation: none", lambda a: networks.logits(ROWS, a, lambda x: x)),
        ("final: argmax", lambda a: networks.logits(ROWS, a).argmax(axis=1)),
        (
            "final: softmax",
            lambda a: softmax(networks.logits(ROWS, a)),
        ),
    ],
)
def test_activations_and_ends(text: str, wanted: Callable[..., Array], tmp_path: Path) -> None:
    arrays = networks.weights()
    networks.save_npz(tmp_path / "net.npz", arrays)
    assert close_to(results(tmp_path, f"model: net.npz, {text}")["out"], wanted(arrays))


@pytest.mark.parametrize("dtype", [">i2", "|u1", "<f8", "<f2"])
def test_rows_of_any_numbers_and_axes_become_the_models(dtype: str, tmp_path: Path) -> None:
    arrays = networks.weights()
    networks.save_npz(tmp_path / "net.npz", arrays)
    rows = np.random.default_rng(2).integers(0, 100, size=(11, 2, 3)).astype(dtype)
    assert close_to(results(tmp_path, "model: net.npz", rows)["out"], networks.logits(rows, arrays))


def test_biases_may_be_missing_and_float64_stays(tmp_path: Path) -> None:
    arrays = networks.weights(dtype="f8")
    kept = {name: array for name, array in arrays.items() if name[0] == "w"}
    networks.save_npz(tmp_path / "net.npz", kept)
    found = results(tmp_path, "model: net.npz")["out"]
    zeros = arrays | {name: np.zeros_like(array) for name, array in arrays.items() if name[0] == "b"}
    assert found.dtype == np.float64 and close_to(found, networks.logits(ROWS, zeros))


def test_an_estimator_in_skops_gives_what_it_gives_here(tmp_path: Path) -> None:
    import skops.io

    model, rows = networks.fitted()
    skops.io.dump(model, tmp_path / "net.skops")
    assert np.array_equal(results(tmp_path, "model: net.skops", rows)["out"], model.predict(rows))
    found = results(tmp_path, "model: net.skops, method: predict_proba", rows)["out"]
    assert close_to(found, model.predict_proba(rows))


def test_types_skops_does_not_know_are_refused_until_they_are_named(tmp_path: Path) -> None:
    import skops.io

    model, rows = networks.fitted("forest")
    skops.io.dump(model, tmp_path / "net.skops")
    error = refused(tmp_path, "model: net.skops", rows=rows)
    assert "not trusted: sklearn.tree._tree.Tree" in error.message and "params.trusted" in error.hint
    found = results(tmp_path, "model: net.skops, trusted: [sklearn.tree._tree.Tree]", rows)["out"]
    assert np.array_equal(found, model.predict(rows))


def test_a_pickle_is_opened_only_where_the_job_file_trusts_it(tmp_path: Path) -> None:
    model, rows = networks.fitted()
    (tmp_path / "net.pkl").write_bytes(pickle.dumps(model))
    error = refused(tmp_path, "model: net.pkl", rows=rows)
    assert "runs whatever is in it" in error.message and "trust_pickle: true" in error.hint
    found = results(tmp_path, "model: net.pkl, trust_pickle: true", rows)["out"]
    assert np.array_equal(found, model.predict(rows))


@has("torch")
def test_a_torchscript_is_opened_only_where_the_job_file_trusts_it(tmp_path: Path) -> None:
    written = tmp_path / "written"
    networks.save_torchscript_that_writes(tmp_path / "net.pt", written)
    for text in ("model: net.pt", "model: net.pt, trust_torchscript: false"):
        error = refused(tmp_path, text)
        assert "may write any file" in error.message and not written.exists()
        assert all(word in error.hint for word in (".onnx", ".safetensors", "trust_torchscript: true"))
    planned(tmp_path, "model: net.pt, trust_torchscript: true")
    assert written.exists(), "it does what the test is for"


@has("torch")
def test_the_trust_is_no_part_of_a_plan_so_that_older_agents_read_it_and_its_digest_stays(tmp_path: Path) -> None:
    networks.save_torchscript(tmp_path / "net.pt", networks.weights())
    assert "trust_torchscript" not in planned(tmp_path, of("net.pt")).work.params


def test_an_older_skops_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import skops.io

    model, _ = networks.fitted()
    skops.io.dump(model, tmp_path / "net.skops")
    monkeypatch.setattr(skops, "__version__", "0.12.0")
    with pytest.raises(models.BadModelError, match=r"skops 0\.12\.0 .* -m pip install 'skops>=0\.13'"):
        models.Skops(str(tmp_path / "net.skops"), "cpu")


# --- the user's class ---------------------------------------------------------------------------------------------

NET = """
import numpy as np

class Net:
    def __init__(self, path, device, power=1):
        assert device == "cpu"
        self.w = np.load(path)["w0"] if path else np.ones((6, 2), "f4")
        self.power = power

    def __call__(self, batch):
        assert len(batch) <= 8
        return {"y": (batch[:, :, None] * self.w).sum(axis=1), "z": batch.sum(axis=1) ** self.power}
"""


def test_a_class_is_made_once_and_called_with_batches(tmp_path: Path) -> None:
    arrays = networks.weights()
    networks.save_npz(tmp_path / "net.npz", arrays)
    found = results(tmp_path, "model: net.npz, batch: 8, args: {power: 2}", code=NET)
    assert close_to(found["y"], ROWS @ arrays["w0"]) and np.allclose(found["z"], ROWS.sum(axis=1) ** 2)
    assert results(tmp_path, "batch: 8", code=NET)["y"].shape == (37, 2)


TROUBLED = """
class Net:
    calls = 0

    def __init__(self, path, device): pass

    def __call__(self, batch):
        self.calls += 1
        if self.calls == 2:
            {}
        return batch
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return batch[1:]", r"rows 8 to 15: output 'out' has shape \(7, 6\) for 8 rows"),
        ("return batch.astype('f8')", "rows 8 to 15: gave out float64"),
        ("return batch[:, :2]", r"rows 8 to 15: gave out float32 of shape \(2,\)"),
        ("return {'other': batch}", "rows 8 to 15: gave other float32"),
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("import os; os.abort()", "SIGABRT"),
    ],
)
def test_a_wrong_batch_is_named_by_its_rows(body: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ShardFailure, match=said):
        results(tmp_path, "batch: 8", code=TROUBLED.format(body))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Net:\n def __init__(self): pass", "cannot be made as Net"),
        ("class Net:\n def __init__(self, path, device): pass", "has no __call__"),
        ("class Net:\n def __init__(self, path, device): raise ValueError('bad file')", "bad file"),
    ],
)
def test_a_class_that_cannot_be_opened_says_why(code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ShardFailure, match=said):
        results(tmp_path, "batch: 8", code=code)


# --- what is refused at submit ------------------------------------------------------------------------------------


def test_a_missing_model_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    networks.save_npz(tmp_path / "net.npz", networks.weights())
    assert refused(tmp_path, "model: nat.npz").hint == "did you mean 'net.npz'?"
    assert "missing" in refused(tmp_path, "batch: 8").message


@pytest.mark.parametrize(("name", "save"), WRITERS)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 0.995])
def test_a_truncated_model_is_refused(name: str, save: Callable[..., Path], part: float, tmp_path: Path) -> None:
    raw = save(tmp_path / name, networks.weights(sizes=(6, 40, 40, 3))).read_bytes()
    (tmp_path / name).write_bytes(raw[: int(len(raw) * part)])
    said = refused(tmp_path, of(name)).message
    assert name in said and ("truncated" in said or "is empty" in said or "is not" in said)


@pytest.mark.parametrize("name", ["net.npz", "net.skops", "net.pt"])
def test_an_archive_that_unpacks_to_far_more_than_it_has_is_refused(name: str, tmp_path: Path) -> None:
    """By what it says of itself: nothing is unpacked."""
    members = {"net.npz": ["w0.npy"], "net.skops": ["schema.json"], "net.pt": ["net/data.pkl", "net/constants.pkl"]}
    with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in members[name]:
            with archive.open(member, "w") as file:
                for _ in range(272):
                    file.write(bytes(1 << 20))
    said = refused(tmp_path, f"model: {name}").message
    assert f"params.model: {name}: " in said and "MiB are no model's" in said


def test_a_model_of_another_format_than_its_name_is_refused(tmp_path: Path) -> None:
    networks.save_npz(tmp_path / "net.npz", networks.weights())
    networks.save_torch_names(tmp_path / "net.safetensors", networks.weights())
    for source, name, said in [
        ("net.npz", "a.safetensors", "an .npz of arrays, not a .safetensors"),
        ("net.npz", "a.onnx", "an .npz of arrays, not an ONNX model"),
        ("net.safetensors", "a.npz", "a .safetensors, not an .npz"),
        ("net.safetensors", "a.skops", "a .safetensors, not a skops file"),
    ]:
        (tmp_path / name).write_bytes((tmp_path / source).read_bytes())
        assert said in refused(tmp_path, f"model: {name}").message
    (tmp_path / "a.pt").write_bytes(pickle.dumps([1]))
    assert "a pickle, not a TorchScript" in refused(tmp_path, "model: a.pt").message
    (tmp_path / "a.xyz").write_bytes(b"1")
    assert "the name of a model ends in" in refused(tmp_path, "model: a.xyz").message


@pytest.mark.parametrize(("name", "save"), WRITERS)
def test_another_width_than_the_rows_is_refused(name: str, save: Callable[..., Path], tmp_path: Path) -> None:
    save(tmp_path / name, networks.weights())
    said = refused(tmp_path, of(name), rows=ROWS[:, :4]).message
    assert "4" in said and ("6" in said) and name in said


def test_another_width_than_an_estimators_is_refused(tmp_path: Path) -> None:
    import skops.io

    skops.io.dump(networks.fitted()[0], tmp_path / "net.skops")
    said = refused(tmp_path, "model: net.skops", rows=ROWS[:, :4]).message
    assert "takes rows of 6 values, these have 4" in said
    assert "has no transform" in refused(tmp_path, "model: net.skops, method: transform").message


def test_classes_that_are_text_are_refused_with_a_way_out(tmp_path: Path) -> None:
    import skops.io

    skops.io.dump(networks.fitted("text")[0], tmp_path / "net.skops")
    error = refused(tmp_path, "model: net.skops")
    assert "numbers only" in error.message and "predict_proba" in error.hint


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "not an .npz"),
        ({"x": np.ones((2, 2), "f4")}, "'x' is no weight"),
        ({"w0": np.ones(6, "f4")}, "expected floats with 2 axes"),
        ({"w0": np.ones((6, 2), "i4")}, "expected floats"),
        ({"w0": np.ones((6, 2), "f4"), "b0": np.ones(3, "f4")}, "2 outputs and 3 biases"),
        ({"w0": np.ones((6, 2), "f4"), "w1": np.ones((3, 2), "f4")}, "layer 0 gives 2 numbers, layer 1 takes 3"),
        ({"b0": np.ones(6, "f4")}, "a bias and no weights"),
    ],
)
def test_weights_that_are_no_mlps_are_refused(arrays: dict[str, Array], said: str, tmp_path: Path) -> None:
    networks.save_npz(tmp_path / "net.npz", arrays)
    assert said in refused(tmp_path, "model: net.npz").message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("method: predict", "params.method"),
        ("args: {a: 1}", "params.args"),
        ("outputs: {nan_rows: {dtype: f4}}", "params.outputs"),
    ],
)
def test_parameters_of_another_format_are_refused(text: str, said: str, tmp_path: Path) -> None:
    networks.save_npz(tmp_path / "net.npz", networks.weights())
    assert said in refused(tmp_path, f"model: net.npz, {text}").message


@has("onnxruntime")
@has("onnx")
def test_an_onnx_model_with_batches_of_its_own_says_so(tmp_path: Path) -> None:
    networks.save_onnx(tmp_path / "net.onnx", networks.weights(), rows=4)
    assert "`batch: 4`" in refused(tmp_path, "model: net.onnx").message
    assert close_to(results(tmp_path, "model: net.onnx, batch: 4")["out"], networks.logits(ROWS, networks.weights()))


@has("onnx")
def test_without_the_library_here_the_machines_that_have_it_find_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.save_onnx(tmp_path / "net.onnx", networks.weights())
    monkeypatch.setattr(plan_model, "find_spec", lambda name: None)
    plan = planned(tmp_path, "model: net.onnx")
    assert plan.layers[0].outputs is None and plan.work.needs == ("onnxruntime",)


def test_a_library_that_is_missing_is_named_with_its_machine_and_its_pip_line() -> None:
    with pytest.raises(models.MissingPackageError) as caught:
        models._library("no_such.library")
    line = requirements.pip_line("no_such", sys.executable)
    assert str(caught.value) == f"no_such is not installed on {socket.gethostname()}: `{line}`"


@has("onnx")
def test_an_environment_without_the_library_is_named_in_the_line_that_installs_it(tmp_path: Path) -> None:
    bare = tmp_path / "bare" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    [site] = (tmp_path / "bare").glob("lib/*/site-packages")
    for found in Path(np.__file__).parents[1].glob("numpy*"):  # and nothing else
        (site / found.name).symlink_to(found)
    networks.save_onnx(tmp_path / "net.onnx", networks.weights())
    error = refused(tmp_path, "model: net.onnx", env=str(bare))
    assert "onnxruntime is not installed" in error.message
    assert error.hint == f"{bare} -m pip install onnxruntime"


# --- whose code runs -------------------------------------------------------------------------------------------


def test_a_plan_says_whether_it_runs_what_its_submitter_wrote(tmp_path: Path) -> None:
    networks.save_npz(tmp_path / "net.npz", networks.weights())
    assert not planned(tmp_path, "model: net.npz").work.runs_code
    assert planned(tmp_path, "batch: 8", code=NET).work.runs_code


def test_one_layer_with_trusted_types_is_enough(tmp_path: Path) -> None:
    import skops.io

    skops.io.dump(networks.fitted()[0], tmp_path / "net.skops")
    (tmp_path / "in").mkdir()
    for name in "ab":
        np.save(tmp_path / "in" / f"{name}.npy", ROWS)
    text = "name: i\nkind: infer\nsource: in/\nparams: {model: net.skops}\n"
    more = "overrides: [{layers: [b], params: {trusted: [os.system]}}]\n"
    assert not make_plan(parse_job(text, "job.yaml"), tmp_path, None).work.runs_code
    assert make_plan(parse_job(text + more, "job.yaml"), tmp_path, None).work.runs_code


# --- NaN, and bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("final", ["none", "argmax", "softmax"])
def test_nan_fails_with_its_rows_or_is_kept_and_counted(final: str, tmp_path: Path) -> None:
    networks.save_npz(tmp_path / "net.npz", networks.weights())
    rows = ROWS.copy()
    rows[[3, 9, 30], 2] = np.nan
    with pytest.raises(ShardFailure, match="NaN in 2 of 20 rows: 3, 9; `nan: keep`") as caught:
        results(tmp_path, f"model: net.npz, final: {final}", rows)
    assert caught.value.code == "data"
    found = results(tmp_path, f"model: net.npz, final: {final}, nan: keep", rows)
    assert int(found["nan_rows"]) == 3 and len(found["out"]) == len(rows)


def test_nan_that_the_model_made_of_finite_rows_is_not_the_rows_fault(tmp_path: Path) -> None:
    large = {name: array * 100 for name, array in networks.weights().items()}
    networks.save_npz(tmp_path / "net.npz", large)
    rows = ROWS.copy()
    rows[3], rows[9, 2] = np.finfo(rows.dtype).max, np.nan
    with pytest.raises(ShardFailure, match="NaN in 2 of 20 rows: 3, 9; ") as caught:
        results(tmp_path, "model: net.npz", rows)
    assert caught.value.code == "output"


def test_a_class_without_declared_outputs_counts_nan_too(tmp_path: Path) -> None:
    code = "class Net:\n def __init__(self, path, device): pass\n def __call__(self, b): return b / b"
    rows = ROWS.copy()
    rows[5] = 0
    with np.errstate(all="ignore"):
        assert int(results(tmp_path, "nan: keep", rows, code=code)["nan_rows"]) == 1


def test_the_cut_into_shards_shows_in_no_bit_where_it_is_along_batches(tmp_path: Path) -> None:
    arrays = networks.weights(sizes=(60, 48, 40, 10))
    networks.save_npz(tmp_path / "net.npz", arrays)
    rows = np.random.default_rng(3).normal(size=(500, 60)).astype("f4")
    whole = results(tmp_path, "model: net.npz, batch: 32", rows, shard=500)["out"]
    for shard in (32, 96):
        assert results(tmp_path, "model: net.npz, batch: 32", rows, shard=shard)["out"].tobytes() == whole.tobytes()


def test_a_shard_of_a_size_is_whole_batches(tmp_path: Path) -> None:
    networks.save_npz(tmp_path / "net.npz", networks.weights())
    np.save(tmp_path / "rows.npy", ROWS)
    text = "name: i\nkind: infer\nsource: rows.npy\nshard: {size: 500B}\nparams: {model: net.npz, batch: 8}"
    [layer] = make_plan(parse_job(text, "job.yaml"), tmp_path, None).layers
    assert layer.shard_rows == 16  # 20 rows are 480 bytes


@pytest.mark.parametrize(("code", "rows"), [(None, 256), ("class Net:\n    pass\n", 31)])
def test_a_cut_that_is_left_open_wastes_no_batch_that_is_filled_up(tmp_path: Path, code: str | None, rows: int) -> None:
    """A class of the user's gets as few rows as there are, and nobody knows how long it takes for one."""
    networks.save_npz(tmp_path / "net.npz", networks.weights())
    np.save(tmp_path / "rows.npy", np.zeros((2000, networks.SIZES[0]), "f4"))
    lines = ["name: i", "kind: infer", "source: rows.npy", "params: {model: net.npz, batch: 256}"]
    if code is not None:
        (tmp_path / "work.py").write_text(code)
    bundle = collect("work.py:Net", [], tmp_path) if code is not None else None
    job = parse_job("\n".join([*lines, *(["code: work.py:Net"] if code else [])]), "job.yaml")
    [layer] = make_plan(job, tmp_path, bundle).layers
    assert layer.shard_rows % rows == 0 and (layer.shard_rows == rows or code is None)


def test_another_model_or_batch_is_another_layer(tmp_path: Path) -> None:
    networks.save_npz(tmp_path / "net.npz", networks.weights())
    np.save(tmp_path / "rows.npy", ROWS)

    def digest(batch: int) -> str:
        text = f"name: i\nkind: infer\nsource: rows.npy\nparams: {{model: net.npz, batch: {batch}}}"
        return make_plan(parse_job(text, "job.yaml"), tmp_path, None).layers[0].digest

    first = digest(8)
    assert digest(8) == first and digest(16) != first
    networks.save_npz(tmp_path / "net.npz", networks.weights(seed=1))
    assert digest(8) != first
