"""The guard before the page's application, where the page listens, and what its one asker makes of an absent daemon."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from muster.coordinator.api.status import JobStatus, Status, Tally
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.page.asker import Asker, turned_jobs
from muster.coordinator.page.guard import cookie_name, policy_of
from muster.coordinator.page.seen import FARM, Printed
from muster.coordinator.page.server import LOOPBACK, PORT, Guard, head_of, listen
from muster.jobs.common.errors import RefusedError
from muster.jobs.contract.states import JobState
from tests.support.farm import until

SECRET = "s" * 32


def scope(path: str = "/", query: str = "", method: str = "GET", **headers: str) -> dict[str, Any]:
    given = {"host": "127.0.0.1:8470", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items() if value]
    return {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": raw}


def answered(asked: dict[str, Any]) -> tuple[int, dict[str, str], bool]:
    """Status, headers, and whether the application was reached."""
    said: list[Message] = []
    reached = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)

    asyncio.run(Guard(app, SECRET)(asked, receive, send))
    headers = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], headers, bool(reached)


def test_the_secret_goes_out_of_the_address() -> None:
    status, headers, reached = answered(scope("/job/a.1", f"t={SECRET}&find=x%20y"))
    assert (status, headers["location"], reached) == (303, "/job/a.1?find=x+y", False)
    assert headers["set-cookie"].startswith(f"{cookie_name(SECRET)}={SECRET};")
    assert answered(scope("/", cookie=f"other=1; {cookie_name(SECRET)}={SECRET}"))[0] == 200


def test_no_address_leads_elsewhere() -> None:
    assert answered(scope("//evil.example/x", f"t={SECRET}"))[1]["location"] == "/evil.example/x"


def test_a_scraper_is_not_sent_around() -> None:
    assert answered(scope("/metrics", f"t={SECRET}"))[0] == 200
    assert answered(scope("/metrics", authorization=f"Bearer {SECRET}"))[0] == 200


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (scope(), 403),
        (scope(query="t=" + "x" * 32), 403),
        (scope(query=f"t={SECRET}", host="evil.example"), 421),
        (scope(query=f"t={SECRET}", method="POST"), 405),
        (scope(query=f"t={SECRET}", transfer_encoding="chunked"), 400),
        (scope(query=f"t={SECRET}", content_length="7"), 400),
    ],
    ids=["no secret", "wrong", "host", "method", "chunked", "body"],
)
def test_what_is_refused_reaches_nothing(asked: dict[str, Any], status: int) -> None:
    found, headers, reached = answered(asked)
    assert (found, reached) == (status, False)
    assert headers["x-content-type-options"] == "nosniff" and "default-src 'none'" in headers["content-security-policy"]


def test_a_report_has_a_policy_for_its_own_style_alone() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("x", headers=policy_of("p { }"))(scope, receive, send)

    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(Guard(app, SECRET)(scope(authorization=f"Bearer {SECRET}"), receive, send))
    (policy,) = [value.decode() for name, value in said[0]["headers"] if name == b"content-security-policy"]
    assert "default-src 'none'" in policy and "style-src 'sha256-" in policy and "script" not in policy
    assert b"nosniff" in [value for _, value in said[0]["headers"]]


def test_a_header_that_comes_twice_counts_as_none() -> None:
    asked = scope()
    asked["headers"] += [(b"host", b"127.0.0.1")]
    assert head_of(asked, "c").host == "" and answered(asked)[0] == 421


# --- where it listens ------------------------------------------------------------------------------------------


def test_the_next_port_is_taken_where_the_first_is_another_s() -> None:
    with closing(listen(None)) as one, closing(listen(None)) as two:
        assert PORT <= one.getsockname()[1] < two.getsockname()[1]
        assert one.getsockname()[0] == LOOPBACK
        with pytest.raises(RefusedError, match="cannot be had"):
            listen(one.getsockname()[1])


# --- asking ----------------------------------------------------------------------------------------------------


def test_an_absent_daemon_is_gone_until_it_answers(tmp_path: Path) -> None:
    """What is read from the root in the meantime is no word of it."""
    root = roots.prepare(tmp_path / "root")
    asker = Asker(root)
    asker.start()
    try:
        with asker.wanting([*FARM, Printed("a.1")]):
            until(lambda: asker.seen().get(Printed("a.1")), "what was printed")
            until(lambda: asker.seen().gone, "the daemon's absence")
            seen = asker.seen()
            until(lambda: asker.seen().version > seen.version + 3, "more tries")
            assert asker.seen().gone == seen.gone and asker.seen().heard is None
            assert asker.seen().gone_since == seen.gone_since
        assert asker.seen().get(Printed("a.1")) is None, "nobody wants it any more"
    finally:
        asker.close()


def test_a_job_that_is_in_another_state_is_told_from_one_that_goes_on() -> None:
    def status(state: JobState) -> Status:
        return Status(0.0, "", 0, [JobStatus("a.1", "map", state, "", 1, 0.0, None, None, Tally(), 0)])

    assert turned_jobs(None, status("running")) == turned_jobs(status("running"), None) == set()
    assert turned_jobs(status("running"), status("running")) == set()
    assert turned_jobs(status("running"), status("complete")) == {"a.1"}


def test_nobody_looks_and_nothing_is_asked(tmp_path: Path) -> None:
    root = roots.prepare(tmp_path / "root")
    with closing(socket.socket(socket.AF_UNIX)) as silent, closing(Asker(root)) as asker:
        with roots.address(root.socket) as where:
            silent.bind(where)
        silent.listen()
        silent.settimeout(0.3)
        asker.start()
        with pytest.raises(TimeoutError):
            silent.accept()
        silent.settimeout(30)
        with asker.wanting(FARM):
            silent.accept()[0].close()
