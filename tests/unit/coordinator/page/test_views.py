"""What each view shows, and how much of it travels."""

from __future__ import annotations

import html
import random
import re
from dataclasses import replace
from typing import get_args
from xml.etree import ElementTree

import msgspec
import pytest

from muster.coordinator.api.figures import Figures, JobFiguresKept, MachineFigures, Trouble
from muster.coordinator.api.requests import (
    AgentsAsk,
    ExplainJob,
    ExplainShard,
    FiguresAsk,
    MapAsk,
    StatusAsk,
)
from muster.coordinator.api.status import (
    AgentRate,
    Agents,
    AgentStatus,
    Explained,
    FailureRecord,
    Failures,
    Happening,
    JobStatus,
    LayerStatus,
    MapRow,
    ShardMap,
    Status,
    Tally,
)
from muster.coordinator.farm_root.printed_log import Saying
from muster.coordinator.page import metrics
from muster.coordinator.page.blocks import Block, changes, event
from muster.coordinator.page.history import SAMPLE_SECONDS, History
from muster.coordinator.page.pace import BYTES_PER_SECOND
from muster.coordinator.page.seen import COUNTS, FARM, Answer, Printed, Question, Sayings, Seen
from muster.coordinator.page.views import FAILURES_MOST, ROWS_MOST, View, blocks, failures_of, view_of
from muster.jobs.contract.states import JobState

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m"
NOW = 1_800_000_000.0
VIEWS = [View("farm"), View("jobs"), View("job", job="weights.1"), View("machine", machine="lab0001"),
         View("shard", job="weights.1", layer="fc", number=3)]  # fmt: skip


def machine(number: int, chance: random.Random, **more: object) -> AgentStatus:
    found = AgentStatus(
        f"lab{number:04}", f"lab{number:04}", "live", NOW, 8, 9, 1, 1204, version="0.1.0", busy=chance.random(),
        processor=8 * chance.random(), in_rate=chance.random() * 1e8, out_rate=chance.random() * 1e7,
        memory_now=chance.randrange(1 << 33), memory_budget=1 << 33, disk_now=chance.randrange(1 << 36), in_place=False,
    )  # fmt: skip
    return msgspec.structs.replace(found, **more)


def job(name: str = "weights.1", agents: int = 3, **more: object) -> JobStatus:
    rates = [AgentRate(f"lab{i:04}", True, 8, 8, 1, 100 + i, 400, 1 << 20, 1 << 10, 0.5, 50.0) for i in range(agents)]
    tally = Tally(12_000, 8_211, 3, 20, 3_700, 66, 120_000, 82_110)
    status = JobStatus(name, "cluster", "running", "", 1, NOW - 900, NOW - 800, None, tally, 70,
                       [LayerStatus("fc", "open", tally)], 1, 0, rates)  # fmt: skip
    return msgspec.structs.replace(status, **more)


def seen(agents: list[AgentStatus], jobs: list[JobStatus], version: int = 1) -> Seen:
    answers: dict[Question, Answer] = {
        FARM[0]: Answer(Status(NOW, "0.1.0", len(agents), jobs), ""),
        FARM[1]: Answer(Agents(NOW, agents), ""),
    }
    return Seen(version, answers, History().added(agents, NOW), heard=NOW)


def adding(to: Seen, question: Question, value: msgspec.Struct) -> Seen:
    return replace(to, answers={**to.answers, question: Answer(value, "")})


