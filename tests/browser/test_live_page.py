"""The live page in a real browser: every view, with no error in its console and no request to anywhere else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.display import jobs as display_jobs
from muster.coordinator.page.server import STREAMS_MOST
from muster.coordinator.report import terminal
from tests.support.chromium import Tab, tab
from tests.support.farm import FarmHarness, arrays, running, until
from tests.support.page import PageReader, page_of

SHARDS, ROWS = 72, 4
ARTEFACTS = "MUSTER_SCREENSHOTS"  # a folder in which they are kept to be looked at
NAP = "import time\n\ndef nap(rows):\n    print('napping')\n    time.sleep(0.4)\n    return rows\n"
BAD = "def work(rows):\n    raise ValueError('<script>alert(7)</script> row 7')\n"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path / "farm") as made:
        yield made


def picture(browser: Tab, name: str, folder: Path) -> None:
    """In light and in dark, to be looked at."""
    kept = Path(os.environ.get(ARTEFACTS) or folder)
    for mode in ("dark", "light"):
        browser.dark(mode == "dark")
        shown = f"document.documentElement.dataset.theme === '{mode}'"
        until(partial(browser.run, shown), f"the page in {mode}")
        file = kept / f"page-{name}-{mode}.png"
        browser.picture(file)
        assert file.stat().st_size > 10_000


def check(browser: Tab, page: PageReader) -> None:
    assert browser.errors == []
    assert {urlsplit(url).netloc for url in browser.asked if url.startswith("http")} == {f"127.0.0.1:{page.port}"}
    wide = browser.run("document.documentElement.scrollWidth")
    assert wide <= 1280, f"the page is {wide} wide"


def each_view(browser: Tab, page: PageReader, job: str, *words: str) -> None:
    """All of them open, whatever state the farm is in; the job's has these words, its shard's the first of them."""
    of_job = {f"/job/{job}": words, f"/shard/{job}/a/0": words[:1]}
    for path, said in {**of_job, "/": ("Jobs",), "/jobs": ("Jobs",), "/machine/lab1": ("lab1",)}.items():
        browser.open(f"http://127.0.0.1:{page.port}{path}")
        browser.until(*said)
        check(browser, page)


def rate_and_time(farm: FarmHarness, job: str) -> str:
    """As `coordinator status` has it at the moment."""
    told: Status = farm.ask(StatusAsk(job), Status)
    row = display_jobs.job_row(told.jobs[0], told.now)
    return f"{row.rate} {row.time}" if row.rate != "-" else "not known yet"


def measured(farm: FarmHarness, job: str) -> list[str]:
    """Fairness, memory and bytes, as `coordinator report --json` has them and the page shows them."""
    (said,) = json.loads(farm.coordinator("report", job, "--json").stdout)["jobs"]
    moved, memory, fairness = said["bandwidth"], said["memory"], said["fairness"]
    if fairness["jain"] is None:
        return ["not told yet"]
    return [
        f"fairness {fairness['jain']:.2f} {terminal.share(fairness['occupancy'])} occupied",
        f"peak memory {terminal.size(memory['machines'][0]['peak'])} a shard {terminal.size(memory['max'])}",
        f"in / out {terminal.size(moved['in_bytes'])} / {terminal.size(moved['out_bytes'])}",
        f"committed {terminal.size(moved['committed_bytes'])}",
    ]


def test_every_view_in_a_browser(farm: FarmHarness, tmp_path: Path) -> None:
    with page_of(farm) as page, tab(tmp_path) as browser:
        browser.open(page.url)
        browser.until("no jobs yet", "no machines yet")
        assert page.secret not in browser.run("location.href")
        picture(browser, "empty", tmp_path)
        each_view(browser, page, "none.1", "there is no job none.1")
        browser.open(page.url)

        farm.join("lab1", "--cpus", "2")
        browser.until("lab1", "● live")
        fields = {"kind": "map", "code": "work.py:nap"}
        job = farm.submit(arrays(rows=SHARDS * ROWS), shard_rows=ROWS, work=NAP, name="naps", **fields)
        browser.until(job, "▶ running", f"/{SHARDS}")
        until(lambda: farm.status(job).totals.committed, "a commit")
        until(lambda: rate_and_time(farm, job) in browser.text, "its rate and time left as in status")
        picture(browser, "farm", tmp_path)
        each_view(browser, page, job, job, "running", "Shards in their order", "When it ran")
        browser.open(f"http://127.0.0.1:{page.port}/")
        browser.until(job)

        browser.key("j")
        browser.key("Enter")
        until(lambda: browser.run("location.pathname") == f"/job/{job}", "the job's page")
        browser.until("When it ran", "Layers", "lab1", "napping")
        farm.wait(job)
        (said,) = json.loads(farm.coordinator("status", job, "--json").stdout)["jobs"]
        browser.until(f"{said['totals']['committed']}/{said['totals']['shards']} committed (100%)", "✓ complete")
        until(lambda: all(word in browser.text for word in measured(farm, job)), "its measures as in --json")
        browser.size(1280, 1700)
        picture(browser, "job", tmp_path)
        browser.size(1280, 800)
        check(browser, page)

        bad = {"kind": "map", "code": "work.py:work", "max_failures": 1, "attempts": 1}
        halted = farm.submit(arrays(rows=8 * ROWS), shard_rows=ROWS, work=BAD, name="bad", **bad)
        farm.wait(halted, "halted")
        browser.key("u")
        browser.until(f"{halted} is halted", f"coordinator logs {halted}", "! halted")
        picture(browser, "halted", tmp_path)
        each_view(browser, page, halted, halted, "! halted", "<script>alert(7)</script> row 7", "Traceback")
        browser.open(f"http://127.0.0.1:{page.port}/shard/{halted}/a/0")
        browser.until("its job")
        picture(browser, "shard", tmp_path)
        browser.open(f"http://127.0.0.1:{page.port}/machine/lab1")
        browser.until("memory, of its budget")
        picture(browser, "machine", tmp_path)
        for one, shards in ((job, f"{SHARDS} of {SHARDS} shards"), (halted, "! halted")):
            browser.open(f"http://127.0.0.1:{page.port}/job/{one}/report")
            browser.until("1 When it ran", shards, "by attempt and machine")
            assert browser.run("getComputedStyle(document.querySelector('.tile')).borderTopWidth") == "1px"
            check(browser, page)

        browser.open(f"http://127.0.0.1:{page.port}/?find=naps&sort=busy")
        browser.until(job, "no machine is called so: naps")
        assert f"{halted} map" not in browser.text

        browser.open(f"http://127.0.0.1:{page.port}/")
        browser.until(job, "lab1")
        farm.kill()
        browser.until("no coordinator since", job)
        assert "old" in browser.run("document.body.className")
        picture(browser, "gone", tmp_path)
        each_view(browser, page, job, "no coordinator since", f"{SHARDS} of {SHARDS} shards")
        browser.open(f"http://127.0.0.1:{page.port}/")
        browser.until("no coordinator since", job)
        farm.start()
        until(lambda: "no coordinator" not in browser.text, "the coordinator to be back on the page")
        until(lambda: "old" not in browser.run("document.body.className"), "its numbers to count again")
        check(browser, page)


def test_keys_choose_freeze_and_darken(farm: FarmHarness, tmp_path: Path) -> None:
    first, second = (farm.submit(arrays(rows=ROWS), shard_rows=ROWS, name=name) for name in ("first", "second"))
    here = "document.querySelector('tr.here')?.dataset.open"
    with page_of(farm) as page, tab(tmp_path) as browser:
        browser.open(page.url)
        browser.until(first, second)
        browser.key("j")
        assert browser.run(here) == f"/job/{second}", "the newest is on top"
        browser.key("j")
        assert browser.run(here) == f"/job/{first}"
        browser.key("k")
        assert browser.run(here) == f"/job/{second}"
        browser.key("p")
        browser.until("frozen: p goes on")
        third = farm.submit(arrays(rows=ROWS), shard_rows=ROWS, name="third")
        with page_of(farm) as other:
            stream = other.stream("/")
            stream.until(third)
            stream.close()
        assert third not in browser.text
        browser.key("p")
        browser.until(third)
        assert browser.run(here) == f"/job/{second}", "the row that was chosen is chosen still"
        look = browser.run("document.documentElement.dataset.theme")
        browser.key("d")
        assert browser.run("document.documentElement.dataset.theme") != look
        browser.open(f"http://127.0.0.1:{page.port}/jobs")
        browser.until(third)
        assert browser.run("document.documentElement.dataset.theme") != look, "that is kept"
        browser.key("/")
        assert browser.run("document.activeElement.id") == "find"
        for letter in "first":
            browser.key(letter)
        rows = "[...document.querySelectorAll('tr[data-open]')].map(one => one.dataset.open).join()"
        until(lambda: browser.run(rows) == f"/job/{first}", "rows of other names to go")
        assert browser.run("location.search") == "?find=first"
        browser.key("Escape")
        browser.key("u")
        browser.until("Machines", second)
        check(browser, page)


def test_a_hidden_tab_leaves_its_place_to_another_and_one_too_many_says_so(farm: FarmHarness, tmp_path: Path) -> None:
    with page_of(farm) as page, tab(tmp_path) as browser:
        browser.open(page.url)
        browser.until("no jobs yet")
        streams = [page.stream("/") for _ in range(STREAMS_MOST - 1)]
        for stream in streams:
            stream.until("no jobs yet")
        with browser.hidden():

            def has_its_place() -> bool:
                streams.append(page.stream("/"))
                streams[-1].read()
                if "no jobs yet" not in streams[-1].text:
                    streams.pop().close()
                return len(streams) == STREAMS_MOST

            until(has_its_place, "the place of the hidden tab")
        browser.until("8 tabs look already")
        assert browser.run("document.getElementById('lost').hidden"), "that the page had ended is not said"
        streams.pop().close()
        browser.until("no jobs yet")
        for stream in streams:
            stream.close()


def test_a_page_whose_process_ended_says_so(farm: FarmHarness, tmp_path: Path) -> None:
    with page_of(farm) as page, tab(tmp_path) as browser:
        browser.open(page.url)
        browser.until("no jobs yet")
        (process,) = farm.processes("page", "--json")
        os.kill(process, signal.SIGKILL)
        browser.until("The page's own process ended")
        assert "live" not in browser.text.replace("nothing here is live", "")
        assert "old" in browser.run("document.body.className")
        picture(browser, "ended", tmp_path)
