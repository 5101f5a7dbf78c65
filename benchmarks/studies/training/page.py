"""The page of the parameter server's study, made of its lines. Measures nothing."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.studies.pages import Cell, table
from benchmarks.studies.points import Line, Page
from benchmarks.studies.training.measuring import SERVER_SECONDS
from benchmarks.studies.training.settings import (
    ALONE,
    ALONE_RATE,
    EVERY,
    FEW,
    FEWER,
    GOAL,
    LONGER,
    MOST_RATE,
    MOST_SECONDS,
    RATE,
    RESNET,
    RESNET_ROWS,
    ROUNDS,
    ROWS,
    STRONG,
    STRONG_RATE,
    TARGET,
    THEIR_RATE,
    Scaling,
    Setting,
    name_of,
)
from muster.jobs.common.units import counted
from muster.jobs.contract.pictures import Curves, Picture
from muster.jobs.training.progress import BestMark, Point
from muster.jobs.training.report import Speedup, TrainingRun, pictures, speedups

BEST_THERE = (10, 4.0)  # workers, and how many times as fast as one they were
FEWER_THERE = 75.0  # times fewer bytes that are asked for, with at most so many more rows
MORE_ROWS = 0.10
REAL, REPLAYED = "real", "replayed"
TITLES = {"sync": "in rounds", "async": "asynchronously"}
GAINS = ("mode", "machines", "how", "seconds", "iterations", "speed-up", "there", "of it throughput", "of it steps")

Gains = Mapping[str, list[Speedup]]  # by how they were found


def page(lines: Mapping[str, Line]) -> Page:
    drawn: dict[str, Picture] = {}
    weak, strong = Runs.of(lines, "weak"), Runs.of(lines, "strong")
    body = [
        *_what(),
        *_weak(weak, Runs.of(lines, "weak", link=True), drawn),
        *_strong(strong, Runs.of(lines, "strong", link=True), drawn),
        *_theirs(Runs.of(lines, "weak", theirs=True), drawn),
        *_bytes(lines),
        *_resnets(lines),
        *_replayed_by(lines),
        *_worse(lines, weak, strong),
    ]
    return Page("A parameter server with 1 to 20 workers", body, drawn)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Of one kind of curve, with all numbers of machines and both modes."""

    target: float
    all: list[TrainingRun]  # their name says how they were found

    @classmethod
    def of(cls, lines: Mapping[str, Line], scaling: Scaling, link: bool = False, theirs: bool = False) -> Runs:
        """`theirs`: at the learning rate there."""
        found, target = [], TARGET
        for name, line in lines.items():
            how = name.split("/")[0]
            if how not in (REAL, REPLAYED):
                continue
            setting = msgspec.convert(line.settings, Setting)
            if (setting.scaling, setting.link, setting.rate == THEIR_RATE) == (scaling, link, theirs):
                target = setting.target
                found.append(run_of(how, setting, line))
        return cls(target, found)

    @property
    def gains(self) -> Gains:
        """Real machines beside a real one, replayed beside a replayed one; nothing where that one is not there."""
        found = {how: speedups([run for run in self.all if run.name == how], self.target) for how in (REAL, REPLAYED)}
        alone = {(how, one.run.mode) for how, gains in found.items() for one in gains if one.run.workers == 1}
        return {how: [one for one in gains if (how, one.run.mode) in alone] for how, gains in found.items()}

    def drawn(self, mode: str) -> list[TrainingRun]:
        """One for each number of machines: the real one, where there is one."""
        ordered = sorted(self.all, key=lambda run: (run.workers, run.name == REAL))
        return list({run.workers: run for run in ordered if run.marks and run.mode == mode}.values())


def run_of(how: str, setting: Setting, line: Line) -> TrainingRun:
    points = msgspec.convert(line.figures["points"], list[Point])
    marks = msgspec.convert(line.figures["marks"], list[BestMark])
    return TrainingRun(setting.mode, setting.machines, points, marks, name=how, unit="machine")


