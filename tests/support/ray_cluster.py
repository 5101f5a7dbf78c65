"""A Ray cluster as its owner starts one, by `ray start`: a head and nodes with addresses of their own on this machine,
in a network namespace, as Ray listens on all interfaces there. As root on Linux.

    with ray_cluster.running(folder) as cluster:
        cluster.add(cpus=2)
        farm.join("one", "--ray", cluster.address, "--ray-token", str(cluster.token), prefix=cluster.enter)
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from muster.jobs.common import launch
from tests.support import netns
from tests.support.farm import until

START_SECONDS = 90.0
FAKE = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}  # nodes that are no machines; how often it looks
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_process_group_cleanup_enabled": "1",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
HELPERS = ("IDLE", "DashboardAgent", "RuntimeEnvAgent")  # titles of Ray's own
COMMANDS = (  # and lists that Ray wants named, though nothing of the kind is done
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude", "rsync_filter",
)  # fmt: skip


@dataclass
class Node:
    """One `ray start --block` and all that it started."""

    address: str
    process: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        """As Muster shows it."""
        return self.address

    def workers(self) -> list[psutil.Process]:
        """Those that run shards, or wait for some."""
        return [process for process, title in self._titles() if title.removeprefix("ray::") not in HELPERS]

    def calls(self) -> list[str]:
        """Names of what they run, as Ray shows them."""
        titles = (title.removeprefix("ray::") for _, title in self._titles())
        return [title for title in titles if title not in (*HELPERS, "FarWorker")]

    def _titles(self) -> Iterator[tuple[psutil.Process, str]]:
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if (title := "".join(process.cmdline()).strip()).startswith("ray::"):
                    yield process, title

    def hide(self, folder: Path) -> None:
        """It sees nothing in that folder any more; of a node that was added with something hidden from it."""
        into = ["nsenter", "--mount", f"--target={self.process.pid}"]
        subprocess.run([*into, "mount", "-t", "tmpfs", "none", str(folder)], check=True, capture_output=True)

    def stop(self) -> None:
        """SIGSTOP of all of it: it says nothing more, and its connections stay open, as when a machine hangs."""
        self._all_get(signal.SIGSTOP)

    def go_on(self) -> None:
        """What it had to say comes now."""
        self._all_get(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL of all of it at once, as when a machine's power goes. One that is dead already is let be: its numbers
        may be those of other processes by now."""
        if self.process.poll() is None:
            self.stop()
            self._all_get(signal.SIGKILL)
            self.process.wait()

    def _all_get(self, number: signal.Signals) -> None:
        main = psutil.Process(self.process.pid)
        for process in [main, *main.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)  # psutil looks at the start time first


