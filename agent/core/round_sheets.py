"""Which layers of rounds are followed, and which of their sheets may go. No I/O, no clock.

For an agent that does not read in place: a layer is followed from the first shard that wants a sheet which is not here.
What its own shards make for later ones stays here, within a budget: it went up the link, and need not come down.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.agent.core import disk_budget
from muster.agent.core.actions import DropSheet, FollowRounds, KeepSheet, StopFollowing
from muster.agent.core.events import SheetCame, Unfollowed
from muster.agent.core.layers import HeldLayer
from muster.agent.core.state import MadeSheet, State

PAUSE_SECONDS = 1.0  # before what ended is tried again
KEPT = 2  # sheets nobody here wants: the next may come as what makes it of one of them

MADE_BYTES = 1 << 30  # of what shards here made, of all layers together
MADE_SHARE = 4  # and at most one in so many bytes of the disk budget
MADE_MOST = 64  # sheets of one layer: a question names what is here
MADE_SECONDS = 900.0  # without a shard of the layer; nobody says to a machine that has none that its job has ended


def follow(state: State, now: float) -> None:
    """Begin to follow what is wanted, stop what is not, and delete what nobody reads."""
    for layer, sheets in list(state.followed.items()):
        holding = state.holdings.get(layer)
        if holding is None:
            del state.followed[layer]
            state.emit(StopFollowing(layer))
        else:
            _spare(state, layer, holding, sheets)
    _spare_made(state, now)
    for layer, holding in state.holdings.items():
        if state.talk.session and _wants(state, layer, holding, now):
            state.followed[layer] = []
            state.emit(FollowRounds(state.talk.session, holding.info, (), state.talk.heartbeat))


def _wants(state: State, layer: str, holding: HeldLayer, now: float) -> bool:
    if not (holding.follows and holding.waiting) or layer in state.followed:
        return False
    return now >= state.follow_after.get(layer, now) and bool(holding.waiting - holding.ready)


def _spare(state: State, layer: str, holding: HeldLayer, sheets: list[str]) -> None:
    wanted = {*holding.sheets.values(), *state.made.get(layer, ())}
    for sheet in [sheet for sheet in sheets[:-KEPT] if sheet not in wanted]:
        sheets.remove(sheet)
        holding.lacks_sheet(sheet)
        state.emit(DropSheet(layer, sheet))


def note(state: State, event: SheetCame | Unfollowed, now: float) -> None:
    holding = state.holdings.get(event.layer)
    if isinstance(event, SheetCame):
        if event.layer in state.followed and holding is not None:
            if event.sheet not in state.made.get(event.layer, ()):
                state.followed[event.layer].append(event.sheet)
            state.reports.next.pulled += event.nbytes
            holding.has_sheet(event.sheet)
        return
    for sheet in state.followed.pop(event.layer, []):
        if holding is not None:
            holding.lacks_sheet(sheet)
    for sheet in state.made.pop(event.layer, {}) if event.gone else ():
        if holding is not None:
            holding.lacks_sheet(sheet)
    state.follow_after[event.layer] = now + PAUSE_SECONDS


# --- what shards here made ---


def made(state: State, layer: str, sheets: Iterable[tuple[str, int]]) -> None:
    """Their files are in the spool."""
    holding = state.holdings.get(layer)
    for sheet, nbytes in sheets:
        if holding is None:
            state.emit(DropSheet(layer, sheet))
            continue
        there = state.made.setdefault(layer, {})
        there.pop(sheet, None)
        there[sheet] = MadeSheet(nbytes)
        holding.has_sheet(sheet)
        state.emit(KeepSheet(layer, sheet))


def budget(state: State) -> int:
    """Bytes that may be kept of what shards make: what nobody was promised, and not all of that."""
    return max(0, min(MADE_BYTES, state.disk.budget // MADE_SHARE, disk_budget.room(state)))


def _spare_made(state: State, now: float) -> None:
    """Count what is read here and did not come, and delete the oldest that nobody waits for where it is too much."""
    if not state.made:
        return
    _forget_made(state, now)
    over = sum(one.nbytes for there in state.made.values() for one in there.values()) - budget(state)
    for layer, there in state.made.items():
        holding = state.holdings[layer]
        wanted = set(holding.sheets.values())
        for sheet in wanted & there.keys():
            _count(state, holding, there[sheet])
        for sheet in [sheet for sheet in there if sheet not in wanted]:
            if over <= 0 and len(there) <= MADE_MOST:
                break
            over -= there.pop(sheet).nbytes
            if sheet in state.followed.get(layer, ()):
                state.followed[layer].remove(sheet)
            holding.lacks_sheet(sheet)
            state.emit(DropSheet(layer, sheet))


def _forget_made(state: State, now: float) -> None:
    """Of layers that nobody wants, or that nothing was held of for long."""
    for layer, there in list(state.made.items()):
        holding = state.holdings.get(layer)
        if holding is not None and (holding.count or now < state.made_at.setdefault(layer, now) + MADE_SECONDS):
            if holding.count:
                state.made_at[layer] = now
            continue
        del state.made[layer]
        state.made_at.pop(layer, None)
        if holding is None:
            state.emit(StopFollowing(layer))
            continue
        for sheet in there:
            holding.lacks_sheet(sheet)
            state.emit(DropSheet(layer, sheet))


def _count(state: State, holding: HeldLayer, sheet: MadeSheet) -> None:
    if not sheet.spared:
        sheet.spared = True
        state.reports.next.spared += sheet.nbytes
        state.account.job(holding.info.job).spared += sheet.nbytes
