"""The page's web server: requests in, pages, streams and metrics out. On loopback; decides nothing of a farm."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from muster.coordinator.api.figures import Figures
from muster.coordinator.api.requests import FiguresAsk
from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.page import metrics
from muster.coordinator.page.asker import Asker
from muster.coordinator.page.blocks import Block, changes, event
from muster.coordinator.page.guard import HEADERS, Head, cookie_name, policy_of, refusal
from muster.coordinator.page.markup import HERE, block, shell
from muster.coordinator.page.pace import SendPace
from muster.coordinator.page.seen import COUNTS, FARM, Question, Seen
from muster.coordinator.page.views import View, blocks, is_old, view_of
from muster.jobs.common.durable import write_private
from muster.jobs.common.errors import MusterError, RefusedError
from muster.jobs.common.names import is_job
from muster.jobs.contract.plan import Plan

PORT, PORTS = 8470, 10  # the first that is tried, and how many
LOOPBACK = "127.0.0.1"
STREAMS_MOST = 8
CONNECTIONS_MOST = 64
HEAD_BYTES = 8192
LOOK_SECONDS = 0.25  # between two looks at what the daemon said last
AGAIN_SECONDS = 1.0  # between two drawings of a view, at least
COMMENT_SECONDS = 10.0  # a word into a silent stream, so that who left is noticed
SCRAPE_SECONDS = 5.0  # for what a scrape wants to know
REPORT_SECONDS = 30.0  # for what was measured of a job
FRESH_SECONDS = 1.0
STATIC = {"page.js": "text/javascript", "page.css": "text/css", "icon.svg": "image/svg+xml"}
TITLES = {"farm": "farm", "jobs": "jobs"}


class Guard:
    """Lets in who knows the secret; what is refused reaches nothing else, and every answer has the same headers."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app, self._secret = app, secret
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        head = head_of(scope, cookie_name(self._secret))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", []))
                known = {name for name, _ in own}
                message["headers"] = own + [one for one in self._headers if one[0] not in known]
            await send(message)

        if (refused := refusal(head, self._secret)) is not None:
            answer: ASGIApp = PlainTextResponse(refused.said + "\n", refused.status, {"connection": "close"})
        elif head.given and scope["path"] != "/metrics":
            answer = self._welcome(scope)
        else:
            answer = self._app
        await answer(scope, receive, sending)

    def _welcome(self, scope: Scope) -> Response:
        """The secret goes into a cookie, and out of the address."""
        rest = [(name, value) for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name != "t"]
        path = "/" + scope["path"].lstrip("/")  # "//elsewhere" would lead there
        found = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, 303)
        found.set_cookie(cookie_name(self._secret), self._secret, httponly=True, samesite="lax")
        return found


def head_of(scope: Scope, cookie: str) -> Head:
    """What a request says of itself; a header that comes twice counts as none, but for cookies."""
    said: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        said.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def one(name: str) -> str:
        return said[name][0] if len(said.get(name, ())) == 1 else ""

    cookies = [part.strip() for line in said.get("cookie", ()) for part in line.split(";")]
    return Head(
        method=scope["method"],
        host=one("host"),
        given=dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("t", ""),
        cookie=next((part.partition("=")[2] for part in cookies if part.partition("=")[0] == cookie), ""),
        authorization=one("authorization"),
        site=one("sec-fetch-site"),
        mode=one("sec-fetch-mode"),
        has_body="transfer-encoding" in said or one("content-length") not in ("", "0"),
    )