def _what() -> list[str]:
    return [
        "One convolution of 3 filters of 3 × 3, pooling and a dense layer on CIFAR-10, plain SGD. An iteration is a",
        f"round (`sync`) or the push of one worker (`async`). {ROUNDS:,} rounds, or as many pushes as make so many",
        f"rounds, or {MOST_SECONDS / 60:.0f} minutes. Evaluations, on the whole test set every {EVERY} rounds, are off",
        "the clock in both modes. The gradient is averaged; where the study added up the workers' gradients, the",
        "learning rate here is multiplied by the workers, which is the same step. `async` as there: nobody waits for",
        "anybody (`staleness: none`), and each gradient counts in full (`damped: false`). The first weights are those",
        "of one seed: with some seeds all of so few filters give nothing but zeros from the start.",
        "",
        "**Real**: as many real agents, each with its worker held to a core, up to as many as there are cores. The",
        "server has what they leave of them: with as many machines as cores, no core of its own.",
        "**Replayed**: every gradient is computed, in the order in which it would have come; when it comes is",
        "reckoned from what was measured of one real machine and of the real server (below). More machines than",
        "cores cannot be shown otherwise.",
        "",
    ]


def _weak(runs: Runs, linked: Runs, drawn: dict[str, Picture]) -> list[str]:
    return [
        f"## As there: {ROWS} rows a worker, whatever number of them",
        "",
        f"The learning rate is {RATE:g} for each worker's gradient, and at most {MOST_RATE:g} in all: there it ends to",
        f"grow with the workers. Seconds to an accuracy of {runs.target:g}; the best speed-up there was",
        f"{BEST_THERE[1]:g}, at {BEST_THERE[0]} workers. Up to {FEW} machines, which see few rows a round, go on for",
        f"{LONGER * ROUNDS:,} rounds. `of it throughput` are rows a second, `of it steps` the rows that one machine",
        "needed over those that these needed.",
        "",
        *_gains_table(runs, there=True),
        "Over links of 1 Gbit/s, the server's own and one of each machine, by ssh:",
        "",
        *_gains_table(linked, there=True),
        *_pictures(runs, "training-weak", drawn, there=True),
    ]


def _strong(runs: Runs, linked: Runs, drawn: dict[str, Picture]) -> list[str]:
    return [
        f"## The same {STRONG['workers'] * STRONG['microbatch']} rows a round, shared by the machines",
        "",
        f"{STRONG['workers']} virtual workers of {STRONG['microbatch']} rows, learning rate {STRONG_RATE:g}: in",
        "rounds the model is the same to the bit, whatever number of machines there is. `async` with the defaults:",
        "at most 2 rounds stale, and a stale contribution counts less.",
        "",
        *_gains_table(runs),
        "In rounds over links of 1 Gbit/s, as above:",
        "",
        *_gains_table(linked),
        *_pictures(runs, "training-strong", drawn),
    ]


def _gains_table(runs: Runs, there: bool = False) -> list[str]:
    """Of those that reached the target; the others are named below."""
    known = {1: 1.0, BEST_THERE[0]: BEST_THERE[1]} if there else {}
    gains = {id(one.run): one for found in runs.gains.values() for one in found}
    rows: list[list[Cell]] = []
    told = []
    for run in runs.all:
        one, mark = gains.get(id(run)), run.reached(runs.target)
        if mark is None:
            told.append(f"{run.mode}, {run.workers}, {run.name}: {max((m.accuracy for m in run.marks), default=0):.3f}")
            continue
        gain = [one.ratio, known.get(run.workers), one.throughput, one.steps] if one else [None] * 4
        rows.append([*_who(run), mark.seconds, mark.iteration, *gain])
    text = ["", f"Not reached, with the best accuracy: {'; '.join(told)}."] if told else []
    return [*table(GAINS, rows), *text, ""]


def _who(run: TrainingRun) -> list[Cell]:
    return [run.mode, run.workers, run.name]


