"""The live page of a real farm: what its views say, who may read them, and what it does without a coordinator."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster.coordinator.api.requests import Look, StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.farm_root import ask_daemon, figures_file
from muster.coordinator.page.server import CONNECTIONS_MOST, STREAMS_MOST, listen
from muster.jobs.common import launch
from muster.jobs.common.errors import NotFoundError
from muster.jobs.common.units import format_size
from tests.support.farm import FarmHarness, arrays, command_line, running, until
from tests.support.page import SECONDS, PageReader, page_of
from tests.support.sshd import HOST, Sshd

SHARDS, ROWS = 24, 4
BAD = "def work(rows):\n    raise ValueError('<b>row 7</b> has NaN')\n"


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        yield made


@pytest.fixture(scope="module")
def page(farm: FarmHarness) -> Iterator[PageReader]:
    with page_of(farm) as made:
        yield made


def status(farm: FarmHarness, job: str) -> dict[str, Any]:
    (found,) = json.loads(farm.coordinator("status", job, "--json").stdout)["jobs"]
    assert isinstance(found, dict)
    return found


def test_an_empty_farm_says_what_to_do(page: PageReader) -> None:
    stream = page.stream("/")
    assert "coordinator submit job.yaml" in stream.until("no jobs yet", "no machines yet")
    stream.close()


def test_each_view_has_the_numbers_of_status(farm: FarmHarness, page: PageReader) -> None:
    job = farm.submit(arrays(rows=SHARDS * ROWS), shard_rows=ROWS, name="weights")
    farms, jobs, one = page.stream("/"), page.stream("/jobs"), page.stream(f"/job/{job}")
    for stream in (farms, jobs, one):
        assert stream.status == 200
        stream.until(job, f"0/{SHARDS}")
    farm.join("lab1", "--cpus", "2")
    farm.wait(job)
    said = status(farm, job)
    totals = said["totals"]
    counts = f"{totals['committed']:,}/{totals['shards']:,}"
    assert counts == f"{SHARDS}/{SHARDS}"
    for stream in (farms, jobs):
        stream.until(counts, "100%", "✓ complete")
    one.until(f"{counts} committed (100%)", "✓ complete", f"{said['layers_merged']}/{said['layers_total']} merged")
    one.until(f"{SHARDS} of {SHARDS} shards", "When it ran", "in their order")  # what comes by itself
    assert "lab1" in farms.until("lab1") and farms.old is False
    for stream in (farms, jobs, one):
        stream.close()
    brief, full = (farm.ask(StatusAsk(brief=is_brief), Status).jobs[0] for is_brief in (True, False))
    with ask_daemon.line(farm.root) as line:
        line.begin(Look(StatusAsk(job)))
        seen, looked = line.looked(Status, SECONDS) or (None, None)
        line.begin(Look(StatusAsk("none.1")))
        error, again = line.looked(Status, SECONDS) or (None, None)
    assert isinstance(seen, Status) and seen.jobs[0].totals == full.totals
    assert isinstance(error, NotFoundError) and error.message == "there is no job none.1"
    assert looked is not None and again is not None and 0 < looked.took < 1 and looked.rate > 0
    assert brief.id == full.id == job and not brief.agents and full.agents
    machine, shard = page.stream("/machine/lab1"), page.stream(f"/shard/{job}/a/3")
    machine.until("lab1", f"{SHARDS} done", "no job is running")
    shard.until(f"{job}/a/3", "committed, computed by lab1")
    machine.close()
    shard.close()


def test_a_jobs_report_is_served_as_it_is_written_to_a_file(farm: FarmHarness, page: PageReader) -> None:
    job = farm.submit(arrays(rows=SHARDS * ROWS), shard_rows=ROWS, name="told")
    farm.wait(job)
    (said,) = json.loads(farm.coordinator("report", job, "--json").stdout)["jobs"]
    code, headers, shown = page.get(f"/job/{job}/report")
    assert code == 200 and "8 How it was made" in shown and f"{SHARDS} of {SHARDS} shards" in shown
    assert format_size(said["bandwidth"]["committed_bytes"]) in shown
    assert "sha256-" in headers["content-security-policy"]
    assert page.get("/job/none.1/report")[0] == 404 and page.get("/job/x/report")[0] == 404
    assert page.get(f"/job/{job}/report", Host=f"127.0.0.1:{page.port}")[0] == 403


def test_of_a_coordinator_that_is_stuck_a_report_says_so_and_has_what_was_kept(
    farm: FarmHarness, page: PageReader
) -> None:
    job = farm.submit(arrays(rows=ROWS), shard_rows=ROWS, name="stuck")
    farm.wait(job)
    until(lambda: (kept := figures_file.read(farm.root.figures, job)) and kept[0].ended, "what was measured of it")
    farm.kill(signal.SIGSTOP)
    try:
        code, _, shown = page.get(f"/job/{job}/report")
    finally:
        farm.kill(signal.SIGCONT)
    assert code == 200 and "1 of 1 shards" in shown
    assert "the coordinator does not answer: this is what figures.sqlite" in shown
    assert "no coordinator" not in shown


def test_a_job_that_is_removed_meanwhile_is_said_to_be_gone(farm: FarmHarness, page: PageReader) -> None:
    job = farm.submit(arrays(rows=ROWS), shard_rows=ROWS, name="short")
    stream = page.stream(f"/job/{job}")
    stream.until(job, f"coordinator report {job}")
    farm.wait(job)
    assert farm.coordinator("rm", job).returncode == 0
    stream.until("all of the farm", f"there is no job {job}")
    assert page.get(f"/job/{job}/report")[0] == 404
    stream.close()


def test_a_stream_stays_small(farm: FarmHarness, page: PageReader) -> None:
    job = farm.submit(arrays(rows=SHARDS * ROWS), shard_rows=ROWS, name="small")
    stream = page.stream("/")
    stream.until(job)
    farm.wait(job)
    stream.until(job, "100%")
    assert sum(stream.sizes[1:]) < 20_000 * len(stream.sizes)
    stream.close()


def test_a_halted_job_is_at_the_top_with_its_evidence(farm: FarmHarness, page: PageReader) -> None:
    fields = {"kind": "map", "code": "work.py:work", "max_failures": 1, "attempts": 1}
    job = farm.submit(arrays(rows=8 * ROWS), shard_rows=ROWS, work=BAD, name="bad", **fields)
    farm.wait(job, "halted")
    stream = page.stream("/")
    assert f"coordinator logs {job}" in stream.until(f"{job} is halted")
    assert stream.order.index("trouble") < stream.order.index("jobs")
    stream.close()
    stream = page.stream(f"/job/{job}")
    stream.until("! halted", "<b>row 7</b> has NaN", "Traceback", "Failures")
    stream.close()


def test_metrics_are_what_status_says(farm: FarmHarness, page: PageReader) -> None:
    job = farm.submit(arrays(rows=SHARDS * ROWS), shard_rows=ROWS, name="scraped")
    farm.wait(job)

    def scraped() -> bool:
        code, headers, said = page.get("/metrics")
        assert code == 200 and headers["content-type"].startswith("application/openmetrics-text")
        assert said.endswith("# EOF\n") and "muster_up 1" in said.splitlines()
        return f'muster_job_shards{{job="{job}",kind="cluster",state="committed"}} {SHARDS}' in said

    until(scraped, "the job in the metrics")
    assert page.get(f"/metrics?t={page.secret}", Host="127.0.0.1")[0] == 200


def test_who_does_not_know_the_secret_gets_nothing(farm: FarmHarness, page: PageReader) -> None:
    for path in ("/", "/events/", "/static/page.js", "/metrics", "/nothing"):
        code, _, said = page.get(path, Host=f"127.0.0.1:{page.port}")
        assert (code, "weights" in said) == (403, False)
    assert page.get("/", Authorization=f"Bearer {page.secret}", Host="evil.example")[0] == 421
    for method in ("POST", "HEAD", "DELETE", "OPTIONS"):
        assert page.get("/", method, Authorization=f"Bearer {page.secret}")[0] == 405
    code, headers, _ = page.get(f"/job/weights.1?t={page.secret}&find=x", Host="localhost")
    assert code == 303 and headers["location"] == "/job/weights.1?find=x"
    cookie = headers["set-cookie"]
    assert "httponly" in cookie.lower() and "samesite" in cookie.lower()
    code, headers, said = page.get("/", Cookie=cookie.partition(";")[0])
    assert code == 200 and "weights" not in said and "default-src 'none'" in headers["content-security-policy"]
    assert page.get("/nothing")[0] == page.get("/static/../server.py")[0] == 404


def test_programs_find_the_secret_of_the_page_that_runs(farm: FarmHarness) -> None:
    with page_of(farm) as page:
        assert page.get("/")[0] == 200
        assert farm.root.page_secret.read_text() == page.secret
        assert farm.root.page_secret.stat().st_mode & 0o777 == 0o600
    assert not farm.root.page_secret.exists()


def test_it_listens_on_loopback_alone(page: PageReader) -> None:
    found = [one.laddr.ip for one in psutil.net_connections("inet") if one.status == "LISTEN" and one.laddr]
    ours = [one.laddr.ip for one in psutil.net_connections("inet") if one.laddr and one.laddr.port == page.port]
    assert found and set(ours) == {"127.0.0.1"}


def test_a_request_that_is_none_ends_by_itself(page: PageReader) -> None:
    for raw in (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, b"\x16\x03\x01" * 100 + b"\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", page.port), 10) as line:
            line.sendall(raw)
            assert line.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 431", b""))
    assert page.get("/")[0] == 200


def test_who_has_no_secret_cannot_keep_others_out(farm: FarmHarness, page: PageReader) -> None:
    stream = page.stream("/")
    stream.until("Jobs")
    with ExitStack() as held:
        for number in range(2 * CONNECTIONS_MOST):
            line = held.enter_context(socket.create_connection(("127.0.0.1", page.port), 10))
            line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" if number % 2 else b"")
        assert page.get("/")[0] == 200
        job = farm.submit(arrays(rows=ROWS), shard_rows=ROWS, name="crowd")
        stream.until(job)
    stream.close()


def test_a_tab_too_many_is_told_so_and_goes_on_once_another_is_closed(page: PageReader) -> None:
    streams = [page.stream("/") for _ in range(STREAMS_MOST)]
    for stream in streams:
        stream.until("Jobs")
    late = page.stream("/")
    assert late.until("tabs look already").startswith(f"{STREAMS_MOST} tabs look already. Close one")
    late.close()
    streams.pop().close()

    def let_in() -> bool:
        again = page.stream("/")
        again.read()
        again.close()
        return "Jobs" in again.text

    until(let_in, "the place of the tab that was closed")
    for stream in streams:
        stream.close()


def test_a_port_in_use_is_an_error_and_the_default_goes_on(farm: FarmHarness, page: PageReader) -> None:
    done = farm.coordinator("page", "--port", str(page.port))
    assert done.returncode == 7 and f"port {page.port} of 127.0.0.1 cannot be had" in done.stderr
    with page_of(farm) as other:
        assert other.port != page.port and other.get("/")[0] == 200


def test_how_to_reach_a_server_is_nothing_to_a_farm_of_this_machine(farm: FarmHarness) -> None:
    done = farm.coordinator("page", "--ssh-config", "/dev/null")
    assert done.returncode == 2 and "--ssh-config is for a farm elsewhere" in done.stderr and "hint: " in done.stderr


def test_a_farm_behind_ssh_is_shown_here(farm: FarmHarness, page: PageReader, server: Sshd) -> None:
    job = farm.submit(arrays(rows=ROWS), shard_rows=ROWS, name="far")
    config = server.ssh_config(name="ssh_config-page")
    with page_of(farm, (f"{HOST}:{farm.root.path}", "--ssh-config", str(config))) as far:
        assert far.port != page.port and far.secret != page.secret
        stream = far.stream("/")
        stream.until(job)
        stream.close()
        assert far_pages(farm) and far.get("/", Host=f"localhost:{far.port}")[0] == 403
    until(lambda: not far_pages(farm), "the page on the server to end with its connection")


def test_the_tunnel_that_it_prints_leads_to_it(farm: FarmHarness, server: Sshd, tmp_path: Path) -> None:
    command = launch.python("muster.coordinator.cli", "page", "--root", str(farm.root.path))
    process = farm.run(command, "page.err", stdout=subprocess.PIPE)
    assert process.stdout is not None
    url, told = (process.stdout.readline().decode() for _ in range(2))
    address, named = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?t=(\S+)\n", url), re.search("`(ssh -N -L .*)`", told)
    assert address is not None and named is not None, url + told
    (port, secret), words = address.groups(), named.group(1).split()
    assert words[3] == f"{port}:127.0.0.1:{port}" and words[4].endswith(f"@{socket.gethostname()}")
    with listen(None) as free:  # here it is one machine, and that port is the page's
        here = free.getsockname()[1]
    config = server.ssh_config(name="ssh_config-tunnel")
    tunnel = [*words[:3], words[3].replace(port, str(here), 1), "-F", str(config), "-o", "ClearAllForwardings=no", HOST]
    ssh = subprocess.Popen(tunnel, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def answered() -> int:
            with suppress(OSError):
                return PageReader(here, secret).get("/")[0]
            return 0

        assert until(answered, "the page at the other end of the tunnel") == 200
    finally:
        for one in (ssh, process):
            one.terminate()
            one.wait(SECONDS)
        process.stdout.close()


def far_pages(farm: FarmHarness) -> list[str]:
    """What an ssh started to serve this farm's page; the ssh itself is none."""
    lines = [command_line(pid) for pid in psutil.pids()]
    return [one for one in lines if "--until-eof" in one and str(farm.root.path) in one and not one.startswith("ssh ")]


