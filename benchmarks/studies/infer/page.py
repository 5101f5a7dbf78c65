"""The page of the study of batched inference, made of its lines. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import msgspec

from benchmarks.studies.infer.settings import OTHER_LINKS, PAIRS, Link, Setting
from benchmarks.studies.pages import Cell, table
from benchmarks.studies.points import Line, Page
from muster.jobs.contract.pictures import Bars, Curves, Picture

THERE = {"one": 1519.0, "ten": 15201.0, "two": 14749.0}  # rows a second that the study had
LABELS = {
    "one": "one actor, a row a call",
    "ten": "10 actors, 10 rows a call",
    "two": "the same on two machines",
    "own": "our own settings, one machine",
    "own two": "our own settings, two machines",
    "own whole": "our own settings, one machine with all cores",
}
BARS = {  # in few letters
    "one": "one actor",
    "ten": "10 actors",
    "two": "10 actors, 2 machines",
    "own": "own settings",
    "own two": "own, 2 machines",
    "own whole": "own, all cores",
}
SIDES = {"ray": "Ray here", "ours": "ours"}
LINKS: dict[Link, str] = {
    "link": "behind its link",
    "copy": "with a copy of the source",
    "folder": "by a shared folder",
}
ROW_BYTES = 3136
LINK_ROWS = 38_000  # a second that a link of 1 Gbit/s brings at most
RUNS = (
    "setting",
    "rows",
    "side",
    "rows/s",
    "over there",
    "processor",
    "network's peak, MB/s",
    "one row, ms",
    "succeeded",
)


def page(lines: Mapping[str, Line]) -> Page:
    drawn: dict[str, Picture] = {}
    body = [*_what(), *_runs(lines, drawn), *_gains(lines, drawn), *_sweep(lines, drawn), *_worse(lines)]
    return Page("Batched inference", body, drawn)


def _what() -> list[str]:
    return [
        "An MLP of 784-448-160-10, 425,130 parameters, over rows of 784 float32: from submit to the merged, durable",
        "result, each run; the mean of the runs, with the smallest and the largest. *There*: what the study had",
        "with Ray on its machines. Ray here: rows in memory to results in memory, nothing is kept.",
        "",
        "All of it is real: nothing is replayed. **A machine is one core** of this one. The first machine shares its",
        "core with the server and reads by folder, without a network. The second has the other core, and a network",
        "namespace of its own behind a link of 1 Gbit/s, over which it comes by ssh and pulls its rows, in each run",
        "anew. What more cores or more than two machines would do cannot be shown here. With 10 workers on one core,",
        "as there, these take turns. A call is a batch here, within a shard; each worker has some four shards.",
        "Workers are plain processes (`--pool processes`). Processor: of what the machines' cores had, by daemon,",
        "agents and connections. One row: a job of a single row, from submit to its merged result; of Ray, a call.",
        "",
    ]


def mean(line: Line) -> float:
    """Rows a second."""
    return statistics.mean(line.figures["rates"])


def spread(line: Line) -> str:
    """The mean, and how far runs were from it."""
    rates = line.figures["rates"]
    return f"{mean(line):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})" if len(rates) > 1 else f"{mean(line):,.0f}"


def sizes(lines: Mapping[str, Line]) -> list[int]:
    return sorted({setting.rows for name, setting in _settings(lines) if not name.startswith("sweep/")})


def _settings(lines: Mapping[str, Line]) -> Iterator[tuple[str, Setting]]:
    return ((name, msgspec.convert(line.settings, Setting)) for name, line in lines.items())


def _runs(lines: Mapping[str, Line], drawn: dict[str, Picture]) -> list[str]:
    rows: list[Sequence[Cell]] = []
    pictures = []
    for size in sizes(lines):
        bars: list[tuple[str, float]] = []
        for name, label in LABELS.items():
            found = [(side, line) for side in SIDES if (line := lines.get(f"{side}/{size}/{name}"))]
            there = THERE.get(name)
            if found and there:
                rows.append([label, size, "there", there, 1.0, None, None, None, None])
                bars.append((f"there: {BARS[name]}", there))
            for side, line in found:
                times = mean(line) / there if there else None
                rows.append([label, size, SIDES[side], spread(line), times, *_more(line)])
                bars.append((f"{side}: {BARS[name]}", mean(line)))
        if bars:
            pictures += _drawn(drawn, f"infer-{size}", Bars(f"Rows a second, {size:,} rows", "", bars))
    return ["## Runs", "", *table(RUNS, rows), "", *pictures]


def _more(line: Line) -> list[Cell]:
    figures = line.figures
    return [f"{figures['processor']:.0%}", figures["peak MB/s"], figures["one row ms"], f"{figures['succeeded']:.0%}"]


def _drawn(drawn: dict[str, Picture], name: str, what: Bars | Curves) -> list[str]:
    drawn[name] = what
    return [f"![{what.title}]({name}.svg)", ""]


def gains(lines: Mapping[str, Line]) -> list[tuple[int, str, Link, Line, Line]]:
    """Runs of one machine and of two at the same settings: rows, the name on one, how the second had the rows."""
    found = []
    for size, (one, two), link in product(sizes(lines), PAIRS, LINKS):
        name = f"gain/{size}/{two}/{link}" if (two, link) in OTHER_LINKS else f"ours/{size}/{two}"
        alone, both = lines.get(f"ours/{size}/{one}"), lines.get(name)
        if alone and both and both.settings["link"] == link:
            found.append((size, one, link, alone, both))
    return found


def _gains(lines: Mapping[str, Line], drawn: dict[str, Picture]) -> list[str]:
    """Of a second machine, beside what it cost there."""
    there = THERE["two"] / THERE["ten"]
    rows: list[Sequence[Cell]] = [["there: 10 actors, two nodes", None, THERE["ten"], THERE["two"], there, None]]
    bars = [("there", there)]
    for size, name, link, alone, both in gains(lines):
        times, told = mean(both) / mean(alone), f"{LABELS[name].split(', one machine')[0]}, {LINKS[link]}"
        rows.append([told, size, mean(alone), mean(both), times, both.figures["peak MB/s"]])
        bars.append((f"{size:,} rows, {BARS[name]}, {link}", times))
    header = ("a second machine", "rows", "rows/s of one", "rows/s of two", "times", "network's peak, MB/s")
    measured = rows if len(rows) > 1 else []
    return [
        "## A second machine",
        "",
        f"There a second node cost {1 - there:.0%}. A row is {ROW_BYTES:,} bytes, so a link of 1 Gbit/s brings at most",
        f"some {LINK_ROWS:,} a second to it, however many it could compute. With a copy of the source there (`agent",
        "join --have`) only results cross the link.",
        "",
        *table(header, measured),
        "",
        *(_drawn(drawn, "infer-gain", Bars("Times as fast with a second machine", "", bars)) if measured else []),
    ]


def _sweep(lines: Mapping[str, Line], drawn: dict[str, Picture]) -> list[str]:
    found: dict[int, dict[tuple[int, int], float]] = {}
    counts = set()
    for name, setting in _settings(lines):
        if name.startswith("sweep/"):
            found.setdefault(setting.machines, {})[setting.workers, setting.batch] = mean(lines[name])
            counts.add(setting.rows)
    told = " and ".join(f"{count:,}" for count in sorted(counts))
    body = ["## Workers × rows a call × machines", ""]
    if not found:
        return [*body, *table((), []), ""]
    body += [f"Rows a second, one run each of {told} rows; the second machine is behind its link.", ""]
    for machines, rates in found.items():
        workers, batches = (sorted(set(one)) for one in zip(*rates, strict=True))
        header = (f"{machines} machines: workers" if machines > 1 else "1 machine: workers", *map(str, batches))
        cells: list[list[Cell]] = [[str(n), *(rates.get((n, batch)) for batch in batches)] for n in workers]
        curves = [
            (f"{batch:,} rows a call", [(float(n), rates[n, batch]) for n in workers if (n, batch) in rates])
            for batch in batches
        ]
        picture = Curves(f"Rows a second, machines: {machines}", "workers", "rows/s", curves)
        body += [*table(header, cells), "", *_drawn(drawn, f"infer-sweep-{machines}", picture)]
    return body


def _worse(lines: Mapping[str, Line]) -> list[str]:
    told = [*_latency(lines), *_start(lines), *_ray_ahead(lines), *_no_gain(lines)]
    return [
        "## Where ours is worse",
        "",
        *(f"- {one}" for one in told or ["Nothing that is measured says so yet."]),
        "",
    ]


def _latency(lines: Mapping[str, Line]) -> list[str]:
    """Of a single row, where both sides have it."""
    for size in sizes(lines):
        for name in LABELS:
            ours, ray = (lines.get(f"{side}/{size}/{name}") for side in ("ours", "ray"))
            if ours and ray:
                row, call = (f"{line.figures['one row ms']:.3g} ms" for line in (ours, ray))
                return [
                    f"One row alone is a whole job here, planned, durably committed and merged: {row}, beside {call} of"
                    " a call of Ray's actor. Who wants single answers wants a server of models."
                ]
    return []


def _start(lines: Mapping[str, Line]) -> list[str]:
    """What of a run a job of one row takes as well."""
    found = [(size, line) for size in sizes(lines) if (line := lines.get(f"ours/{size}/own"))]
    shares = [f"{line.figures['one row ms'] / 1000 * mean(line) / size:.0%} of {size:,} rows" for size, line in found]
    return [f"A job's start and merge are in every figure: at our own settings {', '.join(shares)}."] if shares else []


def _ray_ahead(lines: Mapping[str, Line]) -> list[str]:
    told = []
    for size, (name, label) in product(sizes(lines), LABELS.items()):
        ours, ray = (lines.get(f"{side}/{size}/{name}") for side in ("ours", "ray"))
        if ours and ray and mean(ray) > mean(ours):
            told.append(f"{label}, {size:,} rows: Ray here has {mean(ray) / mean(ours):.2g} times our rows/s.")
    return told


def _no_gain(lines: Mapping[str, Line]) -> list[str]:
    return [
        f"{LABELS[name]}, {size:,} rows: a second machine {LINKS[link]} gains nothing ({mean(both) / mean(alone):.2f})."
        for size, name, link, alone, both in gains(lines)
        if mean(both) <= mean(alone)
    ]
