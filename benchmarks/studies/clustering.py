"""Eight million clusterings of 2.1 TB, said from measured rates: processor days, link hours, machines, export.

Nobody has run all of it: the rates are of minutes, and the page multiplies.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import shaped, writer
from benchmarks.cluster import Ours, Setting, sklearn_rate, write_source
from benchmarks.measure import CORES
from benchmarks.pull import MIB, Field
from benchmarks.served import served
from benchmarks.studies.pages import Cell, table
from benchmarks.studies.points import Figures, Line, Page, Point, Study
from muster.jobs.common.units import format_duration
from muster.jobs.contract.pictures import Bars, Picture
from tests.support.farm import running

ROWS, VALUES, CLUSTERS = 8_000_000, 65_536, 128
BYTES = ROWS * VALUES * 4
RESULT_BYTES = ROWS * (CLUSTERS * 12 + 12)  # centers, counts, inertia, iterations
MACHINES = (1, 4, 16)
LINK = "1gbit"
DAY, HOUR = 86400.0, 3600.0
COMPUTING, PEER, CARRIED, EXPORT = "computing", "scikit-learn", "link", "export"
COMPUTED = {
    COMPUTING: "computing, from submit to merged result",
    PEER: "the same by scikit-learn under joblib",
}
EXPORT_LABELS = {
    "text": "text, a line of `repr` of each value",
    "8KiB": "float32 through a buffer of 8 KiB",
    "64MiB": "float32 through a buffer of 64 MiB",
    "LayerWriter": "float32 by Muster's `LayerWriter`",
}


def points(short: bool) -> list[Point]:
    size = {"values": VALUES, "names": 4 * CORES, "clusters": CLUSTERS, "runs": 3, "cores": CORES, "file_mib": 1024}
    mib, runs = (8, 1) if short else (512, 3)
    if short:
        size |= {"values": 1024, "names": 1, "clusters": 8, "runs": 1, "file_mib": 16}
    return [
        Point(COMPUTING, size),
        Point(PEER, size),
        Point(CARRIED, {"rate": LINK, "mib": 2 * mib, "runs": runs}),
        Point(EXPORT, {"mib": mib, "values": 1024, "runs": runs}),
    ]


# --- measuring ------------------------------------------------------------------------------------------------


def measure(point: Point, scratch: Path, lines: Mapping[str, Line]) -> Figures:
    how = {COMPUTING: _computed, PEER: _by_peer, CARRIED: _carried, EXPORT: _exported}[point.name]
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        return how(Namespace(**point.settings), Path(folder))


def _source(given: Namespace, folder: Path) -> tuple[Setting, Path]:
    """The rows, made once for all points."""
    setting = Setting(given.values, given.clusters, given.names, given.file_mib * MIB)
    kept = folder.parent / "rows"
    if kept.exists():
        return setting, kept / "rows.npy"
    kept.mkdir()
    return setting, write_source(kept, setting)


def _computed(given: Namespace, folder: Path) -> Figures:
    setting, file = _source(given, folder)
    with served(folder / "farm") as farm:
        ours = Ours(farm, file, setting)
        return {"rates": [ours.rate() for _ in range(given.runs)]}


def _by_peer(given: Namespace, folder: Path) -> Figures:
    setting, file = _source(given, folder)
    found = [sklearn_rate(file, setting) for _ in range(given.runs)]
    return {"rates": [rate for rate, _ in found], "inertia of ours over its": found[0][1]}


def _carried(given: Namespace, folder: Path) -> Figures:
    """MiB a second over ssh into a spool, through a link of that rate."""
    with (
        running(folder / "farm", lease=600.0, heartbeat=60.0) as farm,
        shaped.running(folder / "sshd", given.rate, ["agent"]) as net,
    ):
        field = Field(folder, farm, net.sshd, given.mib * MIB, 1, net.machines[0].enter)
        return {"rates": [field.ours() for _ in range(given.runs)]}


def _exported(given: Namespace, folder: Path) -> Figures:
    """As `python -m benchmarks.writer` does it, with the bytes that each way writes."""
    rates = writer.rates_of(folder, given.mib, given.values, given.runs)
    rows, path = writer.random_rows(1, given.values), folder / "layer"
    found = {}
    for name, write in writer.WAYS.items():
        write(path, rows)
        found[name] = {"rates": rates[name], "bytes a value": round(path.stat().st_size / rows.size, 2)}
        path.unlink()
    return {"ways": found}


# --- the page -------------------------------------------------------------------------------------------------


def best(line: Line | None) -> float | None:
    return max(line.figures["rates"]) if line else None


def page(lines: Mapping[str, Line]) -> Page:
    pictures: dict[str, Picture] = {}
    body = [*_what(), *_steps(lines), *_machines(lines, pictures), *_export(lines, pictures), *_worse(lines)]
    return Page("Eight million clusterings", body, pictures)


def _what() -> list[str]:
    return [
        f"{ROWS:,} rows of {VALUES:,} float32, {BYTES / 1e12:.1f} TB, each clustered into {CLUSTERS}. **Nobody has",
        "run all of it**: rates are the best of runs of minutes, on files in memory, and everything else on this",
        "page is multiplied from them.",
        "",
    ]


def _steps(lines: Mapping[str, Line]) -> list[str]:
    rows: list[Sequence[Cell]] = []
    for name, label in COMPUTED.items():
        if found := best(lines.get(name)):
            seconds = ROWS / found
            cores = lines[name].settings["cores"]
            days = f"{seconds * cores / DAY:.3g} processor days"
            rows.append([label, f"{found:,.4g} rows/s of {cores} cores", format_duration(seconds), days])
    if found := best(lines.get(CARRIED)):
        for label, nbytes in (("the rows over a link of 1 Gbit/s", BYTES), ("the results back", RESULT_BYTES)):
            seconds = link_seconds(found, nbytes)
            rows.append([label, f"{found:.0f} MiB/s", format_duration(seconds), f"{seconds / HOUR:.3g} link hours"])
    return ["## What it takes", "", *table(("step", "measured", "for all of it", "which is"), rows), ""]


def link_seconds(mib_a_second: float, nbytes: float = BYTES) -> float:
    return nbytes / (mib_a_second * MIB)


def job_seconds(machines: int, rows_a_second: float, mib_a_second: float) -> float:
    """The one machine has the rows; several are behind the server's own link, which brings all rows to all of them, and
    compute meanwhile."""
    computing = ROWS / (rows_a_second * machines)
    return computing if machines == 1 else max(computing, link_seconds(mib_a_second))


def _machines(lines: Mapping[str, Line], pictures: dict[str, Picture]) -> list[str]:
    ours, peer, link = (best(lines.get(name)) for name in (COMPUTING, PEER, CARRIED))
    if not (ours and link):
        return []
    rows: list[Sequence[Cell]] = []
    bars = []
    for machines in MACHINES:
        whole = job_seconds(machines, ours, link)
        by_peer = format_duration(job_seconds(machines, peer, link)) if peer else None
        carried = None if machines == 1 else format_duration(link_seconds(link))
        copied = format_duration(ROWS / (ours * machines))
        rows.append(
            [machines, format_duration(ROWS / (ours * machines)), carried, format_duration(whole), copied, by_peer]
        )
        bars.append((f"{machines} machines" if machines > 1 else "1 machine", whole / HOUR))
    pictures["clustering-hours"] = Bars("Hours of the whole job, over one link", "h", bars)
    copies, by_sklearn = "with copies of the rows on them", "the job at scikit-learn's rate"
    header = (
        f"machines of {lines[COMPUTING].settings['cores']} cores",
        "computing",
        "the link",
        "the job",
        copies,
        by_sklearn,
    )
    return [
        "## On 1, 4 and 16 machines",
        "",
        "One machine is the server itself, if its disk reads fast enough. All rows for others leave by the server's",
        "own link, while they compute:",
        "",
        *table(header, rows),
        "",
        "![hours](clustering-hours.svg)",
        "",
    ]


def _export(lines: Mapping[str, Line], pictures: dict[str, Picture]) -> list[str]:
    found = exports(lines)
    rows: list[Sequence[Cell]] = []
    for name, rate in found.items():
        size = lines[EXPORT].figures["ways"][name]["bytes a value"]
        takes = format_duration(BYTES / (rate * MIB))
        rows.append([EXPORT_LABELS[name], rate, size, f"{ROWS * VALUES * size / 1e12:.1f} TB", takes])
    if found:
        pictures["clustering-export"] = Bars("MiB of float32 written a second", "MiB/s", list(found.items()))
    header = ("export", "MiB of float32/s", "bytes a value", "all rows", "takes")
    drawn = ["![export](clustering-export.svg)", ""] if found else []
    return ["## Writing the rows out", "", *table(header, rows), "", *drawn]


def exports(lines: Mapping[str, Line]) -> dict[str, float]:
    """MiB of float32 a second by each way, at its best."""
    ways = lines[EXPORT].figures["ways"] if EXPORT in lines else {}
    return {name: max(ways[name]["rates"]) for name in EXPORT_LABELS if name in ways}


def _worse(lines: Mapping[str, Line]) -> list[str]:
    told, ours, link = [], best(lines.get(COMPUTING)), best(lines.get(CARRIED))
    if ours and link and link_seconds(link) > ROWS / ours:
        slower = link_seconds(link) * ours / ROWS
        told.append(
            f"Over one link of 1 Gbit/s other machines do not help at our rate: the link is {slower:.1f} times as slow"
            " as the one machine. A copy of the rows on them does (`agent join --have`), or features and"
            " clusters with more work for each byte."
        )
    found = exports(lines)
    ahead = [EXPORT_LABELS[name] for name, rate in found.items() if rate > found["LayerWriter"]]
    if ahead:
        told.append(f"Rows leave sooner as {', and '.join(ahead)}.")
    told = told or ["Nothing that is measured says so yet."]
    return [
        "## Where ours is worse",
        "",
        *(f"- {one}" for one in told),
        "",
        "The rates are of rows in memory: a disk that brings fewer bytes a second than are computed is what decides",
        "instead.",
        "",
    ]


STUDY = Study("clustering", points, measure, page)
