"""What keeps agents and coordinators at work, with a real systemd and a real cron: two stock Debians, booted.

    python -m tests.systemd [--image DIR] [--wheels DIR]

As root on a Debian-like machine, with systemd-nspawn and mmdebstrap. Each machine is booted in a namespace of its own,
behind a router. Nobody is root there but the one who restarts them. `deploy up` brings an agent to both; one has a user
manager, the other has `service: cron`. Then both machines are restarted in the middle of a job, which goes on. At last
`coordinator service` and `agent service` do the same by hand on the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster.jobs.common.ssh import quote
from tests.support import netns, sshd, wheelhouse
from tests.support.farm import until
from tests.support.lab import UP_SECONDS, Lab
from tests.support.netns import Machine, Net

USER = "cy"
PACKAGES = (
    "systemd-sysv,dbus,dbus-user-session,libpam-systemd,polkitd,cron,openssh-server,openssh-client,python3,python3-venv,"
    "procps,iproute2"
)
CACHE = Path("/var/tmp/muster-systemd")
BOOT_SECONDS, BACK_SECONDS = 300.0, 300.0
REBOOT = 133  # how systemd-nspawn ends where its machine is to be started again
SHARDS = 800
MORE = 20  # shards, than an agent may have finished before its machine went down
OWN = f"server: {{address: {USER}@localhost, root: ~/own, service: user}}\nmachines: {{}}\n"
SLOW = """
import os, time
def f(rows):
    if "MUSTER_TEST_SERIAL" not in os.environ:
        time.sleep(0.3)
    return rows * 2
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path, default=CACHE / "image", help="where the Debian is, or is made")
    parser.add_argument("--wheels", type=Path, default=CACHE / "wheels", help="where the wheels are, or are fetched to")
    options = parser.parse_args()
    for program in ("systemd-nspawn", "mmdebstrap"):
        if shutil.which(program) is None:
            raise SystemExit(f"there is no {program}: `make systemd` installs it on a Debian-like machine")
    obstacle = netns.obstacle() or sshd.obstacle()
    if obstacle:
        raise SystemExit(obstacle)
    _make_image(options.image)
    python = subprocess.run(
        ["chroot", options.image, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    wheelhouse.fill(options.wheels, [python])
    with (
        tempfile.TemporaryDirectory(prefix="muster-systemd-", dir="/var/tmp") as folder,
        netns.running() as net,
        Debians(Path(folder), net, options.image, options.wheels).open() as lab,
    ):
        told = _walk(lab)
    print(json.dumps(told))
    return 0


def _make_image(image: Path) -> None:
    """A stock Debian of this machine's release."""
    if (image / "usr/bin/systemctl").exists():
        return
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )  # fmt: skip
    suite = release["VERSION_CODENAME"].strip('"')
    _say(f"making a Debian {suite} in {image}")
    image.parent.mkdir(parents=True, exist_ok=True)
    command = ["mmdebstrap", "--variant=important", f"--include={PACKAGES}", suite, str(image)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


class Booted:
    """One machine: a Debian over the image, which stays as it is."""

    def __init__(self, lab: Debians, name: str) -> None:
        self.lab, self.name = lab, name
        self.machine: Machine = lab.net.add(name)
        self.root = lab.folder / name / "root"
        self._process: subprocess.Popen[bytes] | None = None
        for part in ("root", "upper", "work"):
            (lab.folder / name / part).mkdir(parents=True)
        at = lab.folder / name
        layers = f"lowerdir={lab.image},upperdir={at}/upper,workdir={at}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", self.root], check=True)
        subprocess.run(["chroot", self.root, "useradd", "-m", "-s", "/bin/bash", USER], check=True)
        (self.root / "etc/hostname").write_text(f"{name}\n")
        home = self.root / "home" / USER
        (home / ".ssh").mkdir(mode=0o700)
        public = lab.server.key.with_name(lab.server.key.name + ".pub").read_text()
        (home / ".ssh/authorized_keys").write_text(public)
        (self.root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
        (self.root / "root/.ssh/authorized_keys").write_text(public)
        subprocess.run(["chroot", self.root, "chown", "-R", f"{USER}:", f"/home/{USER}"], check=True)

    def boot(self) -> None:
        """Until its user can log in."""
        command = [
            "systemd-nspawn", "--boot", "--quiet", "--register=no", "--keep-unit", "--console=read-only",
            f"--directory={self.root}", f"--machine={self.name}", "--resolv-conf=off", "--link-journal=no",
            f"--network-namespace-path=/run/netns/{self.machine.namespace}",
        ]  # fmt: skip
        log = (self.lab.folder / self.name / "console").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: self.ssh("true").returncode == 0, f"{self.name} to boot", BOOT_SECONDS)

    def ssh(self, command: str, user: str = USER) -> subprocess.CompletedProcess[str]:
        """As the server's user comes in."""
        words = [*self.lab.ssh, f"{user}@{self.machine.address}", command]
        return subprocess.run(words, capture_output=True, text=True, timeout=UP_SECONDS, check=False)

    def said(self, command: str) -> str:
        done = self.ssh(command)
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def restart(self) -> float:
        """By its own systemd, all in order; seconds until its user can log in again."""
        assert self._process is not None
        began = time.monotonic()
        self.ssh("systemctl reboot", user="root")
        assert self._process.wait(BOOT_SECONDS) == REBOOT
        self.boot()
        return time.monotonic() - began

    def works(self, name: str = "") -> bool:
        """Whether its agent, or another of its user's, says that it has a link and takes work."""
        done = self.ssh(".local/share/muster/current/bin/python -m muster agent status --json")
        agents = json.loads(done.stdout)["agents"] if done.returncode == 0 else []
        return any(one.get("linked") and one.get("ready") and one.get("name") == (name or self.name) for one in agents)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()  # asks its systemd to power off
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30.0)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        subprocess.run(["umount", "-l", self.root], check=False)


