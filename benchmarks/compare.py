"""Whether this checkout is worse than another revision, by any benchmark, run on both in turn.

    python -m benchmarks.compare [--pairs 7] [--seconds 15] [--own-code] REV NAME [arguments of the benchmark …]

    python -m benchmarks.compare v0.1.0 dispatch
    python -m benchmarks.compare --pairs 9 HEAD~1 cluster-ssh --values 1024

NAME is a benchmark of `make bench` or a module of benchmarks/; options of this program stand before REV. The new side
is this working tree as it is, with what is not committed: leave it alone meanwhile. The old side is REV in a temporary
git worktree. Each has an environment of its own, checked to have that tree's product (benchmarks/checkouts.py).

Both sides run the benchmarks of this tree, so that what is measured, and how, is the same, and peers are left out on
both. Benchmarks use the product's inside, though: where this tree's do not load on the old product, as across a move
of its modules, each side runs its own, and the output says so; `--own-code` asks for that. `--no-peer` and `--runs 1`
are given to whichever side has them.

A pair is one run of each side, and the side that goes first changes from pair to pair. A run takes about `--seconds` at
least: a first run of the new side, not counted, shows its rate and thereby the size to ask for, unless the arguments
say the size. Benchmarks whose figure is no rate (scale, memory, reach) run at their own size.

Compared are `ours`, in the unit that `make bench` has for it, and `cpu`, the processor seconds of the daemon and the
agents for one of what `ours` counts (a shard, a row, a round), where both sides give it. A ratio is new over old, or
old over new where less is better, so that less than 1 is worse. A figure is worse where the whole 90% interval of its
median ratio is below 0.95 (benchmarks/verdict.py). The last line is JSON; `worse` is true if any figure is worse, and
null with fewer than five pairs, which cannot say. Exit codes: 0 not worse, 1 worse, 2 it could not be run, 3 too few
pairs, 77 the benchmark cannot run here, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.__main__ import BENCHMARKS
from benchmarks.checkouts import Checkout, CheckoutError, installed, linked_code, stopped_at_end, tree_of
from benchmarks.measure import CANNOT, machine
from benchmarks.verdict import CONFIDENCE, LEAST, Pair, Verdict, judge

TREE = Path(__file__).resolve().parents[1]
IN_SECONDS = "--seconds"
SIZES = {  # by module, the option that says how long a run is: seconds, or how many of what `ours` has by the second
    "cluster": IN_SECONDS,
    "command": "--commands",
    "dispatch": "--shards",
    "executor": "--calls",
    "infer": "--rows",
    "lockstep": "--rounds",
    "pull": "--mib",
    "run": "--commands",
    "tail": "--shards",
    "train": "--rounds",
}
SSH_SIZES = {"command": "--files"}
SPARE = 1.1  # of the size, as the other side may be faster
NOT_RUN, TOO_FEW, INTERRUPTED = 2, 3, 130  # exit codes


@dataclass(frozen=True)
class Subject:
    """What is run, and how to read its `ours`."""

    module: str
    args: tuple[str, ...]
    unit: str
    less_is_better: bool

    @property
    def size(self) -> str | None:
        """The option for the size of a run, unless the arguments have it."""
        found = SSH_SIZES.get(self.module) if "--ssh" in self.args else None
        found = found or SIZES.get(self.module)
        return found if found is not None and not self.has(found) else None

    def has(self, option: str) -> bool:
        return any(word.split("=")[0] == option for word in self.args)


@dataclass(frozen=True)
class Side:
    """One checkout, with the benchmark's code that runs on it and the options that both have to be given."""

    checkout: Checkout
    code: Path
    words: tuple[str, ...]

    def run(self, *more: str) -> dict[str, Any]:
        """The JSON of the last line."""
        with stopped_at_end(self.checkout.start(self.code, *self.words, *more)) as process:
            said, _ = process.communicate()
        if process.returncode == CANNOT:
            print(said, end="", flush=True)
            sys.exit(CANNOT)
        if process.returncode:
            raise CheckoutError(f"{self.checkout.name}: the benchmark ended with {process.returncode}\n{said}")
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found