def _pictures(runs: Runs, name: str, drawn: dict[str, Picture], there: bool = False) -> list[str]:
    """Accuracy over iterations and over time, iterations over time, the speed-up; and both modes on the same axes."""
    body = []
    for mode, title in TITLES.items():
        mine = runs.drawn(mode)
        for what in pictures(mine, None)[:3] if mine else []:
            slug, named = what.title.lower().replace(" ", "-"), _labelled(what, [run.short for run in mine])
            body += _drawn(drawn, f"{name}-{mode}-{slug}", named, f"{what.title}, {title}")
    gains = [one for found in runs.gains.values() for one in found]
    if gains:
        body += _drawn(drawn, f"{name}-speed-up", _speedup_picture(runs, there), f"Speed-up to {runs.target:g}")
    if mine := _side_by_side(runs):
        title = f"Sync beside async, {counted(mine[0].workers, 'machine')}, evaluations off the clock of both"
        labels = [f"{run.mode}, {run.name}" for run in mine]
        body += _drawn(drawn, f"{name}-both", _labelled(pictures(mine, None)[1], labels), title)
    return body


def _labelled(what: Picture, labels: Sequence[str]) -> Picture:
    """With what tells its curves apart."""
    assert isinstance(what, Curves)
    curves = [(label, points) for label, (_, points) in zip(labels, what.curves, strict=True)]
    return dataclasses.replace(what, curves=curves)


def _side_by_side(runs: Runs) -> list[TrainingRun]:
    """Both modes, replayed, with the number of machines with which either is fastest."""
    replayed = [run for run in runs.all if run.name == REPLAYED and run.marks]
    sync, other = ({run.workers for run in replayed if run.mode == mode} for mode in TITLES)
    reached = [
        (mark.seconds, run.workers)
        for run in replayed
        if run.workers in sync & other and (mark := run.reached(runs.target)) is not None
    ]
    return [run for run in replayed if reached and run.workers == min(reached)[1]]


def _drawn(drawn: dict[str, Picture], name: str, what: Picture, title: str) -> list[str]:
    drawn[name] = dataclasses.replace(what, title=title)
    return [f"{title}:", "", f"![{title}]({name}.svg)", ""]


def _speedup_picture(runs: Runs, there: bool) -> Curves:
    lines, most = [], 1.0
    for how, gains in runs.gains.items():
        for mode in dict.fromkeys(one.run.mode for one in gains):
            mine = [(float(one.run.workers), one.ratio) for one in gains if one.run.mode == mode]
            lines.append((f"{how}: {mode}", mine))
            most = max(most, *(workers for workers, _ in mine))
    lines += [("as many times as fast", [(1.0, 1.0), (most, most)])]
    lines += [("there, at its best", [(1.0, 1.0), BEST_THERE])] if there else []
    return Curves("Speed-up", "machines", "times as fast as one", lines)


def _theirs(runs: Runs, drawn: dict[str, Picture]) -> list[str]:
    rows = [
        [*_who(run), max(m.accuracy for m in run.marks), run.marks[-1].seconds, run.rate]
        for run in runs.all
        if run.marks
    ]
    mine, title = runs.drawn("sync"), f"Accuracy over iterations, rate {THEIR_RATE:g}"
    labels = [run.short for run in mine]
    return [
        "## At the learning rate there",
        "",
        f"{THEIR_RATE:g} for each worker's gradient, {ROWS} rows a worker: how far {ROUNDS:,} rounds come.",
        "",
        *table(("mode", "machines", "how", "best accuracy", "seconds", "iterations/s"), rows),
        "",
        *(_drawn(drawn, "training-their-rate", _labelled(pictures(mine, None)[0], labels), title) if mine else []),
    ]


@dataclasses.dataclass(frozen=True)
class Way:
    """To the accuracy with so many bytes: medians of its seeds."""

    name: str
    batch: int  # rows a step
    seconds: float
    rows: float
    mb: float
    accuracy: float


