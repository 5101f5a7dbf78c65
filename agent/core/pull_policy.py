"""Which input is pulled next, and what its arrival or failure means. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator

from muster.agent.core.actions import Action, Pull, PullCode
from muster.agent.core.disk_budget import DiskBudget
from muster.agent.core.dispatch import in_turn
from muster.agent.core.events import NotPulled, Pulled, PullUp
from muster.agent.core.inputs import name_of
from muster.agent.core.layers import HeldLayer
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.retry_delay import RetryDelay
from muster.jobs.contract.plan import ItemsWindow, Window

AHEAD = 8  # small inputs asked for at once, so that the link never waits for us
AHEAD_BYTES = 16 << 20
LOOKED_AT = 64  # shards without an input that are looked at while nothing can be pulled


class PullPolicy:
    """For an agent that does not read sources in place. `codes`: packs of users' files that are here."""

    def __init__(self, space: DiskBudget, codes: set[str]) -> None:
        self.space = space
        self.state = space.state
        self.codes = codes
        self.up = False
        self.stuck = ""  # why nothing comes; "" while it does
        self.dead_session: int | None = None  # one the coordinator does not know
        self._codes_coming: dict[str, int] = {}  # digest → the session it was asked for in
        self._retry = RetryDelay()  # of refusals that may pass

    @property
    def idle(self) -> bool:
        return not self.state.inputs.coming and not self._codes_coming

    def welcomed(self) -> None:
        self._retry.reset()

    # --- asking ---

    def next(self, session: int | None, now: float) -> list[Action]:
        """What to ask for, and what to delete to make room for it."""
        can_ask = self.up and session != self.dead_session and self._retry.is_over(now)
        asked_in = session if can_ask and not self.state.disk.closed(now) else None
        orders: list[Action] = [*self._next_codes(asked_in), *self._next_models(asked_in)] if asked_in else []
        queue = [holding for holding in self.state.holdings.values() if holding.pulls and holding.waiting]
        for holding in in_turn(queue, self.state.slots, now) if queue else ():
            if not self._serve(holding, asked_in, orders):
                break
        return orders

    def _next_codes(self, session: int) -> Iterator[Action]:
        for holding in self.state.holdings.values():
            code = holding.info.work.code
            if code and holding.waiting and code not in self.codes and code not in self._codes_coming:
                self._codes_coming[code] = session
                yield PullCode(session, code)

    def _next_models(self, session: int) -> list[Action]:
        """They come before the inputs, as nothing runs without them."""
        orders: list[Action] = []
        for holding in self.state.holdings.values():
            model, inputs = holding.info.work.model, self.state.inputs
            if model is None or not holding.waiting or model.digest in inputs.coming or self.space.refuses(holding):
                continue
            if not self._is_here(model.digest, model.nbytes, orders) and self.space.left >= model.nbytes:
                orders += self._ask(Pull(session, model.digest, holding.info.layer.digest, 0, model.nbytes, True))
        return orders

    def _serve(self, holding: HeldLayer, session: int | None, orders: list[Action]) -> bool:
        """Find or ask for the inputs of this layer, in order. False where no more can be asked for."""
        looked_at = 0
        for number, window in _lacking(holding):
            name = name_of(self.state.farm, window)
            if self._is_here(name, window.nbytes, orders):
                holding.has_input(number, name)
            elif name in self.state.inputs.coming:
                continue
            elif session:
                if self.space.refuses(holding):
                    return True
                if not self._may_ask(holding, window.nbytes):
                    return False
                orders += self._ask(Pull(session, name, holding.info.layer.digest, number, window.nbytes))
            elif (looked_at := looked_at + 1) >= LOOKED_AT:
                return False
        return True

    def _is_here(self, name: str, nbytes: int, orders: list[Action]) -> bool:
        copy = self.state.inputs.whole.get(name)
        if copy is not None and copy.nbytes != nbytes:  # cut short while nobody looked
            orders.append(self.space.discard(name, copy.digest))
            return False
        return copy is not None

    def _may_ask(self, holding: HeldLayer, nbytes: int) -> bool:
        coming = self.state.inputs.coming
        if coming and (len(coming) >= AHEAD or self.state.inputs.coming_bytes + nbytes > AHEAD_BYTES):
            return False
        return self.space.has_room_to_pull(holding, nbytes)

    def _ask(self, pull: Pull) -> list[Action]:
        known = self.state.inputs.halves.get(pull.name, 0)
        orders = self.space.make(pull.nbytes - known, keep=pull.name)
        self.state.disk.grew(self.state.inputs.start(pull))
        return [*orders, pull]

    # --- what came of it ---

    def note(self, event: PullUp | Pulled | NotPulled, now: float) -> list[Action]:
        """What happened to the pull channel."""
        match event:
            case PullUp():
                self.up = True
            case Pulled():
                self._came(event)
            case NotPulled():
                return self._failed(event, now)
        return []

    def _came(self, event: Pulled) -> None:
        self._retry.failures, self.stuck = 0, ""
        if event.name in self._codes_coming:
            del self._codes_coming[event.name]
            self.codes.add(event.name)
        elif event.name in self.state.inputs.coming:
            pull = self.state.inputs.coming[event.name]
            self.state.inputs.came(event.name, event.digest, event.seconds)
            self.state.disk.written()
            self.state.reports.next.pulled += event.nbytes
            holding = self.state.holdings.get(pull.layer)
            if holding is not None and not pull.model and pull.number in holding.waiting:
                holding.has_input(pull.number, pull.name)

    def _failed(self, event: NotPulled, now: float) -> list[Action]:
        pull = self.state.inputs.coming.get(event.name)
        session = pull.session if pull else self._codes_coming.pop(event.name, None)
        if event.code == "cut":
            self.up, self.stuck = False, event.message
            if pull:
                self.state.inputs.cut(event.name)
            return []
        if pull:
            self.state.disk.grew(-self.state.inputs.forget(event.name))
        match event.code:
            case "full":
                self.state.disk.filled(event.message, now)
                return self.space.clear()
            case "changed" | "gone":
                self._give_back(event, pull)
            case "no-session":
                self.dead_session = session
            case "refused":
                self._later(event.message, now)
        return []

    def _give_back(self, event: NotPulled, pull: Pull | None) -> None:
        """It cannot be had: its shard goes back; of a changed source all do, of unknown files those that want them."""
        if pull is None or pull.model:
            for holding in self.state.holdings.values():
                if event.name in holding.files:
                    self.state.give_back(holding, holding.waiting.copy())
            return
        if event.code == "changed":
            self.state.reports.change(pull.layer, event.message)
        wanted = self.state.holdings.get(pull.layer)
        if wanted is not None:
            wrong = wanted.waiting if event.code == "changed" else RangeSet.of([pull.number]) & wanted.waiting
            self.state.give_back(wanted, wrong.copy())

    def _later(self, why: str, now: float) -> None:
        self.stuck = why
        self._retry.failed(now)


def _lacking(holding: HeldLayer) -> Iterator[tuple[int, Window | ItemsWindow]]:
    """Shards that wait for their input, in the order they are to run."""
    for number in holding.waiting - holding.ready:
        yield number, holding.info.layer.window(number)