class Pages:
    """What is answered to whoever got past the guard."""

    def __init__(self, root: Root, asker: Asker, stopping: threading.Event) -> None:
        self._farm = f"{socket.gethostname()}:{root.path}"
        self._root, self._asker, self._stopping = root, asker, stopping
        self._streams = 0
        self._static = {name: (HERE / "static" / name).read_bytes() for name in STATIC}

    def app(self) -> Starlette:
        routes = [
            Route("/static/{name}", self.static),
            Route("/metrics", self.metrics),
            Route("/job/{job}/report", self.report),
            Route("/events/{path:path}", self.events),
            Route("/{path:path}", self.page),
        ]
        return Starlette(routes=routes)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return _nothing()
        return Response(self._static[name], media_type=STATIC[name])

    async def page(self, request: Request) -> Response:
        view = _view(request)
        if view is None:
            return _nothing()
        title = TITLES.get(view.kind) or (f"{view.job}/{view.layer}/{view.number}" if view.layer else "")
        return Response(shell(title=title or view.job or view.machine), media_type="text/html")

    async def events(self, request: Request) -> Response:
        view = _view(request)
        if view is None:
            return _nothing()
        return StreamingResponse(self._stream(view), media_type="text/event-stream")

    async def _stream(self, view: View) -> AsyncIterator[bytes]:
        """What is new, as long as somebody reads; a slow reader misses what came between. To a browser that is one too
        many that is said, and it comes again: of an answer that is no stream its script learns nothing."""
        yield b"retry: 2000\n\n"
        if self._streams >= STREAMS_MOST:
            yield event(changes({}, [block("full", most=STREAMS_MOST)]))
            return
        self._streams += 1
        try:
            with self._asker.wanting(view.questions()):
                async for piece in self._news(view):
                    yield piece
        finally:
            self._streams -= 1

    async def _news(self, view: View) -> AsyncIterator[bytes]:
        known: dict[str, Block] = {}
        was_old: bool | None = None
        drawn_of = -1
        pace, drawn, spoke = SendPace(), 0.0, time.monotonic()
        while not self._stopping.is_set():
            now = time.monotonic()
            seen = self._asker.seen()
            is_new = seen.version != drawn_of or seen.age > seen.pace + AGAIN_SECONDS
            if is_new and now >= max(pace.not_before, drawn + AGAIN_SECONDS):
                drawn, drawn_of = now, seen.version
                made = await asyncio.to_thread(blocks, view, seen, self._farm)
                change = changes(known, made)
                if is_old(seen) != was_old:
                    was_old = change["old"] = is_old(seen)
                if change:
                    piece = event(change)
                    known, spoke = {block.name: block for block in made}, now
                    pace.sent(len(piece), now)
                    yield piece
            if now - spoke >= COMMENT_SECONDS:
                spoke = now
                yield b": \n\n"
            await asyncio.sleep(LOOK_SECONDS)

    async def metrics(self, _: Request) -> Response:
        def is_fresh(seen: Seen) -> bool:
            return seen.status is not None and seen.agents is not None and seen.age <= FRESH_SECONDS

        seen = await self._heard(FARM, SCRAPE_SECONDS, is_fresh)
        return Response(metrics.text(seen), media_type=metrics.MEDIA_TYPE)

    async def report(self, request: Request) -> Response:
        """What `coordinator report --html` writes, of figures that are asked for at the page's own pace."""
        from muster.coordinator.report import gather, html

        job = request.path_params["job"]
        if not is_job(job):
            return _nothing()
        asked = FiguresAsk(job)
        seen = await self._heard([COUNTS, asked], REPORT_SECONDS, lambda seen: {COUNTS, asked} <= seen.answers.keys())
        figures, digests = seen.get(asked), {one.id: one.plan for one in seen.status.jobs} if seen.status else {}

        def found(root: Root, job: str) -> tuple[Plan, Figures, str]:
            plan = plans.read(root.job(job), digests.get(job) or None)[0]
            if isinstance(figures, Figures) and not is_old(seen):
                return plan, figures, ""
            why = seen.gone or seen.error(asked) or "the coordinator does not answer"
            return plan, *gather.kept_figures(root, job, why)

        def made() -> str:
            return html.page(gather.gather(self._root, [job], None, timeline=True, find=found))

        try:
            page = await asyncio.to_thread(made)
        except MusterError as error:
            return PlainTextResponse(f"{error.message}\n", 404)
        return Response(page, media_type="text/html", headers=policy_of(html.STYLE))

    async def _heard(self, questions: Sequence[Question], within: float, is_enough: Callable[[Seen], bool]) -> Seen:
        """What the daemon says now, or what it said last if it may not be asked so soon."""
        deadline = time.monotonic() + within
        with self._asker.wanting(questions):
            while True:
                seen = self._asker.seen()
                if is_enough(seen) or is_old(seen) or time.monotonic() >= deadline or self._stopping.is_set():
                    return seen
                await asyncio.sleep(LOOK_SECONDS / 5)


