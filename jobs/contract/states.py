"""The states of a job, a layer and a machine's agent, by the words that the store, the socket and people know."""

from __future__ import annotations

from typing import Literal

JobState = Literal["waiting", "running", "paused", "halted", "damaged", "cancelled", "incomplete", "complete"]
LayerState = Literal["waiting", "open", "merging", "merged", "changed"]
AgentState = Literal["live", "draining", "gone", "left"]
ENDED: frozenset[JobState] = frozenset({"cancelled", "incomplete", "complete"})
STANDING: frozenset[JobState] = ENDED | {"halted", "damaged"}  # such a job does not go on by itself
SETTLED: frozenset[LayerState] = frozenset({"merged", "changed"})  # nothing of such a layer is pending
