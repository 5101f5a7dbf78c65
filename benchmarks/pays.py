"""Does a far machine pay? Machines × link × milliseconds of compute a MB: measured with two, reckoned for more.

    python -m benchmarks.pays [--links 100mbit 1gbit] [--ms 5 10 20 50 100 200] [--seconds 10] [--runs 2]
        [--to docs/pays]

A `map` whose function keeps its processor busy until so many milliseconds for each MB have passed by the clock,
whatever else the machine is at. One agent reads the source in place; another joins over ssh through a link shaped by
`tc tbf`; a third is the same with a copy of the source (`--have`). Each is held to one slot and, by a cpuset, one
core, the two far ones to the same; of these only one works at a time, the other is paused. In turn: the near agent
alone, with the far one, with the far one that has the copy. From submit to merged result. Server, sshd and the
agents' own work share the two cores, which is why small milliseconds come out below what is reckoned. `ours`: how
many times faster two are than one, at the most compute and the first link; `peer`: as reckoned from the link that was
measured, by what `coordinator plan` uses. With `--to`: curve.csv, curve.png and curve.md there. As root.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import shaped
from benchmarks.measure import CORES, give_up, machine, report
from benchmarks.served import finish, served
from muster.agent.commands.status import state_of
from muster.coordinator.submission.makespan import FarmMachine, InputLeft, makespan
from tests.support.farm import FarmHarness, until
from tests.support.sshd import HOST

MB = 1_000_000
SHARD_MB = 4
MOST_MB = 600  # of a job
MANY = (2, 4, 8)  # far machines, of which nothing is measured
CPUSET = Path("/sys/fs/cgroup/cpuset")
WORK = f"""
import time

def spin(rows, ms):
    end = time.monotonic() + ms / 1e3 * rows.nbytes / {MB}
    while time.monotonic() < end:
        pass
    return rows[:, :1].copy()
