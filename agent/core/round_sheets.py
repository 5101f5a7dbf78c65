"""Which layers of rounds are followed, and which of their sheets may go. No I/O, no clock."""

from __future__ import annotations

from muster.agent.core.actions import Action, DropSheet, FollowRounds, StopFollowing
from muster.agent.core.events import SheetCame, Unfollowed
from muster.agent.core.layers import HeldLayer
from muster.agent.core.state import State

PAUSE_SECONDS = 1.0  # before what ended is tried again
KEPT = 2  # sheets nobody here wants: the next may come as what makes it of one of them


class RoundSheets:
    """For an agent that does not read in place: a layer is followed from the first shard that wants a sheet."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._followed: dict[str, list[str]] = {}  # layer → its sheets that are here, the newest last
        self._not_before: dict[str, float] = {}

    def next(self, session: int | None, heartbeat: float, now: float) -> list[Action]:
        """What to begin to follow, and to stop, and what to delete."""
        orders: list[Action] = []
        for layer, sheets in list(self._followed.items()):
            holding = self.state.holdings.get(layer)
            if holding is None or holding.here is None:
                del self._followed[layer]
                orders.append(StopFollowing(layer))
            else:
                orders += self._spare(layer, holding, sheets)
        for layer, holding in self.state.holdings.items():
            if session and self._wants(layer, holding, now):
                self._followed[layer] = []
                orders.append(FollowRounds(session, holding.info, (), heartbeat))
        return orders

    def _wants(self, layer: str, holding: HeldLayer, now: float) -> bool:
        if holding.here is None or not holding.waiting or layer in self._followed:
            return False
        return now >= self._not_before.get(layer, now) and bool(holding.waiting - holding.ready)

    def _spare(self, layer: str, holding: HeldLayer, sheets: list[str]) -> list[Action]:
        wanted = set(holding.sheets.values())
        spare = [sheet for sheet in sheets[:-KEPT] if sheet not in wanted]
        for sheet in spare:
            sheets.remove(sheet)
            holding.lacks_sheet(sheet)
        return [DropSheet(layer, sheet) for sheet in spare]

    def note(self, event: SheetCame | Unfollowed, now: float) -> None:
        holding = self.state.holdings.get(event.layer)
        if isinstance(event, SheetCame):
            if event.layer in self._followed and holding is not None:
                self._followed[event.layer].append(event.sheet)
                self.state.reports.next.pulled += event.nbytes
                holding.has_sheet(event.sheet)
            return
        for sheet in self._followed.pop(event.layer, []):
            if holding is not None:
                holding.lacks_sheet(sheet)
        self._not_before[event.layer] = now + PAUSE_SECONDS
