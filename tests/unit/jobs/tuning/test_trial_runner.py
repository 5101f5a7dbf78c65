"""A trial in its worker: iteration by iteration, from a checkpoint on, in a process of its own."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from muster.coordinator.drivers.tuning.result import model_of
from muster.jobs.common.errors import MusterError
from muster.jobs.contract.kind import Bench, RunnerLost, Shard, Site
from muster.jobs.training.params import DataSpec
from muster.jobs.tuning.params import EstimatorSpec, TuneParams
from muster.jobs.tuning.plan_trials import prepare
from muster.jobs.tuning.schedulers import rungs
from muster.jobs.tuning.stopping import Standing
from muster.jobs.tuning.trial_runner import STATE, TOLD, TrialOrder, TrialRunner
from muster.jobs.tuning.trials import Segment
from muster.jobs.user_code.runner import own_trials, trial

WORK = """
import os
import numpy as np

def train(config, state, budget, trial):
    assert budget == 1
    x = np.zeros(3) if state is None else state["x"]
    x = x + config["rate"]
    if x[0] > 8:
        raise ValueError("too far")
    metrics = {"accuracy": x[0] / 10, "pid": os.getpid(), "trial": trial}
    return metrics, {"x": x, "notes": ["seen", x[0]]}

def steps(config, state):
    at = 0 if state is None else state
    while at < 5:
        at += 1
        yield {"accuracy": at / 10 if at < 4 or config["rate"] < 1 else float("nan")}, at

def gives_up(config, state, budget):
    return {"failed": "no good"}, None

def other(config, state, budget):
    return {"loss": 1}, None

def odd(config, state, budget):
    return {"accuracy": 1}, object()

def net(width, shape, classes):
    import torch
    layers = [torch.nn.Flatten(), torch.nn.Linear(shape[1] * shape[2], width), torch.nn.BatchNorm1d(width)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(width, classes))
