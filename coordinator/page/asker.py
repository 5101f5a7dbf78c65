"""The one thread that asks the daemon on behalf of all who look, and keeps the newest answers. Only ever reads.

Nobody looks: nothing is asked. The daemon is gone: it is tried every two seconds, and what was heard last stays.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from muster.coordinator.api.figures import Figures
from muster.coordinator.api.requests import (
    AgentsAsk,
    ExplainAgent,
    ExplainJob,
    ExplainShard,
    FailuresAsk,
    FiguresAsk,
    StatusAsk,
)
from muster.coordinator.api.status import Agents, Explained, Failures, Status
from muster.coordinator.farm_root import ask_daemon, figures_file, printed_log
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.page.history import History
from muster.coordinator.page.pace import AskPace
from muster.coordinator.page.seen import FARM, Answer, Printed, Question, Sayings, Seen
from muster.coordinator.protocol.values import Message
from muster.jobs.common.errors import LinkError, MusterError, NoDaemonError, RefusedError

ANSWERS: dict[type[Message], type[Message]] = {  # all that the daemon is ever asked, with what it answers
    StatusAsk: Status,
    AgentsAsk: Agents,
    ExplainAgent: Explained,
    ExplainJob: Explained,
    ExplainShard: Explained,
    FailuresAsk: Failures,
    FiguresAsk: Figures,
}
SECONDS: dict[type[Question], float] = {
    StatusAsk: 1.0,
    AgentsAsk: 1.0,
}  # between two of one kind, where the pace allows it
OTHER_SECONDS = 5.0
RETRY_SECONDS = 2.0  # while the daemon is gone
LISTEN_SECONDS = 0.5  # at a time, for an answer
ANSWER_SECONDS = 60.0
PRINTED_BYTES, PRINTED_SHOWN = 16 << 10, 30


@dataclass
class _Known:
    """What the thread changes under its lock."""

    version: int = 0
    answers: dict[Question, Answer] = field(default_factory=dict)
    asked: dict[Question, float] = field(default_factory=dict)
    heard: float | None = None
    gone: str = ""
    gone_since: float = 0.0
    waiting: float | None = None  # monotonic, since a question was put
    pace: float = 0.0


class Asker:
    """Started once; what is wanted of it is wanted as long as somebody is inside `wanting`."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._wanted: Counter[Question] = Counter()
        self._known = _Known()
        self._history = History()
        self._pace = AskPace()
        self._line: ask_daemon.DaemonConnection | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="asker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(ANSWER_SECONDS)

    @contextmanager
    def wanting(self, questions: Sequence[Question]) -> Iterator[None]:
        """These are asked again and again meanwhile."""
        with self._changed:
            for question in questions:
                if question not in self._wanted:  # how long ago it was asked for somebody else is no pace
                    self._known.asked.pop(question, None)
            self._wanted.update(questions)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._wanted.subtract(questions)
                self._wanted += Counter()  # without those that nobody wants any more
                for question in [one for one in self._known.answers if one not in self._wanted and one not in FARM]:
                    del self._known.answers[question]

    def seen(self) -> Seen:
        with self._changed:
            known, now = self._known, time.monotonic()
            waited = now - known.waiting if known.waiting is not None else 0.0
            return Seen(
                version=known.version,
                answers=dict(known.answers),
                history=self._history,
                heard=known.heard,
                age=max(0.0, time.time() - known.heard) if known.heard else 0.0,
                gone=known.gone,
                gone_since=known.gone_since,
                silent=waited if waited >= ask_daemon.SILENCE_SECONDS else 0.0,
                pace=known.pace,
            )

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (question := self._next()) is not None:
                self._put(question)
        finally:
            with self._changed:  # if it is by a bug of ours, nothing may look live
                self._known.gone = self._known.gone or "the page asks no more: end it, and start it again"
                self._known.version += 1
            if self._line is not None:
                self._line.close()

    def _next(self) -> Question | None:
        """The question that is due, once it is; None at the end."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                first = min(self._wanted, key=self._due, default=None)
                wait = None if first is None else max(self._due(first), self._pace.not_before) - now
                if wait is not None and wait <= 0:
                    return first
                self._changed.wait(wait)
        return None

    def _due(self, question: Question) -> float:
        """As for itself; what waits longest goes first, so that none starves where the pace is slow."""
        asked = self._known.asked.get(question)
        return 0.0 if asked is None else asked + SECONDS.get(type(question), OTHER_SECONDS)

    def _put(self, question: Question) -> None:
        began = time.monotonic()
        with self._changed:
            before, self._known.asked[question] = self._known.asked.get(question), began
            self._known.asked = {one: at for one, at in self._known.asked.items() if one in self._wanted}
        try:
            value: msgspec.Struct | None
            value, error = self._answer(question), ""
        except (NoDaemonError, LinkError, RefusedError) as lost:
            if self._line is None:
                self._lost(lost, question)
                return
            value, error = None, lost.message
        except MusterError as refused:
            value, error = None, refused.message
        now = time.monotonic()
        with self._changed:
            known = self._known
            known.answers[question] = Answer(value, error, now)
            known.version += 1
            if isinstance(question, Printed):  # which tells nothing of the daemon
                return
            self._pace.answered(type(question).__name__, now - began, now)
            known.heard, known.gone, known.waiting = time.time(), "", None
            if question == FARM[0] and before is not None:
                known.pace = began - before
            if isinstance(value, Agents):
                self._history = self._history.added(value.agents, value.now)

    def _answer(self, question: Question) -> msgspec.Struct:
        if isinstance(question, Printed):
            return _printed(self._root, question.job)
        if self._line is None:
            self._line = ask_daemon.DaemonConnection(ask_daemon.connect(self._root))
        try:
            return self._asked(self._line, question)
        except LinkError:
            self._line.close()
            self._line = None
            raise

    def _asked(self, line: ask_daemon.DaemonConnection, question: Message) -> msgspec.Struct:
        line.begin(question)
        with self._changed:
            self._known.waiting = time.monotonic()
        for _ in range(int(ANSWER_SECONDS / LISTEN_SECONDS)):
            found: Message | None = line.answered(ANSWERS[type(question)], LISTEN_SECONDS)
            if found is not None:
                return found
            if self._closing:
                break
        raise LinkError("the coordinator does not answer")

    def _lost(self, why: MusterError, question: Question) -> None:
        """Nobody answers; what the file of figures has is read in the daemon's place."""
        kept = _kept(self._root, question) if isinstance(question, FiguresAsk) else None
        with self._changed:
            known, now = self._known, time.monotonic()
            if not known.gone:
                known.gone_since = time.time()
            known.gone, known.waiting = why.message, None
            known.version += 1
            if kept is not None and kept.job is not None:
                known.answers[question] = Answer(kept, "", now)
            self._pace.not_before = max(self._pace.not_before, now + RETRY_SECONDS / max(1, len(self._wanted)))


def _kept(root: Root, question: FiguresAsk) -> Figures | None:
    try:
        found = figures_file.read(root.figures, question.job)
    except MusterError:
        return None
    return Figures(found[0], found[1]) if found else None


def _printed(root: Root, job: str) -> Sayings:
    path = root.job(job).printed
    try:
        start = max(0, path.stat().st_size - PRINTED_BYTES)
        return Sayings([saying for _, saying in printed_log.read(path, start)][-PRINTED_SHOWN:])
    except OSError:
        return Sayings([])
