"""Jobs over the same data: their layers have the same digest, one computes it at a time, and each ends on its own."""

from __future__ import annotations

import yaml

from muster.coordinator.commands.submit import submit
from muster.coordinator.protocol.control import Sync
from tests.support.farm import FarmHarness, arrays, until

FILES, TIMES = 4, 10
WORK = """
import time

def plus(rows, more):
    time.sleep(0.03)
    return rows + more
"""


def test_a_report_that_comes_when_the_next_job_has_the_layer_open_holds_nobody_up(farm: FarmHarness) -> None:
    """The bundle was faster, and the agent deleted its part long ago."""
    file = farm.job_file(arrays(1), shard_rows=48)
    first, second = (submit(farm.root, file) for _ in range(2))
    agent = farm.agent("one")
    agent.join()
    agent.sync()
    agent.control.ask(Sync(agent.session, 1 << 40, hungry=False))  # else it has a new grant on its way soon
    agent.compute()
    agent.push(agent.parts[0])
    farm.wait(first)
    until(lambda: farm.status(second).layers[0].state == "open", "the next job to have the layer open")
    agent.sync()
    agent.work(lambda: farm.status(second).state == "complete")
    farm.check_result(second)


def test_forty_jobs_of_four_files_all_complete(farm: FarmHarness) -> None:
    """Their shards take a while: most bundles are there before the reports on them."""
    farm.join("one", "--cpus", "2")
    first = farm.job_file(arrays(1, rows=2), 1, WORK, kind="map", code="work.py:plus")
    files = [first.with_name(f"job-{i}.yaml") for i in range(FILES)]
    for i, file in enumerate(files):
        file.write_text(yaml.safe_dump({**yaml.safe_load(first.read_text()), "params": {"args": {"more": i}}}))
    jobs = [submit(farm.root, file) for _ in range(TIMES) for file in files]
    until(lambda: all(job.state == "complete" for job in farm.jobs()), "all jobs to complete")
    for job in jobs[-FILES:]:
        farm.check_result(job)
