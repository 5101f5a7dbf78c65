"""Short jobs of every kind, made of a number, and how a result of each is judged."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from muster.coordinator.commands.submit import submit
from muster.jobs.tuning.searchers import Configurations
from muster.jobs.tuning.space import Space
from tests.integration import test_train, test_tune
from tests.support import networks
from tests.support.farm import FarmHarness, arrays

NAP = "MUSTER_CAMPAIGN_NAP"  # how long a shard of a map job sleeps; the serial run does not
CODE = f"""
import os, time
def half(rows):
    time.sleep(float(os.environ.get("{NAP}", "0")))
    return {{"half": rows / 2, "total": rows.sum(axis=1)}}
"""
WIDTH = 60
ATTEMPTS = 50  # a runner that is killed is a failure of its shard
LINES = 40
LATER_SECONDS = 0.01  # of an iteration of a trial
TOLD = "told.jsonl"  # in the job file's folder, what became of its jobs; slowly, so that who tells it can be killed
WORD = {"command": f"""read -r line; sleep 2; printf '%s\\n' "$line" >> {TOLD}"""}


@dataclass(frozen=True)
class Work:
    """What may be submitted again and again. `judge`: an AssertionError where a complete job of it is not right."""

    kind: str
    file: Path
    judge: Callable[[FarmHarness, str], None]

    def submit(self, farm: FarmHarness, after: str = "") -> str:
        return submit(farm.root, self.file, after=(after,) if after else ())

    def told(self, job: str) -> list[str]:
        """What its user was told of this job."""
        file = self.file.with_name(TOLD)
        lines = file.read_text().splitlines() if file.exists() else []
        events = [
            json.loads(line) for line in lines if line
        ]  # an empty one: its teller was killed before it had said it
        return [event["event"] for event in events if event["job"] == job]


def work(farm: FarmHarness, number: int) -> Work:
    """The kinds by turns, each with a source or a seed of its own."""
    kind = list(KINDS)[number % len(KINDS)]
    return KINDS[kind](farm, number)


def _judged_by_serial_run(kind: str, file: Path) -> Work:
    return Work(kind, file, FarmHarness.check_result)


def _cluster(farm: FarmHarness, number: int) -> Work:
    return _judged_by_serial_run("cluster", farm.job_file(arrays(3, 96, 4096, number), 4, **_named("cluster")))


def _map(farm: FarmHarness, number: int) -> Work:
    more: dict[str, Any] = {**_named("map"), "kind": "map", "code": "work.py:half"}
    return _judged_by_serial_run("map", farm.job_file(arrays(2, 80, 64, number), 2, CODE, **more))


def _infer(farm: FarmHarness, number: int) -> Work:
    net = networks.save_npz(farm.folder / "net.npz", networks.weights(sizes=(WIDTH, 48, 10))).read_bytes()
    more: dict[str, Any] = {**_named("infer"), "kind": "infer", "params": {"model": "net.npz", "batch": 32}}
    file = farm.job_file(arrays(2, 600, WIDTH, number), 20, files={"net.npz": net}, **more)
    return _judged_by_serial_run("infer", file)


def _command(farm: FarmHarness, number: int) -> Work:
    table = "n\n" + "".join(f"{number * LINES + line}\n" for line in range(LINES))
    params = {"run": "sleep 0.05; echo {n} | tr 0-9 a-j > {out}", "out": "{n}.txt"}
    more: dict[str, Any] = {**_named("command"), "kind": "command", "params": params, "source": {"table": "t.csv"}}
    return _judged_by_serial_run("command", farm.job_file({}, files={"t.csv": table.encode()}, **more))


def _train(farm: FarmHarness, number: int) -> Work:
    params = {**test_train.SMALL, "rounds": 40, "seed": number}
    file = farm.job_file({}, kind="train", params=params, **_named("train"))
    return Work("train", file, test_train.check)


def _tune(farm: FarmHarness, number: int) -> Work:
    space = {**test_tune.SPACE, "pause": LATER_SECONDS}
    params = {**test_tune.SMALL, "space": space, "seed": number}
    more: dict[str, Any] = {**_named("tune"), "kind": "tune", "code": "work.py:train", "params": params}
    wanted = Configurations(Space(space), seed=number, trials=test_tune.SMALL["trials"])
    return Work("tune", farm.job_file({}, 0, test_tune.WORK, **more), partial(_judge_search, wanted))


def _judge_search(wanted: Configurations, farm: FarmHarness, job: str) -> None:
    """Every trial is done, with the score that its configuration gives, which is that of the seed."""
    rows = list(csv.DictReader((test_tune.result(farm, job) / "trials.csv").read_text().splitlines()))
    assert sorted(int(row["trial"]) for row in rows) == list(range(wanted.count))
    for row in rows:
        lr = float(row["lr"])
        assert lr == wanted.config(int(row["trial"]))["lr"] and row["state"] == "done"
        assert float(row["accuracy"]) == lr * (1 - (1 - lr) ** int(row["iterations"]))


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "attempts": ATTEMPTS, "notify": WORD}


KINDS: dict[str, Callable[[FarmHarness, int], Work]] = {
    "cluster": _cluster,
    "map": _map,
    "infer": _infer,
    "command": _command,
    "train": _train,
    "tune": _tune,
}
