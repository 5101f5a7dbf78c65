"""Trainings: however many machines there are, and whoever is killed, the weights are those of a serial run."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.api.requests import Drain, ExplainJob, ExplainShard
from muster.coordinator.api.status import Explained
from muster.jobs.common.ranges import RangeSet
from muster.jobs.kinds.train import RoundOrder
from muster.jobs.parts.manifest import Merged, read_manifest
from muster.jobs.training import checkpoint
from muster.jobs.training.aggregation.asynchronous import WorkerPush
from muster.jobs.training.aggregation.synchronous import SynchronousRounds
from muster.jobs.training.data import dataset
from muster.jobs.training.params import TrainParams
from muster.jobs.training.progress import TrainingCourse
from muster.jobs.training.serial import Serial, replay, run_serially
from muster.jobs.training.steps.torch_trainer import TrainerPlace
from tests.support.farm import FarmHarness, until
from tests.support.simulated import SimulatedAgent

SMALL = {"layers": [16], "workers": 6, "microbatch": 16, "rounds": 80, "eval_every": 20, "checkpoint_rounds": 10}


def submit(farm: FarmHarness, **params: Any) -> str:
    return farm.submit({}, kind="train", params={**SMALL, **params})


def summary(farm: FarmHarness, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((farm.root.job(job).result / "made" / "training.json").read_text())
    return found


def params_of(farm: FarmHarness, job: str) -> TrainParams:
    return msgspec.convert(farm.plan(job).work.params, TrainParams)


@cache
def _serial(raw: bytes) -> Serial:
    params = msgspec.msgpack.decode(raw, type=TrainParams)
    return run_serially(params, dataset.load("digits", Path("/"), params.seed))


def serial(params: TrainParams) -> Serial:
    return _serial(msgspec.msgpack.encode(params))


def check(farm: FarmHarness, job: str) -> None:
    """The weights, the scores and the losses are the serial run's."""
    farm.wait(job)
    found, wanted = summary(farm, job), serial(params_of(farm, job))
    assert found["digest"] == wanted.digest
    assert [tuple(mark[::2]) for mark in found["marks"]] == wanted.accuracies
    assert [point[2] for point in found["points"]] == wanted.losses


def at_round(farm: FarmHarness, job: str, number: int) -> None:
    until(lambda: (so_far := farm.status(job).progress) is not None and so_far.done >= number, f"round {number}")


def drivers(farm: FarmHarness, job: str) -> list[int]:
    return farm.processes("muster.coordinator.drivers.training.main", job)


@pytest.mark.parametrize("machines", [1, 2, 3])
@pytest.mark.parametrize("mode", [{"mode": "sync"}, {"mode": "local", "local_steps": 3}], ids=["sync", "local"])
def test_the_weights_do_not_tell_how_many_machines_there_were(
    farm: FarmHarness, machines: int, mode: dict[str, Any]
) -> None:
    for number in range(machines):
        farm.agent(f"a{number}", cpus=1 + number).go()
    job = submit(farm, **mode)
    check(farm, job)
    until(lambda: not list(farm.root.job(job).rounds.iterdir()), "nothing of its rounds to be left")


def test_a_machine_is_killed_others_join_and_leave_and_the_weights_are_the_same(farm: FarmHarness) -> None:
    first, second = farm.agent("a").go(), farm.agent("b").go()
    job = submit(farm, rounds=120)
    at_round(farm, job, 20)
    farm.agent("late").go()
    at_round(farm, job, 40)
    farm.ask(Drain("b"), Answered)
    until(lambda: second.drained, "it to be told")
    second.die()
    at_round(farm, job, 60)
    first.paused.set()
    until(lambda: first.granted, "a round to wait for it")
    first.die()
    check(farm, job)


def test_driver_and_daemon_are_killed_and_the_weights_are_the_same(farm: FarmHarness) -> None:
    farm.agent("a").go()
    job = submit(farm, rounds=150)
    at_round(farm, job, 25)
    for pid in drivers(farm, job):
        os.kill(pid, signal.SIGKILL)
    at_round(farm, job, 60)
    farm.restart()
    at_round(farm, job, 90)
    check(farm, job)
    assert len(list((farm.root.job(job).path / "checkpoints").glob("round-*"))) == 3


def test_how_far_a_training_came_is_known_after_a_restart_and_in_rounds(farm: FarmHarness) -> None:
    job = submit(farm, rounds=20)
    assert (begun := farm.status(job).progress) is not None and (begun.done, begun.total) == (0, 20)
    farm.agent("a").go()
    farm.wait(job)
    first = farm.status(job).progress
    farm.restart()
    assert farm.status(job).progress == first
    said = farm.ask(ExplainJob(job), Explained).lines
    assert said == ["is complete; 20 of 20 rounds done"]
    [said] = farm.ask(ExplainShard(job, "made", 3), Explained).lines
    assert "part of a round that is over" in said