"""
SPACE = {"rate": {"uniform": [0, 1]}}
Opened = Callable[..., TrialRunner]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made: list[TrialRunner] = []
    (tmp_path / "work.py").write_text(WORK)

    def open_(entry: str | None = None, **given: Any) -> TrialRunner:
        params = TuneParams(**{"space": SPACE, "metric": "accuracy", **given})
        prepared = prepare(params, Site(tmp_path, (), 1, entry is not None, None, entry))
        scratch = tmp_path / f"scratch-{len(made)}"
        model = Path(prepared.model) if prepared.model else None
        bench = Bench(prepared.params, 1, 60.0, scratch, tmp_path if entry else None, entry, model=model)
        made.append(TrialRunner(prepared.params, bench))
        return made[-1]

    yield open_
    for runner in made:
        runner.close()


def run(runner: TrialRunner, sheet: Path | None = None, **order: Any) -> tuple[Segment, bytes]:
    """What a shard gives. `sheet`: where its checkpoint was laid out."""
    given = TrialOrder(**{"trial": 0, "start": 0, "to": 4, "config": {"rate": 1.0}, "limit": 60.0, **order})
    result: Any = runner.run(Shard("made", 0, 0, None, msgspec.msgpack.encode(given), sheet=sheet))
    told, state = (result[name].values.tobytes() for name in (TOLD, STATE))
    segment = msgspec.msgpack.decode(told, type=Segment)
    assert segment.state_bytes == len(state)
    return segment, state


def test_a_trial_goes_on_in_memory_or_from_its_checkpoint_to_the_same_end(opened: Opened, tmp_path: Path) -> None:
    here, elsewhere = opened("work.py:train"), opened("work.py:train")
    first, state = run(here, to=2)
    assert [one["accuracy"] for one in first.curve] == [0.1, 0.2] and first.why == ""
    (tmp_path / "sheet").write_bytes(state)
    onward = {"start": 2, "to": 4, "state": first.state}
    second, end = run(here, None, **onward)
    third, same = run(elsewhere, tmp_path / "sheet", **onward)
    assert [one["accuracy"] for one in second.curve] == [one["accuracy"] for one in third.curve] == [0.3, 0.4]
    assert second.state == third.state and end == same
    assert second.curve[0]["pid"] == first.curve[0]["pid"]


def test_trials_of_equal_states_are_not_taken_for_each_other(opened: Opened, tmp_path: Path) -> None:
    runner = opened("work.py:steps")
    first, state = run(runner, to=3, config={"rate": 1.0})
    (tmp_path / "sheet").write_bytes(state)
    onward, _ = run(runner, tmp_path / "sheet", trial=1, start=3, to=4, state=first.state, config={"rate": 0.5})
    assert onward.curve == [{"accuracy": 0.4}]


def test_a_checkpoint_that_is_not_the_one_that_is_wanted_is_a_loss(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "sheet").write_bytes(b"something else")
    with pytest.raises(RunnerLost, match="not the one"):
        run(opened("work.py:train"), tmp_path / "sheet", start=2, state="0" * 32)


def test_a_generator_goes_on_too_and_its_end_is_the_trials(opened: Opened, tmp_path: Path) -> None:
    runner, other = opened("work.py:steps"), opened("work.py:steps")
    first, state = run(runner, to=2, config={"rate": 0.5})
    (tmp_path / "sheet").write_bytes(state)
    for one in (runner, other):
        onward, _ = run(one, tmp_path / "sheet", start=2, to=9, state=first.state, config={"rate": 0.5})
        assert [one["accuracy"] for one in onward.curve] == [0.3, 0.4, 0.5] and onward.why == "iterations"


def test_a_trial_ends_where_its_target_is_or_where_it_diverges(opened: Opened) -> None:
    runner = opened("work.py:steps", stop={"accuracy": 0.3})
    assert [len(run(runner, config={"rate": rate})[0].curve) for rate in (0.5, 1.0)] == [3, 3]
    segment, state = run(opened("work.py:steps"), config={"rate": 1.0})
    assert segment.why == "diverged" and math.isnan(segment.curve[3]["accuracy"]) and state == b""


def test_a_network_of_ours_whose_losses_are_no_numbers_has_diverged_whatever_it_is_judged_by(opened: Opened) -> None:
    steep = {"hidden": 16, "lr": 1e30, "momentum": 0.9}
    segment, state = run(opened(trial="mlp", space={"lr": 0.1}, data="digits"), config=steep)
    assert segment.why == "diverged" and math.isnan(segment.curve[-1]["loss"]) and state == b""
    assert math.isfinite(segment.curve[-1]["accuracy"])


def test_a_plateau_that_began_on_another_machine_ends_a_trial(opened: Opened, tmp_path: Path) -> None:
    given: dict[str, Any] = {"space": {"rate": 0.0}, "stop": {"plateau": {"iterations": 3}, "iterations": 50}}
    flat: dict[str, Any] = {"config": {"rate": 0.0}}
    first, state = run(opened("work.py:train", **given), to=2, **flat)
    (tmp_path / "sheet").write_bytes(state)
    onward: dict[str, Any] = {"start": 2, "to": 50, "state": first.state, "standing": Standing(0.0, 1)}
    second, _ = run(opened("work.py:train", **given), tmp_path / "sheet", **flat, **onward)
    assert (second.why, len(second.curve)) == ("plateau", 2)


def test_a_segment_ends_when_its_time_is_over_but_not_before_an_iteration(opened: Opened) -> None:
    assert len(run(opened("work.py:train"), limit=0.0)[0].curve) == 1


def test_a_trial_that_fails_is_a_result_with_its_evidence(opened: Opened) -> None:
    segment, _ = run(opened("work.py:train"), to=20)
    assert (segment.why, segment.code, segment.message) == ("failed", "exception", "ValueError: too far")
    assert not segment.final
    assert 'work.py", line 10' in segment.evidence
    for entry, said in {
        "gives_up": "no good",
        "other": "it reports loss, and no `accuracy` (params.metric)",
    }.items():
        segment, _ = run(opened(f"work.py:{entry}"))
        assert (segment.message, segment.final) == (said, True)
    segment, _ = run(opened("work.py:train", stop={"f1": 0.9}))
    assert (segment.message, segment.final) == ("it reports accuracy, pid, trial, and no `f1` (params.stop)", True)
    segment, _ = run(opened("work.py:odd"))
    assert "a object cannot be kept" in segment.message


def test_a_function_in_a_package_finds_its_neighbours(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/__init__.py").touch()
    (tmp_path / "net/scale.py").write_text("BY = 3\n")
    (tmp_path / "net/work.py").write_text(
        "from .scale import BY\ndef train(config, state, budget):\n    return {'accuracy': 0.1 * BY}, 0\n"
    )
    segment, _ = run(opened("net/work.py:train"))
    assert not segment.why and float(segment.curve[0]["accuracy"]) == pytest.approx(0.3)


def test_code_without_the_function_says_so(opened: Opened) -> None:
    segment, _ = run(opened("work.py:nothing"))
    assert "no function called 'nothing'" in segment.message


@pytest.mark.parametrize(
    ("kind", "space", "config"),
    [
        ("mlp", {"hidden": {"int": [4, 64]}, "lr": 0.1}, {"hidden": 32, "lr": 0.1, "momentum": 0.9}),
        ("conv1", {"filters": {"int": [4, 64]}, "lr": 0.1}, {"filters": 8, "lr": 0.1, "momentum": 0.9, "batch": 32}),
        (EstimatorSpec("sklearn.linear_model.SGDClassifier"), {"alpha": {"loguniform": [1e-6, 1e-2]}}, {"alpha": 1e-4}),
    ],
)
def test_ours_learn_the_same_in_one_go_and_in_two_and_are_scored(
    opened: Opened, tmp_path: Path, kind: Any, space: dict[str, Any], config: dict[str, Any]
) -> None:
    one, two = (opened(trial=kind, space=space, data="digits") for _ in range(2))
    whole, end = run(one, config=config)
    first, state = run(two, to=2, config=config)
    (tmp_path / "sheet").write_bytes(state)
    run(two, to=1, config=config)  # another trial comes between
    run(two, to=1, config=config)
    run(two, to=1, config=config)
    second, _ = run(two, tmp_path / "sheet", start=2, to=4, state=first.state, config=config)
    assert whole.curve == first.curve + second.curve and (
        whole.state == second.state or isinstance(kind, EstimatorSpec)
    )
    assert whole.curve[-1]["accuracy"] > 0.85
    (tmp_path / "sheet").write_bytes(end)
    score, _ = run(one, tmp_path / "sheet", start=4, state=whole.state, config=config, score=True)
    assert score.score is not None and score.score["accuracy"] > 0.85 and not score.curve


@pytest.mark.parametrize("threads", [1, 2])
def test_a_network_computes_with_as_many_threads_as_its_configuration_says(threads: int) -> None:
    x, y = np.zeros((8, 4), "f4"), np.zeros(8, "i8")
    data = SimpleNamespace(x=x, y=y, valid_x=x, valid_y=y, classes=2, test=lambda: (x, y))
    trial, seen = own_trials.mlp({"hidden": 3, "threads": threads}, data, 0), set[int]()
    forward = trial._learning.forward

    def told(*given: Any) -> Any:
        seen.update(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
        return forward(*given)

    trial._learning.forward = told
    trial.step()
    assert seen == {threads}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_torch_module_learns_the_same_in_one_go_and_in_two(opened: Opened, tmp_path: Path, optimizer: str) -> None:
    torch = pytest.importorskip("torch")
    given = {"trial": "torch", "data": "digits", "space": {"lr": 0.1, "width": 24}}
    config = {"lr": 0.05 if optimizer == "sgd" else 0.01, "momentum": 0.9, "optimizer": optimizer, "width": 24}
    one, two = (opened("work.py:net", **given) for _ in range(2))
    whole, end = run(one, config=config)
    first, state = run(two, to=2, config=config)
    (tmp_path / "sheet").write_bytes(state)
    for _ in range(3):
        run(two, to=1, trial=1, config=config)  # others come between, so that it goes on from its checkpoint
    second, _ = run(two, tmp_path / "sheet", start=2, to=4, state=first.state, config=config)
    assert whole.curve == first.curve + second.curve and whole.state == second.state
    assert whole.curve[-1]["accuracy"] > 0.8 and whole.curve[-1]["train_loss"] < whole.curve[0]["train_loss"]
    (tmp_path / "sheet").write_bytes(end)
    score, _ = run(one, tmp_path / "sheet", start=4, state=whole.state, config=config, score=True)
    assert score.score is not None and score.score["accuracy"] > 0.8
    name, raw = model_of(TuneParams({"lr": 1}, "accuracy", trial="torch"), end, {"lr": 1}, 1.0)
    (tmp_path / name).write_bytes(raw)
    from safetensors.torch import load_file

    sizes = {key: tuple(one.shape) for key, one in load_file(str(tmp_path / name)).items()}
    assert name == "best.safetensors" and sizes["1.weight"] == (24, 64) and torch.__version__


def test_what_learns_all_at_once_is_fitted_anew_on_more_rows_at_each_rung(opened: Opened, tmp_path: Path) -> None:
    spec = EstimatorSpec("sklearn.ensemble.RandomForestClassifier")
    runner = opened(trial=spec, space={"max_depth": {"int": [2, 9]}}, data="digits", scheduler="halving")
    config = {"max_depth": 9, "n_estimators": 10}
    first, state = run(runner, to=1, config=config)
    (tmp_path / "sheet").write_bytes(state)
    second, _ = run(opened(trial=spec, space={"max_depth": 3}, data="digits", scheduler="halving"),
                    tmp_path / "sheet", start=1, to=4, state=first.state, config=config)  # fmt: skip
    found = [one["accuracy"] for one in (*first.curve, *second.curve)]
    assert len(found) == 4 and found[0] < found[-1] and found[-1] > 0.9 and second.why == "iterations"
    (tmp_path / "sheet").write_bytes(run(runner, to=4, config=config)[1])


def test_rungs_of_what_learns_all_at_once_are_its_iterations() -> None:
    spec = EstimatorSpec("sklearn.svm.SVC", refits=True)
    for scheduler, eta, found in (("fifo", 3, [1]), ("halving", 3, [1, 2, 3, 4]), ("asha", 2, [1, 2, 3, 4, 5])):
        given = {"space": {"C": 1.0}, "metric": "accuracy", "trial": spec, "scheduler": scheduler, "eta": eta}
        assert rungs(msgspec.convert(given, TuneParams, from_attributes=True)) == found


def test_states_come_back_as_they_were() -> None:
    state = {"a": np.arange(6.0).reshape(2, 3), "b": [1, None, ("x", 2.5)], "c": b"raw", "d": np.float32(3), 5: True}
    back = trial.decoded(trial.encoded(state))
    assert back["b"] == state["b"] and back["c"] == b"raw" and back[5] is True and back["d"].dtype == np.float32
    assert np.array_equal(back["a"], state["a"]) and trial.encoded(back) == trial.encoded(state)


@pytest.fixture
def numbers(tmp_path: Path) -> dict[str, str]:
    """Rows, and for each a number that is a sum of its values, nearly."""
    draw = np.random.default_rng(5)
    rows = draw.normal(size=(300, 4))
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "numbers.npy", rows @ [1.0, -2.0, 0.5, 3.0] + 0.1 * draw.normal(size=300))
    return {"x": "rows.npy", "y": "numbers.npy"}


def test_a_regressor_is_judged_by_how_far_its_numbers_are_off(
    opened: Opened, tmp_path: Path, numbers: dict[str, str]
) -> None:
    data = msgspec.convert(numbers, DataSpec)
    parts = {"trial": EstimatorSpec("sklearn.linear_model.SGDRegressor"), "space": {"eta0": 0.01}, "data": data}
    runner = opened(**parts, metric="mse")
    assert runner._params.smaller and runner._params.facts is not None and runner._params.facts.classes == 0
    segment, state = run(runner, config={"eta0": 0.01})
    last = segment.curve[-1]
    assert set(last) == {"r2", "mse", "train_r2", "train_mse"} and last["r2"] > 0.95 and last["mse"] < 1
    (tmp_path / "sheet").write_bytes(state)
    order: dict[str, Any] = {"start": 4, "state": segment.state, "config": {"eta0": 0.01}, "score": True}
    score = run(runner, tmp_path / "sheet", **order)[0].score
    assert score is not None and set(score) == {"r2", "mse"} and score["r2"] > 0.95
    forest = {"trial": EstimatorSpec("sklearn.ensemble.RandomForestRegressor"), "space": {"max_depth": 9}}
    whole = run(opened(**{**parts, **forest}, metric="r2", scheduler="halving"), config={"n_estimators": 10})[0]
    assert [one["r2"] for one in whole.curve] == sorted(one["r2"] for one in whole.curve) and len(whole.curve) == 4


def test_an_estimator_whose_weights_overflow_has_diverged(opened: Opened, numbers: dict[str, str]) -> None:
    given = {"trial": EstimatorSpec("sklearn.linear_model.SGDRegressor"), "data": msgspec.convert(numbers, DataSpec)}
    segment, _ = run(opened(**given, space={"eta0": 1.0}, metric="r2"), config={"eta0": 1e200})
    assert segment.why == "diverged" and math.isnan(segment.curve[-1]["r2"])


def test_what_a_trial_could_never_be_is_refused_at_submit(opened: Opened, numbers: dict[str, str]) -> None:
    assert numbers
    for given, said in (
        ({}, "params.trial: missing: what is to be trained?"),
        (
            {"trial": EstimatorSpec("sklearn.svm.SVC", refits=False), "data": "digits", "space": {"C": 1}},
            "has no partial_fit",
        ),
        (
            {"trial": EstimatorSpec("sklearn.cluster.KMeans"), "data": "digits"},
            "is neither a classifier nor a regressor",
        ),
        (
            {"trial": EstimatorSpec("sklearn.linear_model.SGDRegressor"), "data": "digits"},
            "params.metric: SGDRegressor is a regressor: there is no accuracy",
        ),
        (
            {"trial": EstimatorSpec("sklearn.svm.SVC"), "data": "digits", "metric": "r2"},
            "params.metric: SVC is a classifier: there is no r2",
        ),
        (
            {"trial": EstimatorSpec("sklearn.svm.SVC"), "data": "digits", "metric": "f1"},
            "SVC is a classifier: there is no f1",
        ),
        (
            {
                "trial": EstimatorSpec("sklearn.svm.SVC"),
                "data": {"x": "rows.npy", "y": "numbers.npy"},
                "space": {"C": 1.0},
            },
            "params.data.y: numbers.npy: float64 of shape (300,) is no labels",
        ),
        ({"trial": "torch", "data": "digits"}, "params.trial: missing: its factory"),
        ({"trial": "conv1", "data": "digits", "space": {"hidden": 3}}, "params.space: there is no `hidden` here"),
        ({"trial": EstimatorSpec("sklearn.nothing.SVC"), "data": "digits"}, "No module named"),
        ({"trial": EstimatorSpec("sklearn.linear_model.SGDClassifier"), "data": "digits"}, "no parameter `rate`"),
        ({"trial": "mlp", "data": "digit", "space": {"lr": 0.1}}, "there is no data set 'digit'"),
    ):
        with pytest.raises(MusterError) as caught:
            opened(**{**given, "data": _spec(given.get("data"))})
        assert said in caught.value.message


def _spec(data: Any) -> Any:
    return msgspec.convert(data, DataSpec) if isinstance(data, dict) else data


@pytest.mark.parametrize("name", ["trial", "own_trials", "networks", "torch_trial", "searched", "loading"])
def test_the_runner_is_for_old_interpreters_too(name: str) -> None:
    ast.parse(Path(trial.__file__).with_name(f"{name}.py").read_text(), feature_version=(3, 8))