"""
NEAR, FAR, COPY = "near", "far", "copy"


@dataclass(frozen=True)
class Cell:
    """One link and one amount of compute. Seconds, the best of the runs."""

    link: str
    ms: float
    mb: int
    link_mb: float  # MB a second that the link brought, as the coordinator measured it
    alone: float
    far: float
    copy: float

    @property
    def left(self) -> InputLeft:
        return InputLeft(self.mb * MB, 0, self.ms / 1e3 / MB)

    @property
    def even(self) -> float:
        """ms a MB from which a far slot computes no faster than its link brings."""
        return 1e3 / self.link_mb

    def reckoned(self, far: int) -> float:
        """Times faster than the near machine alone, of so many far ones with such a link each."""
        near, others = FarmMachine(NEAR, 1, local=True), [FarmMachine(FAR, 1, link_in=self.link_mb * MB)] * far
        return makespan([near], self.left) / makespan([near, *others], self.left)


@contextmanager
def one_core(name: str, core: int) -> Iterator[list[str]]:
    """What to put before a command for it, and all it starts, to have this core alone."""
    _sweep()
    group = CPUSET / f"muster-bench-{os.getpid()}-{name}"
    try:
        group.mkdir()
        (group / "cpuset.mems").write_text((CPUSET / "cpuset.mems").read_text())
        (group / "cpuset.cpus").write_text(str(core))
    except OSError as error:
        give_up(f"no cpuset can be made here: {error}")
    try:
        yield ["sh", "-c", f'echo $$ > {group}/tasks && exec "$@"', "sh"]
    finally:
        _sweep()


def _sweep() -> None:
    """Remove groups of ours that nobody is in. Processes that have ended and were not waited for yet keep theirs, until
    the next run."""
    for group in CPUSET.glob("muster-bench-*"):
        with suppress(OSError):
            group.rmdir()


class Field:
    """The farm and its three agents behind one link."""

    def __init__(self, farm: FarmHarness, net: shaped.Shaped, cores: Sequence[list[str]]) -> None:
        self.farm = farm
        where, config = f"{HOST}:{farm.root.path}", str(net.sshd.ssh_config())
        options = ("--cpus", "1", "--ssh-config", config, "--disk", "4GiB")
        (there,) = net.machines
        farm.join(NEAR, "--cpus", "1", prefix=cores[0])
        farm.join(FAR, *options, where=where, prefix=[*cores[1], *there.enter])
        farm.join(COPY, *options, "--have", str(farm.folder), where=where, prefix=[*cores[1], *there.enter])
        for name in (NEAR, FAR, COPY):
            until(lambda name=name: self._is_ready(name), f"{name}'s pool to be up", 180)  # type: ignore[misc]
        for name in (NEAR, FAR, COPY):
            self._work(name)
            self.seconds(20.0, 40)  # the pool is up once it has run some

    def _is_ready(self, name: str) -> bool:
        state = state_of(self.farm.folder / "spools" / name)
        return state is not None and state.linked and state.ready

    def _work(self, *names: str) -> None:
        """These alone."""
        for name in (NEAR, FAR, COPY):
            word = "resume" if name in names else "pause"
            done = self.farm.agent_command(word, "--spool", str(self.farm.folder / "spools" / name))
            assert done.returncode == 0, done.stderr

    def seconds(self, ms: float, mb: int) -> float:
        rows = np.zeros((mb, MB // 4), "f4")
        began = time.monotonic()
        job = self.farm.submit({"x": rows}, SHARD_MB, WORK, kind="map", code="work.py:spin", name="pays",
                               params={"args": {"ms": ms}})  # fmt: skip
        finish(self.farm, job)
        took = time.monotonic() - began
        self.farm.coordinator("rm", job)
        for folder in self.farm.folder.glob("job-*"):
            shutil.rmtree(folder)
        return took

    def cell(self, link: str, ms: float, seconds: float, runs: int) -> Cell:
        mb = min(MOST_MB, max(40, round(seconds * 1e3 / ms) // SHARD_MB * SHARD_MB))
        sides = {"alone": (NEAR,), FAR: (NEAR, FAR), COPY: (NEAR, COPY)}
        took: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(runs):
            for side, names in sides.items():
                self._work(*names)
                took[side].append(self.seconds(ms, mb))
        best = {side: round(min(those), 2) for side, those in took.items()}
        found = self.farm.agent_status(FAR)
        assert found is not None and found.link_in
        cell = Cell(link, ms, mb, round(found.link_in / MB, 1), best["alone"], best[FAR], best[COPY])
        print(f"  {cell} reckoned {cell.reckoned(1):.2f} times", flush=True)
        return cell


def measure(folder: Path, given: argparse.Namespace) -> list[Cell]:
    cells = []
    for link in given.links:
        with ExitStack() as stack:
            cores = [stack.enter_context(one_core(f"{link}-{core}", core)) for core in range(2)]
            farm = stack.enter_context(served(folder / f"farm-{link}"))
            net = stack.enter_context(shaped.running(folder / f"sshd-{link}", link, ["far"], farm.marked))
            field = Field(farm, net, cores)
            cells += [field.cell(link, ms, given.seconds, given.runs) for ms in given.ms]
    return cells


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--links", nargs="+", default=["100mbit", "1gbit"], help="as tc has them")
    options.add_argument("--ms", nargs="+", type=float, default=[5.0, 10.0, 20.0, 50.0, 100.0, 200.0])
    options.add_argument("--seconds", type=float, default=10.0, help="of one machine alone, for each job")
    options.add_argument("--runs", type=int, default=2)
    options.add_argument("--to", type=Path, help="write the curve into this folder")
    given = options.parse_args()
    if CORES < 2:
        give_up("two machines want two cores")
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        cells = measure(Path(folder), given)
    if given.to:
        given.to.mkdir(exist_ok=True)
        write_csv(cells, given.to / "curve.csv")
        (given.to / "curve.md").write_text(page(cells))
        plot(cells, given.to / "curve.png")
    last = [cell for cell in cells if cell.link == given.links[0]][-1]
    parts = {f"{cell.link}, {cell.ms:g} ms a MB": round(cell.alone / cell.far, 2) for cell in cells}
    report(last.alone / last.far, last.reckoned(1), parts)


def write_csv(cells: list[Cell], path: Path) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, asdict(cells[0]))
        table.writeheader()
        table.writerows(asdict(cell) for cell in cells)


def page(cells: list[Cell]) -> str:
    """A table of how many times faster than one machine; below, where a far slot breaks even."""
    more = " | ".join(f"{far} far, reckoned" for far in MANY)
    lines = [
        "# Times faster than one machine beside the source",
        "",
        f"Written by `python -m benchmarks.pays`, on {machine()}.",
        "",
        f"| link | ms a MB | 1 far, measured | 1 far, reckoned | with a copy, measured | {more} |",
        "|---|---|---|---|---|" + "---|" * len(MANY),
    ]
    for cell in cells:
        values = [cell.alone / cell.far, cell.reckoned(1), cell.alone / cell.copy, *map(cell.reckoned, MANY)]
        lines.append(f"| {cell.link} | {cell.ms:g} | {' | '.join(f'{value:.2f}' for value in values)} |")
    lines.append("")
    for link in dict.fromkeys(cell.link for cell in cells):
        of_link = [cell for cell in cells if cell.link == link][-1]
        said = f"{of_link.link_mb:g} MB/s measured, break-even at {of_link.even:.1f} ms a MB of one slot"
        lines.append(f"- {link}: {said}")
    return "\n".join(lines) + "\n"


def plot(cells: list[Cell], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for number, link in enumerate(dict.fromkeys(cell.link for cell in cells)):
        those, colour = [cell for cell in cells if cell.link == link], f"C{number}"
        ms = [cell.ms for cell in those]
        axes.plot(ms, [one.alone / one.far for one in those], "o-", color=colour, label=f"{link}, measured")
        axes.plot(
            ms, [one.alone / one.copy for one in those], "^:", color=colour, label=f"{link}, with a copy, measured"
        )
        for far in (1, *MANY):
            said = f"{link}, reckoned" if far == 1 else None
            axes.plot(ms, [one.reckoned(far) for one in those], "--", color=colour, alpha=0.5, label=said)
            axes.annotate(f"{far} far", (ms[-1], those[-1].reckoned(far)), fontsize=7, color=colour)
        axes.axvline(those[-1].even, color=colour, alpha=0.3)
        axes.annotate("break-even", (those[-1].even, 1.02), rotation=90, fontsize=7, color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.set_xlabel("milliseconds of compute a MB of input, in one slot")
    axes.set_ylabel("times faster than one machine beside the source")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