def test_it_outlives_the_coordinator(tmp_path: Path) -> None:
    with running(tmp_path) as farm, page_of(farm) as page:
        job = farm.submit(arrays(rows=SHARDS * ROWS), shard_rows=ROWS)
        agent = farm.agent("one").go()
        farm.wait(job)
        stream, details = page.stream("/"), page.stream(f"/job/{job}")
        stream.until(f"{SHARDS}/{SHARDS}")
        agent.die()
        farm.kill()
        stream.until("no coordinator since", f"{SHARDS}/{SHARDS}", "coordinator serve")
        assert stream.old is True
        details.until("no coordinator since", f"{SHARDS} of {SHARDS} shards")
        assert "muster_up 0" in page.get("/metrics")[2]
        assert f"{SHARDS} of {SHARDS} shards" in page.get(f"/job/{job}/report")[2]
        fresh = page.stream(f"/job/{job}")
        fresh.until("no coordinator since", f"{SHARDS} of {SHARDS} shards")  # of figures.sqlite, or of what was heard
        farm.start()
        until(lambda: stream.read() and "no coordinator" not in stream.text, "the coordinator to be seen again")
        assert stream.old is False and f"{SHARDS}/{SHARDS}" in stream.text
        for one in (stream, details, fresh):
            one.close()


