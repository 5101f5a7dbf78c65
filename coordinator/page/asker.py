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
from typing import TYPE_CHECKING, Any, cast

import msgspec

from muster import VERSION
from muster.coordinator.api.figures import Figures
from muster.coordinator.api.requests import (
    AgentsAsk,
    ExplainAgent,
    ExplainJob,
    ExplainShard,
    FailuresAsk,
    FiguresAsk,
    Look,
    Looked,
    LookQuestion,
    MapAsk,
    StatusAsk,
)
from muster.coordinator.api.status import Agents, Explained, Failures, JobStatus, ShardMap, Status
from muster.coordinator.farm_root import figures_file, printed_log
from muster.coordinator.farm_root.ask_daemon import SILENCE_SECONDS, DaemonConnection, connect
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.page.history import History
from muster.coordinator.page.pace import AskPace
from muster.coordinator.page.seen import COUNTS, FARM, Answer, Printed, Question, Sayings, Seen
from muster.coordinator.protocol.values import Message
from muster.jobs.common.errors import LinkError, MusterError

if TYPE_CHECKING:
    from muster.jobs.contract.states import JobState

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
SECONDS: dict[type[Question], float] = {StatusAsk: 2.0, AgentsAsk: 2.0, FiguresAsk: 10.0}
COUNTS_SECONDS, OTHER_SECONDS = 1.0, 5.0
KEPT_JOBS_MOST = 200  # as the daemon tells of in brief
RETRY_SECONDS = 2.0  # while the daemon is gone
LISTEN_SECONDS = 0.5  # at a time, for an answer
ANSWER_SECONDS = 60.0
PRINTED_BYTES, PRINTED_SHOWN = 16 << 10, 30


class Asker:
    """Started once; what is wanted of it is wanted as long as somebody is inside `wanting`."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._wanted: Counter[Question] = Counter()
        self._waiting: float | None = None  # monotonic, since a question was put
        self._seen = Seen(0, {}, History())
        self._pace = AskPace()
        self._line: DaemonConnection | None = None
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
                if question not in self._wanted:
                    self._pace.forget(question)
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
            return replace(self._seen, age=age, silent=waited if waited >= SILENCE_SECONDS else 0.0)

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
                first = min(self._wanted, key=self._may_ask, default=None)
                wait = None if first is None else self._may_ask(first)[0] - time.monotonic()
                if wait is not None and wait <= 0:
                    return first
                self._changed.wait(wait)
        return None

    def _may_ask(self, question: Question) -> tuple[float, float]:
        every = COUNTS_SECONDS if question == COUNTS else SECONDS.get(type(question), OTHER_SECONDS)
        return self._pace.may_ask(question, every)

    def _put(self, question: Question) -> None:
        with self._changed:
            self._pace.keep(self._wanted)
            apart = self._pace.asked(question, time.monotonic())
        try:
            answer, told = self._answer(question)
        except MusterError as lost:
            self._lost(lost, question)
            return
        with self._changed:
            news: dict[str, Any] = {"answers": {**self._seen.answers, question: answer}}
            if told is not None:
                self._pace.answered(question, told.took, told.rate, told.owed, time.monotonic())
                self._waiting = None
                news |= {"heard": time.time(), "gone": ""}
            if question == FARM[1] and apart is not None:
                news["pace"] = apart
            if question == FARM[1] and isinstance(answer.value, Agents):
                news["history"] = self._seen.history.added(answer.value.agents, answer.value.now)
            turned = turned_jobs(self._seen.get(question), answer.value)
            for other in [one for one in self._wanted if getattr(one, "job", None) in turned]:
                self._pace.forget(other)  # what is shown of it is of the state before
            self._note(**news)

    def _answer(self, question: Question) -> tuple[Answer, Looked | None]:
        """With what it took of the daemon, where it was asked of it."""
        if isinstance(question, Printed):
            return Answer(_printed(self._root, question.job), ""), None
        if self._line is None:
            self._line = DaemonConnection(connect(self._root))
        try:
            said, told = self._listen(self._line, question)
        except MusterError:
            self._line.close()
            self._line = None
            raise
        return (Answer(None, said.message) if isinstance(said, MusterError) else Answer(said, "")), told

    def _listen(self, line: DaemonConnection, question: LookQuestion) -> tuple[Message | MusterError, Looked]:
        line.begin(Look(question))
        with self._changed:
            self._waiting = time.monotonic()
        for _ in range(int(ANSWER_SECONDS / LISTEN_SECONDS)):
            if (found := line.looked(ANSWERS[type(question)], LISTEN_SECONDS)) is not None:
                return found
            if self._closing:
                break
        raise LinkError("the coordinator does not answer")

    def _kept(self, question: Question) -> Figures | Status | None:
        """What the file of figures has; of what was heard, that is better."""
        try:
            if isinstance(question, FiguresAsk) and (found := figures_file.read(self._root.figures, question.job)):
                return Figures(*found)
            if question == FARM[0] and self._seen.get(question) is None:
                return kept_status(self._root)
        except MusterError:  # it is damaged, or another's
            pass
        return None

    def _lost(self, why: MusterError, question: Question) -> None:
        """Nobody answers; what the file of figures has is read in the daemon's place."""
        kept = self._kept(question)
        with self._changed:
            news: dict[str, Any] = {"gone": why.message}
            if not self._seen.gone:
                news["gone_since"] = time.time()
            if kept is not None:
                news["answers"] = {**self._seen.answers, question: Answer(kept, "")}
            self._waiting = None
            self._note(**news)
            self._pace.unanswered(time.monotonic() + RETRY_SECONDS / max(1, len(self._wanted)))


def turned_jobs(before: msgspec.Struct | None, after: msgspec.Struct | None) -> set[str]:
    """Jobs that are in another state than when the same was asked last."""
    told = [{job.id: job.state for job in one.jobs} if isinstance(one, Status) else {} for one in (before, after)]
    return {job for job in told[0].keys() & told[1].keys() if told[0][job] != told[1][job]}


def kept_status(root: Root) -> Status | None:
    """The newest jobs, as the file of figures has them."""
    found = figures_file.newest(root.figures, KEPT_JOBS_MOST)
    if found is None:
        return None
    jobs = [
        JobStatus(one.job, one.kind, cast("JobState", one.state), one.why, 1, one.created, one.started, one.ended,
                  one.totals, one.failures, layers_total=one.layers_total, layers_merged=one.layers_merged)
        for one in reversed(found[0])
    ]  # fmt: skip
    return Status(max((one.at for one in found[0]), default=0.0), VERSION, 0, jobs, left_out=found[1])


def _printed(root: Root, job: str) -> Sayings:
    path = root.job(job).printed
    try:
        start = max(0, path.stat().st_size - PRINTED_BYTES)
        return Sayings([saying for _, saying in printed_log.read(path, start)][-PRINTED_SHOWN:])
    except OSError:
        return Sayings([])
