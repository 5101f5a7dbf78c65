"""Debian's chromium without a window, driven by its own protocol over two pipes: no driver and no package is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.farm import until
from tests.support.needs import skip_for

FLAGS = (
    "--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip
SECONDS = 40.0
# The protocol's pipes are descriptors 3 and 4.
EXEC = "import os, sys; v = sys.argv; os.dup2(int(v[1]), 3); os.dup2(int(v[2]), 4); os.execvp(v[3], v[3:])"


def program() -> str:
    found = shutil.which("chromium")
    skip_for("" if found else "chromium is not installed")
    assert found is not None
    return found


class Tab:
    """One page, what its console complained of, and what it asked for."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of, self._held, self._last = to, of, b"", 0
        self._session: dict[str, str] = {}
        self.errors: list[str] = []
        self.asked: list[str] = []
        self._target = self("Target.createTarget", url="about:blank")["targetId"]
        attached = self("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        self.size(1280, 800)

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command."""
        self._last += 1
        said = {"id": self._last, "method": method, "params": params, **self._session}
        os.write(self._to, json.dumps(said).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for message in self._heard(deadline):
                if message.get("id") == self._last:
                    assert "error" not in message, message
                    found: dict[str, Any] = message["result"]
                    return found
        raise AssertionError(f"chromium does not answer {method}")

    def _heard(self, deadline: float) -> list[dict[str, Any]]:
        if not select.select([self._of], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return []
        said = os.read(self._of, 1 << 20)
        assert said, "chromium ended"
        *whole, self._held = (self._held + said).split(b"\0")
        found = [json.loads(one) for one in whole]
        for one in found:
            self._note(one.get("method", ""), one.get("params", {}))
        return found

    def _note(self, what: str, params: dict[str, Any]) -> None:
        if what == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif what == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"])[:500])
        elif what == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(params["entry"])[:500])
        elif what == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    def size(self, width: int, height: int) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, is_dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        return self("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    @property
    def text(self) -> str:
        return " ".join(str(self.run("document.body ? document.body.innerText : ''")).split())

    def until(self, *words: str) -> str:
        return until(lambda: all(word in (text := self.text) for word in words) and text, f"{words} in the browser")

    def key(self, key: str) -> None:
        code = {"Enter": 13}.get(key, 0)
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        self("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Behind another tab for as long."""
        session, self._session = self._session, {}  # what follows is asked of the browser, and not of the tab
        other = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = session
        until(lambda: self.run("document.hidden"), "the tab to be hidden")
        yield
        self._session = {}
        self("Target.closeTarget", targetId=other)
        self("Target.activateTarget", targetId=self._target)
        self._session = session
        until(lambda: not self.run("document.hidden"), "the tab to be seen again")

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """A browser with one tab, gone at the end."""
    into, to = os.pipe()
    of, out = os.pipe()
    ends = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (into, out)]  # 3 and 4 are to be what they become
    command = [program(), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with (folder / "chromium.err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", EXEC, *map(str, ends), *command], pass_fds=ends, stdin=subprocess.DEVNULL,
            stdout=errors, stderr=errors,
        )  # fmt: skip
    for one in (into, out, *ends):
        os.close(one)
    try:
        yield Tab(to, of)
    finally:
        os.close(to)  # which ends it
        os.close(of)
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
