"""Jobs of rounds: nothing of a round is stored, and whoever is killed, the values are those of a serial run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.coordinator.api.driver import Advance, Advanced, DriveOpen, DriveState
from muster.coordinator.api.requests import Cancel, ExplainJob, Retry
from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.api.status import Explained
from muster.coordinator.drivers.driver import Drive
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.protocol import transfer as m
from muster.jobs.common.errors import RefusedError
from tests.plugin.muster_chain import DEATHS
from tests.support.farm import FarmHarness, running, until, usurp
from tests.support.simulated import Helper

PLUGIN = Path(__file__).parent.parent / "plugin"


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FarmHarness]:
    """A farm that knows the kind `rounds`, with two agents at work."""
    monkeypatch.syspath_prepend(PLUGIN)
    path = os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    monkeypatch.setenv(DEATHS, str(deaths))
    with running(tmp_path) as made:
        for name in ("one", "two"):
            made.agent(name).go()
        yield made


def submit(farm: FarmHarness, **params: int) -> str:
    return farm.submit({}, kind="rounds", params=params)


def check(farm: FarmHarness, job: str, **params: int) -> None:
    """The values are right, and nothing of a round is left anywhere."""
    from muster_rounds import RoundsParams, serially

    farm.wait(job)
    assert (farm.root.job(job).result / "values").read_bytes() == serially(RoundsParams(**params))
    assert not list(farm.root.job(job).rounds.iterdir())
    stored = farm.stored()[job].layers[0]
    assert not stored.committed and not stored.payloads and not list(farm.root.job(job).bundles.iterdir())
    until(lambda: not any(agent.parts for agent in farm.agents), "parts to be given up")


def drivers(farm: FarmHarness, job: str) -> list[int]:
    return farm.processes("muster_rounds", job)


def at_work(farm: FarmHarness, job: str, shards: int = 30) -> None:
    until(lambda: farm.status(job).totals.committed >= shards, f"{shards} shards")


def test_rounds_run_to_their_end(farm: FarmHarness) -> None:
    job = submit(farm)
    check(farm, job)
    totals = farm.status(job).totals
    assert (totals.shards, totals.committed) == (120, 120)
    assert farm.coordinator("status", job).returncode == 0 and farm.coordinator("watch", job).returncode == 0


def test_what_a_driver_counts_is_what_people_are_shown(farm: FarmHarness) -> None:
    from muster_rounds import RoundsParams, serially

    file = farm.job_file({}, kind="rounds", params={})
    planned = farm.coordinator("plan", str(file)).stdout.splitlines()
    assert planned[:2] == ["job: rounds, 6 workers", "  values   1,000"]
    for agent in farm.agents:
        agent.paused.set()
    job = submit(farm)
    begun = farm.status(job).progress
    assert begun is not None and (begun.done, begun.total, begun.unit) == (0, 20, "turn")
    for agent in farm.agents:
        agent.paused.clear()
    check(farm, job)
    first = int.from_bytes(serially(RoundsParams())[:4], "little")
    assert farm.ask(ExplainJob(job), Explained).lines == ["is complete; 20 of 20 turns done"]
    page = farm.coordinator("status", job).stdout.splitlines()
    assert {"  turns     20/20 (100%)", f"  first     is {first} now"} <= set(page)
    assert f"{job} complete: turn 20/20, first {first}" in farm.coordinator("watch", job).stdout.splitlines()
    [told] = json.loads(farm.coordinator("status", job, "--json").stdout)["jobs"]
    assert (told["progress"]["unit"], told["progress"]["numbers"]) == ("turn", {"first": first})
    assert farm.coordinator("report", job).stdout.split()[-4:] == ["job", "kept", job, "3"]
    farm.restart()
    known = farm.status(job).progress
    assert known is not None and (known.done, known.facts) == (20, [f"first {first}"])


def test_a_driver_killed_at_any_moment_goes_on_from_its_checkpoint(farm: FarmHarness) -> None:
    moments = ["opened", "summed-3", "summed-12", "summed-20"]
    for number, moment in enumerate(moments, 1):
        (farm.folder / "deaths" / f"job.{number}-{moment}").touch()
    jobs = [submit(farm) for _ in moments]
    for job in jobs:
        check(farm, job)
    assert not list((farm.folder / "deaths").iterdir())


def test_the_daemon_is_killed_and_its_rounds_with_it(farm: FarmHarness) -> None:
    job = submit(farm, rounds=100)
    for _ in range(2):
        at_work(farm, job)
        farm.restart()
    check(farm, job, rounds=100)


def test_an_agent_is_killed_and_another_one_takes_over_what_its_rounds_wait_for(farm: FarmHarness) -> None:
    job = submit(farm, rounds=60)
    at_work(farm, job)
    farm.agents[0].paused.set()
    until(lambda: farm.agents[0].granted, "a round to wait for it")
    check_soon = farm.status(job).totals.committed
    until(lambda: farm.status(job).totals.committed > check_soon + 30, "the other to take over")
    farm.agents[0].die()
    check(farm, job, rounds=60)


def test_a_shard_of_a_round_has_no_input_that_could_be_fetched(farm: FarmHarness) -> None:
    job = submit(farm, rounds=60)
    at_work(farm, job)
    for agent in farm.agents:
        agent.paused.set()
    agent = farm.agents[0]
    helper = Helper(farm.root, "pull", m.ToPuller, farm.environment())

    def refused() -> str:
        """Why, of a shard that is held now."""
        held = [(key[1], numbers.bottom) for key, numbers in list(agent.granted.items()) if numbers]
        answer = helper.ask(m.Fetch(agent.session, *held[0])) if held else None
        return answer.message if answer is not None and answer.code != "gone" else ""

    try:
        assert "no input" in until(refused, "an answer to a fetch of what is held")
    finally:
        helper.close(kill=True)
    for agent in farm.agents:
        agent.paused.clear()
    check(farm, job, rounds=60)


def test_only_whoever_was_granted_some_of_its_rounds_follows_a_layer(farm: FarmHarness) -> None:
    job = submit(farm, rounds=60)
    at_work(farm, job)
    layer, stranger = farm.plan(job).layers[0].digest, farm.agent("stranger")
    stranger.join()
    helper = Helper(farm.root, "round", m.ToFollower, farm.environment())
    try:
        refused = helper.ask(m.Follow(stranger.session, layer))
        assert isinstance(refused, m.Refused) and refused.code == "gone" and "granted nothing" in refused.message
    finally:
        helper.close(kill=True)
    stranger.die()
    check(farm, job, rounds=60)


def test_what_is_left_of_another_life_of_the_daemon_is_given_up(farm: FarmHarness) -> None:
    job = submit(farm, rounds=40)
    at_work(farm, job)
    for agent in farm.agents:
        agent.paused.set()
    until(lambda: all(agent.granted for agent in farm.agents), "all to hold some of a round")
    farm.kill()
    for agent in farm.agents:
        agent.paused.clear()
    farm.start()
    check(farm, job, rounds=40)


def test_a_twin_changes_nothing_and_advances_are_of_rounds(farm: FarmHarness) -> None:
    job = submit(farm, rounds=100_000)
    at_work(farm, job)
    with ask_daemon.line(farm.root) as line:
        with pytest.raises(RefusedError, match="has a driver"):
            Drive(farm.root, line, job)
        with pytest.raises(RefusedError, match="another process drives"):
            line.ask(Advance(job, 0, 0, durable=False, retire=[(0, 5)]), Advanced)
        until(lambda: usurp(line, job, drivers(farm, job)), "the driver's place")
        cursor = line.ask(DriveOpen(job), DriveState).cursor
        for wrong in (
            Advance(job, cursor, cursor + 1, durable=False),
            Advance(job, cursor, cursor, durable=False, retire=[(5, 1 << 52)]),
        ):
            with pytest.raises(RefusedError):
                line.ask(wrong, Advanced)
        state = line.ask(DriveOpen(job), DriveState)
        assert not line.ask(Advance(job, cursor, cursor, [(state.next + 1, b"1")], durable=False), Advanced).accepted
    farm.ask(Cancel(job), Answered)
    until(lambda: not drivers(farm, job), "the driver to end")
    until(lambda: not any(agent.parts or agent.granted for agent in farm.agents), "all to be given up")


def test_a_shard_that_fails_for_good_halts_the_job_and_a_retry_goes_on(farm: FarmHarness) -> None:
    job = submit(farm, rounds=30)
    at_work(farm, job)
    first = farm.plan(job).layers[0].name
    poison = {(first, number) for number in range(1 << 32, (1 << 32) + 180) if number % 6 == 2}
    for agent in farm.agents:
        agent.fails |= poison
    status = farm.wait(job, "halted")
    assert "no round is whole" in status.why
    for agent in farm.agents:
        agent.fails.clear()
    farm.ask(Retry(job), Answered)
    check(farm, job, rounds=30)


def test_a_cancelled_job_of_rounds_is_retried_from_its_checkpoint(farm: FarmHarness) -> None:
    job = submit(farm, rounds=60)
    at_work(farm, job, 60)
    farm.ask(Cancel(job), Answered)
    until(lambda: not drivers(farm, job), "the driver to end")
    farm.ask(Retry(job), Answered)
    check(farm, job, rounds=60)
