"""An agent that is told to leave before it works: it ends in good order, and nothing says that it is there."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

from muster.agent.spool import owner as owners
from muster.jobs.common import launch
from tests.support.farm import DEADLINE_SECONDS, until


def test_one_that_still_waits_for_a_silent_server_leaves_at_once(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with socket.create_server(("127.0.0.1", 0)) as silent, (tmp_path / "said").open("wb") as said:
        where = f"ssh://nobody@127.0.0.1:{silent.getsockname()[1]}"
        command = launch.python("muster.agent.cli", "join", where, "--name", "early", "--spool", str(spool))
        agent = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            until(lambda: owners.owner_of(spool), "it to have its spool")
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(DEADLINE_SECONDS) == 0
        finally:
            agent.kill()
            agent.wait()
    assert owners.owner_of(spool) is None
    assert (tmp_path / "said").read_text() == "early: left before it joined\n"