def whole(of: Seen, hostile: str = "x") -> Seen:
    """With an answer to all that any view asks."""
    found = adding(of, StatusAsk("weights.1"), Status(NOW, "0.1.0", 1, [job()]))
    failure = FailureRecord("fc", 3, 1, 2, hostile, NOW, "exception", hostile, hostile, 1.0, 1, True)
    found = adding(found, failures_of("weights.1"), Failures(1_000_000, [failure] * FAILURES_MOST))
    layer = MapRow(hostile, 12_000, 6_000, [6_000, 2_211], [0, 3], [0, 20], [0, 66])
    found = adding(found, MapAsk("weights.1"), ShardMap([layer]))
    found = adding(found, ExplainJob("weights.1"), Explained("weights.1", [hostile]))
    found = adding(found, Printed("weights.1"), Sayings([Saying(NOW, hostile, "fc", 3, 1, 1, hostile)]))
    trouble = Trouble("exception", hostile, 70, NOW, NOW, [hostile], "fc", 3, hostile)
    kept = JobFiguresKept("weights.1", "cluster", created=NOW - 900, started=NOW - 800, at=NOW, troubles=[trouble])
    found = adding(found, FiguresAsk("weights.1"), Figures(kept, [MachineFigures(hostile, 8, accounted=True)]))
    story = Explained(hostile, [hostile], [Happening(NOW, hostile, hostile)], NOW)
    return adding(found, ExplainShard("weights.1", "fc", 3), story)


def shown(view: View, of: Seen) -> str:
    """All that a browser would have of it, as markup."""
    parts = []
    for block in blocks(view, of, "server:/data"):
        ids = re.findall(rf'id="{block.name}\.(\d+)"', block.skeleton)
        assert [int(one) for one in ids] == list(range(len(block.cells)))
        parts += [block.skeleton, *block.cells]
    return "\n".join(parts)


def text(view: View, of: Seen) -> str:
    return html.unescape(re.sub("<[^>]+>", " ", shown(view, of)))


# --- addresses -------------------------------------------------------------------------------------------------


def test_an_address_is_a_view() -> None:
    assert view_of("") == View("farm") and view_of("jobs") == View("jobs")
    assert view_of("", "lab", "busy") == View("farm", find="lab", sort="busy")
    assert view_of("job/weights.1") == View("job", job="weights.1")
    assert view_of("machine/lab-3") == View("machine", machine="lab-3")
    assert view_of("shard/weights.1/conv/1/17") == View("shard", job="weights.1", layer="conv/1", number=17)
    assert view_of("", "x" * 1000, "; drop") == View("farm", find="x" * 80)


@pytest.mark.parametrize(
    "path",
    ["nothing", "job/../x", "job/weights", "job/weights.1/x", "machine/a b", "machine/" + "x" * 65, "shard/weights.1",
     "shard/weights.1/fc", "shard/weights.1/fc/-1", "shard/weights.1/fc/1e3", "shard/weights.1/../1/2", "shard/x/fc/1",
     "shard/weights.1/fc/" + "9" * 17, "shard/weights.1/fc/" + "9" * 400, "shard/weights.1/fc/²"],
)  # fmt: skip
def test_what_is_none_leads_nowhere(path: str) -> None:
    assert view_of(path) is None


# --- what is shown ---------------------------------------------------------------------------------------------


def test_numbers_of_a_job_are_those_of_its_status() -> None:
    of = whole(seen([machine(1, random.Random(1))], [job()]))
    assert "8,211/12,000" in text(View("farm"), of) and "68%" in text(View("farm"), of)
    page = text(View("job", job="weights.1"), of)
    assert "8,211/12,000 committed (68%)" in page and "3 finished, 20 running, 3,700 pending, 66 given up" in page


def test_counts_that_are_newer_stand_beside_what_was_told_of_machines_before() -> None:
    told = seen([machine(1, random.Random(1))], [job(notes=["lab7 is slow"])])
    newer = msgspec.structs.replace(job().totals, committed=9_000, pending=2_911)
    counts = adding(told, COUNTS, Status(NOW + 1, "0.1.0", 1, [job(agents=0, totals=newer)]))
    assert "9,000/12,000" in text(View("farm"), counts) and "lab7 is slow" in text(View("farm"), counts)
    rates = re.findall(r"[\d.,]+ shards/s|no agents|measuring", text(View("farm"), counts))
    assert rates == re.findall(r"[\d.,]+ shards/s|no agents|measuring", text(View("farm"), told)) and rates
    page = text(View("job", job="weights.1"), adding(counts, StatusAsk("weights.1"), Status(NOW, "", 1, [job()])))
    assert "9,000/12,000 committed" in page and "fc" in page and "lab0002" in page


