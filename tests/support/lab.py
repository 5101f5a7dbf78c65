"""A server in a network of a test's own, with its farm and sshd, and what `deploy` says of the machines around it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from muster.jobs.common import launch
from tests.support.farm import FarmHarness
from tests.support.netns import Net
from tests.support.sshd import Sshd

UP_SECONDS = 1200.0
QUIET = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "LogLevel=ERROR"]


class Lab:
    """The server and the inventory; whoever makes the machines fills `machines`."""

    def __init__(self, folder: Path, net: Net, lease: float = 60.0) -> None:
        self.folder, self.net = folder, net
        self.place = net.add("server")
        self.farm = FarmHarness(folder / "farm", lease=lease)
        self.server = Sshd(folder / "sshd", address=self.place.address, prefix=self.place.enter, env=self.farm.marked)
        self.inventory = folder / "inventory.yaml"
        self.known_hosts = folder / "known_hosts"
        trust = ["-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={self.known_hosts}"]
        self.ssh = [*self.place.enter, "ssh", "-i", str(self.server.key), *QUIET, *trust]
        self.python: Path | None = None  # of the version whose `deploy` is typed; None: of this one

    def start(self) -> None:
        self.server.start()
        self.farm.start(prefix=self.place.enter)
        config = f"Host *\nIdentityFile {self.server.key}\nIdentityAgent none\nUserKnownHostsFile {self.known_hosts}\n"
        (self.folder / "ssh_config").write_text(config)

    def close(self) -> None:
        self.farm.close()
        self.server.stop()

    def write(self, machines: Mapping[str, Any], **server: str) -> None:
        """The inventory."""
        sshd = self.server
        said = {
            "server": {
                "address": f"ssh://{sshd.user}@{self.place.address}:{sshd.port}",
                "authorized_keys": str(sshd.folder / "authorized_keys"),
                "host_keys": f"{sshd.host_key}.pub",
                **server,
            },
            "defaults": {"cpus": 1, "memory": "1GiB"},
            "machines": dict(machines),
        }
        self.inventory.write_text(yaml.safe_dump(said, sort_keys=False))

    def run(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        """A command of `deploy`, to its end."""
        entry = (
            [str(self.python), "-m", "muster.deploy", name] if self.python else launch.python("muster.deploy.cli", name)
        )
        files = ["--inventory", str(self.inventory), "--ssh-config", str(self.folder / "ssh_config")]
        command = [*entry, "--root", str(self.farm.root.path), *files, *args]
        return subprocess.run(
            [*self.place.enter, *command], env=self.farm.environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=UP_SECONDS, check=False, cwd="/",
        )  # fmt: skip

    def told(self, name: str, *args: str) -> dict[str, dict[str, Any]]:
        """What it says of each machine."""
        done = self.run(name, "--json", *args)
        assert done.stdout.startswith("{") and "machines" in done.stdout, f"{done.stdout}{done.stderr}"
        return {one["machine"]: one for one in json.loads(done.stdout)["machines"]}

    def good(self, name: str, *args: str) -> dict[str, str]:
        """The state of each machine, after a command that failed nowhere."""
        told = self.told(name, *args)
        assert all(one.get("state") != "failed" for one in told.values()), json.dumps(told, indent=1)
        return {name: str(one.get("state")) for name, one in told.items()}

    def check_result(self, job: str) -> None:
        """That of a job whose function takes its time, but not where it is computed again to compare."""
        os.environ["MUSTER_TEST_SERIAL"] = "yes"
        try:
            self.farm.check_result(job)
        finally:
            del os.environ["MUSTER_TEST_SERIAL"]
