"""The campaign's short form; `make campaign` is the long one. And that it finds what it looks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from muster.jobs.parts.manifest import SHARDS
from muster.jobs.workbench import slot_marker
from tests.campaign import __main__ as campaign
from tests.campaign import full, kills, page
from tests.campaign.__main__ import play
from tests.campaign.beneath import Beneath
from tests.campaign.jobs import CODE, NAP
from tests.campaign.left import left
from tests.campaign.line import Line, added
from tests.campaign.strikes import Strikes
from tests.support import disks, sshd
from tests.support.farm import FarmHarness, arrays, running, until

BUSY_SECONDS = 120.0  # for Ray to be up and at work


def test_a_flipped_bit_is_found_or_without_effect() -> None:
    line = play("damage", 5, 160)
    assert line.is_whole and line.compared == 8 and sum(line.faults.values()) == 160 + 2 * 12, line.text()


@pytest.mark.root
def test_a_power_cut_loses_nothing_that_was_acknowledged() -> None:
    disks.require("mkfs.ext4", "fsck.ext4", "mount")
    line = play("power", 5, 4)
    assert line.is_whole and line.compared >= 3, line.text()


@pytest.mark.root
def test_a_full_disk_is_said_and_waited_for_and_a_start_on_it_ends() -> None:
    disks.require("mount")
    line = play("full", 5, len(full.CASES))
    assert line.is_whole and line.compared == len(line.faults) == len(full.CASES), line.text()


@pytest.mark.ray
@pytest.mark.parametrize("part", ["kills", "ssh"])
def test_kills_of_everything_leave_results_as_they_have_to_be(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part == "ssh":
        sshd.require()
    monkeypatch.setattr(kills, "QUIET_SECONDS", (0.2, 4.0))
    line = play(part, 5, 10)
    assert line.is_whole and line.compared >= 3, line.text()


# --- that it finds what it looks for ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_worker_that_is_at_work_is_among_those_that_may_be_struck(tmp_path: Path, pool: str) -> None:
    """It is known by the mark that it has open, whatever its name is then."""
    strikes = Strikes(tmp_path / "farm", 1)
    try:
        strikes.farm.env[NAP] = "600"
        strikes.farm.start()
        strikes.farm.submit(arrays(), 8, CODE, kind="map", code="work.py:half")
        strikes.farm.join("left", "--cpus", "1", "--pool", pool)
        busy = until(lambda: at_work(strikes.farm), "a worker to be at work", BUSY_SECONDS)
        assert busy == strikes.look()["worker"]
    finally:
        strikes.close()


def at_work(farm: FarmHarness) -> list[int]:
    """Who has open the mark of a slot where a shard runs."""
    found = []
    for pid in farm.processes():
        maps = Path(f"/proc/{pid}/maps").read_text()
        marks = {Path(path) for path in re.findall(r"(/\S*/slot-\d+\.mark)", maps)}
        found += [pid for mark in marks if (said := slot_marker.read(mark)) is not None and said.running]
    return found


def test_what_is_left_and_what_is_there_twice_is_found(tmp_path: Path) -> None:
    line = Line("kills", [1])
    with running(tmp_path) as farm:
        agent = farm.join("one", "--cpus", "1")
        job = farm.submit(arrays())
        farm.wait(job)
        agent.terminate()
        assert agent.wait(60) == 0 and farm.stop() == 0
        kills.judge_shards(farm, job, line)
        assert not list(left(farm)) and line.is_whole
        spool, place = farm.folder / "spools" / "one", farm.root.job(job)
        layer = farm.plan(job).layers[0].digest
        planted = {
            farm.temp / "x", farm.root.tmp / "x", place.rounds / "x", place.bundles / "x", spool / "tmp" / "x",
            spool / "run" / "x", spool / "done" / "farm" / layer,
        }  # fmt: skip
        for path in planted:
            path.mkdir(parents=True)
        assert set(left(farm)) == planted
        file = place.result / "a" / SHARDS
        rows = np.load(file)
        rows[1] = rows[0]
        np.save(file, rows)
        kills.judge_shards(farm, job, line)
    assert (line.twice, line.lost) == (1, 1)


@pytest.mark.parametrize("ends", ["sleep 600", "echo Traceback >&2; exit 12", "exit 1"])
def test_a_start_on_damaged_files_that_hangs_or_says_nothing_is_not_found_out(tmp_path: Path, ends: str) -> None:
    line = Line("damage", [1])
    one = Beneath(tmp_path / "farm", 1, line)
    one.farm.run(["true"], "daemon.out").wait()

    def start() -> None:
        one.farm.daemon = one.farm.run(["sh", "-c", ends], "daemon.out")
        until(lambda: "sleep" in ends or (one.farm.daemon and one.farm.daemon.poll() is not None), "its end")
        raise AssertionError("the daemon does not answer")

    try:
        one.farm.start = start  # type: ignore[method-assign, assignment]
        assert not one._starts() and line.wrong == 1
    finally:
        one.close()


# --- lines ------------------------------------------------------------------------------------------------------------


def test_lines_add_up() -> None:
    one, two = Line("power", [3], wrong=1), Line("power", [4], compared=2)
    one.faults["power cut"] = two.faults["power cut"] = 3
    one.ages, two.ages = {"connect": [1, 0, 2, 0]}, {"connect": [1, 1, 1, 1], "driver": [0, 0, 0, 5]}
    total = added([one.text(), "", two.text()])
    assert (total.faults["power cut"], total.compared, total.wrong) == (6, 2, 1)
    assert total.ages == {"connect": [2, 1, 3, 1], "driver": [0, 0, 0, 5]}
    assert not total.is_whole and total.seeds == ["power:3", "power:4"]


def test_all_parts_are_played_by_turns_with_seeds_that_no_line_has(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[tuple[str, int]] = []

    def part(name: str) -> Callable[..., None]:
        return lambda folder, seed, times, line, say: played.append((name, seed))

    monkeypatch.setattr(campaign, "PARTS", {name: part(name) for name in campaign.PARTS})
    monkeypatch.setattr(page, "seeds_kept", lambda name: {1, 3} if name == "kills" else set())
    lines = campaign.play_for(1.0, None, quiet=True)
    assert [next(lines).part for _ in range(7)] == [*campaign.TURNS, "kills"]
    assert [seed for name, seed in played if name == "kills"] == [2, 4, 5]
    assert not list(campaign.play_for(0.0, None, quiet=True))


def test_the_page_is_made_of_the_lines_that_are_kept() -> None:
    kept = page.KEPT.read_text()
    assert page.PAGE.read_text() == page.made(kept, page.SIMULATED.read_text())
    assert json.loads(page.SIMULATED.read_text())["broken"] == 0
    assert added(kept.splitlines()).is_whole


def test_the_page_says_how_old_those_were_that_were_struck() -> None:
    line = Line("kills", [1], ages={"connect": [1, 0, 1200, 0]})
    assert "\n| connect | 1 | 0 | 1,200 | 0 |\n" in page.made(line.text(), page.SIMULATED.read_text())


def test_the_page_says_which_runs_saw_less_than_it_promises() -> None:
    old, new = (Line("kills", [seed], ages=ages) for seed, ages in ((1, {}), (2, {"connect": [1, 0, 0, 0]})))
    made = page.made(f"{old.text()}\n{new.text()}", page.SIMULATED.read_text())
    assert "\n1 of these runs are older" in made
    assert "are older" not in page.made(new.text(), page.SIMULATED.read_text())