def ways(lines: Mapping[str, Line]) -> list[Way]:
    """The plain one first, if it is there."""
    found = []
    for name in FEWER:
        if line := lines.get(f"bytes/{name}"):
            middle = {what: statistics.median(line.figures[what]) for what in ("seconds", "rows", "MB", "accuracy")}
            found.append(Way(name, line.settings["microbatch"], **{what.lower(): one for what, one in middle.items()}))
    return found


def _bytes(lines: Mapping[str, Line]) -> list[str]:
    plain = next((way for way in ways(lines) if way.name == next(iter(FEWER))), None)
    rows: list[list[Cell]] = []
    reached = []
    for way in ways(lines):
        fewer, more = (plain.mb / way.mb, way.rows / plain.rows - 1) if plain else (None, None)
        told = f"{more:+.0%}" if more is not None else None
        rows.append([way.name, way.batch, way.seconds, way.mb, fewer, told, way.accuracy])
        if fewer is not None and more is not None and fewer >= FEWER_THERE and more <= MORE_ROWS:
            reached.append(f"`{way.name}` does, with {fewer:.0f} times fewer and {told} rows")
    asked = f"Asked for were {FEWER_THERE:g} times fewer with at most {MORE_ROWS:.0%} more rows: "
    return [
        "## Fewer bytes",
        "",
        f"MNIST to {GOAL:g}, the mlp 784-448-160-10, two real machines behind real links of 1 Gbit/s, over ssh. Bytes",
        "are all that one machine's link carried, both ways. Medians of three seeds. `h1-32bits` is a gradient in",
        "float32 each step, with the rows a step that it does best with; with as few as the long local steps have, it",
        "would move more bytes.",
        "",
        *table(("way", "rows a step", "seconds", "MB a machine", "times fewer", "rows seen", "accuracy"), rows),
        "",
        *([f"{asked}{'; '.join(reached) or 'none does'}.", ""] if plain else []),
    ]


def _resnets(lines: Mapping[str, Line]) -> list[str]:
    rows: list[list[Cell]] = [
        [line.settings["machines"], line.figures["iterations/s"], line.figures["points"][-1][1], line.figures["best"]]
        for name, line in lines.items()
        if name.startswith("resnet18/")
    ]
    return [
        "## ResNet-18",
        "",
        f"Real: torch, {RESNET['workers']} virtual workers of {RESNET['microbatch']} rows, {RESNET['rounds']} rounds",
        f"on {RESNET_ROWS:,} rows of CIFAR-10. Too short to learn much: it shows the pace.",
        "",
        *table(("machines", "rounds/s", "seconds", "accuracy"), rows),
        "",
    ]


def _replayed_by(lines: Mapping[str, Line]) -> list[str]:
    costs: list[list[Cell]] = [
        [name.removeprefix("costs/"), line.figures["compute ms"], line.figures["beside ms"]]
        for name, line in lines.items()
        if name.startswith("costs/")
    ]
    server: list[list[Cell]] = [
        [line.settings["mode"], line.settings["machines"], line.figures["server ms"], line.figures["rounds/s"]]
        for name, line in lines.items()
        if name.startswith("server/")
    ]
    return [
        "## What is replayed by",
        "",
        "Of one real machine: what a contribution takes it, and what a round takes beside. A machine's share of a",
        "replayed round takes that for its contributions, times how much longer or shorter than their mean a real",
        "round was, one drawn for each share. Where 60 contributions are shared, both times are those of the line",
        "through rounds of 60 and of 3. Asynchronously each contribution is such a share; before an evaluation all",
        "that is out comes in, on the clock, as with real machines.",
        "",
        *table(("scaling, mode", "a contribution, ms", "beside, ms"), costs),
        "",
        "Of the real server: processor time of daemon, driver and connections for what one machine hands in, with",
        f"so many simulated machines by folder that take {SERVER_SECONDS:g} s for one row. It takes in one after the",
        "other, and over a link it is busy for at least as long as that carries the weights and the contribution; what",
        f"sshd takes for more than one machine is left out. Rounds a second, beside the {1 / SERVER_SECONDS:g} that",
        "are possible, show that it keeps up with machines that share its cores.",
        "",
        *table(("mode", "machines", "server, ms", "rounds/s"), server),
        "",
    ]


