"""A `coordinator page` of a test's farm, and a plain reader of it, which puts streams together as a browser does."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import unescape
from typing import Any

from muster.jobs.common import launch
from tests.support.farm import FarmHarness, until

SECONDS = 30.0


class PageReader:
    """One `coordinator page`, asked by its address."""

    def __init__(self, port: int, secret: str) -> None:
        self.port, self.secret = port, secret

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?t={self.secret}"

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        """Status, headers and text; with the secret unless other headers are given."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            line.request(method, path, headers=given or self._known())
            answer = line.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            line.close()

    def _known(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}

    def stream(self, path: str) -> PageStream:
        return PageStream(self.port, path, self._known())


class PageStream:
    """One tab: `read` the next word, then look at `text`."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        self._line.request("GET", f"/events{path}", headers=headers)
        self._answer = self._line.getresponse()
        self.status = self._answer.status
        self.sizes: list[int] = []
        self.old: bool | None = None
        self.order: list[str] = []
        self._blocks: dict[str, tuple[str, list[str]]] = {}

    def read(self) -> dict[str, Any]:
        """The next change, which is then a part of what is known."""
        deadline = time.monotonic() + SECONDS
        while not (line := self._answer.readline()).startswith(b"data: "):
            assert line, "the stream ended"
            assert time.monotonic() < deadline, f"nothing new; on the page: {self.text}"
        self.sizes.append(len(line) + 1)
        change: dict[str, Any] = json.loads(line[len(b"data: ") :])
        self.old = change.get("old", self.old)
        if "order" in change:
            self.order, self._blocks = change["order"], {}
        for name, (skeleton, cells) in change.get("whole", {}).items():
            self._blocks[name] = (skeleton, cells)
        for key, cell in change.get("cells", {}).items():
            name, _, number = key.rpartition(".")
            self._blocks[name][1][int(number)] = cell
        return change

    @property
    def text(self) -> str:
        """As people read it, each cell in its place."""
        parts = []
        for name in self.order:
            skeleton, cells = self._blocks[name]
            for i, cell in enumerate(cells):
                head, _, rest = skeleton.partition(f'id="{name}.{i}"')
                end = rest.index(">") + 1
                skeleton = f"{head}{rest[:end]}{cell}{rest[end:]}"
            parts.append(skeleton)
        return " ".join(unescape(re.sub("<[^>]+>", " ", " ".join(parts))).split())

    def until(self, *words: str) -> str:
        """Read on until all of these are on the page."""

        def all_there() -> str:
            missing = [word for word in words if word not in self.text]
            if missing:
                self.read()
            return "" if missing else self.text

        return until(all_there, f"{words} on the page", SECONDS)

    def close(self) -> None:
        self._answer.close()
        self._line.close()


@contextmanager
def page_of(farm: FarmHarness, where: Sequence[str] = ()) -> Iterator[PageReader]:
    """The page of a farm, until the end of the block; `where`: not by its root's folder, but by these arguments."""
    command = launch.python("muster.coordinator.cli", "page", "--json", *(where or ("--root", str(farm.root.path))))
    process = farm.run(command, "page.err", stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (farm.folder / "page.err").read_text()
        told = json.loads(line)
        yield PageReader(told["port"], told["secret"])
    finally:
        process.terminate()
        process.wait(SECONDS)
        process.stdout.close()
