"""The one thread that asks the daemon on behalf of all who look, and keeps the newest answers. Only ever reads.

Nobody looks: nothing is asked. The daemon is gone: it is tried every two seconds, and what was heard last stays.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from muster.coordinator.api.figures import Figures
from muster.coordinator.api.requests import (
    AgentsAsk,
    ExplainAgent,
    ExplainJob,
    ExplainShard,
    FailuresAsk,
    FiguresAsk,
    MapAsk,
    StatusAsk,
)
from muster.coordinator.api.status import Agents, Explained, Failures, ShardMap, Status
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
    MapAsk: ShardMap,
}
# Between two of one kind, where the pace allows it: no oftener than what they tell is new.
SECONDS: dict[type[Question], float] = {StatusAsk: 1.0, AgentsAsk: 2.0, FiguresAsk: 10.0}
OTHER_SECONDS = 5.0
RETRY_SECONDS = 2.0  # while the daemon is gone
LISTEN_SECONDS = 0.5  # at a time, for an answer
ANSWER_SECONDS = 60.0
PRINTED_BYTES, PRINTED_SHOWN = 16 << 10, 30


class Asker:
    """Started once; what is wanted of it is wanted as long as somebody is inside `wanting`."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._wanted: Counter[Question] = Counter()
        self._asked: dict[Question, float] = {}  # when, monotonic
        self._waiting: float | None = None  # monotonic, since a question was put
        self._seen = Seen(0, {}, History())
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
                    self._asked.pop(question, None)
            self._wanted.update(questions)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._wanted.subtract(questions)
                self._wanted += Counter()  # without those that nobody wants any more
                kept = {one: said for one, said in self._seen.answers.items() if one in self._wanted or one in FARM}
                self._seen = replace(self._seen, answers=kept)

    def seen(self) -> Seen:
        with self._changed:
            waited = time.monotonic() - self._waiting if self._waiting is not None else 0.0
            age = max(0.0, time.time() - self._seen.heard) if self._seen.heard else 0.0
            return replace(self._seen, age=age, silent=waited if waited >= ask_daemon.SILENCE_SECONDS else 0.0)

    def _note(self, **news: Any) -> None:
        """Called with the lock: what is known now."""
        self._seen = replace(self._seen, version=self._seen.version + 1, **news)

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (question := self._next()) is not None:
                self._put(question)
        finally:
            with self._changed:  # if it is by a bug of ours, nothing may look live
                self._note(gone=self._seen.gone or "the page asks no more: end it, and start it again")
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
        asked = self._asked.get(question)
        return 0.0 if asked is None else asked + SECONDS.get(type(question), OTHER_SECONDS)

    def _put(self, question: Question) -> None:
        began = time.monotonic()
        with self._changed:
            before, self._asked[question] = self._asked.get(question), began
            self._asked = {one: at for one, at in self._asked.items() if one in self._wanted}
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
            news: dict[str, Any] = {"answers": {**self._seen.answers, question: Answer(value, error)}}
            if not isinstance(question, Printed):  # which tells nothing of the daemon
                kind = f"{type(question).__name__} {question in FARM}"  # all machines take longer than one
                self._pace.answered(kind, now - began, now)
                self._waiting = None
                news |= {"heard": time.time(), "gone": ""}
            if question == FARM[0] and before is not None:
                news["pace"] = began - before
            if question == FARM[1] and isinstance(value, Agents):
                news["history"] = self._seen.history.added(value.agents, value.now)
            if isinstance(question, StatusAsk) and question.job and self._turned(question, value):
                for other in [one for one in self._asked if getattr(one, "job", None) == question.job]:
                    del self._asked[other]  # all else that is shown of it is of the state before
            self._note(**news)

    def _turned(self, question: StatusAsk, value: msgspec.Struct | None) -> bool:
        """Whether the job is in another state than when it was asked about last."""
        before = self._seen.get(question)
        both = [one.jobs[0].state for one in (before, value) if isinstance(one, Status) and one.jobs]
        return len(set(both)) > 1

    def _answer(self, question: Question) -> msgspec.Struct:
        if isinstance(question, Printed):
            return _printed(self._root, question.job)
        if self._line is None:
            self._line = ask_daemon.DaemonConnection(ask_daemon.connect(self._root))
        try:
            return self._listen(self._line, question)
        except LinkError:
            self._line.close()
            self._line = None
            raise

    def _listen(self, line: ask_daemon.DaemonConnection, question: Message) -> msgspec.Struct:
        line.begin(question)
        with self._changed:
            self._waiting = time.monotonic()
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
            news: dict[str, Any] = {"gone": why.message}
            if not self._seen.gone:
                news["gone_since"] = time.time()
            if kept is not None and kept.job is not None:
                news["answers"] = {**self._seen.answers, question: Answer(kept, "")}
            self._waiting = None
            self._note(**news)
            wait = RETRY_SECONDS / max(1, len(self._wanted))
            self._pace.not_before = max(self._pace.not_before, time.monotonic() + wait)


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
