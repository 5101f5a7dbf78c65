"""The walk of docs/deploy.md: machines in namespaces, each with its own address, home, /etc, sshd and user, brought
from nothing, given a job, and left as they were.

    python -m tests.ten_machines [--machines 10] [--wheels DIR]

As root on Linux. Each has a Python of its own and nothing of ours; the packages are wheels that `up` sends, as there is
no index in these networks. What is typed is printed with what it said, and the last line is JSON with the seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.support import netns, sshd, wheelhouse
from tests.support.farm import arrays
from tests.support.lab import Lab
from tests.unlike_machines import CACHE, Host, pythons_here


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=10)
    parser.add_argument("--wheels", type=Path, default=CACHE, help="where the wheels are, or are fetched to")
    given = parser.parse_args()
    if obstacle := netns.obstacle() or sshd.obstacle():
        raise SystemExit(obstacle)
    python, folder_of_it = sorted(pythons_here().items())[0]
    wheelhouse.fill(given.wheels, [python])
    with tempfile.TemporaryDirectory(prefix="muster-ten-", dir="/var/tmp") as folder, netns.running() as net:
        lab = Lab(Path(folder), net)
        hosts = [Host(lab, f"lab{n}", 2200 + n, [folder_of_it]) for n in range(1, given.machines + 1)]
        try:
            lab.start()
            for host in hosts:
                host.start()
            lab.known_hosts.write_text("".join(host.known() for host in hosts))
            lab.write({host.name: {"ssh": f"{host.user}@{host.machine.address}"} for host in hosts})
            print(json.dumps({"machines": len(hosts), **_walk(lab, given.wheels)}))
        finally:
            for host in hosts:
                host.stop()
            lab.close()
    return 0


def _walk(lab: Lab, wheels: Path) -> dict[str, float]:
    """Seconds of each command."""
    told: dict[str, float] = {}

    def typed(as_: str, name: str, *args: str) -> None:
        began = time.monotonic()
        done = lab.run(name, *args)
        told[as_] = round(time.monotonic() - began, 1)
        print(f"$ deploy {' '.join([name, *args])}\n{done.stdout}", file=sys.stderr, flush=True)
        assert done.returncode == 0, done.stderr

    typed("check", "up", "--check", "--wheelhouse", str(wheels))
    typed("up", "up", "--wheelhouse", str(wheels))
    typed("second up", "up", "--wheelhouse", str(wheels))
    typed("status", "status")
    job = lab.farm.submit(arrays(layers=4, rows=400), shard_rows=4)
    lab.farm.wait(job, seconds=300.0)
    lab.farm.check_result(job)
    typed("down", "down")
    return told


if __name__ == "__main__":
    sys.exit(main())
