"""Sessions of calls, one after the other, while everything around them is struck: each answer right, delivered once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

from muster.coordinator.client import Farm
from muster.coordinator.client.calls.executor import Executor
from muster.jobs.common.errors import MusterError
from tests.campaign.line import Line

CALLS = 150  # of a session
ATTEMPTS = 50  # a runner that is killed is a failure of its call
ANSWER_SECONDS = 300.0  # within which whatever is struck is back
PAUSE_SECONDS = 1.0  # before a session that could not be opened is tried again


def answer(number: int) -> int:
    import time

    time.sleep(0.02)
    return number * number + 1


class Calls(threading.Thread):
    """A client that opens sessions until it is told to end. What it finds out goes into the line."""

    def __init__(self, root: Path, line: Line) -> None:
        super().__init__(name="calls", daemon=True)
        self.jobs: list[str] = []
        self._root, self._line = root, line
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._session()
            except Exception as error:  # whatever it is, its user would not have expected it
                self._line.broke("wedged", f"a session of calls: {type(error).__name__}: {error}")
                return

    def end(self) -> None:
        """Once the session that is open is through."""
        self._ended.set()
        self.join(2 * ANSWER_SECONDS)
        if self.is_alive():
            self._line.broke("wedged", "a session of calls does not end")

    def _session(self) -> None:
        executor = self._opened()
        if executor is None:
            return
        with executor:
            self.jobs.append(executor.job)
            delivered: Counter[int] = Counter()
            made = [executor.submit(answer, number) for number in range(CALLS)]
            for number, future in enumerate(made):
                future.add_done_callback(lambda _, number=number: delivered.update([number]))  # type: ignore[misc]
            self._judge(executor.job, made, delivered)

    def _opened(self) -> Executor | None:
        """None where it was told to end. The coordinator may be away just now, and so may all agents."""
        while not self._ended.is_set():
            try:
                return Farm(self._root).executor(attempts=ATTEMPTS, wait_for_agents=ANSWER_SECONDS)
            except MusterError:
                self._ended.wait(PAUSE_SECONDS)
        return None

    def _judge(self, job: str, made: list[Future[int]], delivered: Counter[int]) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        wrong = [n for n, one in enumerate(made) if one.result(max(0.0, deadline - time.monotonic())) != n * n + 1]
        twice = [number for number, times in delivered.items() if times > 1]
        self._line.compared += 1
        if wrong:
            self._line.broke("wrong", f"{job}: answers {wrong[:5]} are others")
        if twice:
            self._line.broke("twice", f"{job}: answers {twice[:5]} were delivered twice")
        if not (wrong or twice):
            self._line.found["calls: each answer right, and delivered once"] += 1
