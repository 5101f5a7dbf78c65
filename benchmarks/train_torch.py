"""Synchronous rounds of a torch model over loopback ssh, beside the same steps in plain torch in one process.

    python -m benchmarks.train_torch [--model resnet18] [--rounds 10] [--batch 32] [--bits 32] [--runs 2]

Rows are random and shaped as CIFAR-10's: what is in them does not change what a round takes. Two virtual workers of
`batch` rows each, on two agents of one core, each through a relay that counts its bytes. Plain torch takes the same two
batches a step, one after the other, and adds up their gradients, on all cores. `ratio`: our rows per second, as the
job's own clock counts its rounds, over its. `parts`: MB that a round moves to an agent and from it, with all that ssh
and the protocol add, and beside it what the model's parameters are in float32; rounds per second, of both.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import CORES, alternate, give_up, machine, report
from benchmarks.served import finish, served
from tests.support import sshd
from tests.support.farm import FarmHarness, until
from tests.support.proxy import Proxy
from tests.support.sshd import HOST, Sshd

AGENTS = 2
ROWS, IMAGE, CLASSES = 512, (32, 32, 3), 10
WARM_ROUNDS = 2
LR = 0.01


class Ours:
    """A farm with its agents: its rounds a second, and the bytes that they move."""

    def __init__(
        self, farm: FarmHarness, server: Sshd, relays: list[Proxy], folder: Path, given: argparse.Namespace
    ) -> None:
        self._farm, self._relays, self._folder, self._given = farm, relays, folder, given
        for number, relay in enumerate(relays):
            through = (f"Port {relay.port}", f"HostKeyAlias {server.name}")
            config = server.ssh_config(*through, name=f"config{number}")
            where = f"{HOST}:{farm.root.path}"
            farm.join(f"bench{number}", "--cpus", "1", "--ssh-config", str(config), where=where)
        until(lambda: all(farm.agent_status(f"bench{n}") for n in range(len(relays))), "the agents to join", 60)
        self._run(WARM_ROUNDS)  # the pools are up and the rows there once it has run
        before = self._moved()
        self._run(WARM_ROUNDS)
        self._start = self._since(before)
        self.down, self.up = 0.0, 0.0  # MB a round and agent, of the last run

    def rate(self) -> float:
        """Rows a second."""
        before = self._moved()
        seconds = self._run(WARM_ROUNDS + self._given.rounds)
        # what a job moves beside its rounds is what the short one moved beside as many
        more = self._since(before) - self._start
        self.down, self.up = (more / self._given.rounds / len(self._relays) / 1e6).tolist()
        return self._given.rounds * AGENTS * self._given.batch / seconds

    def _run(self, rounds: int) -> float:
        """The seconds of all rounds after the first ones."""
        job = self._farm.submit({}, kind="train", name="train", params=self._params(rounds))
        finish(self._farm, job)
        found = json.loads((self._farm.root.job(job).result / "made" / "training.json").read_text())
        self._farm.coordinator("rm", job)
        ends = [point[1] for point in found["points"]]
        return float(ends[-1] - ends[WARM_ROUNDS - 1])

    def _params(self, rounds: int) -> dict[str, Any]:
        never = 1 << 30
        return {
            "data": {"x": str(self._folder / "x.npy"), "y": str(self._folder / "y.npy"), "test": 0.05},
            "model": self._given.model,
            "workers": AGENTS,
            "microbatch": self._given.batch,
            "rounds": rounds,
            "bits": self._given.bits,
            "lr": LR,
            "eval_every": never,
            "checkpoint_rounds": never,
        }

    def _moved(self) -> np.ndarray[Any, Any]:
        return np.array([sum(relay.moved for relay in self._relays), sum(relay.taken for relay in self._relays)])

    def _since(self, before: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self._moved() - before


class Plain:
    """One process, as anybody would write it."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        import torch

        from muster.jobs.user_code.runner.torch_training import BUILT_IN

        torch.set_num_threads(CORES)
        torch.manual_seed(0)
        self._torch, self._given = torch, given
        self._module = BUILT_IN[given.model]((IMAGE[2], *IMAGE[:2]), CLASSES)
        self._optimizer = torch.optim.SGD(self._module.parameters(), LR)
        self._x = torch.from_numpy(np.load(folder / "x.npy"))
        self._y = torch.from_numpy(np.load(folder / "y.npy"))
        self.parameters = sum(one.numel() for one in self._module.parameters())
        self._step()

    def rate(self) -> float:
        began = time.monotonic()
        for _ in range(self._given.rounds):
            self._step()
        return self._given.rounds * AGENTS * self._given.batch / (time.monotonic() - began)

    def _step(self) -> None:
        self._optimizer.zero_grad()
        for _ in range(AGENTS):
            rows = self._torch.randint(0, ROWS, (self._given.batch,))
            x = self._x[rows].float().div(255).permute(0, 3, 1, 2).contiguous()
            loss = self._torch.nn.functional.cross_entropy(self._module(x), self._y[rows])
            (loss / AGENTS).backward()
        self._optimizer.step()


def write_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.integers(0, 255, (ROWS, *IMAGE)).astype("u1"))
    np.save(folder / "y.npy", rng.integers(0, CLASSES, ROWS))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", choices=["resnet18", "vgg16"], default="resnet18")
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--batch", type=int, default=32, help="rows a round, of each of two workers")
    options.add_argument("--bits", type=int, choices=[8, 16, 32], default=32)
    options.add_argument("--runs", type=int, default=2)
    given = options.parse_args()
    if importlib.util.find_spec("torch") is None:
        give_up(f"torch is not installed: `{sys.executable} -m pip install torch`")
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        write_data(folder)
        server = stack.enter_context(sshd.running(folder / "sshd"))
        relays = [stack.enter_context(contextlib.closing(Proxy(server.port))) for _ in range(AGENTS)]
        farm = stack.enter_context(served(folder / "farm"))
        plain, ours = Plain(folder, given), Ours(farm, server, relays, folder, given)
        rates = alternate(given.runs, ours=ours.rate, plain=plain.rate)
    parts = {
        "MB down a round and agent": round(ours.down, 2),
        "MB up a round and agent": round(ours.up, 2),
        "MB in float32": round(4 * plain.parameters / 1e6, 2),
        "bits": given.bits,
        "rows a round": AGENTS * given.batch,
        **{f"{name} rounds/s": round(max(those) / AGENTS / given.batch, 3) for name, those in rates.items()},
    }
    report(max(rates["ours"]), max(rates["plain"]), parts)


if __name__ == "__main__":
    main()
