"""What the page knows of the farm at one moment, and what may be wanted of it. Values: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from muster.coordinator.api.requests import AgentsAsk, StatusAsk
from muster.coordinator.api.status import Agents, Status
from muster.coordinator.farm_root.printed_log import Saying
from muster.coordinator.page.history import History
from muster.coordinator.protocol.values import Message


class Printed(msgspec.Struct, frozen=True):
    """What code of a job printed last: read from the root, not asked of the daemon."""

    job: str


class Sayings(msgspec.Struct, frozen=True):
    items: list[Saying]


Question = Message | Printed
FARM: tuple[Question, ...] = (StatusAsk(brief=True), AgentsAsk(brief=True))  # what every view wants


@dataclass(frozen=True)
class Answer:
    value: msgspec.Struct | None  # None: refused, or not known
    error: str


@dataclass(frozen=True)
class Seen:
    """What is known of the farm, at one moment."""

    version: int
    answers: dict[Question, Answer]
    history: History
    heard: float | None = None  # wall clock of the last answer
    age: float = 0.0  # seconds since then
    gone: str = ""  # why nothing can be asked
    gone_since: float = 0.0  # wall clock
    silent: float = 0.0  # seconds that an answer is waited for, where that is long
    pace: float = 0.0  # seconds from one word of the farm to the next

    def get(self, question: Question) -> msgspec.Struct | None:
        found = self.answers.get(question)
        return found.value if found else None

    def error(self, question: Question) -> str:
        found = self.answers.get(question)
        return found.error if found else ""

    @property
    def status(self) -> Status | None:
        found = self.get(FARM[0])
        return found if isinstance(found, Status) else None

    @property
    def agents(self) -> Agents | None:
        found = self.get(FARM[1])
        return found if isinstance(found, Agents) else None
