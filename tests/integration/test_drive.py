"""Jobs whose shards are made as results arrive: whoever is killed, the chain is the same and no link is made twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from threading import Thread

import msgspec
import numpy as np
import pytest

from muster.coordinator.api.driver import Advance, Advanced, DriveOpen, DriveState, DriveWait
from muster.coordinator.api.requests import Cancel, Remove, Retry, Submit, Submitted
from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.drivers.driver import driving
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.submission.submit import plan_file, submission
from muster.jobs.common import launch
from muster.jobs.common.errors import NotFoundError, RefusedError
from tests.plugin.muster_chain import DEATHS, following
from tests.support.farm import FarmHarness, Tracer, running, strace_obstacle, until, usurp
from tests.support.needs import skip_for

PLUGIN = Path(__file__).parent.parent / "plugin"
LENGTH = 8


@pytest.fixture
def chains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FarmHarness]:
    """A farm that knows the kind `chain`, with one agent at work."""
    monkeypatch.syspath_prepend(PLUGIN)
    path = os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    monkeypatch.setenv(DEATHS, str(deaths))
    with running(tmp_path) as farm:
        farm.agent().go()
        yield farm


def submit(farm: FarmHarness, length: int = LENGTH) -> str:
    return farm.submit({}, kind="chain", params={"length": length})


def submit_changed(farm: FarmHarness, kind: str = "chain", driver: str = "chain") -> str:
    """A plan that nobody here would make."""
    planned = plan_file(farm.job_file({}, kind="chain", params={"length": LENGTH}))
    work = msgspec.structs.replace(planned.plan.work, kind=kind)
    plan = msgspec.structs.replace(planned.plan, work=work, driver=driver)
    with submission(farm.root, replace(planned, plan=plan)) as folder:
        job: str = farm.ask(Submit(folder), Submitted).job
        return job


def wish_death(farm: FarmHarness, job: str, moment: str) -> Path:
    wish = farm.folder / "deaths" / f"{job}-{moment}"
    wish.touch()
    return wish


def check_values(farm: FarmHarness, job: str, length: int) -> None:
    """The chain is what it must be."""
    value, values = 1, []
    for number in range(length):
        value = following(number, value)
        values.append(value)
    merged = np.load(BytesIO(farm.merged(job)["made"]["value.npy"]))
    assert merged.tolist() == values


def check(farm: FarmHarness, job: str, length: int = LENGTH) -> None:
    """That, and each link was computed once."""
    check_values(farm, job, length)
    digest = farm.plan(job).layers[0].digest
    assert [number for layer, number in farm.agents[0].computed if layer == digest] == list(range(length))


def links(farm: FarmHarness, job: str, count: int) -> None:
    until(lambda: farm.status(job).totals.committed >= count, f"{count} links")


def drivers(farm: FarmHarness, job: str) -> list[int]:
    return farm.processes("muster_chain", job)


def test_a_chain_runs_to_its_end(chains: FarmHarness) -> None:
    job = submit(chains)
    chains.wait(job)
    check(chains, job)
    until(lambda: not drivers(chains, job), "the driver to end")
    (said,) = json.loads(chains.coordinator("report", job, "--json").stdout)["jobs"]
    done = said["response"]["done"]
    assert done["count"] == LENGTH and 0 < done["p50"] <= done["p95"] <= done["p99"] <= said["response"]["makespan"]


def test_a_driver_killed_at_any_moment_is_started_again_and_does_nothing_twice(chains: FarmHarness) -> None:
    moments = ["opened", "before-0", "after-0", "read-3", "before-4", "after-4", f"after-{LENGTH - 1}"]
    jobs = {f"job.{n}": moment for n, moment in enumerate(moments, 1)}
    wishes = [wish_death(chains, job, moment) for job, moment in jobs.items()]
    assert [submit(chains) for _ in jobs] == list(jobs)
    for job in jobs:
        chains.wait(job)
        check(chains, job)
    assert not any(wish.exists() for wish in wishes)
    assert chains.said().count("ended with -9; it starts again") >= len(jobs) - 1


def test_the_daemon_is_killed_and_its_drivers_end_with_it(chains: FarmHarness) -> None:
    job = submit(chains, length=40)
    for cursor in (3, 20):
        links(chains, job, cursor)
        chains.kill()
        until(lambda: not drivers(chains, job), "the driver to end with its daemon")
        chains.start()
    chains.wait(job)
    check(chains, job, length=40)


def test_a_job_removed_while_its_advance_is_stored_does_not_end_the_daemon(chains: FarmHarness) -> None:
    skip_for(strace_obstacle())
    job = submit(chains, length=200)
    links(chains, job, 2)
    chains.agents[0].paused.set()
    assert chains.daemon is not None
    answers: list[Advanced] = []
    with ask_daemon.line(chains.root) as line:
        until(lambda: usurp(line, job, drivers(chains, job)), "the driver's place")
        state = line.ask(DriveOpen(job), DriveState)
        advance = Advance(job, state.cursor, state.cursor + 1, [(state.next, b"1")])
        advancing = Thread(target=lambda: answers.append(line.ask(advance, Advanced)))
        with Tracer(chains, chains.daemon.pid, "fdatasync:delay_enter=3000000:when=1"):
            advancing.start()
            chains.ask(Cancel(job), Answered)
            chains.ask(Remove(job), Answered)
            advancing.join()
    assert answers and answers[0].accepted
    assert chains.jobs() == []


def test_a_twin_changes_nothing(chains: FarmHarness) -> None:
    job = submit(chains, length=200)
    until(lambda: drivers(chains, job), "a driver")
    until(lambda: chains.status(job).totals.committed > 1, "it to drive")
    with pytest.raises(RefusedError, match="has a driver"), driving(chains.root, job):
        pass
    twin = chains.run(launch.python("muster_chain:drive", str(chains.root.path), job), "twin.out")
    assert twin.wait(30) == RefusedError.exit_code
    with ask_daemon.line(chains.root) as line, pytest.raises(RefusedError, match="another process drives"):
        line.ask(Advance(job, 0, 1), Advanced)
    chains.wait(job)
    check(chains, job, length=200)


def test_an_advance_from_anywhere_but_the_cursor_is_refused(chains: FarmHarness) -> None:
    """As a driver that was thought dead would do it."""
    job = submit(chains, length=50)
    chains.agents[0].paused.set()
    until(lambda: drivers(chains, job), "a driver")
    with ask_daemon.line(chains.root) as line:
        until(lambda: usurp(line, job, drivers(chains, job)), "the driver's place")
        cursor = line.ask(DriveWait(job, 0), DriveState).cursor
        for asked in (
            Advance(job, cursor + 1, cursor + 2, [(cursor, b"1")]),
            Advance(job, 0, cursor + 1, [(cursor, b"1")]) if cursor else Advance(job, 7, 8),
            Advance(job, cursor, cursor + 1, [(cursor + 1, b"1")]),
            Advance(job, cursor, cursor + 1, [(0, b"1"), (0, b"1")]),
        ):
            assert line.ask(asked, Advanced) == Advanced(cursor, False)
        assert line.ask(DriveWait(job, 0), DriveState).cursor == cursor
    chains.agents[0].paused.clear()
    chains.wait(job)
    check(chains, job, length=50)


def test_a_cancelled_job_ends_its_driver_and_a_retry_brings_it_back(chains: FarmHarness) -> None:
    job = submit(chains, length=60)
    until(lambda: chains.status(job).totals.committed > 1, "it to drive")
    chains.ask(Cancel(job), Answered)
    until(lambda: not drivers(chains, job), "the driver to end")
    chains.ask(Retry(job), Answered)
    chains.wait(job)
    check_values(chains, job, length=60)  # what ran when it was cancelled ran again


def test_what_has_no_driver_cannot_be_driven(chains: FarmHarness) -> None:
    job = chains.submit({"a": np.zeros((4, 8), "f4")}, shard_rows=4)
    for name in (job, "nobody.1"):
        with pytest.raises(NotFoundError), driving(chains.root, name):
            pass


def test_a_damaged_link_is_made_again_from_what_it_was_made_of(chains: FarmHarness) -> None:
    job = submit(chains, length=20)
    agent = chains.agents[0]
    until(lambda: chains.status(job).totals.committed > 3, "it to drive")
    agent.paused.set()
    victim = min(chains.root.job(job).bundles.iterdir())
    raw = victim.read_bytes()
    victim.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    agent.paused.clear()
    chains.wait(job)
    check_values(chains, job, length=20)


@pytest.mark.parametrize("damage", ["a bit", "gone"])
def test_a_driver_that_finds_a_damaged_bundle_has_it_made_again(chains: FarmHarness, damage: str) -> None:
    job = submit(chains, length=20)
    agent = chains.agents[0]
    links(chains, job, 3)
    agent.paused.set()
    victim = min(chains.root.job(job).bundles.iterdir())
    if damage == "gone":
        victim.unlink()
    else:
        raw = victim.read_bytes()
        victim.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    for pid in drivers(chains, job):
        os.kill(pid, signal.SIGKILL)
    until(lambda: "its driver cannot read it" in chains.said(), "the next driver to say so")
    agent.paused.clear()
    chains.wait(job)
    check_values(chains, job, length=20)
    digest = chains.plan(job).layers[0].digest
    assert len([number for layer, number in agent.computed if layer == digest]) == 21


def test_a_driver_that_gets_nowhere_halts_its_job_with_the_evidence(chains: FarmHarness) -> None:
    job = chains.submit({}, kind="chain", params={"length": LENGTH, "broken_at": 3})
    other = submit(chains)
    status = chains.wait(job, "halted")
    assert status.why == "its driver ended 5 times without getting on, the last time with 1"
    (record,) = chains.failures(job)
    assert (record.layer, record.number, record.code, record.quarantined) == ("made", 3, "driver", False)
    for said in (chains.coordinator("logs", job).stdout, chains.root.job(job).failures.read_text(), record.evidence):
        assert "RuntimeError: no way to make link 3" in said and "muster_chain.py" in said
    assert "Traceback" in chains.root.log.read_text(), "the daemon's log has all that its drivers say"
    assert chains.coordinator("watch", job).returncode == 11
    chains.wait(other)
    chains.kill()
    chains.start()
    assert chains.status(job).state == "halted" and chains.stored()[job].layers[0].failures == {}
    (chains.folder / "deaths" / "mended").touch()
    chains.ask(Retry(job), Answered)
    chains.wait(job)
    check(chains, job)


def test_a_stored_plan_that_says_where_its_driver_was_is_driven_by_that_of_its_kind(chains: FarmHarness) -> None:
    job = submit_changed(chains, driver="nowhere.any_more:main")
    chains.wait(job)
    check(chains, job)


def test_a_job_whose_kind_has_no_driver_here_is_halted_until_it_is_installed(chains: FarmHarness) -> None:
    job = submit_changed(chains, kind="alien")
    status = chains.wait(job, "halted")
    assert status.why.startswith("no driver of kind `alien` is installed with the coordinator")
    installed = chains.folder / "installed"
    (installed / "alien-1.0.dist-info").mkdir(parents=True)
    (installed / "alien-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: alien\nVersion: 1.0\n")
    (installed / "alien-1.0.dist-info" / "entry_points.txt").write_text(
        "[muster.drivers]\nalien = muster_chain:drive\n"
    )
    chains.env["PYTHONPATH"] = os.pathsep.join([str(installed), os.environ["PYTHONPATH"]])
    until(lambda: chains.stored()[job].state == "halted", "that to be stored")  # it is told before it is
    chains.restart()
    chains.ask(Retry(job), Answered)
    until(lambda: drivers(chains, job), "its driver")


def test_made_layers_are_not_run_again_alone(chains: FarmHarness) -> None:
    job = submit(chains)
    chains.wait(job)
    with pytest.raises(RefusedError, match="one after the other"):
        chains.ask(Retry(job, ["made"]), Answered)


def test_a_wait_ends_when_its_time_is_over(chains: FarmHarness) -> None:
    job = submit(chains, length=50)
    chains.agents[0].paused.set()
    until(lambda: drivers(chains, job), "a driver")
    with ask_daemon.line(chains.root) as line:
        until(lambda: usurp(line, job, drivers(chains, job)), "the driver's place")
        began = time.monotonic()
        said = line.ask(DriveWait(job, 1 << 40, 0.2), DriveState)
        assert time.monotonic() - began >= 0.2 and said.bundles == []
