"""Which bundle goes next, and what its answer means. One bundle is under way at a time. No I/O, no clock."""

from __future__ import annotations

from muster.agent.core.actions import Action, Push, Recheck, Tell
from muster.agent.core.events import PushAnswered, PushDown, PushUp
from muster.agent.core.state import HeldShards
from muster.coordinator.protocol.control import Failure, Loss, Rejected
from muster.coordinator.protocol.transfer import Refused, Settled
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.retry_delay import RetryDelay
from muster.jobs.contract.text_limits import EVIDENCE_CHARS


class PushPolicy:
    """`under_way` is the bundle sent and not answered. Its parts stay on the disk until then."""

    def __init__(self, held_shards: HeldShards) -> None:
        self.held_shards = held_shards
        self.up = False
        self.under_way: Push | None = None
        self.stuck = ""  # why the coordinator takes nothing; "" while it does
        self._farm = ""  # of the bundle under way
        self._emptied: list[str] = []  # parts nobody needs, kept for the bundle under way alone
        self._hurry: set[str] = set()  # layers whose rest is to be offered at once
        self.dead_session: int | None = None  # one the coordinator does not know
        self._retry = RetryDelay()  # of refusals that may pass
        self._put_off: dict[str, RetryDelay] = {}  # layers that are to be offered again later

    def welcomed(self) -> None:
        """A new session: everything may be offered again."""
        self._retry.reset()
        self._put_off.clear()

    @property
    def put_off(self) -> set[str]:
        """Layers that the coordinator takes nothing of for now."""
        return set(self._put_off)

    def next(self, session: int | None, flush: bool, now: float) -> Push | None:
        """The bundle to offer now, if there is one; `flush`: do not wait for more."""
        idle = self.up and not self.under_way and self._retry.is_over(now)
        if not idle or not session or session == self.dead_session:
            return None
        farm, finished_parts = self.held_shards.farm, self.held_shards.finished_parts
        held_shards, eager = self.held_shards, self.held_shards.eager_layers()
        ready = set(finished_parts.layers(farm)) if flush else held_shards.quiet_layers() | self._hurry | eager
        later = {layer for layer, retry in self._put_off.items() if not retry.is_over(now)}
        growing = set() if flush else held_shards.growing_layers()
        chosen = finished_parts.bundle(farm, ready, now, growing | later, eager)
        if chosen is None:
            return None
        layer, parts = chosen
        self._hurry.discard(layer)
        self._farm = farm
        pieces = tuple((part.name, part.live) for part in parts)
        self.held_shards.offer(layer)
        self.under_way = Push(session, layer, pieces, self.held_shards.has_rounds(layer))
        return self.under_way

    def spare(self, names: list[str]) -> list[str]:
        """Of parts nobody needs, those that may be deleted now; the others follow in `take_emptied`."""
        busy = {name for name, _ in self.under_way.pieces} if self.under_way else set()
        self._emptied += [name for name in names if name in busy]
        return [name for name in names if name not in busy]

    def take_emptied(self) -> list[str]:
        if self.under_way:
            return []
        names, self._emptied = self._emptied, []
        return names

    def note(self, event: PushUp | PushDown | PushAnswered, now: float) -> list[Action]:
        """What happened to the push channel."""
        if isinstance(event, PushUp):
            self.up = True
            return []
        push, self.under_way = self.under_way, None
        if isinstance(event, PushDown):
            self.up = False
            return []
        return self._answered(push, event, now) if push is not None and self._farm == self.held_shards.farm else []

    def _answered(self, push: Push, event: PushAnswered, now: float) -> list[Action]:
        match event.answer:
            case Settled(numbers):
                self._accepted(push.layer, event)
                self._emptied += self.held_shards.settle(push.layer, self.held_shards.answered(RangeSet(numbers)))
            case Refused(code, numbers, message):
                return self._refused(push, event.sent, code, RangeSet(numbers), message, now)
            case Rejected(code, message):
                return self._refused(push, event.sent, code, RangeSet(), message, now)
        return []

    def _accepted(self, layer: str, event: PushAnswered) -> None:
        self._put_off.pop(layer, None)
        letter = self.held_shards.reports.next
        letter.pushed += event.nbytes
        letter.push_seconds += event.seconds
        self._retry.failures, self.stuck = 0, ""

    def _refused(
        self, push: Push, sent: RangeSet, code: str, numbers: RangeSet, message: str, now: float
    ) -> list[Action]:
        match code:
            case "committed" if numbers & sent:
                self._hurry.add(push.layer)
                self._emptied += self.held_shards.settle(push.layer, self.held_shards.answered(numbers))
            case "gone" if self.held_shards.granted_anew:
                self._emptied += self.held_shards.settle(push.layer, self.held_shards.answered(sent))
            case "gone":
                self._emptied += self.held_shards.gone(push.layer)
            case "outputs":
                self._emptied += self._fail(push.layer, self.held_shards.answered(numbers or sent), message)
            case "kernels":
                self._emptied += self._lose(push.layer, self.held_shards.answered(numbers or sent), message)
            case "later":
                return self._put_layer_off(push.layer, message, now)
            case "no-session":
                self.dead_session = push.session
                self._later("the coordinator does not know this session", now)
            case "corrupt":
                self._later(f"a bundle arrived damaged: {message}", now)
                return [Recheck(tuple(name for name, _ in push.pieces))]
            case _:
                self._later(message or f"the coordinator takes no results: {code}", now)
                return [Tell(self.stuck)] if self._retry.failures == 1 else []
        return []

    def _put_layer_off(self, layer: str, message: str, now: float) -> list[Action]:
        """What is finished of it is kept and offered now and then; that of others goes on."""
        first = layer not in self._put_off
        self._put_off.setdefault(layer, RetryDelay()).failed(now)
        return [Tell(f"{message}; what is finished of it is kept here")] if first and message else []

    def granted(self, layers: set[str]) -> None:
        """More of these is wanted, and so is what there is of them."""
        for layer in layers & self._put_off.keys():
            del self._put_off[layer]

    def _later(self, why: str, now: float) -> None:
        self.stuck = why
        self._retry.failed(now)

    def _fail(self, layer: str, numbers: RangeSet, message: str) -> list[str]:
        """Their outputs are not what the layer's first ones were: the shards failed."""
        job = self.held_shards.job_of(layer)
        for (boot, attempt), held in self.held_shards.finished_parts.held(self.held_shards.farm, layer).items():
            for number in held & numbers:
                line = message[:EVIDENCE_CHARS]
                self.held_shards.reports.fail(Failure(job, layer, number, boot, attempt, "output", line, "", 0.0, 0))
        return self.held_shards.finished_parts.settle(self.held_shards.farm, layer, numbers)

    def _lose(self, layer: str, numbers: RangeSet, message: str) -> list[str]:
        """The job runs on machines with other kernels: nobody's failure."""
        job, why = self.held_shards.job_of(layer), message or "the job's results are of other kernels"
        for (boot, attempt), held in self.held_shards.finished_parts.held(self.held_shards.farm, layer).items():
            if told := (held & numbers).pairs():
                self.held_shards.reports.lose(Loss(job, layer, boot, attempt, told, False, why))
        return self.held_shards.finished_parts.settle(self.held_shards.farm, layer, numbers)

    def sanity_check(self) -> None:
        """Raise if the state contradicts itself. For tests."""
        assert self.under_way or not self._emptied, "a part nobody needs was left on the disk"