def _view(request: Request) -> View | None:
    asked = request.query_params
    return view_of(request.path_params["path"], asked.get("find", ""), asked.get("sort", ""))


def _nothing() -> Response:
    return PlainTextResponse("there is nothing at this address; / shows the farm\n", 404)


# --- the process ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a page is to be read."""

    port: int
    secret: str

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/?t={self.secret}"


class _Server(uvicorn.Server):
    """Streams have no end of their own: they are told of the server's."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: object) -> None:
        self._stopping.set()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


class _Connection(H11Protocol):
    """One connection. Where as many are open as may be, a new one takes the place of the one that has been without a
    request for longest: whoever has no secret gets no answer that lasts, and cannot keep others out by silence."""

    idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        others = [one for one in self.connections if isinstance(one, _Connection) and one is not self and one.is_idle]
        if len(self.connections) > CONNECTIONS_MOST and others:
            longest = min(others, key=lambda one: one.idle_since)
            self.connections.discard(longest)
            longest.transport.abort()
        self.idle_since = self.loop.time()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is at work; half of one is none."""
        return self.cycle is None or self.cycle.response_complete


class Page:
    """A page of one root, from `Page(…)` on at a port of its own, read from `serve` on."""

    def __init__(self, root: Root, port: int | None) -> None:
        self._root = root
        self._socket = listen(port)
        self.place = Place(self._socket.getsockname()[1], secrets.token_urlsafe(24))

    def serve(self, until_eof: bool = False) -> None:
        """Until it is interrupted; `until_eof`: or stdin ends, as it does when an ssh goes away."""
        stopping, asker = threading.Event(), Asker(self._root)
        app = Guard(Pages(self._root, asker, stopping).app(), self.place.secret)
        config = uvicorn.Config(
            app, http=_Connection, ws="none", loop="asyncio", lifespan="off", log_config=None, access_log=False,
            server_header=False, limit_concurrency=CONNECTIONS_MOST + 1, h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        server = _Server(config, stopping)
        if until_eof:
            threading.Thread(target=_await_eof, args=(server, stopping), daemon=True).start()
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises again what it was ended by
        try:
            write_private(self._root.page_secret, self.place.secret.encode())
            asker.start()
            server.run([self._socket])
        finally:
            stopping.set()
            self._forget_secret()

    def _forget_secret(self) -> None:
        """Unless a page that was started later wrote its own."""
        with suppress(OSError):
            if self._root.page_secret.read_text() == self.place.secret:
                self._root.page_secret.unlink()


def _await_eof(server: _Server, stopping: threading.Event) -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    stopping.set()
    server.should_exit = True


def listen(port: int | None) -> socket.socket:
    """A socket on loopback, at `port` or else the first that is free."""
    ports = [port] if port is not None else list(range(PORT, PORT + PORTS))
    for one in ports:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((LOOPBACK, one))
            made.listen(CONNECTIONS_MOST)
        except OSError as error:
            made.close()
            why = error.strerror or str(error)
            continue
        return made
    which = f"port {port}" if port is not None else f"each of the ports {PORT} to {PORT + PORTS - 1}"
    raise RefusedError(f"{which} of {LOOPBACK} cannot be had: {why}", "`--port N` names another")


def said(place: Place, asked: Mapping[str, object]) -> str:
    """Where the page is, as one line for programs."""
    return json.dumps({"url": place.url, "port": place.port, "secret": place.secret, **asked})
