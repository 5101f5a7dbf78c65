"""Inference with real agents: a model that travels once, the same bits from one machine and three, wrong models."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.coordinator.commands.submit import submit
from tests.integration.test_remote import Remote
from tests.support import networks, sshd
from tests.support.farm import Array, FarmHarness, running, until

WIDTH = 60
NET = networks.weights(sizes=(WIDTH, 48, 40, 10))
CLASS = """
import os
import numpy as np

class Net:
    def __init__(self, path, device, trouble=""):
        self.w0 = np.load(path)["w0"]
        self.trouble = trouble

    def __call__(self, batch):
        bad = bool((batch == 666).any())
        if bad and self.trouble == "shape":
            return (batch @ self.w0)[:, :7]
        if bad and self.trouble == "rows":
            return (batch @ self.w0)[1:]
        if bad and self.trouble == "dies":
            print("last words")
            os.abort()
        return batch @ self.w0
"""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.join("one", "--cpus", "1")
        yield made


def rows(count: int = 4000, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype("f4")


def npz(folder: Path) -> bytes:
    return networks.save_npz(folder / "net.npz", NET).read_bytes()


def infer(farm: FarmHarness, layers: Mapping[str, Array], folder: Path, params: dict[str, Any], **fields: Any) -> str:
    params = {"model": "net.npz", "batch": 32, **params}
    file = farm.job_file(layers, 100, kind="infer", params=params, files={"net.npz": npz(folder)}, **fields)
    return submit(farm.root, file)


def test_one_agent_gives_what_numpy_gives_and_the_serial_run_to_the_bit(farm: FarmHarness, tmp_path: Path) -> None:
    data = rows()
    job = infer(farm, {"a": data}, tmp_path, {})
    farm.wait(job)
    farm.check_result(job)
    found = np.load(farm.root.job(job).result / "a" / "out.npy")
    wanted = networks.logits(data, NET)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_model_whose_file_has_moved_is_taken_from_the_root(farm: FarmHarness, tmp_path: Path) -> None:
    file = farm.job_file(
        {"a": rows()}, 100, kind="infer", params={"model": "net.npz"}, files={"net.npz": npz(tmp_path)}
    )
    first = submit(farm.root, file)
    farm.wait(first)
    (file.parent / "net.npz").rename(file.parent / "elsewhere.npz")
    again = farm.coordinator("submit", "--from", first)
    assert (again.returncode, "a: reused: the same as in" in again.stderr) == (0, True), again.stderr
    other = farm.coordinator("submit", "--from", again.stdout.strip(), "--set", "final=softmax")
    farm.wait(other.stdout.strip())
    farm.check_result(other.stdout.strip())
    wrong = farm.coordinator("submit", "--from", first, "--set", "model=nothing.npz")
    assert wrong.returncode == 3 and "nothing.npz: there is no such file" in wrong.stderr


def test_three_agents_one_of_them_over_ssh_give_the_same_bits(tmp_path: Path) -> None:
    layers = {name: rows(seed=i) for i, name in enumerate("abc")}
    results = []
    (tmp_path / "sshd").mkdir()
    with sshd.running(tmp_path / "sshd") as server:
        for names in (["one"], ["one", "two", "far"]):
            with running(tmp_path / str(len(names))) as farm:
                far = Remote(farm, server).join() if "far" in names else None
                for name in names:
                    if name != "far":
                        farm.join(name, "--cpus", "1")
                until(lambda: all(farm.agent_status(name) for name in names), "the agents")  # noqa: B023
                job = infer(farm, layers, tmp_path, {"final": "softmax"})
                farm.wait(job)
                results.append(farm.merged(job))
                if far is not None:
                    _check_model_came_once(farm, far)
    assert results[0] == results[1]


def _check_model_came_once(farm: FarmHarness, far: Remote) -> None:
    """Where the remote one got a shard at all, as it must once it is alone."""
    farm.real["one"].send_signal(signal.SIGTERM)
    farm.real["two"].send_signal(signal.SIGTERM)
    for name in ("one", "two"):
        farm.real[name].wait(60)
    job = infer(farm, {"z": rows(seed=9)}, far.spool, {})
    farm.wait(job)
    farm.check_result(job)
    model = farm.plan(job).work.model
    assert model is not None
    copies = [path for path in (far.spool / "in").iterdir() if path.name.startswith(model.digest)]
    assert [path.name for path in copies] == [f"{model.digest}-{model.digest}"]
    assert copies[0].stat().st_size == model.nbytes


def test_nan_is_counted_in_the_result(farm: FarmHarness, tmp_path: Path) -> None:
    data = rows(500)
    data[[7, 300], 3] = np.nan
    job = infer(farm, {"a": data}, tmp_path, {"nan": "keep"})
    farm.wait(job)
    assert int(np.load(farm.root.job(job).result / "a" / "nan_rows.npy")) == 2
    job = infer(farm, {"a": data}, tmp_path, {}, attempts=1)
    farm.wait(job, "incomplete", "halted")
    assert any("NaN in 1 of 100 rows: 300" in failure.message for failure in farm.failures(job))


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("shape", "rows 232 to 263: gave out float32 of shape (7,), the first batch out float32 of shape (48,)"),
        ("rows", "rows 232 to 263: output 'out' has shape (31, 48) for 32 rows"),
        ("dies", "SIGABRT"),
    ],
)
def test_a_batch_that_goes_wrong_is_named_and_all_else_completes(
    farm: FarmHarness, tmp_path: Path, trouble: str, said: str
) -> None:
    data = rows(500)
    data[250, 0] = 666
    job = infer(farm, {"a": data}, tmp_path, {"args": {"trouble": trouble}}, work=CLASS, code="work.py:Net", attempts=1)
    status = farm.wait(job, "incomplete")
    assert status.state == "incomplete"
    [failure] = farm.failures(job)
    assert failure.number == 2 and said in failure.message


@pytest.mark.skipif(find_spec("onnxruntime") is None or find_spec("onnx") is None, reason="no onnxruntime")
def test_an_onnx_model_runs_in_a_process_of_its_own(farm: FarmHarness, tmp_path: Path) -> None:
    raw = networks.save_onnx(tmp_path / "net.onnx", NET).read_bytes()
    params = {"model": "net.onnx", "batch": 32}
    job = submit(farm.root, farm.job_file({"a": rows()}, 500, kind="infer", params=params, files={"net.onnx": raw}))
    farm.wait(job)
    wanted = networks.logits(rows(), NET)
    assert np.abs(np.load(farm.root.job(job).result / "a" / "out.npy") - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_model_goes_with_the_last_job_that_wants_it(farm: FarmHarness, tmp_path: Path) -> None:
    jobs = [infer(farm, {name: rows(64)}, tmp_path, {"final": "argmax"}) for name in "ab"]
    for job in jobs:
        farm.wait(job)
    model = farm.plan(jobs[0]).work.model
    assert model is not None
    others = [job.id for job in farm.jobs() if job.id not in jobs]
    for job in others:
        farm.coordinator("rm", job)
    path = farm.root.model(model.digest)
    farm.coordinator("rm", jobs[0])
    assert path.exists()
    farm.coordinator("rm", jobs[1])
    assert not path.exists()
