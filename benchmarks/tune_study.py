"""The study of a search over several computers: an mlp on MNIST, 10 and 16 samples, 1 and 2 processors a trial.

    python -m benchmarks.tune_study [--rows 12000] [--iterations 40] [--plots docs/study] [--no-peer]

As there: learning rate, momentum and width drawn from the same ranges, 0.99 of *training* accuracy. Capped here, so
that all of it ends within twenty minutes on two cores: the rows, the iterations of a trial, and no dropout. The same
function, configurations and data on Ray Tune in the same run. Then `goal: first`, which is what the study wanted: it
ends with the first trial that is good enough. Writes tune.md beside the other study's pictures.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import CORES, add_no_peer, machine
from benchmarks.tune import TARGET, Asked, Searched, configurations, laid_out, ours_running, ray_tune

SAMPLES_AND_CPUS = ((10, 1), (16, 1), (16, 2))
THEIRS = {(10, 1): ("90.19", "4.58"), (16, 1): ("-", "34.89"), (16, 2): ("187.14, 25% faster than with 1", "-")}
HEADER = (
    "| samples | cpus a trial | side | seconds | first at the target, s | trials at it | iterations | tuning ratio |\n"
    "|---|---|---|---|---|---|---|---|"
)


def row(samples: int, cpus: int, side: str, one: Searched) -> str:
    ratio = f"{one.reached[-1] / one.reached[0]:.2f}" if one.reached else "-"
    first = f"{one.target:.1f}" if one.target is not None else "-"
    counts = f"{len(one.reached)} | {one.iterations:,}"
    return f"| {samples} | {cpus} | {side} | {one.wall:.1f} | {first} | {counts} | {ratio} |"


def rows_of(given: argparse.Namespace, data: str) -> list[str]:
    """Sides with one processor a trial are up for both numbers of samples; no two sides at once."""
    found: list[str] = []
    for cpus in (1, 2):
        with ExitStack() as stack:
            ours = stack.enter_context(ours_running(max(1, CORES // cpus), cpus)).search
            ray = None if given.no_peer else stack.enter_context(ray_tune()).search
            for samples, wanted in SAMPLES_AND_CPUS:
                if wanted != cpus:
                    continue
                configs = configurations(samples, given.seed, data=data)
                for goal in ("all", "first"):
                    asked = Asked("epoch", configs, given.iterations, TARGET, goal=goal, cpus=cpus)
                    found.append(
                        row(samples, cpus, "Muster" + (", `goal: first`" if goal == "first" else ""), ours(asked))
                    )
                    print(found[-1], flush=True)
                if ray is not None:
                    asked = Asked("epoch", configs, given.iterations, TARGET, cpus=cpus)
                    found.append(row(samples, cpus, "Ray Tune", ray(asked)))
                    print(found[-1], flush=True)
                seconds, ratio = THEIRS[samples, cpus]
                found.append(f"| {samples} | {cpus} | the study, on its machines | {seconds} | - | - | - | {ratio} |")
    return found


def page(found: list[str], given: argparse.Namespace) -> str:
    lines = [
        "# A search for an mlp's parameters",
        "",
        f"`python -m benchmarks.tune_study --rows {given.rows} --iterations {given.iterations}` on"
        f" {datetime.date.today()}, {machine()}:",
        f"MNIST's first {given.rows:,} rows, at most {given.iterations} iterations of a trial, to {TARGET:g} of",
        "training accuracy, as the study had it; that is no accuracy on rows that were not seen. Its own figures are",
        "of its machines, all rows and 300 iterations: they are beside ours to be seen, not to be compared.",
        "",
        HEADER,
        *found,
        "",
        "The tuning ratio is the most iterations that a trial needed to the target over the fewest. It grows with the",
        "number of trials, and says nothing of a system. `goal: first` ends the search with the first trial at the",
        "target, and stops what else runs.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=12_000)
    options.add_argument("--iterations", type=int, default=40)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--plots", type=Path, default=Path("study"))
    add_no_peer(options)
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-tune-rows-") as folder:
        found = rows_of(given, laid_out(Path(folder), given.rows, instead=False))
    given.plots.mkdir(parents=True, exist_ok=True)
    (given.plots / "tune.md").write_text(page(found, given))


if __name__ == "__main__":
    main()