def test_of_a_job_that_began_just_now_it_is_not_said_that_no_machine_is_there() -> None:
    waits = job(state="waiting", agents=0)
    told = adding(seen([], [waits]), COUNTS, Status(NOW + 1, "0.1.0", 1, [job(agents=0)]))
    assert "▶ running" in text(View("farm"), told) and "measuring" in text(View("farm"), told)
    assert "no agents" not in text(View("farm"), told)


def test_a_jobs_page_has_its_map_and_leads_to_its_report() -> None:
    of = whole(seen([machine(1, random.Random(1))], [job()]))
    page = shown(View("job", job="weights.1"), of)
    assert 'href="/job/weights.1/report"' in page
    (drawn,) = [block for block in blocks(View("job", job="weights.1"), of, "") if block.name == "map"]
    (picture,) = drawn.cells
    assert picture.count("▲") == 1 and ">6,000<" in picture
    several = ShardMap([MapRow(f"L{i}", 10, 1, [1] * 10, [0] * 10, [0] * 10, [0] * 10) for i in range(3)])
    page = text(View("job", job="weights.1"), adding(of, MapAsk("weights.1"), several))
    assert "L0" in page and "L2" in page and "75%" in page


def test_only_a_cell_of_which_all_is_committed_has_the_last_shade() -> None:
    for committed, is_full in (([999, 1], False), ([1000, 1], True)):
        row = MapRow("fc", 2_000, 1_000, committed, [0, 0], [0, 0], [0, 0])
        page = shown(View("job", job="weights.1"), adding(seen([], [job()]), MapAsk("weights.1"), ShardMap([row])))
        assert bool(re.search('<path [^>]*class="shade5"', page)) is is_full


def test_older_jobs_are_counted_though_they_were_not_told() -> None:
    of = adding(seen([], [job()]), FARM[0], Status(NOW, "0.1.0", 0, [job()], left_out=4_000))
    assert "and 4,000 more jobs" in text(View("farm"), of)


def test_a_machines_page_asks_for_all_of_that_one() -> None:
    brief = machine(1, random.Random(1))
    full = msgspec.structs.replace(brief, fingerprint="AVX-512", places={"node7": 3})
    of = adding(seen([brief], []), AgentsAsk("lab0001"), Agents(NOW, [full]))
    assert AgentsAsk("lab0001") in View("machine", machine="lab0001").questions()
    page = text(View("machine", machine="lab0001"), of)
    assert "AVX-512" in page and "node7 3" in page


def test_what_is_wrong_stands_at_the_top() -> None:
    chance = random.Random(1)
    halted = job("bad.1", state="halted", why="20 shards given up")
    agents = [machine(1, chance), machine(2, chance, silent=30.0), machine(3, chance, state="gone")]
    of = seen(agents, [job(), halted])
    for view in VIEWS:
        trouble = blocks(view, of, "")[1]
        said = " ".join([trouble.skeleton, *trouble.cells])
        assert trouble.name == "trouble" and "bad.1 is halted: 20 shards given up" in said
        assert "coordinator logs bad.1 --failed" in said and "coordinator drop lab0002" in said
        assert "lab0003 is gone" in said


