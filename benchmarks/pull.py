"""Pulling over ssh into a spool: over loopback beside `scp` and `ssh cat` of the same file with the same cipher, or
over a link of a given rate beside plain TCP.

    python -m benchmarks.pull [--mib 1024] [--runs 3] [--agents 4] [--link 1gbit] [--no-peer]

Ours is the agent's own pull thread in a process of its own, which has joined before the clock starts, as agents have:
it asks for one shard as large as the file, writes it into the spool and takes its digest on the way. scp and `ssh cat`
are started, log in and write a file, as for each file that a person fetches, and take no digest; `logged in` is over
an `ssh cat` through a connection that is open already, which saves it the login.
`ratio`: our bytes per second over scp's; `parts`: over `ssh cat`, and all agents at once over as many scp at once.

With `--link` the server and the agent are each in a network namespace (needs root), with a router between them, and
the agent's link is shaped by `tc tbf` to that rate each way. The peer is a file by sendfile over a plain TCP connection
that is open before the clock starts, received into a file; its bytes are neither encrypted nor checked.
`ratio`: our bytes per second over its; `parts`: over scp across the same link.
"""

from __future__ import annotations

import argparse
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import shaped
from benchmarks.measure import add_no_peer, alternate, machine, report
from muster.agent.links.far_command import CIPHERS
from muster.coordinator.commands.submit import submit
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import decode_plan
from muster.jobs.sources.layer_writer import LayerWriter
from tests.support import sshd
from tests.support.farm import FarmHarness, running, until
from tests.support.simulated import SimulatedAgent
from tests.support.sshd import HOST, Sshd

MIB = 1 << 20
WORK = "def mean(rows):\n    return rows.mean(axis=1)\n"


@dataclass(frozen=True)
class Order:
    """One shard to pull, as the words of a command line."""

    config: Path
    root: Path
    spool: Path
    session: int
    layer: str
    number: int
    nbytes: int
    code: str  # the job's, which comes first

    def words(self) -> list[str]:
        return [str(value) for value in vars(self).values()]


def pull(order: Order) -> None:
    """What a process of ours does: log in and bring the job's code; when told to, bring the shard into the spool."""
    from muster.agent.channels.bandwidth import Bandwidth
    from muster.agent.channels.pull import Pulling
    from muster.agent.core.actions import Pull, PullCode
    from muster.agent.core.events import Event, Pulled, PullUp
    from muster.agent.links import Options, open_link
    from muster.agent.spool.paths import Spool
    from muster.jobs.common.locations import Host

    spool = Spool(order.spool)
    spool.take("bench", str(order.root))
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    link = open_link(Host(HOST, root=str(order.root)), Options(config=order.config))
    pulling = Pulling(link, spool, Bandwidth(None), events.put)
    pulling.start()
    for asked in (
        PullCode(order.session, order.code),
        Pull(order.session, "input", order.layer, order.number, order.nbytes),
    ):
        pulling.order(asked)
        while isinstance(event := events.get(), PullUp):
            pass
        if not isinstance(event, Pulled):
            raise SystemExit(f"not pulled: {event}")
        print("done", flush=True)
        sys.stdin.readline()
    pulling.stop()
    link.close()


