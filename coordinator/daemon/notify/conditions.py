"""What a job's user wants to be woken for: its end, a halt, a standstill, a machine gone. Pure; tells nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from muster.coordinator.scheduler.state import State

STALLED_SECONDS = 1800.0
GONE_SECONDS = 3600.0

Event = Literal["complete", "incomplete", "halted", "damaged", "stalled", "agent-gone"]
NEWS: dict[str, Event] = {"complete": "complete", "incomplete": "incomplete", "halted": "halted", "damaged": "damaged"}


@dataclass(frozen=True)
class Condition:
    job: str
    event: Event
    why: str  # one line
    agent: str = ""


@dataclass
class _Standing:
    """How far a job was, since when, and whether that was told."""

    progress: int
    since: float
    told: bool = False


class Conditions:
    """Each is raised once: a standstill again after it went on, a machine's absence again after it was back."""

    def __init__(self, stalled: float = STALLED_SECONDS, gone: float = GONE_SECONDS) -> None:
        self._stalled, self._gone = stalled, gone
        self._jobs: dict[str, _Standing] = {}
        self._absent: dict[str, _Standing] = {}

    def look(self, state: State, progress: Mapping[str, int], now: float) -> list[Condition]:
        """`progress`: of each running job whose user wants to know, a number that grows with it."""
        return [*self._stalls(progress, now), *self._absences(state, progress, now)]

    def _stalls(self, progress: Mapping[str, int], now: float) -> list[Condition]:
        self._jobs = {job: self._jobs[job] for job in progress if job in self._jobs}
        found = []
        for job, count in progress.items():
            standing = self._jobs.setdefault(job, _Standing(count, now))
            if standing.progress != count:
                self._jobs[job] = _Standing(count, now)
            elif now - standing.since >= self._stalled and not standing.told:
                standing.told = True
                why = f"nothing of it was finished for {round((now - standing.since) / 60)} minutes"
                found.append(Condition(job, "stalled", why))
        return found

    def _absences(self, state: State, progress: Mapping[str, int], now: float) -> list[Condition]:
        away = {name for name, agent in state.agents.items() if agent.state == "gone"} | state.expected
        self._absent = {name: one for name, one in self._absent.items() if name in away}
        found = []
        for name in sorted(away):
            standing = self._absent.setdefault(name, _Standing(0, now))
            if now - standing.since >= self._gone and not standing.told:
                standing.told = True
                why = f"{name} was not heard of for {round((now - standing.since) / 60)} minutes"
                found += [Condition(job, "agent-gone", why, name) for job in progress]
        return found
