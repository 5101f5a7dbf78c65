"""Machines to be deployed to, for tests: each an sshd with a home and a crontab of its own, and their inventory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from docs.examples.own_sshd import LOOPBACK
from muster.deploy import wheel
from muster.jobs.common import launch
from tests.support import sshd
from tests.support.farm import FarmHarness
from tests.support.sshd import Sshd

DEPLOY_SECONDS = 120.0
# A stand-in, where there is no cron: what it was given is a file in the home
CRONTAB = """#!/bin/sh
case ${1:-} in
-l) cat "$HOME/.crontab" 2>/dev/null ;;
-r) rm -f "$HOME/.crontab" ;;
*) cat >"$HOME/.crontab" ;;
esac
"""
# A stand-in for systemd's user manager, which starts what a unit says and knows its process by a file beside itself.
SYSTEMCTL = r"""#!/bin/sh
[ "$1" = --user ] && shift
verb=$1; shift
now= later= signal=TERM
while :; do
  case ${1:-} in
  --now) now=yes ;; --no-block) later=yes ;; --signal=*) signal=${1#*=} ;; --quiet | --kill-who=main) ;;
  *) break ;;
  esac
  shift
done
at=$(dirname "$0")
unit=$HOME/.config/systemd/user/$1
set_of() { sed -n "s/^$1=//p" "$unit"; }
alive() {
  [ -r "$at/pid-$1" ] && read -r pid <"$at/pid-$1" && kill -0 "$pid" 2>/dev/null || return 1
  ! grep -qs '^State:.Z' "/proc/$pid/status"  # nobody may have waited for it
}
start() {
  alive "$1" && return
  folder=$(set_of WorkingDirectory)
  cd "${folder:-/}" && eval "exec nohup $(set_of ExecStart)" >/dev/null 2>&1 &
  echo $! >"$at/pid-$1"
}
stop() {
  if alive "$1"; then kill -TERM "$(cat "$at/pid-$1")"; while [ -z "$later" ] && alive "$1"; do sleep 0.1; done; fi
}
case $verb in
show-environment | daemon-reload) ;;
start) start "$1" ;;
stop) stop "$1" ;;
restart) stop "$1"; start "$1" ;;
kill) alive "$1" && kill "-$signal" "$(cat "$at/pid-$1")" ;;
is-active) alive "$1" && echo active || { echo inactive; exit 3; } ;;
enable) : >"$at/enabled-$1" ;;
disable) rm -f "$at/enabled-$1"; [ -z "$now" ] || stop "$1" ;;
is-enabled) [ -e "$at/enabled-$1" ] ;;
show) alive "$1" && echo ActiveState=active && echo "MainPID=$(cat "$at/pid-$1")" || echo ActiveState=inactive
  echo NRestarts=0; echo "MemoryMax=$(set_of MemoryMax)"; [ ! -e "$at/enabled-$1" ] || echo UnitFileState=enabled ;;
