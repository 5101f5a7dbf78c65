"""A training on a machine beside the root and on one behind a link of 20 Mbit/s, in namespaces of their own. The thin
one is left out of rounds that it would hold up, its user is told so, and the weights are those of a serial run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_train import check, submit
from tests.support import netns, sshd
from tests.support.farm import FarmHarness, until
from tests.support.sshd import HOST, Sshd

pytestmark = pytest.mark.root

RATE = "20mbit"
WIDE = {"layers": [1024, 512], "workers": 4, "microbatch": 8, "rounds": 150, "eval_every": 50, "checkpoint_rounds": 50}


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    """With two agents at work: `near` by folder, `thin` over ssh."""
    netns.require()
    sshd.require()
    farm = FarmHarness(tmp_path / "farm")
    with netns.running() as net:
        server, thin = net.add("server"), net.add("thin")
        net.slow(thin, RATE)
        daemon = Sshd(tmp_path / "sshd", address=server.address, prefix=server.enter, env=farm.marked)
        try:
            farm.start(prefix=server.enter)
            daemon.start()
            farm.join("near", "--cpus", "1", prefix=server.enter)
            options = ["--cpus", "1", "--ssh-config", str(daemon.ssh_config())]
            farm.join("thin", *options, where=f"{HOST}:{farm.root.path}", prefix=thin.enter)
            until(lambda: farm.is_live("near") and farm.is_live("thin"), "both to join", 60)
            yield farm
        finally:
            farm.close()
            daemon.stop()


def test_a_machine_whose_link_would_hold_up_every_round_is_left_out_and_named(farm: FarmHarness) -> None:
    job = submit(farm, **WIDE)
    until(
        lambda: any("thin is left out of the rounds" in note for note in farm.status(job).notes),
        "it to be left out",
        120,
    )
    assert "thin is left out of the rounds" in farm.coordinator("explain", job).stdout
    check(farm, job)
    shards = {agent.name: agent.shards for agent in farm.status(job).agents}
    assert shards["thin"] * 10 < shards["near"], shards
