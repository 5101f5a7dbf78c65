"""`make bench`: every benchmark in turn; writes docs/benchmarks.md with the machine they ran on.

python -m benchmarks [NAME …]

What each printed is kept in docs/benchmarks.json: the last line, and under `lines` every run before it. So some may be
run again and the page still has all of them.
One that cannot run here says why, and keeps what it had.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import CANNOT, machine

DOCS = Path(__file__).parents[1] / "docs"
PAGE, KEPT = DOCS / "benchmarks.md", DOCS / "benchmarks.json"


@dataclass(frozen=True)
class Benchmark:
    """One command, what its two sides are, and the ratio it should reach."""

    args: tuple[str, ...]
    ours: str
    peer: str
    reach: float
    less_is_better: bool = False  # of `ours`
    page: tuple[str, ...] = ()  # more arguments, for the page alone


BENCHMARKS = {
    "kernel": Benchmark(("kernel",), "rows/s of 65,536 values", "kmeans1d, whose inertia is 0 to 0.6% less", 100.0),
    "cluster": Benchmark(
        ("cluster",), "rows/s by folder, from submit to merged result", "the bare kernel in a process pool", 0.9
    ),
    "cluster-sklearn": Benchmark(
        ("cluster", "--peer", "sklearn"), "rows/s by folder, 65,536 values", "scikit-learn under joblib", 250.0
    ),
    "cluster-sklearn-1024": Benchmark(
        ("cluster", "--peer", "sklearn", "--values", "1024"),
        "rows/s by folder, 1,024 values",
        "scikit-learn under joblib",
        100.0,
    ),
    "cluster-ssh": Benchmark(
        ("cluster", "--ssh"), "rows/s over loopback ssh", "the bare kernel fed by `ssh cat` of the same bytes", 0.85
    ),
    "pull": Benchmark(("pull",), "MiB/s of 1 GiB over loopback ssh into the spool", "scp with the same cipher", 1.0),
    "pull-link": Benchmark(
        ("pull", "--link", "1gbit"), "MiB/s of 1 GiB over ssh across a link of 1 Gbit/s", "a plain TCP stream", 0.97
    ),
    "dispatch": Benchmark(("dispatch",), "empty shards/s, each durably committed", "Ray tasks", 3.0),
    "scale": Benchmark(
        ("scale",),
        "µs of the coordinator's processor time a shard, 10⁵ shards and 1,000 agents",
        "µs at 10⁶",
        0.83,
        less_is_better=True,
        page=("--plot", str(DOCS / "scale.png")),
    ),
    "page": Benchmark(
        ("page",),
        "% of the coordinator's processor time that looking at the farm leaves, 1,000 agents at 2,000 shards/s",
        "all of it",
        0.99,
    ),
    "page-job": Benchmark(
        ("page", "--view", "job"),
        "% of the coordinator's processor time that looking at a job of 2·10⁶ shards leaves",
        "all of it",
        0.99,
    ),
    "hostile": Benchmark(("hostile",), "ms that a frame may take the coordinator", "ms of an agent's worst", 1.0),
    "tail": Benchmark(("tail",), "shards/s of two agents, one four times slower", "both busy from first to last", 0.9),
    "kills": Benchmark(("kills",), "shards/s while a process is killed each minute", "the same job in peace", 0.9),
    "memory": Benchmark(
        ("memory",),
        "MiB in the second tenth of 20 GiB by folder",
        "MiB in the highest of the later tenths",
        0.9,
        less_is_better=True,
    ),
    "memory-ssh": Benchmark(
        ("memory", "--ssh"),
        "MiB in the second tenth of 20 GiB over loopback ssh, with 1 GiB of disk",
        "MiB in the highest of the later tenths",
        0.9,
        less_is_better=True,
    ),
    "train": Benchmark(("train",), "rounds/s by folder, 425,130 parameters", "Ray's parameter-server pattern", 0.8),
    "train-ssh": Benchmark(("train", "--ssh"), "rounds/s over loopback ssh", "Ray's parameter-server pattern", 0.5),
    "train-scaling": Benchmark(
        ("train", "--scaling"), "rounds/s of 2 workers, 2,048 rows a round", "one worker with the whole batch", 1.6
    ),
    "train-agents": Benchmark(
        ("lockstep",),
        "rounds/s of 20 simulated agents, with 100 ms of simulated compute each",
        "if all but the compute took no time",
        0.7,
    ),
    "reach": Benchmark(
        ("reach",),
        "times a minute to 0.975 on MNIST, two agents, local steps",
        "plain numpy in one process, one thread",
        1.2,
    ),
    "reach-link": Benchmark(
        ("reach", "--link", "1gbit"),
        "times a minute to 0.975 on MNIST over 1 Gbit/s, local steps",
        "Ray's parameter-server pattern",
        3.0,
    ),
    "train-resnet18": Benchmark(
        ("train_torch",), "rows/s of ResNet-18 over loopback ssh, two agents", "plain torch in one process", 0.8
    ),
    "tune": Benchmark(("tune",), "trials/s of a search, 10 iterations of 10 ms each", "Ray Tune", 4.0),
    "infer": Benchmark(("infer",), "rows/s of 784 float32 through an MLP", "plain numpy, a process per core", 0.8),
    "infer-ssh": Benchmark(
        ("infer", "--ssh"), "rows/s over loopback ssh", "the same computation fed by `ssh cat` of the same bytes", 0.9
    ),
    "command": Benchmark(("command",), "`true` commands/s, exit codes kept", "GNU Parallel", 1.0),
    "executor": Benchmark(("executor",), "calls/s of 1 ms through `Executor.map`", "Dask's `get_executor`", 2.5),
    "joblib": Benchmark(("joblib",), "fits/s of an SVC on digits, 75 a search", "loky on the same cores", 0.9),
    "run": Benchmark(("run",), "items/s of `muster run`, output kept", "GNU Parallel with its log and results", 1.8),
    "command-ssh": Benchmark(
        ("command", "--ssh"), "files/s of 4 KiB through map over loopback ssh", "`tar | ssh` plus GNU Parallel", 1.0
    ),
    "pays": Benchmark(
        ("pays",),
        "times as fast with a far machine behind 100 Mbit/s as without, 200 ms of compute a MB",
        "as `coordinator plan` reckons it from the link it measured",
        0.9,
        page=("--to", str(DOCS / "pays")),
    ),
    "writer": Benchmark(("writer",), "MiB/s of rows into a layer, durably, by LayerWriter", "a buffer of 8 KiB", 0.9),
    "deploy": Benchmark(
        ("deploy",), "times a minute `deploy up` over five machines, nothing to change", "ansible, equal checks", 3.0
    ),
    "start": Benchmark(
        ("start",),
        "times a minute `agent join` to the first committed shard",
        "a bare ray.init and an actor's call",
        2.0,
    ),
    "start-processes": Benchmark(
        ("start", "--pool", "processes"),
        "times a minute `agent join --pool processes` to the first committed shard",
        "a bare ray.init and an actor's call",
        3.0,
    ),
    "pool": Benchmark(("pool",), "calls/s of one worker through the agent's Ray", "calls/s of a bare Ray's actor", 0.6),
    "ray-cluster": Benchmark(
        ("ray_cluster",), "shards/s of 20 ms and 4 MiB on a Ray cluster, inputs sent", "plain Ray tasks there", 1.0
    ),
    "ray-cluster-shared": Benchmark(
        ("ray_cluster", "--shared"),
        "shards/s of 20 ms and 4 MiB on a Ray cluster, a shared folder",
        "plain Ray tasks",
        1.3,
    ),
    "infer-agents": Benchmark(("infer", "--agents", "2"), "rows/s of two agents", "one agent with all cores", 1.0),
}


def main() -> int:
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in sys.argv[1:] or BENCHMARKS:
        if result := _run(name):
            kept[name] = {"ran": f"{datetime.date.today()}", "machine": machine(), **result}
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(_page({name: kept[name] for name in BENCHMARKS if name in kept}))
    print(f"wrote {PAGE.relative_to(PAGE.parents[1])}")
    return 0


def _run(name: str) -> dict[str, Any]:
    """The JSON of a benchmark's last line, with its other lines as they came; nothing where it cannot run."""
    module, *args = [*BENCHMARKS[name].args, *BENCHMARKS[name].page]
    print(f"== {name}", flush=True)
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{module}", *args], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode == CANNOT:
        return {}
    if process.returncode:
        raise SystemExit(f"{name} ended with {process.returncode}")
    result: dict[str, Any] = json.loads(lines[-1])
    return {**result, "lines": lines[:-1]}