class Field:
    """A farm behind an sshd, a file with a shard for each agent, and agents that hold them and do nothing."""

    def __init__(
        self, folder: Path, farm: FarmHarness, server: Sshd, nbytes: int, agents: int, enter: Sequence[str] = ()
    ) -> None:
        """`enter`: what to put before each command that runs where the agents are."""
        self.folder, self.server, self.nbytes, self.enter = folder, server, nbytes, enter
        self.config = server.ssh_config()
        source = folder / "source"
        source.mkdir()
        self.file = source / "rows.npy"
        self._write()
        files = [source / f"rows{number}.npy" for number in range(agents)]
        for path in files:
            path.symlink_to(self.file)
        (source / "work.py").write_text(WORK)
        job_file = source / "job.yaml"
        job_file.write_text(
            "name: pull\nkind: map\ncode: work.py:mean\n"
            f"source: {{path: ., layers: ['rows?']}}\nshard: {{size: {nbytes}}}\n"
        )
        self.plan = decode_plan(farm.root.job(submit(farm.root, job_file)).plan.read_bytes())
        self.orders = [self._order(farm, number) for number in range(agents)]

    def _write(self) -> None:
        random = np.random.default_rng(0)
        with LayerWriter(self.file, (MIB // 4,), "<f4") as layer:
            for _ in range(self.nbytes // MIB):
                layer.append(random.integers(0, 1 << 31, (1, MIB // 4), dtype="i4").view("<f4"))

    def _order(self, farm: FarmHarness, number: int) -> Order:
        agent: SimulatedAgent = farm.agent(f"puller{number}")
        agent.join()
        until(lambda: agent.sync(wait=0.05) and agent.granted, "a shard to be granted")
        ((key, numbers),) = agent.granted.items()
        shard = RangeSet(numbers.pairs()).bottom
        spool = self.folder / f"spool{number}"
        code = self.plan.work.code
        assert code is not None
        return Order(self.config, farm.root.path, spool, agent.session, key[1], shard, self.nbytes, code)

    # --- the sides: MiB per second ---

    def ours(self, count: int = 1) -> float:
        rate = self._by([["benchmarks.pull", "--order", *order.words()] for order in self.orders[:count]])
        for number in range(count):
            shutil.rmtree(self.folder / f"spool{number}")
        return rate

    def plain(self, address: str, port: int) -> float:
        target = self.folder / "plain"
        rate = self._by([["benchmarks.plain", "receive", address, str(port), str(target), str(self.nbytes)]])
        target.unlink()
        return rate

    def _by(self, modules: Sequence[Sequence[str]]) -> float:
        """Processes of ours, all ready before the clock starts."""
        pullers = [_started([*self.enter, sys.executable, "-m", *words]) for words in modules]
        for pull_policy in pullers:
            _await_done(pull_policy)
        with self._timed(len(pullers)) as rate:
            for pull_policy in pullers:
                _go_on(pull_policy)
            for pull_policy in pullers:
                _await_done(pull_policy)
        for pull_policy in pullers:
            _go_on(pull_policy)
            if code := pull_policy.wait():
                raise SystemExit(f"a puller ended with {code}")
        return rate[0]

    def scp(self, count: int = 1) -> float:
        targets = [str(self.folder / f"scp{number}") for number in range(count)]
        options = ["-q", "-F", str(self.config), "-c", CIPHERS[0]]
        with self._timed(count) as rate:
            _run([[*self.enter, "scp", *options, f"{HOST}:{self.file}", target] for target in targets])
        for target in targets:
            Path(target).unlink()
        return rate[0]

    def cat(self, *options: str) -> float:
        target = self.folder / "cat"
        words = ["ssh", "-F", str(self.config), "-c", CIPHERS[0], *options, HOST]
        with self._timed(1) as rate, target.open("wb") as out:
            subprocess.run([*words, f"cat {self.file}"], stdout=out, check=True)
        target.unlink()
        return rate[0]

    def cat_logged_in(self) -> float:
        """Through the connection of another, which is made before the clock starts."""
        master = f"ControlPath={self.folder / 'master'}"
        words = ["ssh", "-F", str(self.config), "-c", CIPHERS[0], "-o", master]
        subprocess.run([*words, "-M", "-N", "-f", HOST], check=True)
        try:
            return self.cat("-o", master)
        finally:
            subprocess.run([*words, "-O", "exit", HOST], check=True, capture_output=True)

    @contextmanager
    def _timed(self, count: int) -> Iterator[list[float]]:
        rate: list[float] = []
        began = time.monotonic()
        yield rate
        rate.append(count * self.nbytes / MIB / (time.monotonic() - began))


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _await_done(pull_policy: subprocess.Popen[str]) -> None:
    assert pull_policy.stdout is not None
    if not pull_policy.stdout.readline():
        raise SystemExit(f"a puller ended with {pull_policy.wait()}")


def _go_on(pull_policy: subprocess.Popen[str]) -> None:
    assert pull_policy.stdin is not None
    print(file=pull_policy.stdin, flush=True)


def _run(commands: Sequence[Sequence[str]]) -> None:
    """All at once; every one must end well."""
    processes = [subprocess.Popen(command) for command in commands]
    if codes := [code for process in processes if (code := process.wait())]:
        raise SystemExit(f"ended with {codes}")


def main() -> None:
    if sys.argv[1:2] == ["--order"]:
        config, root, spool, session, layer, number, nbytes, code = sys.argv[2:]
        pull(Order(Path(config), Path(root), Path(spool), int(session), layer, int(number), int(nbytes), code))
        return
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mib", type=int, default=1024)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--agents", type=int, default=4, help="at once, in the second part")
    add_no_peer(options)
    options.add_argument("--link", metavar="RATE", help="as tc has it: pull over such a link, beside plain TCP")
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as made:
        (measure_link if given.link else measure)(Path(made), given)


def measure_link(folder: Path, given: argparse.Namespace) -> None:
    with (
        running(folder / "farm", lease=600.0, heartbeat=60.0) as farm,
        shaped.running(folder / "sshd", given.link, ["agent"]) as net,
    ):
        (agent,) = net.machines
        field = Field(folder, farm, net.sshd, given.mib * MIB, 1, agent.enter)
        if given.no_peer:
            report(max(alternate(given.runs, ours=field.ours)["ours"]), None, {"link": given.link})
            return
        address = net.server.address
        command = [*net.server.enter, sys.executable, "-m", "benchmarks.plain", "send", address, str(field.file)]
        sender = _started(command)
        try:
            assert sender.stdout is not None
            port = int(sender.stdout.readline())
            rates = alternate(given.runs, ours=field.ours, plain=lambda: field.plain(address, port), scp=field.scp)
        finally:
            sender.kill()
            sender.wait()
    best = {name: max(those) for name, those in rates.items()}
    report(best["ours"], best["plain"], {"link": given.link, "over scp": round(best["ours"] / best["scp"], 3)})


def measure(folder: Path, given: argparse.Namespace) -> None:
    with sshd.running(folder / "sshd") as server, running(folder / "farm", lease=600.0, heartbeat=60.0) as farm:
        field = Field(folder, farm, server, given.mib * MIB, given.agents)
        if given.no_peer:
            report(max(alternate(given.runs, ours=field.ours)["ours"]), None, {})
            return
        alone = alternate(given.runs, ours=field.ours, scp=field.scp, cat=field.cat, master=field.cat_logged_in)
        many = alternate(given.runs, ours=lambda: field.ours(given.agents), scp=lambda: field.scp(given.agents))
    best = {name: max(rates) for name, rates in alone.items()}
    together = max(many["ours"]) / max(many["scp"])
    over = {"over ssh cat": best["cat"], "over ssh cat, logged in": best["master"]}
    parts = {name: round(best["ours"] / peer, 3) for name, peer in over.items()}
    report(best["ours"], best["scp"], {**parts, f"{given.agents} at once": round(together, 3)})


if __name__ == "__main__":
    main()