def _worse(lines: Mapping[str, Line], weak: Runs, strong: Runs) -> list[str]:
    told = [
        *_slower_alone(lines),
        *_by_rate(lines, weak),
        *_beaten(weak),
        *_uneven(weak, strong),
        *_slow_modes(weak, strong),
        *_slow_ways(lines),
    ]
    return [
        "## Where ours is worse",
        "",
        *(f"- {one}" for one in told),
        *([] if told else ["Nothing that is measured says so yet."]),
        "",
        "What is replayed leaves out what other machines than this one would be: their noise, their network, their",
        "failures.",
        "",
    ]


def _slower_alone(lines: Mapping[str, Line]) -> list[str]:
    if (line := lines.get("costs/weak/sync")) is None:
        return []
    compute, beside = line.figures["compute ms"], line.figures["beside ms"]
    return [
        f"A step takes {compute:.1f} ms, and its round through the server {beside:.1f} ms beside: in a loop of plain"
        f" numpy one machine would train so small a model {1 + beside / compute:.1f} times as fast."
    ]


def _by_rate(lines: Mapping[str, Line], weak: Runs) -> list[str]:
    """What one machine would gain by a rate of its own."""
    names = {ALONE_RATE: ALONE, RATE: name_of("course", Setting())}
    scores = {rate: lines[name].figures["scores"] for rate, name in names.items() if name in lines}
    needed = {
        rate: next((at for at, _, accuracy in found if accuracy >= weak.target), None) for rate, found in scores.items()
    }
    alone, one = needed.get(ALONE_RATE), needed.get(RATE)
    if alone is None or one is None or alone >= one:
        return []
    return [
        f"One machine alone needs {alone:,} rounds with a learning rate of {ALONE_RATE:g}, and {one:,} with the"
        f" {RATE:g} that it has in the table: that much of a speed-up there is the rate's, which grows with machines."
    ]


def _beaten(weak: Runs) -> list[str]:
    workers, best = BEST_THERE
    mine = [one for one in weak.gains[REPLAYED] if one.run.workers == workers and one.ratio < best]
    return [
        f"{one.run.mode} with {workers} machines is {one.ratio:.2g} times as fast as one, there {best:g}."
        for one in mine
    ]


def _uneven(*kinds: Runs) -> list[str]:
    """Where real machines gained less than those that were replayed."""
    told = []
    for runs, name in zip(kinds, ("weak", "strong"), strict=True):
        replayed = {(one.run.mode, one.run.workers): one.ratio for one in runs.gains[REPLAYED]}
        for one in runs.gains[REAL]:
            other = replayed.get((one.run.mode, one.run.workers), 0.0)
            if one.ratio < 0.9 * other:
                said = f"{one.run.workers} real machines are {one.ratio:.2f} times as fast as one, replayed {other:.2f}"
                told.append(f"{name}, {one.run.mode}: {said}. They share their cores with the server.")
    return told


def _slow_modes(*kinds: Runs) -> list[str]:
    told = []
    for runs, name in zip(kinds, ("weak", "strong"), strict=True):
        seconds = {(one.run.mode, one.run.workers): one.seconds for one in runs.gains[REPLAYED]}
        slow = [
            str(n) for (mode, n), took in seconds.items() if mode == "async" and took > seconds.get(("sync", n), took)
        ]
        if slow:
            told.append(f"{name}: `async` is behind `sync` with {', '.join(slow)} machines.")
    return told


def _slow_ways(lines: Mapping[str, Line]) -> list[str]:
    found = ways(lines)
    return [
        f"`{way.name}` moves fewer bytes and takes {way.seconds:.1f} s, `{found[0].name}` {found[0].seconds:.1f} s."
        for way in found[1:]
        if way.seconds > found[0].seconds
    ]
