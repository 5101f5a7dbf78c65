"""A report in a real browser: it opens from a file, asks nobody for anything, and shows what `--json` says."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.coordinator.display.tables import moment
from muster.coordinator.report import terminal
from muster.jobs.common.units import format_size
from tests.support.farm import FarmHarness, arrays, running
from tests.support.needs import skip_for

SHARDS, ROWS = 24, 4
ARTEFACTS = "MUSTER_SCREENSHOTS"  # a folder in which they are kept to be looked at
SECONDS = 60.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1",
    "--disable-background-networking", "--disable-component-update", "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    skip_for("" if found else "chromium is not installed")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        yield made


def browse(chromium: str, page: Path, *args: str) -> str:
    command = [chromium, *FLAGS, f"--user-data-dir={page.parent / 'profile'}", *args, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    return done.stdout


def shown(chromium: str, page: Path) -> str:
    """The text on the page, as the browser has it."""
    dom = browse(chromium, page, "--dump-dom", f"--log-net-log={page.parent / 'net.json'}")
    return html.unescape(re.sub(r"<[^>]+>", "\n", re.sub(r"<style>.*?</style>", "", dom, flags=re.DOTALL)))


def asked_for(net_log: Path) -> set[str]:
    """Addresses that the browser asked for, but for those of its own."""
    text = net_log.read_text(errors="replace")
    found = set(re.findall(r'"url":"((?:https?|wss?|ftp)://[^"]+)"', text))
    return {url for url in found if not re.search(r"//[^/]*(google|gstatic|gvt1|chromium)", url)}


def test_one_that_never_ran_opens(farm: FarmHarness, chromium: str, tmp_path: Path) -> None:
    job = farm.submit(arrays(rows=ROWS), shard_rows=ROWS, name="never")
    page = tmp_path / "never.html"
    assert farm.coordinator("report", job, "--html", str(page)).returncode == 0
    assert "nothing has run yet" in shown(chromium, page)


def test_a_finished_jobs_page_shows_its_figures(farm: FarmHarness, chromium: str, tmp_path: Path) -> None:
    job = farm.submit(arrays(rows=SHARDS * ROWS), shard_rows=ROWS, name="weights")
    farm.agent("one").go()
    farm.wait(job)
    (said,) = json.loads(farm.coordinator("report", job, "--json").stdout)["jobs"]
    page = tmp_path / "report.html"
    assert farm.coordinator("report", job, "--html", str(page)).returncode == 0
    text = shown(chromium, page)
    assert asked_for(tmp_path / "net.json") == set()
    response = said["response"]
    for value in (response["shard"]["p50"], response["shard"]["p95"], response["makespan"], response["first_result"]):
        assert terminal.seconds(value) in text
    assert f"{SHARDS} of {SHARDS} shards" in text and moment(said["created"]) in text
    assert format_size(said["bandwidth"]["committed_bytes"]) in text
    assert f"{said['effect']['of_kind']['inertia']:.4g}" in text
    assert {"1 When it ran", "3 How long a shard took", "8 How it was made"} <= set(text.splitlines())
    picture(chromium, page, "report")


def picture(chromium: str, page: Path, name: str) -> None:
    """In light and in dark, to be looked at."""
    kept = Path(os.environ.get(ARTEFACTS) or page.parent)
    for mode, flags in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        file = kept / f"{name}-{mode}.png"
        browse(chromium, page, "--window-size=1000,2600", f"--screenshot={file}", *flags)
        assert file.stat().st_size > 20_000
