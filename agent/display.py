"""What a person sees of a running agent: one live line in a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from muster.jobs.common.printable import harmless, one_line
from muster.jobs.common.units import format_size

if TYPE_CHECKING:
    from tqdm import tqdm
from collections import deque

from muster.agent.core.events import BatchEnded, Event, Pulled, PushAnswered
from muster.coordinator.protocol.transfer import Settled

PLAIN_SECONDS = 10.0
SPAN_SECONDS = 15.0


class DisplayState(msgspec.Struct, frozen=True):
    """The agent at a moment; `state.json` in its spool has the same."""

    name: str
    host: str
    where: str
    pid: int
    linked: bool
    ready: bool  # whether its workers are
    why_idle: str  # "" while it works
    running: int
    waiting: int
    finished: int  # shards not yet acknowledged
    done: int  # shards finished since the start
    pushed: int  # shards acknowledged since the start
    rate: float  # shards per second, lately
    cpus: int
    at: float  # seconds since the epoch
    wishes: int = 0  # stamp of the courtesy file that it goes by
    lasting: bool = False  # whether there is no link until a person does something about it
    limits: str = ""  # what it was told to leave alone
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    elsewhere: bool = False  # whether its shards run on other machines, those of a cluster

    def __str__(self) -> str:
        link = "" if self.linked else " · no link"
        idle = f" · {self.why_idle}" if self.why_idle else ""
        sent = f"{self.pushed} pushed ({format_size(self.bytes_pushed)})"
        pulled = f"{format_size(self.bytes_pulled)} pulled, " if self.bytes_pulled else ""
        counts = f"{pulled}{self.running} running, {self.done} finished, {sent}, {self.rate:.3g}/s"
        return f"{self.name}@{self.host} · {counts}{link}{idle}"


class StatusLine:
    """`show` as often as one likes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._bar: tqdm[Any] | None = None
        self._shown_at = float("-inf")
        self._key: tuple[object, ...] = ()
        if self._out.isatty():
            from tqdm import tqdm

            self._bar = tqdm(file=self._out, bar_format="{desc}", dynamic_ncols=True, leave=True)

    def show(self, state: DisplayState, now: float) -> None:
        if self._bar is not None:
            self._bar.set_description_str(one_line(str(state)))
            return
        key = (state.linked, state.why_idle, state.running + state.waiting == 0)
        busy = bool(state.running) and now - self._shown_at >= PLAIN_SECONDS
        if busy or (key != self._key and now - self._shown_at >= 1.0):
            self._key, self._shown_at = key, now
            self._print(one_line(str(state)))

    def say(self, text: str) -> None:
        """A line that stays. Some of it may be the coordinator's words."""
        text = harmless(text)
        if self._bar is not None:
            self._bar.write(text, file=self._out)
        else:
            self._print(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _print(self, text: str) -> None:
        try:
            print(text, file=self._out, flush=True)
        except OSError:  # the terminal went away; the work does not
            return


class Meter:
    """Totals since the start; the rate is over the last SPAN_SECONDS."""

    def __init__(self) -> None:
        self.done = 0
        self.pushed = 0
        self.bytes_pushed = 0
        self.bytes_pulled = 0
        self._lately: deque[tuple[float, int]] = deque()

    def note(self, event: Event, now: float) -> None:
        if isinstance(event, BatchEnded) and event.outcome.numbers:
            self.done += len(event.outcome.numbers)
            self._lately.append((now, len(event.outcome.numbers)))
        elif isinstance(event, Pulled):
            self.bytes_pulled += event.nbytes - event.spared
        elif isinstance(event, PushAnswered) and isinstance(event.answer, Settled):
            self.pushed += len(event.sent)
            self.bytes_pushed += event.nbytes

    def rate(self, now: float) -> float:
        """Shards finished per second."""
        while self._lately and self._lately[0][0] < now - SPAN_SECONDS:
            self._lately.popleft()
        if not self._lately:
            return 0.0
        return sum(count for _, count in self._lately) / max(1.0, now - self._lately[0][0])