*) echo "systemctl $verb?" >&2; exit 1 ;;
esac
"""
LOGINCTL = """#!/bin/sh
case $1 in
enable-linger) : >"$(dirname "$0")/lingers" ;;
show-user) [ ! -e "$(dirname "$0")/lingers" ] || echo Linger=yes ;;
esac
"""


def put_systemd(programs: Path) -> None:
    """The stand-ins for it, in a folder of a PATH."""
    for name, text in (("systemctl", SYSTEMCTL), ("loginctl", LOGINCTL)):
        _put(programs / name, text)


def put_cron(programs: Path) -> None:
    """The same for a crontab."""
    _put(programs / "crontab", CRONTAB)


def _put(program: Path, text: str) -> None:
    program.write_text(text)
    program.chmod(0o755)


def _stamp() -> str:
    """As `deploy` takes it: what lies in the current folder is no installed package to it."""
    code = "import sys; sys.path[:] = [p for p in sys.path if p]; from muster.deploy import wheel; print(wheel.stamp())"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Target:
    """One machine."""

    def __init__(self, folder: Path, name: str, env: dict[str, str]) -> None:
        self.name = name
        self.home = folder / name / "home"
        programs = folder / name / "bin"
        self.home.mkdir(parents=True)
        programs.mkdir()
        self.programs = programs
        put_cron(programs)
        self.sshd = Sshd(folder / name / "sshd", path=f"{programs}:/usr/bin:/bin", env={**env, "HOME": str(self.home)})

    def program(self, name: str, text: str) -> None:
        """One that comes first on its PATH."""
        _put(self.programs / name, text)

    def has_venv(self, name: str = "", python: Path = Path(sys.executable), stamp: str = "") -> str:
        """One called so, as `up` makes it, with this interpreter; by default of this build. Its name."""
        stamp = stamp or _stamp()
        name = name or wheel.build(stamp)
        programs = self.base / name / "bin"
        programs.mkdir(parents=True)
        (programs / "python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        (programs / "python").chmod(0o755)
        (self.base / name / "stamp").write_text(stamp)
        return name

    def has_systemd(self) -> None:
        put_systemd(self.programs)

    @property
    def base(self) -> Path:
        return self.home / ".local/share/muster"

    @property
    def agent_folder(self) -> Path:
        return self.base / "agents" / self.name

    def left(self) -> list[str]:
        """Everything in its home."""
        return sorted(str(path.relative_to(self.home)) for path in self.home.rglob("*"))


class Site:
    """A farm whose server has an sshd, and machines around it."""

    def __init__(self, folder: Path, names: Sequence[str], env: Mapping[str, str]) -> None:
        self.folder = folder
        self.farm = FarmHarness(folder / "farm")
        self.server = Sshd(folder / "server", env=self.farm.marked)
        self.targets = {name: Target(folder, name, {**self.farm.marked, **env}) for name in names}
        self.inventory = folder / "inventory.yaml"
        self.fields: dict[str, dict[str, Any]] = {name: {} for name in names}
        self.server_fields: dict[str, Any] = {}
        self.known_hosts = folder / "known_hosts"
        self.python: Path | None = None  # of the version whose `deploy` is typed; None: of this one

    def start(self) -> None:
        self.farm.start()
        self.server.start()
        for target in self.targets.values():
            target.sshd.authorize(self.server.key)
            target.sshd.start()
        self.know(*self.targets)
        self.write()

    def know(self, *names: str) -> None:
        """Whose host keys the person at the server has seen."""
        self.known_hosts.write_text("".join(self.targets[name].sshd.known_hosts.read_text() for name in names))

    def ssh(self, name: str) -> str:
        """How the server reaches a machine."""
        daemon = self.targets[name].sshd
        return f"ssh://{daemon.user}@{LOOPBACK}:{daemon.port}"

    def write(self) -> None:
        """The inventory, as `fields` have it."""
        server = self.server
        machines = {name: {"ssh": self.ssh(name), **self.fields[name]} for name in self.targets if name in self.fields}
        said = {
            "server": {
                "address": f"ssh://{server.user}@{LOOPBACK}:{server.port}",
                "authorized_keys": str(server.folder / "authorized_keys"),
                "host_keys": f"{server.host_key}.pub",
                **self.server_fields,
            },
            "defaults": {"python": sys.executable, "cpus": 1},
            "machines": machines,
        }
        self.inventory.write_text(yaml.safe_dump(said, sort_keys=False))

    def command(self, name: str, *args: str) -> list[str]:
        config = self.folder / "ssh_config"
        config.write_text(
            f"Host *\nIdentityFile {self.server.key}\nIdentitiesOnly yes\nIdentityAgent none\n"
            f"UserKnownHostsFile {self.known_hosts}\nGlobalKnownHostsFile /dev/null\n"
        )
        options = ["--root", str(self.farm.root.path), "--inventory", str(self.inventory), "--ssh-config", str(config)]
        entry = launch.python("muster.deploy.cli") if self.python is None else [str(self.python), "-m", "muster.deploy"]
        return [*entry, name, *options, *args]

    def deploy(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        """A command of `deploy`, run to its end."""
        return subprocess.run(
            self.command(name, *args), env=self.farm.environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=DEPLOY_SECONDS, check=False, cwd="/",
        )  # fmt: skip

    def told(self, name: str, *args: str) -> dict[str, dict[str, Any]]:
        """What the command says of each machine, in JSON."""
        done = self.deploy(name, "--json", *args)
        assert done.stdout.startswith("{"), done.stderr
        return {one["machine"]: one for one in json.loads(done.stdout)["machines"]}

    @property
    def authorized(self) -> Path:
        return self.server.folder / "authorized_keys"

    def close(self) -> None:
        self.farm.close()
        for daemon in [self.server, *(target.sshd for target in self.targets.values())]:
            daemon.stop()


@contextlib.contextmanager
def running(folder: Path, *names: str, env: Mapping[str, str] | None = None) -> Iterator[Site]:
    """A site, with nothing of its machines left at the end. `env`: of what runs on the machines, beside the usual."""
    sshd.require()
    site = Site(folder, names, env or {})
    try:
        site.start()
        yield site
    finally:
        site.close()
