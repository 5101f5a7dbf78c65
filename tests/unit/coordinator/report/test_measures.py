"""The measures of a job, from a ledger made by hand, to the digit; and what a report looks like everywhere."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.api.figures import JobEvent, JobFiguresKept, MachineFigures, Slowest, Trouble
from muster.coordinator.api.status import Tally
from muster.coordinator.figures.bins import Row
from muster.coordinator.report import drawing, html, terminal
from muster.coordinator.report.advice import advice
from muster.coordinator.report.gather import Gathered, LayerMade, Made, document
from muster.coordinator.report.measures import report_of
from muster.coordinator.report.values import JobReport
from muster.jobs.contract.kind import KindReport
from muster.jobs.contract.pictures import Bars, Curves, Histogram, Parallel, TextTable

NASTY = "<script>\"'&\x1b</style>"
GIB = 1 << 30


def machine(name: str, busy: float = 90.0, **more: Any) -> MachineFigures:
    row = Row()
    row.add("lent", 0, 10, 100)
    row.add("busy", 0, 10, busy)
    row.add("out_bytes", 0, 10, 1000)
    return MachineFigures(
        agent=name, cpus=10, budget=8 * GIB, accounted=True, lent=100.0, busy=busy, present=10.0, no_work=100.0 - busy,
        out_bytes=1000, out_seconds=2.0, peak=3 * GIB, shard_peak=GIB, committed=50, committed_bytes=500, rows=400,
        read_bytes=4000, processor=45.0, bins=row.packed(), **more,
    )  # fmt: skip


def record(**more: Any) -> JobFiguresKept:
    totals = Tally(100, 100, rows=800, rows_committed=800, bytes_committed=1000)
    values: dict[str, Any] = {
        "job": "weights.1", "kind": "map", "state": "complete", "created": 100.0, "started": 101.0, "ended": 121.0,
        "first_commit": 104.0, "first_layer": 115.0, "last_commit": 120.0, "running": 21.0, "at": 130.0,
        "measured": 100, "compute": 200.0, "spread": {0: 50, 16: 50}, "peaks": {16 * 30: 100}, "width": 1.0,
        "slowest": [Slowest(2.0, "fc", 7, "lab1")], "totals": totals,
    }  # fmt: skip
    return JobFiguresKept(**(values | more))


def test_the_measures_of_a_ledger_made_by_hand() -> None:
    found = report_of(record(), [machine("lab1"), machine("lab2", 30.0, wasted=6.0, failed=2, lost=1)], 2 * GIB, True)
    response, fairness, effect = found.response, found.fairness, found.effect
    assert (response.queue, response.first_result, response.first_layer, response.makespan) == (1.0, 4.0, 15.0, 21.0)
    assert (response.shard.p50, response.shard.p95, response.shard.max, response.shard.mean) == (1.0, 2.0, 2.0, 2.0)
    assert [one.share for one in fairness.machines] == [0.9, 0.3]
    assert fairness.jain == pytest.approx(1.2**2 / (2 * (0.81 + 0.09)))
    assert fairness.occupancy == 0.6 and fairness.least is not None
    assert (fairness.least.name, fairness.least.why) == ("lab2", "no work")
    assert effect.shards_per_second == pytest.approx(100 / 21)
    assert effect.rows_per_second == pytest.approx(800 / 21)
    assert effect.succeeded == pytest.approx(100 / 103) and effect.useful == pytest.approx(0.95)
    assert effect.computing == pytest.approx(0.75)
    lab1 = found.bandwidth.machines[0]
    assert (lab1.way, lab1.input.bytes, lab1.output.bytes, lab1.output.moving, lab1.output.mean) == (
        "folder", None, 1000, 500.0, 100.0,
    )  # fmt: skip
    assert lab1.output.peak == pytest.approx(100.0) and found.bandwidth.committed_bytes == 1000
    assert found.memory.machines[0].peak == 3 * GIB and found.memory.max == GIB
    assert found.timeline is not None and sum(found.timeline.machines[0].busy) == pytest.approx(90)


def test_shards_by_attempt_and_machine_add_up() -> None:
    found = report_of(record(), [machine("lab1", later={2: 3, 4: 1}, failed=5), machine("lab2")], None, False)
    assert [one.attempts for one in found.fairness.machines] == [[(1, 46), (2, 3), (4, 1)], [(1, 50)]]
    page = html.page(gathered(found))
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page[page.index("by attempt and machine") :])
    assert cells[:8] == ["lab1", "50", "46", "3", "1", "5", "0", "0"]


def test_of_shards_that_a_driver_made_it_is_said_how_long_they_took_to_be_done() -> None:
    found = report_of(record(waits={0: 50, 16: 49, 64: 1}), [machine("lab1")], None, False)
    done = found.response.done
    assert done is not None and (done.count, done.p50, done.p95, done.max) == (100, 1.0, 2.0, 16.0)
    assert "made to done: p50 1.0 s, p95 2.0 s" in terminal.text(gathered(found))
    assert "weights.1, made to done" in html.page(gathered(found))
    assert report_of(record(), [], None, False).response.done is None


def test_of_a_session_it_is_said_how_long_its_calls_took_to_be_done() -> None:
    found = report_of(record(kind="calls", waits={0: 50, 16: 49, 64: 1}), [machine("lab1")], None, False)
    assert "a call, submit to done: p50 1.0 s, p95 2.0 s, p99 2.0 s of 100" in terminal.text(gathered(found))
    assert "weights.1, a call, submit to done" in html.page(gathered(found))


def test_a_strip_is_as_wide_for_few_cells_as_for_many() -> None:
    few = drawing.StripRow("few", [0.0, None, 1.0], failed=[False, False, True])
    rows = [few, drawing.StripRow("many", [0.5] * 240)]
    drawn = drawing.strip(rows, [(0.0, "0"), (1.0, "all")], [0.5], "all of it", "t")
    ElementTree.fromstring(drawn)
    ends = [float(left) + float(wide) for left, wide in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", drawn)]
    assert max(ends) == pytest.approx(drawing.WIDTH - drawing.RIGHT, abs=0.1)
    assert drawn.count("▲") == 1 and "all of it" in drawn


def test_of_an_older_agent_nothing_is_made_up() -> None:
    found = report_of(record(), [MachineFigures("old", committed=100)], None, False)
    assert found.fairness.jain is None and found.fairness.machines[0].busy is None
    assert found.bandwidth.machines[0].output.bytes is None and found.effect.useful is None


def test_a_running_jobs_time_goes_on() -> None:
    kept = record(state="running", ended=None, since=110.0, running=9.0)
    found = report_of(kept, [], None, True)
    assert (found.running_seconds, found.response.makespan, found.held_seconds) == (29.0, 30.0, 0.0)
    assert report_of(record(state="paused", ended=None, since=110.0), [], None, False).held_seconds == 20.0


def test_the_time_that_a_job_waits_for_others_is_not_held() -> None:
    found = report_of(record(state="waiting", started=None, ended=None, since=110.0, running=0.0), [], None, False)
    assert (found.waiting_seconds, found.held_seconds, found.running_seconds) == (20.0, 0.0, 0.0)
    assert "it waited 20 s for other jobs" in terminal.text(gathered(found))


def test_advice_says_what_cost_most_and_no_more_than_three_lines() -> None:
    slow = machine("lab3", 40.0, in_place=False, in_bytes=10_000, in_seconds=9.0, input=50.0)
    found = report_of(record(), [machine("lab1"), slow], 8 * GIB, False)
    lines = advice(found, {-100: 90, 0: 10}, is_cut=True)
    assert len(lines) == 3
    assert any(line == "lab3 waited for inputs 50% of its time; 2.2 KiB/s would have kept it busy" for line in lines)
    assert any("8 times as many would fit" in line for line in lines)
    assert advice(report_of(record(), [machine("lab1", 100.0)], None, False), {0: 10}, is_cut=True) == []


# --- what it looks like ---------------------------------------------------------------------------------------


def gathered(*reports: JobReport, own: KindReport | None = None) -> Gathered:
    made = Made(NASTY, "d" * 32, "map", 1, NASTY, [LayerMade(NASTY, "e" * 32, 100, 800)], 1, 100, [NASTY])
    return Gathered("map", reports, [made for _ in reports], own, "" if own else NASTY)


def nasty_report(machines: int = 3) -> JobReport:
    events = [JobEvent(105.0, "gone", "lab0", NASTY), JobEvent(110.0, "restart", "", NASTY)]
    troubles = [Trouble("exception", NASTY, 3, 102.0, 103.0, ["lab1"], NASTY, 4, NASTY, NASTY)]
    kept = record(why=NASTY, notes=[NASTY], events=events, troubles=troubles, job=f"j-{machines}.1")
    return report_of(kept, [machine(f"lab{i}", 10.0 + i % 90, failed=i % 3) for i in range(machines)], GIB, True)


PICTURES = (
    Curves(NASTY, NASTY, NASTY, [(NASTY, [(1.0, 2.0), (2.0, float("nan"))]), ("one", [(3.0, 3.0)]), ("none", [])]),
    Curves("steps", "x", "y", [("", [(0.0, 1.0), (5.0, 0.5)])], steps=True),
    Histogram("h", "x", [("a", [(1.0, 2.0, 3), (2.0, 4.0, 1)]), (NASTY, [(1.0, 2.0, 9)])], True),
    Bars(NASTY, "items", [(NASTY, 3.0), ("none", 0.0)]),
    Parallel("p", [("lr", "0.1", "1"), (NASTY, "a", "b")], [([0.0, 1.0], 0.2), ([None, 0.5], 1.0)]),
    TextTable(NASTY, (NASTY, "b"), ".r", [(NASTY, "2")]),
)


@pytest.mark.parametrize("machines", [0, 1, 3, 1000])
def test_a_page_is_well_formed_fetches_nothing_and_shows_what_others_wrote_as_text(machines: int) -> None:
    found = nasty_report(machines)
    own = KindReport(("rows",), "r", [(NASTY,)], [None], pictures=PICTURES)  # type: ignore[list-item]
    page = html.page(gathered(found, own=own))
    body = page.removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', "")
    ElementTree.fromstring(re.sub(r"<meta [^>]*>", "", body))
    assert "<script" not in page and "\x1b" not in page and "&lt;script&gt;" in page
    assert not re.search(r'\b(style|src|href|on\w+)="', page), "neither styles of elements, nor anything to fetch"
    assert not re.search(r"url\((?!#)", page) and "nan" not in page.lower().replace("finance", "")
    assert page.count("<h2>") == 8 and len(page) < 400_000


def test_two_jobs_stand_side_by_side() -> None:
    page = html.page(gathered(nasty_report(2), nasty_report(3)))
    assert page.count("<h2>") == 9 and "Side by side" in page
    text = terminal.text(
        gathered(report_of(record(), [], None, False), report_of(record(ended=142.0), [], None, False))
    )
    assert ["makespan", "21", "s", "42", "s", "(+100%)"] in [line.split() for line in text.splitlines()]


def test_a_screen_for_one_job() -> None:
    text = terminal.text(gathered(nasty_report(1000)))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(text.splitlines()) < 40 and "… and 985 more" in text
    small = terminal.text(gathered(report_of(record(), [machine("lab1")], None, False)))
    for word in ("makespan", "p95", "memory", "bandwidth", "fairness", "effect", "lab1"):
        assert word in small


def test_the_document_of_a_thousand_machines_is_small_and_finite() -> None:
    said = msgspec.json.encode(document(gathered(nasty_report(1000))))
    assert len(said) < 8_000_000 and "NaN" not in said.decode()
    (job,) = json.loads(said)["jobs"]
    assert {"response", "memory", "bandwidth", "fairness", "effect", "timeline"} <= job.keys()


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=50), st.booleans())
def test_any_curve_is_drawn_within_its_frame(points: list[tuple[float, float]], steps: bool) -> None:
    drawn = drawing.curves(Curves("c", "x", "y", [("a", points)], steps))
    ElementTree.fromstring(drawn)
    for line in re.findall(r'<polyline points="([^"]*)"', drawn):
        for place in line.split():
            x, y = map(float, place.split(","))
            assert -1 <= x <= drawing.WIDTH + 1 and -1 <= y <= drawing.HEIGHT + 1


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_shades_grow_darker_and_inks_can_be_read() -> None:
    steps = [contrast(shade, "#ffffff") for shade in drawing.SHADES]
    assert all(later > 1.15 * before for before, later in pairwise(steps))
    assert contrast(drawing.INK, "#ffffff") > 4.5
    assert all(contrast(fill, drawing.ink_on(fill)) > 4.5 for _, fill in html.KINDS if fill.startswith("#"))