def test_without_a_coordinator_it_shows_what_was_kept(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        job = farm.submit(arrays(rows=SHARDS * ROWS), shard_rows=ROWS)
        farm.agent("one").go()
        farm.wait(job)
        farm.stop()
        with page_of(farm) as page:
            for path, said in {"/": f"{SHARDS}/{SHARDS}", "/jobs": "✓ complete", f"/job/{job}": "When it ran"}.items():
                stream = page.stream(path)
                stream.until("no coordinator since", job, said)
                stream.close()
            farm.start()
            stream = page.stream("/")
            stream.until("live", "Machines", f"{SHARDS}/{SHARDS}")
            stream.close()
    assert farm.coordinator("page", "--root", str(tmp_path / "none")).returncode != 0


def test_a_halted_job_is_said_without_a_coordinator_too(tmp_path: Path) -> None:
    fields = {"kind": "map", "code": "work.py:work", "max_failures": 1, "attempts": 1}
    with running(tmp_path) as farm:
        job = farm.submit(arrays(rows=8 * ROWS), shard_rows=ROWS, work=BAD, name="bad", **fields)
        farm.join("lab1", "--cpus", "1")
        farm.wait(job, "halted")
        farm.stop()
        with page_of(farm) as page:
            stream = page.stream("/")
            stream.until(f"{job} is halted", "figures.sqlite in the root", "! halted")
            stream.close()