def test_a_dead_coordinator_is_said_and_the_last_numbers_stay() -> None:
    of = replace(seen([], [job()]), gone="no coordinator serves /data", gone_since=NOW, age=60.0)
    assert "no coordinator since" in text(View("farm"), of) and "8,211/12,000" in text(View("farm"), of)
    assert "heard 60 s ago" in text(View("farm"), of) or "heard 1 min" in text(View("farm"), of)
    never = Seen(1, {}, History(), gone="no coordinator serves /data", gone_since=NOW)
    assert "coordinator serve --detach" in text(View("farm"), never)
    kept = adding(never, FiguresAsk("weights.1"), Figures(JobFiguresKept("weights.1", "cluster", at=NOW), []))
    assert "weights.1 · cluster" in text(View("job", job="weights.1"), kept)


def test_commands_in_what_is_said_look_like_commands_and_nothing_else_becomes_markup() -> None:
    of = adding(seen([], [job()]), ExplainJob("weights.1"), Explained("weights.1", ["`coordinator retry <b>`: `x"]))
    assert "<code>coordinator retry &lt;b&gt;</code>: `x" in shown(View("job", job="weights.1"), of)


def test_an_idle_machine_says_why() -> None:
    of = seen([machine(1, random.Random(1), running=0, note="it waits for room on its disk")], [job()])
    assert "it waits for room on its disk" in text(View("farm"), of)
    assert "it waits for room on its disk" in text(View("machine", machine="lab0001"), of)


def test_an_empty_farm_says_what_to_do() -> None:
    said = text(View("farm"), seen([], []))
    assert "coordinator submit job.yaml" in said and "agent join" in said


def test_find_and_sort() -> None:
    chance = random.Random(2)
    of = seen([machine(i, chance) for i in range(9)], [job(), job("other.1")])
    found = text(View("farm", find="LAB0003"), of)
    assert "lab0003" in found and "lab0004" not in found
    names = re.findall(r'data-open="/machine/(\w+)"', shown(View("farm", sort="busy"), of))
    busy = {one.name: one.busy or 0.0 for one in of.agents.agents}
    assert names == sorted(busy, key=lambda name: -busy[name])
    assert "no machine is called so" in text(View("farm", find="nobody"), of)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.kind)
def test_what_others_wrote_is_text(view: View) -> None:
    agent = machine(1, random.Random(1), note=HOSTILE, host=HOSTILE, fingerprint=HOSTILE, version=HOSTILE)
    agent = msgspec.structs.replace(agent, ineligible={"weights.1": HOSTILE}, places={HOSTILE: 1})
    bad = job(why=HOSTILE, notes=[HOSTILE], kind=HOSTILE)
    page = shown(view, whole(seen([agent], [bad, job("halted.1", state="halted", why=HOSTILE)]), HOSTILE))
    assert "<script" not in page and "\x1b" not in page and "style=" not in page
    assert "alert(1)" in page
    ElementTree.fromstring(f"<r>{re.sub('<(br|meta)>', '', html_of_xml(page))}</r>")  # every element is closed


def html_of_xml(page: str) -> str:
    return re.sub(r"<details open>", "<details>", page)


# --- how much travels ------------------------------------------------------------------------------------------


def test_a_thousand_machines_stay_below_twenty_kilobytes_a_second() -> None:
    """Though every number of every machine changes with each answer."""
    jobs = [job(f"weights.{i}", agents=1000) for i in range(1, 11)]
    sizes, known, history = list[int](), dict[str, Block](), History()
    for second in range(60):
        chance = random.Random(second)
        agents = [machine(i, chance) for i in range(1000)]
        history = history.added(agents, NOW + second)
        of = replace(seen(agents, jobs, second), history=history)
        made = blocks(View("farm"), of, "server:/data")
        sizes.append(len(event(changes(known, made))))
        known = {block.name: block for block in made}
    assert sizes[0] < 120_000
    assert sum(sizes[1:]) / len(sizes[1:]) < BYTES_PER_SECOND
    assert second > 3 * SAMPLE_SECONDS, "new samples of the small lines are in it"
    rows = next(block for block in made if block.name == "machines").skeleton.count("data-open")
    assert rows == ROWS_MOST and "950 more machines" in text(View("farm"), of)