# --- what is run -------------------------------------------------------------------------------------------------


def subject_of(name: str, args: Sequence[str]) -> Subject:
    """A benchmark of the table, or a module, whose unit and direction are those of its first line in the table."""
    if name in BENCHMARKS:
        known = BENCHMARKS[name]
        return Subject(known.args[0], (*known.args[1:], *args), known.ours, known.less_is_better)
    first = next((known for known in BENCHMARKS.values() if known.args[0] == name), None)
    if first is None:
        return Subject(name, tuple(args), "`ours`, taken for a rate", less_is_better=False)
    return Subject(name, tuple(args), first.ours, first.less_is_better)


def sides_of(old: Checkout, new: Checkout, subject: Subject, folder: Path, own_code: bool) -> tuple[Side, Side]:
    """Both with this tree's code where it loads on the old product, else each with its own."""
    new_code, old_code = linked_code(new.tree, folder / "new-code"), linked_code(old.tree, folder / "old-code")
    ours = _side(new, new_code, subject)
    if not own_code:
        try:
            return _side(old, new_code, subject), ours
        except CheckoutError as error:
            print(f"the old side runs its own benchmarks: {str(error).splitlines()[-1]}", flush=True)
    return _side(old, old_code, subject), ours


def _side(checkout: Checkout, code: Path, subject: Subject) -> Side:
    words = ["-m", f"benchmarks.{subject.module}"]
    options = _options(checkout, code, words)
    more = ["--no-peer"] if "--no-peer" in options and not subject.has("--no-peer") else []
    more += ["--runs", "1"] if "--runs" in options and not subject.has("--runs") else []
    return Side(checkout, code, (*words, *subject.args, *more))


def _options(checkout: Checkout, code: Path, words: Sequence[str]) -> set[str]:
    """The options that its help names. It must load for that, with all that it imports of the product."""
    with stopped_at_end(checkout.start(code, "-c", HELP, *words[1:], "--help")) as process:
        said, _ = process.communicate()
    if process.returncode:
        raise CheckoutError(f"{checkout.name}: {words[-1]} does not load there\n{said}")
    return set(re.findall(r"--[a-z][a-z-]*", said.partition("\noptions:")[2]))


# What fails to load says so on stdout, in one line
HELP = """
import runpy, sys
del sys.argv[0]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except ImportError as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(1)
"""


def sized(side: Side, subject: Subject, seconds: float) -> tuple[str, ...]:
    """The option that lets a run take so long; tried out with a run where the benchmark's own option is no time."""
    if subject.size is None:
        return ()
    if subject.size == IN_SECONDS:
        return IN_SECONDS, str(seconds)
    rate = side.run()["ours"]
    return subject.size, str(math.ceil(SPARE * rate * seconds))


# --- the pairs ---------------------------------------------------------------------------------------------------


def compare(old: Side, new: Side, subject: Subject, size: Sequence[str], count: int) -> dict[str, list[Pair]]:
    """Each figure's pairs, shown as they come."""
    pairs: dict[str, list[Pair]] = {}
    less = {"ours": subject.less_is_better, "cpu": True}
    print(f"{'pair':>4}  first  {'figure':6}  {'old':>12}  {'new':>12}  ratio", flush=True)
    for number in range(1, count + 1):
        sides = {"old": old, "new": new} if number % 2 else {"new": new, "old": old}
        found = {name: side.run(*size) for name, side in sides.items()}
        for figure in shared_figures(found):
            pair = Pair(found["old"][figure], found["new"][figure])
            pairs.setdefault(figure, []).append(pair)
            ratio = pair.ratio(less[figure])
            line = f"{figure:6}  {pair.old:>12,.6g}  {pair.new:>12,.6g}  {ratio:.3f}"
            print(f"{number:>4}  {next(iter(sides)):5}  {line}", flush=True)
    return pairs


