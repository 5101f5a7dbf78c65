"""Six unlike machines in namespaces, each with its own address, home, /etc, sshd and user, from `up` to `down`.

    python -m tests.unlike_machines [--wheels DIR]

As root on Linux. hop1 is behind a jump host; dmz is dialled into; bare has no usable Python until one is put below its
home; old has Python 3.10 and an older numpy; slow is on 20 Mbit/s and has 64 MB of spool; late has only a crontab, and
comes while a job runs. The Pythons are of pyenv, whatever versions there are; the packages are wheels that `up` sends.

`up` twice, of which the second changes nothing; a job over all, with one machine added at 30%, one removed at 50%, one
link cut at 60% and back at 80%, one disk full meanwhile; `upgrade` in the middle of the next job; `down`. The results
equal the serial ones, byte for byte.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from docs.examples.own_sshd import SSHD, make_key
from tests.support import netns, sshd, versions, wheelhouse
from tests.support.farm import until
from tests.support.lab import Lab
from tests.support.netns import Machine
from tests.support.site import CRONTAB

CACHE = Path("/var/tmp/muster-unlike/wheels")
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
NEWER = "0.1.1"
OLD_NUMPY = "numpy==1.26.4"
SHARDS, WIDTH, LEAST_NAP_SECONDS = 900, 1 << 14, 0.4  # of 64 KiB each
LASTS = 3  # times what `up` took: while a job runs a machine is brought, or all are upgraded
WORK = """
import os, time
def f(rows):
    if "MUSTER_TEST_SERIAL" not in os.environ:
        time.sleep(NAP)
    return {"half": rows / 2, "most": rows.max(axis=1)}
