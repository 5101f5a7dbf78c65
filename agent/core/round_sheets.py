"""Which layers of rounds are followed, and which of their sheets may go. No I/O, no clock.

For an agent that does not read in place: a layer is followed from the first shard that wants a sheet.
"""

from __future__ import annotations

from muster.agent.core.actions import DropSheet, FollowRounds, StopFollowing
from muster.agent.core.events import SheetCame, Unfollowed
from muster.agent.core.layers import HeldLayer
from muster.agent.core.state import State

PAUSE_SECONDS = 1.0  # before what ended is tried again
KEPT = 2  # sheets nobody here wants: the next may come as what makes it of one of them


def follow(state: State, now: float) -> None:
    """Begin to follow what is wanted, stop what is not, and delete what nobody reads."""
    for layer, sheets in list(state.followed.items()):
        holding = state.holdings.get(layer)
        if holding is None:
            del state.followed[layer]
            state.emit(StopFollowing(layer))
        else:
            _spare(state, layer, holding, sheets)
    for layer, holding in state.holdings.items():
        if state.talk.session and _wants(state, layer, holding, now):
            state.followed[layer] = []
            state.emit(FollowRounds(state.talk.session, holding.info, (), state.talk.heartbeat))


def _wants(state: State, layer: str, holding: HeldLayer, now: float) -> bool:
    if not (holding.follows and holding.waiting) or layer in state.followed:
        return False
    return now >= state.follow_after.get(layer, now) and bool(holding.waiting - holding.ready)


def _spare(state: State, layer: str, holding: HeldLayer, sheets: list[str]) -> None:
    wanted = set(holding.sheets.values())
    for sheet in [sheet for sheet in sheets[:-KEPT] if sheet not in wanted]:
        sheets.remove(sheet)
        holding.lacks_sheet(sheet)
        state.emit(DropSheet(layer, sheet))


def note(state: State, event: SheetCame | Unfollowed, now: float) -> None:
    holding = state.holdings.get(event.layer)
    if isinstance(event, SheetCame):
        if event.layer in state.followed and holding is not None:
            state.followed[event.layer].append(event.sheet)
            state.reports.next.pulled += event.nbytes
            holding.has_sheet(event.sheet)
        return
    for sheet in state.followed.pop(event.layer, []):
        if holding is not None:
            holding.lacks_sheet(sheet)
    state.follow_after[event.layer] = now + PAUSE_SECONDS