class Debians(Lab):
    """A server with a farm, and the machines."""

    def __init__(self, folder: Path, net: Net, image: Path, wheels: Path) -> None:
        super().__init__(folder, net)
        self.image, self.wheels = image, wheels
        self.machines: dict[str, Booted] = {}

    def write_all(self, **fields: Any) -> None:
        """The inventory, with these fields of both."""
        services = {"lab1": "user", "lab2": "cron"}
        self.write(
            {
                name: {"ssh": f"{USER}@{machine.machine.address}", "service": services[name], **fields}
                for name, machine in self.machines.items()
            }
        )

    @contextlib.contextmanager
    def open(self) -> Iterator[Debians]:
        try:
            self.start()
            for name in ("lab1", "lab2"):
                self.machines[name] = Booted(self, name)
                self.machines[name].boot()
                _say(f"{name} is up: {self.machines[name].said('systemctl --version | head -1')}")
            self.write_all()
            yield self
        finally:
            for machine in self.machines.values():
                machine.close()
            self.close()


def _walk(lab: Debians) -> dict[str, Any]:
    """All that is claimed; figures of it."""
    lab1, lab2 = lab.machines.values()
    began = time.monotonic()
    lab.good("up", "--wheelhouse", str(lab.wheels))
    first = time.monotonic() - began
    _say(f"up took {first:.0f} s")
    status = lab.told("status")
    assert {name: one["service"] for name, one in status.items()} == {"lab1": "systemd", "lab2": "cron"}, status
    before = {name: _agents(machine) for name, machine in lab.machines.items()}
    again = lab.told("up", "--wheelhouse", str(lab.wheels))
    assert all(one["state"] == "ok" for one in again.values()), json.dumps(again, indent=1)
    assert {name: _agents(machine) for name, machine in lab.machines.items()} == before
    _killed(lab1)

    job = lab.farm.submit(_rows(), 1, SLOW, kind="map", code="work.py:f")
    until(lambda: lab.farm.status(job).totals.committed > SHARDS // 5, "a fifth of the job", 300.0)
    restarted = {}
    for name, machine in lab.machines.items():
        done = lab.farm.status(job).totals.committed
        restarted[name] = machine.restart()
        until(machine.works, f"{name}'s agent to be back", BACK_SECONDS)
        _await_work(lab, job, name)
        _say(f"{name}: restarted in {restarted[name]:.0f} s, and its agent works")
        assert done < SHARDS
    lab.farm.wait(job, seconds=600.0)
    lab.check_result(job)
    drift = {name: (one["drift"], one["error"]) for name, one in lab.told("status").items()}
    assert drift == dict.fromkeys(drift, ([], "")), drift
    anew = _started_anew(lab)
    by_hand = _by_hand(lab1)
    lab.good("down")
    for machine in (lab1, lab2):
        left = machine.said("find . -path ./.ssh -prune -o -newer .ssh -print | grep -i muster || :")
        assert left == "", f"{machine.name} keeps {left}"
        assert machine.said("crontab -l 2>/dev/null | grep muster || :") == ""
    return {
        "up_seconds": round(first, 1),
        "restart_seconds": restarted,
        "anew_seconds": anew,
        "by_hand_back_seconds": by_hand,
    }


def _rows() -> dict[str, Any]:
    import numpy as np

    return {"x": np.arange(SHARDS * 4, dtype="f4").reshape(SHARDS, 4)}


def _agents(machine: Booted) -> str:
    """Its agents, with the times they were started."""
    return machine.said("for pid in $(pgrep -f '[m]uster.agent join'); do cut -d' ' -f1,22 /proc/$pid/stat; done")


def _killed(machine: Booted) -> None:
    """The agent dies; systemd brings it back. Users' code would go before it where memory runs out."""
    pid = machine.said("systemctl --user show muster-lab1.service -p MainPID --value")
    machine.said(f"kill -9 {pid}")
    until(
        lambda: (
            machine.ssh("systemctl --user is-active muster-lab1.service").stdout.strip() == "active"
            and machine.said("systemctl --user show muster-lab1.service -p MainPID --value") not in ("0", pid)
        ),
        "another agent",
        120.0,
    )
    assert machine.said("systemctl --user show muster-lab1.service -p MemoryMax --value") == str((5 << 28) + (2 << 30))
    until(machine.works, "it to be joined", BACK_SECONDS)


def _await_work(lab: Debians, job: str, name: str) -> None:
    """Until shards are committed of this agent that it cannot have finished before."""

    def share() -> int:
        return sum(one.shards for one in lab.farm.status(job).agents if one.name == name)

    before = share()
    until(lambda: share() > before + MORE, f"{name} to work", BACK_SECONDS)


def _started_anew(lab: Debians) -> float:
    """Agents whose shards last for longer than they are waited for; seconds of the `up` that changes their files."""
    endless = SLOW.replace("0.3", "3600")
    job = lab.farm.submit({"y": _rows()["x"]}, 1, endless, kind="map", code="work.py:f")
    until(lambda: lab.farm.status(job).totals.running >= len(lab.machines), "both to compute", 120.0)
    lab.write_all(nice=5)
    began = time.monotonic()
    assert lab.good("up", "--wheelhouse", str(lab.wheels)) == dict.fromkeys(lab.machines, "changed")
    seconds = time.monotonic() - began
    assert lab.farm.coordinator("cancel", job).returncode == 0
    _say(f"agents with an endless shard were started anew in {seconds:.0f} s")
    return round(seconds, 1)


def _by_hand(machine: Booted) -> float:
    """A farm on that machine alone, kept by `coordinator service` and `agent service`; seconds from its restart until
    its job goes on."""
    python = ".local/share/muster/current/bin/python"
    run = f"{python} -m muster"
    machine.said("mkdir -p own-jobs/arrays")
    machine.said(f'{python} -c \'import numpy as n; n.save("own-jobs/arrays/x.npy", n.ones((300, 4), "f4"))\'')
    machine.said(f"printf %s {quote(SLOW)} > own-jobs/work.py")
    text = "name: job\nkind: map\ncode: work.py:f\nsource: {path: arrays}\nshard: {rows: 1}\n"
    machine.said(f"printf %s {quote(text)} > own-jobs/job.yaml")
    _say(machine.said(f"{run} service install --root ~/own --memory 2GiB"))
    machine.said(f"printf %s {quote(OWN)} > own.yaml")
    up = f"{run} deploy up --inventory own.yaml"
    assert "(server)  ok" in machine.said(up), "what an inventory wants kept, and is"
    machine.ssh(f"{run} join ~/own --name own --cpus 1 --detach")  # on a busy machine it has no link yet
    until(lambda: machine.works("own"), "the agent by hand", BACK_SECONDS)
    machine.said(f"{run} agent leave --name own")
    _say(machine.said(f"{run} agent service install --name own"))
    machine.said(f"{run} submit --root ~/own own-jobs/job.yaml")

    def committed() -> int:
        done = machine.ssh(f"{run} status --root ~/own --json")
        return int(json.loads(done.stdout)["jobs"][0]["totals"]["committed"]) if done.returncode == 0 else -1

    until(lambda: committed() > 20, "the job to have begun", 300.0)
    began = time.monotonic()
    machine.restart()
    there = until(lambda: max(committed(), 0), "the coordinator to be back", BACK_SECONDS)
    until(lambda: committed() > there, "the job to go on", BACK_SECONDS)
    seconds = time.monotonic() - began
    until(lambda: committed() == 300, "the job's end", 600.0)
    score = machine.said("cat /proc/$(systemctl --user show muster-own.service -p MainPID --value)/oom_score_adj")
    assert int(score) < 1000, score
    machine.said(f"{run} verify --root ~/own job")
    _say(machine.said(f"{run} agent service remove --name own"))
    _say(machine.said(f"{run} service remove --root ~/own"))
    assert "(server)  changed" in machine.said(up)
    assert "active" in machine.said(f"{run} service show --root ~/own")
    machine.said(f"{run} service remove --root ~/own")
    machine.said("rm -rf own own.yaml own-jobs .local/state/muster/lab1/own")
    machine.said("grep -l lab1/own .local/state/muster/lab1.agents/*.json | xargs rm")  # known by its spool's digest
    return round(seconds, 1)


def _say(text: str) -> None:
    print(f"systemd: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    assert os.geteuid() == 0, "this needs root"
    sys.exit(main())