def shared_figures(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What can be compared: `ours`, and `cpu` where all have it and it is more than nothing."""
    return ["ours", *(["cpu"] if all(values.get("cpu") for values in found.values()) else [])]


def summary(pairs: Mapping[str, Sequence[Pair]], subject: Subject) -> dict[str, Any]:
    """The last line: each figure's verdict, and whether any is worse, or null where none can be told."""
    verdicts = {"ours": judge(pairs["ours"], subject.less_is_better)}
    if "cpu" in pairs:
        verdicts["cpu"] = judge(pairs["cpu"], less_is_better=True)
    told = [verdict.worse for verdict in verdicts.values()]
    worse = None if None in told else any(told)
    return {"worse": worse, **{name: _described(one, pairs[name]) for name, one in verdicts.items()}}


def _described(verdict: Verdict, pairs: Sequence[Pair]) -> dict[str, Any]:
    interval = verdict.interval and [round(end, 4) for end in verdict.interval]
    sides = {"old": [pair.old for pair in pairs], "new": [pair.new for pair in pairs]}
    return {"worse": verdict.worse, "median": round(verdict.median, 4), "interval": interval, **sides}


def render(found: Mapping[str, Any], subject: Subject) -> str:
    units = {
        "ours": f"{subject.unit}; {'less' if subject.less_is_better else 'more'} is better",
        "cpu": "processor seconds of daemon and agents for one of these; less is better",
    }
    lines = []
    for name in units.keys() & found.keys():
        one = found[name]
        interval = "{:.3f} to {:.3f}".format(*one["interval"]) if one["interval"] else "too few pairs"
        lines.append(
            f"{name}: median ratio {one['median']:.3f}, {CONFIDENCE:.0%} interval {interval}; "
            f"worse than {LEAST}: {_word(one['worse'])} ({units[name]})"
        )
    return "\n".join([*sorted(lines, reverse=True), f"worse: {_word(found['worse'])}"])


def _word(worse: bool | None) -> str:
    return {True: "yes", False: "no", None: "cannot tell"}[worse]


# --- all of it ---------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None, tree: Path = TREE) -> int:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--pairs", type=int, default=7)
    options.add_argument("--seconds", type=float, default=15.0, help="that a run takes at least, about")
    options.add_argument("--own-code", action="store_true", help="each side runs the benchmarks of its own tree")
    options.add_argument("revision", metavar="REV")
    options.add_argument("name", metavar="NAME")
    options.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the benchmark")
    given = options.parse_args(words)
    if given.pairs < 1:
        options.error("--pairs must be 1 at least")
    _end_in_order()
    try:
        found = measure(tree, subject_of(given.name, given.args), given)
    except CheckoutError as error:
        print(error, file=sys.stderr)
        return NOT_RUN
    except KeyboardInterrupt:
        print("interrupted: nothing is left of it", file=sys.stderr)
        return INTERRUPTED
    print(json.dumps({"revision": given.revision, "name": given.name, **found}), flush=True)
    return {True: 1, False: 0, None: TOO_FEW}[found["worse"]]


def _end_in_order() -> None:
    """Ctrl-C is heeded even where whoever started this does not, and SIGTERM takes the worktree away, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def measure(tree: Path, subject: Subject, given: argparse.Namespace) -> dict[str, Any]:
    print(machine(), flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-compare-")))
        old_tree = stack.enter_context(tree_of(tree, given.revision, folder / "old"))
        old = installed("old", old_tree, folder / "old-environment")
        new = installed("new", tree, folder / "new-environment")
        before, after = sides_of(old, new, subject, folder, given.own_code)
        size = sized(after, subject, given.seconds)
        for side in (before, after):
            print(f"{side.checkout.name}: {shlex.join([*side.words, *size])}", flush=True)
        found = summary(compare(before, after, subject, size, given.pairs), subject)
    print(render(found, subject), flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