def test_of_a_million_failures_it_has_the_newest_hundred_and_the_count() -> None:
    failures = next(one for one in blocks(View("job", job="weights.1"), whole(seen([], [job()]), "x" * 500), "")
                    if one.name == "failures")  # fmt: skip
    assert "the newest 100 of 1,000,000" in failures.cells[0]
    assert failures.skeleton.count('href="/shard/weights.1/fc/3"') == 100
    assert len(failures.skeleton) + sum(map(len, failures.cells)) < 150_000


def test_a_million_shards_make_no_view_larger() -> None:
    many = Tally(1_000_000, 400_000, 100, 900, 599_000, 0)
    layers = [LayerStatus(f"layer{i}", "open", many) for i in range(500)]
    big = job(agents=1000, totals=many, layers=layers, layers_total=500)
    of = adding(seen([machine(1, random.Random(1))], [big]), StatusAsk("weights.1"), Status(NOW, "", 1, [big]))
    page = shown(View("job", job="weights.1"), of)
    assert len(page) < 60_000 and "450 more layers" in page and "950 more machines" in page


# --- metrics ---------------------------------------------------------------------------------------------------


def test_metrics_are_openmetrics() -> None:
    agent = machine(1, random.Random(1), busy=None)
    said = metrics.text(seen([agent], [job(kind='odd"\\\nkind')]))
    lines = said.splitlines()
    assert lines[-1] == "# EOF" and said.endswith("\n") and "muster_up 1" in lines
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    sample = re.compile(rf"[a-z_]+(?:\{{{label}(?:,{label})*\}})? [-+0-9.e]+")
    assert [one for one in lines if not one.startswith("# ") and not sample.fullmatch(one)] == []
    assert 'muster_job_shards{job="weights.1",kind="odd\\"\\\\\\nkind",state="committed"} 8211' in lines
    assert 'muster_agent_lent_cores{agent="lab0001"} 8' in lines
    assert not [one for one in lines if one.startswith("muster_agent_busy_ratio")], "what is not told is left out"
    families = [one.split()[2] for one in lines if one.startswith("# TYPE")]
    assert len(families) == len(set(families))


@pytest.mark.parametrize(
    ("view", "name", "question"),
    [
        (View("farm"), "machines", FARM[1]),
        (View("job", job="weights.1"), "measured", FiguresAsk("weights.1")),
        (View("job", job="weights.1"), "map", MapAsk("weights.1")),
        (View("job", job="weights.1"), "failures", failures_of("weights.1")),
    ],
)
def test_what_is_dear_is_drawn_when_it_was_heard_and_not_with_each_count(
    view: View, name: str, question: Question
) -> None:
    def drawn(of: Seen) -> Block:
        return next(one for one in blocks(view, of, "server:/data") if one.name == name)

    first = whole(seen([machine(1, random.Random(1))], [job()]))
    counted = adding(first, COUNTS, Status(NOW + 1, "0.1.0", 1, [job(agents=0)]))
    assert drawn(counted) is drawn(first)
    said = first.get(question)
    assert said is not None
    assert drawn(adding(counted, question, said)) is not drawn(first), "another answer, however alike"


@pytest.mark.parametrize("state", get_args(JobState))
def test_a_job_is_in_one_of_the_states_that_metrics_have(state: JobState) -> None:
    lines = metrics.text(seen([], [job(state=state)])).splitlines()
    (is_it,) = [one for one in lines if one.startswith("muster_job_state{") and one.endswith(" 1")]
    assert f'muster_job_state="{state}"' in is_it


def test_metrics_of_a_dead_coordinator_say_only_that() -> None:
    of = replace(seen([machine(1, random.Random(1))], [job()]), gone="it went")
    assert [one for one in metrics.text(of).splitlines() if not one.startswith("#")] == ["muster_up 0"]