@pytest.mark.parametrize("kills", [False, True])
def test_an_async_training_is_replayed_from_its_journal(farm: FarmHarness, kills: bool) -> None:
    for name in "ab":
        farm.agent(name).go()
    job = submit(farm, mode="async", lr=0.05)
    if kills:
        at_round(farm, job, 30)
        for pid in drivers(farm, job):
            os.kill(pid, signal.SIGKILL)
    farm.wait(job)
    found, params = summary(farm, job), params_of(farm, job)
    journal = msgspec.convert(found["journal"], list[WorkerPush])
    assert sum(len(push.workers) for push in journal) >= params.rounds * params.workers
    assert replay(params, dataset.load("digits", Path("/"), params.seed), journal) == found["digest"]


class SlowJudge(SimulatedAgent):
    """Takes its time over each evaluation."""

    judging = 0.0  # seconds so far

    def _compute_part(self, key: Any, numbers: RangeSet) -> None:
        orders = [msgspec.msgpack.decode(self.payloads[key[1], n], type=RoundOrder) for n in numbers]
        began = time.monotonic()
        if any(order.header is None for order in orders):
            time.sleep(0.3)
        super()._compute_part(key, numbers)
        self.judging += (time.monotonic() - began) * all(order.header is None for order in orders)


def test_an_async_training_evaluates_off_its_clock(farm: FarmHarness) -> None:
    agent = SlowJudge(farm.root, farm.folder / "spools" / "slow", "slow", env=farm.environment())
    farm.agents.append(agent)
    agent.go()
    job = submit(farm, mode="async", lr=0.05)
    status = farm.wait(job)
    found = summary(farm, job)
    assert len(found["marks"]) == 4 and agent.judging > 1
    assert status.ended and status.started
    assert found["points"][-1][1] < status.ended - status.started - agent.judging


def test_a_training_ends_at_its_target_with_the_weights_that_reached_it(farm: FarmHarness) -> None:
    farm.agent("a").go()
    job = submit(farm, target=0.5, lr=0.5, rounds=400, eval_every=10, bits=16)
    check(farm, job)
    found = summary(farm, job)
    assert found["reached_target"] and found["accuracy"] >= 0.5 and found["iteration"] == found["marks"][-1][0]
    folder = farm.root.job(job).result / "made"
    pieces = load_file(folder / "weights.safetensors")
    flat = np.concatenate([pieces[name].ravel() for name in ("w0", "b0", "w1", "b1")])
    assert np.array_equal(flat, np.load(folder / "weights.npy"))
    with safe_open(folder / "weights.safetensors", "np") as file:
        assert float(file.metadata()["unit"]) == 1 / 16  # what 1 of these images is, for `kind: infer`
    assert (folder / "curve.csv").read_text().count("\n") == len(found["points"]) + 1
    assert farm.coordinator("verify", job).returncode == 0 and farm.coordinator("result", job).returncode == 0


def test_a_loss_that_is_no_number_halts_the_job_and_names_the_round(farm: FarmHarness) -> None:
    farm.agent("a").go()
    job = submit(farm, mode="local", local_steps=40, lr=1000.0, layers=[64, 64], rounds=400)
    status = farm.wait(job, "halted")
    assert "round" in status.why and "finite" in status.why
    until(lambda: not drivers(farm, job), "the driver to end")
    assert f"submit --from {job} --set lr=" in status.why
    assert farm.coordinator("logs", job).stdout.startswith(f"{job}: driver: the ")
    said = farm.coordinator("plan", "--from", job, "--set", "lr=0.1").stdout.splitlines()
    assert said[1].split(None, 2)[2] == "lr 1000.0 → 0.1"


def test_a_checkpoint_of_another_model_halts_the_job_and_is_named(farm: FarmHarness) -> None:
    job = submit(farm)
    [first] = until(lambda: drivers(farm, job), "its driver")
    params = msgspec.structs.replace(params_of(farm, job), layers=(3,))
    outer = SynchronousRounds(params, np.zeros(9, np.float32), 9)
    checkpoint.write(farm.root.job(job).checkpoints, outer, TrainingCourse(params))
    os.kill(first, signal.SIGKILL)
    assert "round-0000000000.safetensors: of another model" in farm.wait(job, "halted").why


