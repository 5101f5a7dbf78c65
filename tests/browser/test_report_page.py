"""Reports of every kind in a real browser: each opens from a file, asks nobody for anything, and shows what `--json`
says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.client import Farm
from muster.coordinator.display.tables import moment
from muster.coordinator.report import terminal
from muster.jobs.common.units import format_size
from muster.jobs.kinds import registry
from tests.integration import test_train, test_tune
from tests.support import networks
from tests.support.chromium import Tab, tab
from tests.support.farm import FarmHarness, arrays, running, until

SHARDS, ROWS, WIDTH = 24, 4, 60
ARTEFACTS = "MUSTER_SCREENSHOTS"  # a folder in which they are kept to be looked at
NAP_SECONDS = 0.1  # of a shard: of a job that offers less than a core-second nothing is said of shares
LENGTHS = f"""
import time
import numpy as np

def lengths(paths):
    time.sleep({NAP_SECONDS})
    return np.array([len(one.read_bytes()) for one in paths])
"""
# Of each kind, what is its own on the page: heads, and words in pictures and tables.
OWN = {
    "calls": (),
    "cluster": ("Inertia of a row", "Iterations of a row"),
    "command": ("Exit codes", "command.1 exit 0", "exit 3", "Slowest", "17, c17"),
    "infer": ("Rows a second, by batch", "Slowest"),
    "map": ("Slowest", ".bin"),
    "train": ("Accuracy over iterations", "Accuracy over time", "Iterations over time"),
    "tune": ("Best so far", "its 8 best trials", "parameters of 8 trials", "trial 0", "lr"),
}


def squared(number: int) -> int:
    import time

    time.sleep(0.1)
    return number * number


def submit(farm: FarmHarness, kind: str) -> str:
    """A small job of the kind, named after it."""
    named: dict[str, Any] = {"name": kind, "kind": kind}
    if kind == "cluster":
        named["params"] = {"n_clusters": 256, "init": "random", "n_init": 4}  # for more than a second of a core
        return farm.submit(arrays(rows=SHARDS * ROWS, width=1 << 16), shard_rows=ROWS, **named)
    if kind == "map":
        files = {f"in/{i:02}.bin": b"x" * i for i in range(SHARDS)}
        return farm.submit(
            {}, ROWS, LENGTHS, code="work.py:lengths", files=files, source={"files": "in/*.bin"}, **named
        )
    if kind == "command":
        table = {"t.csv": ("n,word\n" + "".join(f"{i},c{i}\n" for i in range(SHARDS))).encode()}
        run = {
            "run": "sleep 0.1; [ {n} != 17 ] || sleep 0.2; exit $(( {n} % 8 == 3 ? 3 : 0 ))",
            "on_item_error": "record",
        }
        return farm.submit({}, ROWS, files=table, source={"table": "t.csv"}, params=run, **named)
    if kind == "infer":
        net = networks.save_npz(farm.folder / "net.npz", networks.weights(sizes=(WIDTH, 800, 800, 10))).read_bytes()
        params = {"model": "net.npz", "batch": 64}
        return farm.submit(
            arrays(rows=SHARDS * 4096, width=WIDTH), 4096, params=params, files={"net.npz": net}, **named
        )
    if kind == "train":
        return farm.submit({}, params={**test_train.SMALL, "rounds": 20, "eval_every": 5}, **named)
    if kind == "tune":
        params = {**test_tune.SMALL, "space": {**test_tune.SPACE, "pause": NAP_SECONDS / 2}}
        return farm.submit({}, work=test_tune.WORK, code="work.py:train", params=params, **named)
    assert kind == "calls", f"a job of kind {kind} is wanted here"
    with Farm(farm.root.path).executor(name="calls") as executor:
        assert list(executor.map(squared, range(SHARDS))) == [number * number for number in range(SHARDS)]
    return str(executor.job)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    """On which a small job of each kind has ended."""
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.join("lab1", "--cpus", "2")
        until(lambda: made.is_live("lab1"), "lab1 to join")
        for kind in sorted(registry.names()):  # one after the other: each is offered all of the machine
            made.wait(submit(made, kind))
        yield made


def figures(farm: FarmHarness, kind: str) -> dict[str, Any]:
    """What `--json` says, once the machine has told what became of its time."""

    def told() -> dict[str, Any] | None:
        said = farm.coordinator("report", kind, "--json")
        assert said.returncode == 0, said.stderr
        found: dict[str, Any] = json.loads(said.stdout)["jobs"][0]
        machines = found["fairness"]["machines"]
        return found if machines and machines[0]["share"] is not None and machines[0]["busy"] else None

    return until(told, f"all that there is to say of {kind}")


@pytest.mark.parametrize("kind", sorted(registry.names()))
def test_of_every_kind_each_of_the_five_measures_has_values(farm: FarmHarness, kind: str) -> None:
    said = figures(farm, kind)
    assert said["kind"] == kind and said["state"] == "complete"
    response, memory = said["response"], said["memory"]
    assert response["makespan"] >= response["first_result"] >= response["queue"] >= 0
    shard, committed = response["shard"], said["shards"]["committed"]
    assert 0 < shard["p50"] <= shard["p95"] <= shard["p99"] <= shard["max"] and shard["count"] == committed > 0
    assert memory["machines"][0]["peak"] >= memory["machines"][0]["shard_peak"] == memory["max"] > 1 << 20
    assert said["bandwidth"]["committed_bytes"] > 0 and said["bandwidth"]["machines"][0]["way"] == "folder"
    assert said["fairness"]["jain"] == 1 and 0 < said["fairness"]["occupancy"] <= 1
    assert said["effect"]["succeeded"] == 1 and said["effect"]["shards_per_second"] > 0
    assert said["fairness"]["machines"][0]["committed"] == committed
    assert all(len(line) <= 80 for line in farm.coordinator("report", kind).stdout.splitlines()[:8])


def show(browser: Tab, farm: FarmHarness, page: Path, *jobs: str) -> str:
    """The text of a report that is opened from a file, which asked for nothing else."""
    assert farm.coordinator("report", *jobs, "--html", str(page)).returncode == 0
    browser.asked.clear()
    browser.open(page.as_uri())
    text = browser.until("8 How it was made", "What the measures mean")
    assert browser.asked == [page.as_uri()] and browser.errors == []
    wide = browser.run("document.documentElement.scrollWidth")
    assert wide <= 1280, f"the page is {wide} wide"
    return text


def pictures(browser: Tab, name: str, folder: Path) -> None:
    """In light and in dark, to be looked at."""
    browser.size(1280, int(browser.run("document.documentElement.scrollHeight")))
    for mode in ("dark", "light"):
        browser.dark(mode == "dark")
        browser.picture(file := Path(os.environ.get(ARTEFACTS) or folder) / f"report-{name}-{mode}.png")
        assert file.stat().st_size > 20_000
    browser.size(1280, 800)


@pytest.mark.parametrize("kind", sorted(registry.names()))
def test_its_page_shows_the_figures_and_what_is_the_kinds_own(farm: FarmHarness, kind: str, tmp_path: Path) -> None:
    with tab(tmp_path) as browser:
        text = show(browser, farm, tmp_path / "report.html", kind)
        said = figures(farm, kind)
        response, effect = said["response"], said["effect"]
        seconds = (response["shard"][name] for name in ("p50", "p95", "p99", "max"))
        for value in (*seconds, response["makespan"], response["first_result"]):
            assert terminal.seconds(value) in text
        assert f"{said['shards']['committed']} of {said['shards']['shards']} shards" in text
        assert moment(said["created"]) in text and format_size(said["bandwidth"]["committed_bytes"]) in text
        assert format_size(said["memory"]["max"]) in text and terminal.share(said["fairness"]["occupancy"]) in text
        assert terminal.number(effect["shards_per_second"]) in text
        if kind == "cluster":
            assert f"{effect['of_kind']['inertia']:.4g}" in text
        heads = browser.run("[...document.querySelectorAll('h3')].map(one => one.textContent).join('\\n')")
        assert all(word in heads or word in text for word in OWN[kind]), text
        overlong = "[...document.querySelectorAll('svg text')].filter(one => { const s = one.ownerSVGElement," \
            " a = one.getBBox(); return a.x < -1 || a.x + a.width > s.viewBox.baseVal.width + 1; })" \
            ".map(one => one.textContent).join()"  # fmt: skip
        assert browser.run(overlong) == "", "words reach beyond their picture"
        pictures(browser, kind, tmp_path)


def test_two_trainings_stand_on_shared_axes(farm: FarmHarness, tmp_path: Path) -> None:
    params = {**test_train.SMALL, "rounds": 20, "eval_every": 5, "mode": "async"}
    other = farm.submit({}, kind="train", params=params, name="async")
    farm.wait(other)
    with tab(tmp_path) as browser:
        text = show(browser, farm, tmp_path / "both.html", "train", other)
        assert "Side by side" in text and "async" in text and "sync" in text
        pictures(browser, "train-sync-async", tmp_path)


def test_one_that_never_ran_opens(farm: FarmHarness, tmp_path: Path) -> None:
    job = farm.submit(arrays(rows=ROWS), shard_rows=ROWS, name="never", resources={"cpus": 64})
    with tab(tmp_path) as browser:
        assert "nothing has run yet" in show(browser, farm, tmp_path / "never.html", job)
        pictures(browser, "never", tmp_path)
