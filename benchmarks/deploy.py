"""A second `deploy up` over machines where nothing is to be changed, beside an ansible playbook of equal checks.

    python -m benchmarks.deploy [--machines 5] [--runs 5]

Each machine is an sshd of its own on loopback with a home of its own, whose `python` has muster. `ours` and `peer` are
runs a minute, the best of several in turn; `ratio` is ansible's seconds over ours. The playbook asks the same: the
interpreter's version of muster, the key, the line in authorized_keys, four files, the process, the line in the crontab,
and whether the coordinator has all of them; pipelining is on, forks are 8, no facts are gathered. `parts`: seconds of
the first `up`, and of one that changes nothing on one machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import alternate, give_up, machine, report
from docs.examples.own_sshd import LOOPBACK, obstacle
from muster.coordinator.farm_root import paths as roots
from tests.support import site as sites
from tests.support.site import Site, Target

FILES = ("known_hosts", "ssh_config", "join", "keep")
FORKS = 8


def up(site: Site, *names: str) -> float:
    """Seconds of one `deploy up`."""
    began = time.monotonic()
    done = site.deploy("up", *names)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


class Playbook:
    """The same checks by ansible."""

    def __init__(self, site: Site) -> None:
        program = shutil.which("ansible-playbook", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if program is None:
            give_up("ansible-playbook is not installed (pip install ansible-core)")
        hosts = {name: self._host(site, target) for name, target in site.targets.items()}
        (site.folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
        (site.folder / "play.yaml").write_text(yaml.safe_dump(self._plays(site), sort_keys=False))
        self._command = [program, "-i", str(site.folder / "hosts.yaml"), str(site.folder / "play.yaml")]
        own = {"ANSIBLE_PIPELINING": "1", "ANSIBLE_FORKS": str(FORKS), "ANSIBLE_HOME": str(site.folder / "ansible")}
        self._env = {**site.farm.environment(), **own, "ANSIBLE_LOCALHOST_WARNING": "0"}

    def _host(self, site: Site, target: Target) -> dict[str, Any]:
        return {
            "ansible_host": LOOPBACK,
            "ansible_port": target.sshd.port,
            "ansible_user": target.sshd.user,
            "ansible_ssh_common_args": f"-F {site.folder / 'ssh_config'}",
            "ansible_python_interpreter": sys.executable,
            "at": str(target.agent_folder),
        }

    def _plays(self, site: Site) -> list[dict[str, Any]]:
        same = {"changed_when": False}
        names = [target.name for target in site.targets.values()]
        texts = {
            name: {file: (one.agent_folder / file).read_text() for file in FILES} for name, one in site.targets.items()
        }
        lines = {line.split()[-1]: line for line in site.authorized.read_text().splitlines() if line[:1] == "r"}
        agents = " ".join([*roots.command("agents", site.farm.root.path)[:1], "-m", "muster", "agents"])
        tasks: list[dict[str, Any]] = [
            {"command": f"{sys.executable} -c 'from muster import VERSION; print(VERSION)'", **same},
            {"stat": {"path": "{{ at }}/key"}},
            {
                "lineinfile": {"path": str(site.authorized), "line": "{{ lines[inventory_hostname] }}"},
                "delegate_to": "localhost",
            },
            *(
                {"copy": {"dest": f"{{{{ at }}}}/{file}", "content": f"{{{{ texts[inventory_hostname]['{file}'] }}}}"}}
                for file in FILES
            ),
            {"shell": "read -r pid child <{{ at }}/keep.pid; kill -0 $pid", **same},
            {"shell": "crontab -l | grep -F {{ at }}/keep", **same},
            {
                "command": f"{agents} --root {site.farm.root.path} --json",
                "delegate_to": "localhost",
                "run_once": True,
                "register": "found",
                "failed_when": " or ".join(f"'{name}' not in found.stdout" for name in names),
                **same,
            },
        ]
        return [{"hosts": "all", "gather_facts": False, "vars": {"texts": texts, "lines": lines}, "tasks": tasks}]

    def run(self) -> float:
        began = time.monotonic()
        done = subprocess.run(self._command, env=self._env, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "changed=0" in done.stdout and not any(f"changed={n}" in done.stdout for n in range(1, 9)), done.stdout
        return time.monotonic() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--machines", type=int, default=5)
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    if why := obstacle():
        give_up(why)
    print(machine(), flush=True)
    names = [f"bench{number}" for number in range(given.machines)]
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as made, sites.running(Path(made), *names) as site:
        first = up(site)
        playbook = Playbook(site)
        rates = alternate(given.runs, ours=lambda: 60 / up(site), peer=lambda: 60 / playbook.run())
        one = min(up(site, names[0]) for _ in range(given.runs))
        site.deploy("down", "--now")
    report(max(rates["ours"]), max(rates["peer"]), {"first up": round(first, 2), "one machine": round(one, 2)})


if __name__ == "__main__":
    main()