def test_other_data_than_digits_goes_along(farm: FarmHarness) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(200, 12)).astype("f4"), rng.integers(0, 3, 200)
    farm.agent("a").go()
    folder = farm.folder / "given"
    folder.mkdir()
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    spec = {"x": str(folder / "x.npy"), "y": str(folder / "y.npy"), "test": 0.25}
    job = submit(farm, data=spec, rounds=20)
    farm.wait(job)
    params = params_of(farm, job)
    assert (
        summary(farm, job)["digest"] == run_serially(params, dataset.load(params.data, Path("/"), params.seed)).digest
    )


MODULE = """
import torch
def net(shape, classes, width):
    return torch.nn.Sequential(torch.nn.Conv2d(shape[0], width, 3), torch.nn.BatchNorm2d(width), torch.nn.ReLU(),
                               torch.nn.Dropout(0.1), torch.nn.Flatten(), torch.nn.Linear(width * 36, classes))
"""


def test_a_torch_module_is_trained_by_whoever_is_there(farm: FarmHarness) -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    for name in "ab":
        farm.agent(name).go()
    ways = {"model": "code", "args": {"width": 4}, "workers": 4, "microbatch": 8, "rounds": 5, "eval_every": 5}
    job = farm.submit(
        {}, work=MODULE, kind="train", code="work.py:net", params={**ways, "mode": "local", "local_steps": 2}
    )
    farm.wait(job)
    plan, params = farm.plan(job), params_of(farm, job)
    assert plan.work.model is not None and plan.work.needs == ("torch",)
    given = farm.root.model(plan.work.model.digest)
    code = farm.job_file({}, work=MODULE).parent
    place = TrainerPlace(given, farm.folder / "serial", code=code, entry="work.py:net")
    assert summary(farm, job)["digest"] == run_serially(params, dataset.read(given), place).digest
    pieces = load_file(farm.root.job(job).result / "made" / "weights.safetensors")
    assert pieces["0.weight"].shape == (4, 1, 3, 3) and pieces["1.running_mean"].shape == (4,)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"params": {"model": "code"}}, "params.model: `code` is a factory of yours"),
        ({"code": "work.py:net", "params": {}}, "code: mlp has no use for it"),
        ({"params": {"deterministic": True}, "resources": {"cpus": 2}}, "params.deterministic: one thread"),
        ({"params": {"args": {"width": 4}}}, "params.args: only a factory of your own"),
        ({"params": {"model": "conv1", "data": {"x": "x.npy", "y": "y.npy"}}}, "params.model: conv1 needs images"),
    ],
)
def test_models_that_cannot_be_are_refused_at_submit(farm: FarmHarness, fields: dict[str, Any], said: str) -> None:
    path = farm.job_file({}, work=MODULE, kind="train", **fields)
    np.save(path.parent / "x.npy", np.zeros((20, 5)))
    np.save(path.parent / "y.npy", np.arange(20) % 2)
    ran = farm.coordinator("plan", str(path))
    assert ran.returncode == 3 and said in ran.stderr


# --- machines that compute other bits -----------------------------------------------------------------------


def manifest(farm: FarmHarness, job: str) -> Merged:
    return read_manifest(farm.root.job(job).result / "made")


def test_a_training_on_two_kernels_says_so(farm: FarmHarness) -> None:
    one, other = farm.agent("one"), farm.agent("other", fingerprint="numpy 0.9")
    job = submit(farm, rounds=30)
    one.go(), other.go()
    farm.wait(job)
    found = manifest(farm, job)
    assert set(found.fingerprints) == {one.fingerprint, "numpy 0.9"} and max(found.rounds) <= 30 <= sum(found.rounds)
    assert "computed on 2 kernel fingerprints; bits may differ between them" in farm.coordinator("verify", job).stdout


def test_the_first_round_fixes_the_kernels_for_every_life_of_the_daemon(farm: FarmHarness) -> None:
    job = farm.submit({}, kind="train", params={**SMALL, "rounds": 300}, same_kernels="require")
    one = farm.agent("one").go()
    until(lambda: list(farm.root.job(job).checkpoints.glob("round-*")), "a checkpoint")
    one.die()
    farm.kill()
    farm.start()
    other = farm.agent("other", fingerprint="numpy 0.9").go()
    until(lambda: farm.is_live("other"), "the other to have joined")
    until(lambda: (seen := farm.agent_status("other")) and job in seen.ineligible, "it to be kept out")
    farm.agent("one").go()
    farm.wait(job)
    assert other.computed == [] and manifest(farm, job).fingerprints == (one.fingerprint,)
    assert sum(manifest(farm, job).rounds) == 300
    said = farm.coordinator("verify", job).stdout
    assert "computed on 1 kernel fingerprint; the bytes are those of a serial run" in said