def _page(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "The last lines of the benchmarks. Each is measured beside its peer in one run, in turn; the best of several.",
        "`ratio` is so that more is better. Written by `make bench`, or by `python -m benchmarks NAME` for some.",
        "`python -m benchmarks.compare REV NAME` says whether this checkout is slower than another revision.",
        "",
        "| benchmark | ours | peer | ratio | to reach | ran on |",
        "|---|---|---|---|---|---|",
    ]
    machines = sorted({result["machine"] for result in results.values()})
    for name, result in results.items():
        known = BENCHMARKS[name]
        ours = f"{_number(result['ours'])} {known.ours}"
        peer = f"{_number(result['peer'])} {known.peer}".replace("|", r"\|")
        place = f"{result['ran']}, machine {machines.index(result['machine']) + 1}"
        lines.append(f"| {name} | {ours} | {peer} | {result['ratio']:.3f} | {known.reach} | {place} |")
    lines += ["", *(f"{number}. {what}" for number, what in enumerate(machines, 1))]
    for name, result in results.items():
        picture = [f"![{name}]({name}.png)", ""] if (DOCS / f"{name}.png").exists() else []
        lines += ["", f"## {name}", "", *picture, "```json", json.dumps(result["parts"], indent=1), "```"]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Three digits at least, as far as they say anything."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