"""
SETUP = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /opt
for each in $pythons; do mkdir -p "/opt/$(basename "$each")"; mount --bind "$each" "/opt/$(basename "$each")"; done
for each in /usr/bin/python3* /usr/local/bin/python3*; do [ ! -f "$each" ] || mount --bind /dev/null "$each"; done
mount --bind "$at/etc" /etc
mount --bind "$at/home" /home
if [ -n "$disk" ]; then
  mount -t tmpfs -o "size=$disk,uid=$uid" none "/home/$user/spool"
fi
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=755 none /root
for each in $pythons; do mkdir -p "$each"; mount --bind "/opt/$(basename "$each")" "$each"; done  # their libraries
[ -z "$unseen" ] || umount "/opt/$(basename "$unseen")"
hostname "$name"
exec "$sshd" -D -e -f /etc/ssh/sshd_config
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=CACHE, help="where the wheels are, or are fetched to")
    options = parser.parse_args()
    obstacle = netns.obstacle() or sshd.obstacle()
    pythons = pythons_here()
    if obstacle or len(pythons) < 2:
        raise SystemExit(obstacle or f"there are not several Pythons from 3.10 on in {PYENV}")
    _say(f"Pythons: {', '.join(pythons)}")
    wheelhouse.fill(options.wheels, list(pythons))
    wheelhouse.fill(options.wheels, [min(pythons, key=_numbers)], OLD_NUMPY)
    with tempfile.TemporaryDirectory(prefix="muster-unlike-", dir="/var/tmp") as folder, netns.running() as net:
        lab = Lab(Path(folder), net)
        with Walk(lab, pythons, options.wheels).open() as walk:
            print(json.dumps(walk.go()))
    return 0


def pythons_here() -> dict[str, Path]:
    """By version, of those that run us."""
    found: dict[str, Path] = {}
    for path in PYENV.glob("3.*/bin/python3"):
        version = ".".join(path.parents[1].name.split(".")[:2])
        if (3, 10) <= _numbers(version) < (3, 14):
            found[version] = path.parents[1]
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@dataclass
class Host:
    """One machine: a namespace of network, mounts and processes, whose first process is its sshd."""

    lab: Lab
    name: str
    uid: int
    pythons: list[Path]
    disk: str = ""
    options: str = ""  # of its sshd
    unseen: Path | None = None  # one of the Pythons, of which only a copy is found

    def __post_init__(self) -> None:
        self.machine: Machine = self.lab.net.add(self.name)
        self.user = f"u{self.uid}"
        self.at = self.lab.folder / self.name
        self.home = self.at / "home" / self.user
        self._process: subprocess.Popen[bytes] | None = None
        (self.home / ".ssh").mkdir(parents=True)
        shutil.copytree("/etc", self.at / "etc", symlinks=True, ignore_dangling_symlinks=True)
        etc = self.at / "etc"
        with (etc / "passwd").open("a") as file:
            file.write(f"{self.user}:x:{self.uid}:{self.uid}::/home/{self.user}:/bin/sh\n")
        with (etc / "group").open("a") as file:
            file.write(f"{self.user}:x:{self.uid}:\n")
        with (etc / "shadow").open("a") as file:
            file.write(f"{self.user}:*:19000:0:99999:7:::\n")
        (etc / "bin").mkdir()
        (etc / "bin/crontab").write_text(CRONTAB)
        (etc / "bin/crontab").chmod(0o755)
        key = make_key(self.at / "host_key")
        for half in (key, key.with_name("host_key.pub")):
            shutil.copy(half, etc / "ssh" / half.name)
        (etc / "ssh/sshd_config").write_text(
            f"Port 22\nHostKey /etc/ssh/host_key\nPidFile none\nUsePAM no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nPrintMotd no\nAuthorizedKeysFile .ssh/authorized_keys\n"
            f"SetEnv PATH=/etc/bin:/usr/bin:/bin\n{self.options}"
        )
        public = self.lab.server.key.with_name(self.lab.server.key.name + ".pub").read_text()
        (self.home / ".ssh/authorized_keys").write_text(public)
        if self.disk:
            (self.home / "spool").mkdir()
        self.own()
        self.before = self.left()

    def own(self) -> None:
        subprocess.run(["chown", "-R", f"{self.uid}:{self.uid}", self.home], check=True)
        for path in (self.home, self.home / ".ssh"):
            path.chmod(0o700)

    def start(self) -> None:
        """Until its sshd answers."""
        assert SSHD is not None
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        given = {
            "name": self.name, "at": str(self.at), "disk": self.disk, "uid": str(self.uid), "user": self.user,
            "sshd": SSHD, "pythons": " ".join(map(str, self.pythons)), "unseen": str(self.unseen or ""),
        }  # fmt: skip
        own = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
        command = [*self.machine.enter, *own, "sh", "-c", "\n".join([*words, SETUP])]
        with (self.at / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: "Server listening on" in (self.at / "sshd.log").read_text(), f"{self.name}'s sshd")

    def known(self) -> str:
        """Its line of known_hosts."""
        return f"{self.machine.address} {(self.at / 'host_key.pub').read_text()}"

    def inside(self, command: str) -> str:
        """As its user, in its own namespaces."""
        [first] = _children(self._first())
        user = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        env = [f"HOME=/home/{self.user}", "PATH=/etc/bin:/usr/bin:/bin"]
        words = ["nsenter", "--target", str(first), "--all", "setpriv", *user, "env", *env, "sh", "-c", command]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def _first(self) -> int:
        """`unshare`, whose one child is the namespace's first process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Without a word, as a power cut."""
        if self._process is not None:
            for pid in _children(self._first()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            self._process.wait(30.0)
            self._process = None
            (self.at / "sshd.log").unlink()

    def left(self) -> list[str]:
        """Everything in its home but what its user has there."""
        return sorted(str(path.relative_to(self.home)) for path in self.home.rglob("*"))

    def seen(self) -> dict[str, tuple[int, int]]:
        """Its files but for spools and logs, with their inodes and times."""
        apart = ("spool", ".local/state")
        return {
            name: (path.lstat().st_ino, path.lstat().st_mtime_ns)
            for path in self.home.rglob("*")
            if not (name := str(path.relative_to(self.home))).startswith(apart)
            and path.suffix != ".log" and not path.is_socket() and "__pycache__" not in name
        }  # fmt: skip


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _agents() -> dict[str, tuple[int, float]]:
    """The process of each machine's agent, and when it was started."""
    found = {}
    for one in psutil.process_iter(["cmdline", "create_time"]):
        words = one.info["cmdline"] or []
        if words[1:4] == ["-m", "muster.agent", "join"]:
            found[words[words.index("--name") + 1]] = (one.pid, one.info["create_time"])
    return found


class Walk:
    """The whole of it."""

    def __init__(self, lab: Lab, pythons: dict[str, Path], wheels: Path) -> None:
        self.lab, self.wheels = lab, wheels
        versions_ = sorted(pythons, key=_numbers)
        each = [pythons[versions_[number % len(versions_)]] for number in range(6)]
        gate = lab.net.add("gate")
        self.gate = gate
        self.hosts = {
            "hop1": Host(lab, "hop1", 2101, [each[1]], options=f"AllowUsers u2101@{gate.address}\n"),
            "dmz": Host(lab, "dmz", 2102, [each[2]]),
            "bare": Host(lab, "bare", 2103, [each[4]], unseen=each[4]),
            "old": Host(lab, "old", 2104, [each[0]]),
            "slow": Host(lab, "slow", 2105, [each[3]], disk="64m"),
            "late": Host(lab, "late", 2106, [each[-1]]),
        }
        self.bring = each[4]  # what bare gets
        self.nap_seconds = LEAST_NAP_SECONDS  # of a shard
        self.jump = sshd.Sshd(lab.folder / "gate", address=gate.address, prefix=gate.enter)
        self.fields: dict[str, dict[str, Any]] = {name: self._field(host) for name, host in self.hosts.items()}
        self.fields["hop1"]["jump"] = f"{self.jump.user}@{gate.address}"
        self.fields["dmz"]["reach"] = "in"
        self.fields["slow"]["spool"] = f"/home/{self.hosts['slow'].user}/spool"
        self.fields["late"]["service"] = "cron"

    @staticmethod
    def _field(host: Host) -> dict[str, Any]:
        return {"ssh": f"{host.user}@{host.machine.address}"}

    @contextlib.contextmanager
    def open(self) -> Iterator[Walk]:
        lab = self.lab
        try:
            # What dmz is not let do: reach the server's sshd
            lab.server.options += [f"DenyUsers *@{self.hosts['dmz'].machine.address}"]
            lab.start()
            self.jump.authorize(lab.server.key)
            self.jump.start()
            self.fields["hop1"]["jump"] += f":{self.jump.port}"
            for host in self.hosts.values():
                host.start()
            lab.net.slow(self.hosts["slow"].machine, "20mbit")
            lines = [host.known() for host in self.hosts.values()]
            lab.known_hosts.write_text("".join([*lines, self.jump.known_hosts.read_text()]))
            yield self
        finally:
            for host in self.hosts.values():
                host.stop()
            self.jump.stop()
            lab.close()

    def go(self) -> dict[str, Any]:
        lab, told = self.lab, {}
        early = {name: fields for name, fields in self.fields.items() if name != "late"}
        lab.write(early, sshd=f"{lab.place.address}:{lab.server.port}")
        began = time.monotonic()
        first = lab.told("up", *self._with_wheels())
        told["up_seconds"] = round(time.monotonic() - began, 1)
        self.nap_seconds = max(LEAST_NAP_SECONDS, LASTS * told["up_seconds"] * len(early) / SHARDS)
        states = {name: one["state"] for name, one in first.items()}
        assert states == {**dict.fromkeys(early, "changed"), "bare": "failed"}, json.dumps(first, indent=1)
        last = first["bare"]["steps"][-1]
        assert last["name"] == "python" and "no Python from 3.10" in last["said"], last
        _say(f"bare: {last['said']}; {last['hint']}")

        there = self.hosts["bare"].home / ".local/share/uv/python"  # as `uv python install` does
        there.mkdir(parents=True)
        shutil.copytree(self.bring, there / "cpython", symlinks=True)
        self.hosts["bare"].own()
        assert lab.good("up", *self._with_wheels()) == {**dict.fromkeys(early, "ok"), "bare": "changed"}
        self._older_numpy()
        agents, files = _agents(), {name: self.hosts[name].seen() for name in early}
        began = time.monotonic()
        assert lab.good("up", *self._with_wheels()) == dict.fromkeys(early, "ok")
        told["second_up_seconds"] = round(time.monotonic() - began, 2)
        assert _agents() == agents and len(agents) == len(early)
        assert {name: self.hosts[name].seen() for name in early} == files
        for one in lab.farm.agents_now():
            _say(f"{one.name} is {one.fingerprint}")
        told |= self._a_job_with_everything()
        told |= self._upgraded_in_the_middle()
        self._reboot("late")
        assert set(lab.good("down").values()) <= {"changed", "ok"}
        for name, host in self.hosts.items():
            left = [one for one in host.left() if one not in host.before and not one.startswith(".local/share/uv")]
            assert [one for one in left if one not in (".crontab", ".local", ".local/share")] == [], (name, left)
        assert "muster" not in (lab.server.folder / "authorized_keys").read_text()
        return told

    def _with_wheels(self) -> tuple[str, str]:
        return "--wheelhouse", str(self.wheels)

    def _older_numpy(self) -> None:
        """Another numpy on one machine, by its user's own hand; its agent is started anew with it."""
        host = self.hosts["old"]
        copied = host.home / "wheels"
        copied.mkdir()
        [numpy] = self.wheels.glob("numpy-1.26.4-cp310-*.whl")
        shutil.copy(numpy, copied)
        host.own()
        python = "~/.local/share/muster/current/bin/python"
        host.inside(f"{python} -m pip install --quiet --no-index --no-deps --find-links ~/wheels {OLD_NUMPY}")
        shutil.rmtree(copied)
        host.inside(f"cd / && {python} -m muster agent leave --name old")
        assert self.lab.good("up", "old", *self._with_wheels()) == {"old": "changed"}

    def _submit(self, seed: int) -> str:
        rows = np.random.default_rng(seed).normal(size=(SHARDS, WIDTH)).astype("f4")
        work = WORK.replace("NAP)", f"{self.nap_seconds})")
        return self.lab.farm.submit({"x": rows}, 1, work, kind="map", code="work.py:f")

    def _at(self, job: str, share: float) -> None:
        until(lambda: self.lab.farm.status(job).totals.committed >= share * SHARDS, f"{share:.0%} of {job}", 1200.0)

    def _a_job_with_everything(self) -> dict[str, Any]:
        lab, began = self.lab, time.monotonic()
        job = self._submit(1)
        self._at(job, 0.1)
        late = self.fields["late"]
        self._at(job, 0.3)
        words = [f"{field}={value}" for field, value in late.items()]
        assert lab.good("add", "late", *words, *self._with_wheels()) == {"late": "changed"}
        self._at(job, 0.5)
        assert lab.good("remove", "hop1") == {"hop1": "changed"}
        self._at(job, 0.6)
        lab.net.cut(self.hosts["old"].machine)
        slow = self.hosts["slow"]
        slow.inside('dd if=/dev/zero of="$HOME/spool/filled" bs=1M 2>/dev/null || :')
        assert slow.inside("df -P ~/spool | awk 'NR == 2 { print $4 }'") == "0"
        assert not (slow.home / "spool/filled").exists()  # the disk is that machine's own
        self._at(job, 0.8)
        lab.net.heal(self.hosts["old"].machine)
        slow.inside("rm ~/spool/filled")
        lab.farm.wait(job, seconds=2400.0)
        lab.check_result(job)
        shares = {one.name: one.shards for one in lab.farm.status(job).agents}
        _say(f"the first job: {shares}")
        assert set(shares) == set(self.hosts) and all(shares.values()), shares
        return {"job_seconds": round(time.monotonic() - began, 1), "shards": shares}

    def _upgraded_in_the_middle(self) -> dict[str, Any]:
        """To a build of this tree under another number, which the server has in an environment of its own."""
        lab = self.lab
        newer = versions.of_this_tree(lab.folder / "newer", NEWER)
        job = self._submit(2)
        self._at(job, 0.3)
        lab.python = newer.python
        began = time.monotonic()
        states = lab.good("upgrade", *self._with_wheels())
        seconds = time.monotonic() - began
        until(
            lambda: {one.version for one in lab.farm.agents_now()} == {NEWER}, "all to be of the newer version", 120.0
        )
        assert lab.farm.status(job).state == "running"
        lab.farm.wait(job, seconds=2400.0)
        lab.check_result(job)
        _say(f"upgrade: {states} in {seconds:.0f} s")
        return {"upgrade_seconds": round(seconds, 1)}

    def _reboot(self, name: str) -> None:
        """A power cut; then what its crontab has for a start of the machine, as cron runs it."""
        host = self.hosts[name]
        host.stop()
        until(lambda: not self.lab.farm.is_live(name), f"{name} to be gone", 150.0)
        host.start()
        each = 'nohup sh -c "$line" >/dev/null 2>&1 &'  # or the shell around a line keeps our pipe open
        host.inside(f"crontab -l | sed -n 's/^@reboot //p' | while read -r line; do {each} done")
        until(lambda: self.lab.farm.is_live(name), f"{name} to be back", 300.0)


def _say(text: str) -> None:
    print(f"unlike: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    assert os.geteuid() == 0, "this needs root"
    sys.exit(main())