class RayCluster:
    """A head that runs nothing itself, and its nodes."""

    def __init__(
        self, folder: Path, machine: netns.Machine, settings: Mapping[str, str], most: int, python: str = ""
    ) -> None:
        """`settings`: what its owner set for all of it, in the environment. `most`: nodes that it starts by itself.
        `python`: of an environment with another Ray; "" for ours."""
        self._python = python
        self._settings = {**settings, **(FAKE if most else {})}
        self._most = most
        self.machine = machine
        self.enter = machine.enter
        self.address = "127.0.0.2:6379"
        self.token = folder / "ray-token"
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(32))
        self.nodes: list[Node] = []
        self._folder = folder
        self._temp = Path("/tmp") / f"mrc-{secrets.token_hex(3)}"
        self._temp.mkdir(mode=0o700)
        self.restart()

    def restart(self) -> None:
        """Its head, anew; nodes have to be added again."""
        words = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
        if self._most:
            file = self._folder / "autoscaling.json"
            file.write_text(json.dumps(_autoscaling(self.address, self._most)))
            words.append(f"--autoscaling-config={file}")
        self.head = self._start("127.0.0.2", words)

    def grown(self) -> int:
        """Nodes that its autoscaler has started and not ended."""
        found = 0
        for process in psutil.Process(self.head.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it may end meanwhile
                found += process.name() == "raylet"
        return found - 1

    def add(
        self,
        cpus: int = 1,
        gpus: Sequence[int] = (),
        hidden: Sequence[Path] = (),
        packages: Path | None = None,
        python: str = "",
    ) -> Node:
        """Another node. `gpus`: numbers of those that it says it has; `hidden`: folders that it does not see;
        `packages`: one that its Python looks in first; `python`: of another environment."""
        words = [f"--address={self.address}", f"--num-cpus={cpus}", f"--num-gpus={len(gpus)}"]
        more = {} if packages is None else {"PYTHONPATH": str(packages)}
        more |= {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
        self.nodes.append(self._start(f"127.0.0.{len(self.nodes) + 3}", words, hidden, more, python))
        return self.nodes[-1]

    def sent(self) -> list[Path]:
        """Where workers have put inputs that came with their batches."""
        return list(self._temp.glob("muster-ray-*/*/in-*"))

    def kill(self) -> None:
        """All of it at once."""
        for node in [self.head, *self.nodes]:
            node.kill()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._temp, ignore_errors=True)

    def _start(
        self,
        address: str,
        words: Sequence[str],
        hidden: Sequence[Path] = (),
        more: Mapping[str, str] = {},
        python: str = "",
    ) -> Node:
        python = python or self._python
        start = [python, "-m", "ray.scripts.scripts"] if python else launch.python("ray.scripts.scripts")
        start += ["start", f"--node-ip-address={address}", "--block", *words]
        start += [f"--object-store-memory={300 << 20}", f"--temp-dir={self._temp}"]
        command = [*self.enter, *_without(hidden), *start]
        said = self._folder / f"ray-{address}.out"
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env |= {**QUIET, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token), "TMPDIR": str(self._temp)}
        env |= {**self._settings, **more}
        with said.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd="/", start_new_session=True
            )
        node = Node(address, process)

        def is_up() -> bool:
            assert process.poll() is None, said.read_text()
            return "Ray runtime started" in said.read_text()

        until(is_up, f"the Ray node {address} to be up", START_SECONDS)
        return node


def _without(hidden: Sequence[Path]) -> list[str]:
    """What to put before a command for it not to see folders."""
    if not hidden:
        return []
    mounts = " && ".join(f"mount -t tmpfs none {folder}" for folder in hidden)
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]


def _autoscaling(head: str, most: int) -> dict[str, Any]:
    """For Ray's autoscaler: nodes of one processor, each a raylet on this machine, given back when idle for long."""
    provider = {
        "type": "fake_multinode", "gcs_address": head, "use_node_id_as_ip": True, "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }  # fmt: skip
    one = {"resources": {"CPU": 1, "object_store_memory": 100 << 20}, "min_workers": 0, "max_workers": most}
    types = {"ray.head.default": {"resources": {"CPU": 0}, "max_workers": 0}, "one": one}
    return {
        "cluster_name": "grows", "max_workers": most, "provider": provider, "head_node_type": "ray.head.default",
        "available_node_types": {name: {"node_config": {}, **rest} for name, rest in types.items()},
        "idle_timeout_minutes": 0.1, "upscaling_speed": 1.0, "auth": {}, "docker": {}, "file_mounts": {},
        **{name: [] for name in COMMANDS}, "file_mounts_sync_continuously": False,
    }  # fmt: skip


@contextlib.contextmanager
def running(folder: Path, most: int = 0, python: str = "", **settings: str) -> Iterator[RayCluster]:
    """A head without nodes; at the end nothing is left. `most`: nodes that its own autoscaler may start. `python`: of
    an environment with another Ray."""
    netns.require()
    with netns.running() as net:
        cluster = RayCluster(folder, net.add("ray"), settings, most, python)
        try:
            yield cluster
        finally:
            cluster.close()
