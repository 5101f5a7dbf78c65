"""The core against a model of its own: any order of grants, drops, results, deaths, broken links and refusals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.agent.core import disk_budget
from muster.agent.core.actions import (
    Action,
    Delete,
    Discard,
    Freeze,
    Kill,
    Pull,
    PullCode,
    Push,
    Quit,
    Recheck,
    Redial,
    Run,
    Say,
    Thaw,
)
from muster.agent.core.events import (
    BatchEnded,
    DrainAsked,
    Event,
    Heard,
    Kept,
    Lent,
    LinkDown,
    LinkUp,
    NotPulled,
    PartDamaged,
    PoolLost,
    Pulled,
    PullUp,
    PushAnswered,
    PushDown,
    PushUp,
    SlotGone,
    SlotsSeen,
    SlotUp,
    SlotView,
    SpaceSeen,
    Ticked,
    WorkerDied,
)
from muster.agent.core.inputs import name_of
from muster.agent.core.slots import BACKSTOP_SECONDS
from muster.agent.core.state_machine import AgentCore
from muster.coordinator.protocol.control import (
    Bye,
    Committed,
    Drop,
    Grant,
    Hello,
    LayerInfo,
    Leave,
    News,
    Rejected,
    Sync,
    Welcome,
)
from muster.coordinator.protocol.transfer import Refused, Settled
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ArraySource, Layer, MadeSource, Stamp, Work
from muster.jobs.workbench.batch import Mishap, Outcome
from tests.unit.agent.core.test_state_machine import who

FARM = "farm"
SHARDS = 6
SHARD_BYTES = 100
IN_BYTES = 300
CODE = "c" * 32
LAYERS = {"a" * 32: 1, "b" * 32: 2}  # digest → cpus
SCRATCH = {"a" * 32: 500, "b" * 32: 0}  # digest → bytes of scratch space
TIMEOUT = 50.0

numbers = st.sets(st.integers(0, SHARDS - 1), min_size=1).map(sorted)
layers = st.sampled_from(sorted(LAYERS))
Shard = tuple[str, int]


def info_of(layer: str) -> LayerInfo:
    work = Work("cluster", 1, {}, None, None, None, LAYERS[layer], None, TIMEOUT, disk=SCRATCH[layer])
    return LayerInfo("j.1", Layer(layer[:1], layer, MadeSource(), 0, 1, SHARDS, 0, SHARD_BYTES, None), work)


def pairs(chosen: list[int]) -> list[tuple[int, int]]:
    return RangeSet.of(chosen).pairs()


def tickets(runs: list[Run]) -> tuple[int, ...]:
    return tuple(run.ticket for run in runs)


class DeskMachine(RuleBasedStateMachine):
    """The model: what is open, what is finished, what has to be said, what lies on the disk, what the pool runs."""

    budget = 15 * SHARD_BYTES  # all shards of both layers; of the first one's no more than two at once
    in_place = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.core = AgentCore(msgspec.structs.replace(who(cpus=3, disk=self.budget), in_place=self.in_place))
        self.attempts = 0
        self.open: dict[Shard, int] = {}  # held, not finished → attempt
        self.done: dict[Shard, tuple[int, str]] = {}  # finished, not settled → attempt, part
        self.flying: dict[Shard, int] = {}  # ticket of the one run that counts
        self.owed: Counter[tuple[Any, ...]] = Counter()  # reports to come
        self.said: Counter[tuple[Any, ...]] = Counter()  # in the letter that is on its way
        self.runs: dict[int, list[Run]] = {0: [], 1: [], 2: []}
        self.doomed: set[int] = set()  # slots the core wants killed
        self.parts: dict[str, set[Shard]] = {}  # on the disk, with all that is in them
        self.asked: Say | None = None
        self.up = False
        self.session = 0
        self.push: Push | None = None
        self.anew: set[Shard] = set()  # granted since it was offered: its answer says nothing of them
        self.push_up = False
        self.known: set[str] = set()
        self.recheck: list[str] = []
        self.draining = False
        self.ended = False
        self.past_news: list[News] = []
        self.slots_up: set[int] = set()
        self.gone: set[int] = set()  # slots with no worker, and none on its way
        self.lent = 3  # cpus
        self.frozen: set[int] = set()  # slots

    def info_of(self, layer: str) -> LayerInfo:
        return info_of(layer)

    # --- driving ---

    def tell(self, event: Event) -> None:
        if len(self.gone) == len(self.runs):
            self.give_back_waiting()
        for order in self.core.handle(event, self.now):
            self.obey(order)

    def obey(self, order: Action) -> None:
        assert not self.ended, "an order after the end"
        match order:
            case Run():
                self.obey_run(order)
            case Kill(slot):
                assert self.runs[slot], "a kill of an idle slot"
                assert slot not in self.doomed, "killed twice"
                self.doomed.add(slot)
            case Freeze(slot):
                assert slot not in self.frozen and self.runs[slot] and self.lent < 3
                self.frozen.add(slot)
            case Thaw(slot):
                assert slot in self.frozen, "let go on what was not stopped"
                self.frozen.remove(slot)
            case Say():
                assert self.up and self.asked is None, "spoke while an answer was awaited"
                self.asked = order
                self.obey_say(order)
            case Redial():
                self.link_breaks()
            case Push():
                self.obey_push(order)
            case Delete(name):
                self.obey_delete(name)
            case Recheck(names):
                self.recheck = list(names)
            case Quit():
                self.ended = True

    def obey_run(self, run: Run) -> None:
        assert run.slot in self.slots_up, "a batch for a slot that has no worker"
        assert not self.draining and self.lent and not self.frozen
        layer = run.info.layer.digest
        assert len(self.runs[run.slot]) < 2, "three batches on a slot"
        assert [item[0] for item in run.items] == sorted({item[0] for item in run.items})
        for number, _, attempt in run.items:
            assert self.open.get((layer, number)) == attempt, "ran what is not held"
            assert (layer, number) not in self.flying, "ran twice within one holding"
            self.flying[layer, number] = run.ticket
            assert run.payloads[number] == b"%d" % number
        self.runs[run.slot].append(run)
        cpus = sum(max(LAYERS[r.info.layer.digest] for r in runs) for runs in self.runs.values() if runs)
        alone = sum(map(bool, self.runs.values())) == 1
        assert cpus <= self.lent or alone, "more cpus than are lent"
        self.check_budget()

    def check_budget(self) -> None:
        parts = SHARD_BYTES * sum(len(shards) for shards in self.parts.values())
        to_come = SHARD_BYTES * sum(len(run.items) for runs in self.runs.values() for run in runs)
        scratch = sum(runs[0].info.work.disk for runs in self.runs.values() if runs)
        used = (parts, to_come, scratch, self.bytes_of_inputs())
        assert sum(used) <= self.budget, f"more of the disk than it may have: {used}"

    def bytes_of_inputs(self) -> int:
        return 0

    def obey_push(self, push: Push) -> None:
        assert self.push_up and self.push is None and push.session
        self.push, self.anew = push, set()
        for name, chosen in push.pieces:
            assert name in self.parts, "offered a part that is not on the disk"
            assert chosen and {(push.layer, n) for n in chosen} == {s for s, (_, p) in self.done.items() if p == name}

    def obey_delete(self, name: str) -> None:
        assert name in self.parts, "deleted a part twice"
        assert not {s for s, (_, part) in self.done.items() if part == name}, (
            "deleted what was finished and not settled"
        )
        assert self.push is None or name not in dict(self.push.pieces), "deleted a part that is being sent"
        del self.parts[name]

    def obey_say(self, say: Say) -> None:
        message = say.message
        if isinstance(message, Leave):
            assert self.draining and not self.open and not self.done and not self.owed
            return
        said: Counter[tuple[Any, ...]] = Counter()
        for failure in message.failures:
            said["failed", failure.layer, failure.number, failure.attempt] += 1
        for loss in message.losses:
            said.update(("lost", loss.layer, n, loss.attempt) for n in RangeSet(loss.numbers))
        if isinstance(message, Sync):
            assert message.session == self.session
            assert message.room <= self.budget
            for f in message.finished:
                said.update(("finished", f.layer, n, f.attempt) for n in RangeSet(f.numbers))
            for r in message.returned:
                said.update(("returned", r.layer, n, r.attempt) for n in RangeSet(r.numbers))
        else:
            self.check_hello(message)
        assert said <= self.owed, f"said {said - self.owed} without a reason"
        self.owed -= said
        self.said = said

    def check_hello(self, hello: Hello) -> None:
        running = {(h.layer, n): h.attempt for h in hello.held for n in RangeSet(h.running)}
        finished = {(h.layer, n): h.attempt for h in hello.held for n in RangeSet(h.finished)}
        assert running == self.open, "a hello that does not say what runs"
        assert finished == {s: attempt for s, (attempt, _) in self.done.items()}, "a hello that forgets finished work"
        self.owed = Counter({k: c for k, c in self.owed.items() if k[0] not in {"returned"}})  # said by not naming them

    def end(self, shard: Shard, how: str) -> None:
        """An open shard is no more; `how` is what has to be said of it."""
        attempt = self.open.pop(shard)
        self.flying.pop(shard, None)
        if how:
            self.owed.update([(how, *shard, attempt)])

    def give_back_waiting(self) -> None:
        for shard in [s for s in self.open if s not in self.flying]:
            self.end(shard, "returned")

    # --- the coordinator ---

    def answered(self) -> None:
        self.asked, self.said = None, Counter()

    def unheard(self) -> None:
        self.asked = None
        self.owed += Counter({k: c for k, c in self.said.items() if k[0] in {"failed", "lost"}})
        self.said = Counter()

    def settle(self, layer: str, chosen: RangeSet) -> None:
        for number in chosen:
            self.done.pop((layer, number), None)
            if (layer, number) in self.open:
                self.end((layer, number), "")

    def forget_reports(self, layer: str) -> None:
        self.owed = Counter({k: c for k, c in self.owed.items() if k[1] != layer})
        self.said = Counter({k: c for k, c in self.said.items() if k[1] != layer})

    def apply_old(self, said: News | Welcome) -> None:
        for layer in said.gone:
            self.settle(layer, RangeSet([(0, SHARDS)]))
            self.known.discard(layer)
            self.forget_reports(layer)
        for committed in said.committed:
            self.settle(committed.layer, RangeSet(committed.numbers))
        for drop in said.drops:
            for number in RangeSet(drop.numbers):
                if self.open.get((drop.layer, number)) == drop.attempt:
                    self.end((drop.layer, number), "")

    def apply_news(self, news: News) -> None:
        self.apply_old(news)
        self.known.update(info.layer.digest for info in news.layers)
        for grant in news.grants:
            for number in RangeSet(grant.numbers) if grant.layer in self.known else ():
                self.apply_grant((grant.layer, number), grant.attempt)
        if news.drain:
            self.begin_drain()
        if self.draining or not self.lent:
            self.give_back_waiting()

    def begin_drain(self) -> None:
        """Paused or not: who leaves finishes what runs."""
        self.draining, self.lent = True, self.lent or 3

    def apply_grant(self, shard: Shard, attempt: int) -> None:
        self.anew.add(shard)
        if shard in self.done:
            before, part = self.done[shard]
            self.done[shard] = (max(before, attempt), part)
            self.owed.update([("finished", *shard, attempt)])
        elif self.open.get(shard, 0) < attempt:
            self.open[shard] = attempt
            self.flying.pop(shard, None)

    def answer(self, news: News) -> None:
        lost_track = any(grant.layer not in self.known | {i.layer.digest for i in news.layers} for grant in news.grants)
        self.answered()
        self.apply_news(news)
        if lost_track:
            self.session = 0
        self.tell(Heard(news))
        self.now += 0.06
        self.tell(Ticked())

    def grant(self, layer: str, chosen: list[int]) -> Grant:
        self.attempts += 1
        return Grant("j.1", layer, 1, self.attempts, pairs(chosen), {n: b"%d" % n for n in chosen})

    def link_breaks(self) -> None:
        self.unheard()
        self.up, self.session = False, 0

    def syncing(self) -> bool:
        return self.asked is not None and isinstance(self.asked.message, Sync)

    # --- rules: link and coordinator ---

    @initialize()
    def begin(self) -> None:
        for slot in self.runs:
            self.slot_comes(slot)
        self.link_comes()
        self.welcome(set(), [])
        self.push_comes()

    @rule(seconds=st.sampled_from([0.06, 0.3, 2.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Ticked())

    @precondition(lambda self: not self.ended and not self.up)
    @rule()
    def link_comes(self) -> None:
        self.up, self.session = True, 0
        self.tell(LinkUp(FARM))
        self.now += 1.1
        self.tell(Ticked())

    def link_goes(self) -> None:
        self.link_breaks()
        self.tell(LinkDown("cut"))

    @precondition(lambda self: self.asked is not None and isinstance(self.asked.message, Hello))
    @rule(gone=st.sets(layers, max_size=1), dropped=st.lists(numbers, max_size=1))
    def welcome(self, gone: set[str], dropped: list[list[int]]) -> None:
        drops = [Drop(h.layer, h.boot, h.attempt, pairs(d)) for h in self.asked.message.held for d in dropped]
        self.attempts += 1
        self.session = self.attempts
        message = Welcome(FARM, 1, self.session, 60.0, 5.0, drops, [], sorted(gone))
        self.answered()
        self.apply_old(message)
        self.tell(Heard(message))

    @precondition(lambda self: self.syncing())
    @rule(layer=layers, chosen=numbers)
    def grants(self, layer: str, chosen: list[int]) -> None:
        news = News([self.info_of(layer)], [self.grant(layer, chosen)])
        self.past_news.append(news)
        self.answer(news)

    @precondition(lambda self: self.syncing())
    @rule(layer=layers, chosen=numbers)
    def grants_without_saying_what(self, layer: str, chosen: list[int]) -> None:
        self.answer(News([], [self.grant(layer, chosen)]))

    @precondition(lambda self: self.syncing())
    @rule(layer=layers, chosen=numbers)
    def drops(self, layer: str, chosen: list[int]) -> None:
        attempts = {self.open[layer, n] for n in chosen if (layer, n) in self.open} or {1}
        news = News(drops=[Drop(layer, 1, attempt, pairs(chosen)) for attempt in attempts])
        self.past_news.append(news)
        self.answer(news)

    @precondition(lambda self: self.syncing())
    @rule(layer=layers, chosen=numbers)
    def commits(self, layer: str, chosen: list[int]) -> None:
        self.answer(News(committed=[Committed(layer, pairs(chosen))]))

    @precondition(lambda self: self.syncing())
    @rule(layer=layers)
    def forgets_layer(self, layer: str) -> None:
        self.answer(News(gone=[layer]))

    @precondition(lambda self: self.syncing() and self.past_news)
    @rule(data=st.data())
    def says_again(self, data: st.DataObject) -> None:
        """Old news: a grant counts only while it is the latest word on a shard that is still held."""
        old = data.draw(st.sampled_from(self.past_news))
        kept = [g for g in old.grants if all(self.open.get((g.layer, n), 0) >= g.attempt for n in RangeSet(g.numbers))]
        self.answer(News(old.layers, kept, old.drops, old.committed, old.gone))

    def rejects(self, code: str) -> None:
        self.unheard()
        self.session = 0
        if code != "no-session":
            self.up = False
        self.tell(Heard(Rejected(code, "no")))

    def says_bye(self) -> None:
        self.link_breaks()
        self.tell(Heard(Bye("stopping")))

    @precondition(lambda self: not self.ended)
    @rule(what=st.sampled_from(["link", "push", "pool", "bye", "no-session", "stopping", "protocol"]))
    def trouble(self, what: str) -> None:
        """One rule for all of it, so that it does not drown the rest."""
        awaited = self.asked is not None and not isinstance(self.asked.message, Leave)
        if what == "link" and self.up:
            self.link_goes()
        elif what == "push" and self.push_up:
            self.push_goes()
        elif what == "pool" and self.slots_up:
            self.pool_goes()
        elif what == "bye" and self.syncing():
            self.says_bye()
        elif what in {"no-session", "stopping", "protocol"} and awaited:
            self.rejects(what)

    @precondition(lambda self: self.syncing())
    @rule(layer=layers, chosen=numbers)
    def takes_back_and_grants_again(self, layer: str, chosen: list[int]) -> None:
        """As after a lease that ran out: the runs under way count no more as such."""
        attempts = {self.open[layer, n] for n in chosen if (layer, n) in self.open}
        drops = [Drop(layer, 1, attempt, pairs(chosen)) for attempt in sorted(attempts)]
        self.answer(News([self.info_of(layer)], [self.grant(layer, chosen)], drops))

    # --- rules: pool ---

    def busy(self) -> bool:
        return any(self.runs.values())

    @precondition(busy)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 1e-4, 0.1, 5.0]))
    def batch_ends(self, data: st.DataObject, seconds: float) -> None:
        slot = data.draw(st.sampled_from([s for s, runs in self.runs.items() if runs]))
        run = self.runs[slot].pop(0)
        ran = [item[0] for item in run.items]
        reached = data.draw(st.integers(0, len(ran)))
        fates = data.draw(st.lists(st.sampled_from(["ok", "ok", "bad", "lost"]), min_size=reached, max_size=reached))
        good = tuple(n for n, fate in zip(ran, fates, strict=False) if fate == "ok")
        mishaps = tuple(
            Mishap(n, "killed" if fate == "lost" else "exception", "m", "e", 0.1, 5)
            for n, fate in zip(ran, fates, strict=False)
            if fate != "ok"
        )
        why = data.draw(st.sampled_from(["", "full", "changed"])) if reached < len(ran) else ""
        if not good and not mishaps and not why:
            why = "full"  # an empty outcome has a test of its own
        outcome = Outcome(good, len(good), SHARD_BYTES * len(good), 8, seconds * len(good), 7, mishaps,
                          changed=why == "changed", full="ENOSPC" if why == "full" else "")  # fmt: skip
        self.batch_model(run, outcome)
        self.tell(BatchEnded(run.ticket, outcome))

    def batch_model(self, run: Run, outcome: Outcome) -> None:
        layer = run.info.layer.digest
        self.keep(run, outcome.numbers)
        for mishap in outcome.mishaps:
            if self.flying.get((layer, mishap.number)) == run.ticket:
                self.end((layer, mishap.number), "lost" if mishap.lost else "failed")
        left = [s for s, ticket in self.flying.items() if ticket == run.ticket]
        for shard in left:
            del self.flying[shard]
            if outcome.changed or self.draining or not self.lent:
                self.end(shard, "returned")
        if outcome.changed:
            for shard in [s for s in self.open if s[0] == layer and s not in self.flying]:
                self.end(shard, "returned")

    def keep(self, run: Run, good: tuple[int, ...]) -> None:
        layer = run.info.layer.digest
        if good:
            self.parts[run.part] = {(layer, n) for n in good}
        for shard in [(layer, n) for n in good if (layer, n) in self.open]:
            self.done[shard] = (self.open[shard], run.part)
            self.end(shard, "finished")

    @precondition(busy)
    @rule(data=st.data(), marked=st.booleans(), ours=st.booleans())
    def worker_dies(self, data: st.DataObject, marked: bool, ours: bool) -> None:
        slot = data.draw(st.sampled_from([s for s, runs in self.runs.items() if runs]))
        run = self.runs[slot][0]
        self.doomed.discard(slot)
        committed = data.draw(st.booleans())
        kept = {run.ticket: Kept(tuple(n for n, _, _ in run.items), 1, SHARD_BYTES)} if committed else {}
        running = data.draw(st.sampled_from(run.items)) if marked else None
        dead = data.draw(st.integers(1, len(self.runs[slot])))  # the rest waits for its successor already
        flights, self.runs[slot] = self.runs[slot][:dead], self.runs[slot][dead:]
        if committed:
            self.keep(run, kept[run.ticket].numbers)
        if not ours and running:
            shard = (run.info.layer.digest, running[0])
            if self.flying.get(shard) == run.ticket:
                self.end(shard, "lost")
        barren = not ours and self.core.state.slots.every[slot].barren >= 2
        event = WorkerDied(slot, tickets(flights), "died", ours, running, kept)
        self.after_death(flights, barren and self.blames_nobody(run, running))
        self.slots_up.discard(slot)
        self.tell(event)

    def blames_nobody(self, run: Run, running: tuple[int, int, int] | None) -> bool:
        return running is None or ("lost", run.info.layer.digest, running[0], running[2]) not in self.owed

    def after_death(self, flights: list[Run], given_up: bool) -> None:
        for run in flights:
            for shard in [s for s, ticket in self.flying.items() if ticket == run.ticket]:
                del self.flying[shard]
                if given_up:
                    self.end(shard, "lost")
                elif self.draining or not self.lent:
                    self.end(shard, "returned")

    @precondition(lambda self: self.doomed)
    @rule()
    def kill_is_done(self) -> None:
        """With nothing in hand, so that nobody is to blame."""
        slot = self.doomed.pop()
        flights, self.runs[slot] = self.runs[slot], []
        self.after_death(flights, False)
        self.slots_up.discard(slot)
        self.tell(WorkerDied(slot, tickets(flights), "killed", True))

    @precondition(lambda self: len(self.slots_up) < len(self.runs) and not self.ended)
    @rule(data=st.data())
    def next_worker_comes(self, data: st.DataObject) -> None:
        self.slot_comes(data.draw(st.sampled_from(sorted(self.runs.keys() - self.slots_up))))

    def slot_comes(self, slot: int) -> None:
        self.slots_up.add(slot)
        self.gone.discard(slot)
        self.tell(SlotUp(slot))

    @precondition(lambda self: not self.ended)
    @rule(data=st.data(), slot=st.integers(0, 2))
    def slot_goes(self, data: st.DataObject, slot: int) -> None:
        """With all that it was given and that is not told of, or but the last: that waits for another worker."""
        self.gone.add(slot)
        there = len(self.runs[slot])
        count = data.draw(st.integers(max(0, there - 1), there))
        flights, self.runs[slot] = self.runs[slot][:count], self.runs[slot][count:]
        self.after_death(flights, False)
        self.slots_up.discard(slot)
        self.doomed.discard(slot)
        self.tell(SlotGone(slot, "its node went", tickets(flights)))

    @precondition(busy)
    @rule(data=st.data())
    def shard_hangs(self, data: st.DataObject) -> None:
        """Seen twice, further apart than its timeout: it is killed, and has failed."""
        slot = data.draw(st.sampled_from([s for s, runs in self.runs.items() if runs]))
        run = self.runs[slot][0]
        if slot in self.doomed | self.frozen:  # the time it is stopped for counts for nothing
            return
        victim = data.draw(st.sampled_from(run.items))
        view = SlotsSeen((SlotView(slot, victim, 0),))
        self.tell(view)
        self.now += TIMEOUT + BACKSTOP_SECONDS + 1
        self.tell(view)
        assert slot in self.doomed, "what hangs is killed"
        self.doomed.discard(slot)
        flights, self.runs[slot] = self.runs[slot], []
        if self.flying.get((run.info.layer.digest, victim[0])) == run.ticket:
            self.end((run.info.layer.digest, victim[0]), "failed")
        self.after_death(flights, False)
        self.slots_up.discard(slot)
        self.tell(WorkerDied(slot, tickets(flights), "killed", True, victim))

    def pool_goes(self) -> None:
        """What is started in the slots that are not told of yet is lost as well, as soon as it is submitted."""
        for slot, flights in self.runs.items():
            if flights:
                self.runs[slot] = []
                self.doomed.discard(slot)
                self.slots_up.discard(slot)
                barren = self.core.state.slots.every[slot].barren >= 2
                self.after_death(flights, barren)
                self.tell(WorkerDied(slot, tickets(flights), "gone", False))
                if self.ended:
                    return
        self.slots_up.clear()
        self.gone = set(self.runs)
        self.tell(PoolLost("gone"))
        for slot, flights in self.runs.items():
            if flights and not self.ended:
                self.runs[slot] = []
                self.doomed.discard(slot)
                self.after_death(flights, False)
                self.tell(WorkerDied(slot, tickets(flights), "the pool is gone", True))

    # --- rules: push ---

    @precondition(lambda self: not self.ended and not self.push_up)
    @rule()
    def push_comes(self) -> None:
        self.push_up = True
        self.tell(PushUp())

    def push_goes(self) -> None:
        self.push_up, self.push = False, None
        self.tell(PushDown("cut"))

    def sent(self) -> RangeSet:
        every = RangeSet()
        for _, chosen in self.push.pieces if self.push else ():
            every.update(chosen)
        return every

    def answers_for(self, layer: str, numbers: RangeSet) -> RangeSet:
        return RangeSet.of(number for number in numbers if (layer, number) not in self.anew)

    @precondition(lambda self: self.push is not None)
    @rule()
    def push_settled(self) -> None:
        sent, layer = self.sent(), self.push.layer
        self.settle(layer, self.answers_for(layer, sent))
        self.push = None
        self.tell(PushAnswered(Settled(sent.pairs()), sent, 10, 0.1))

    @precondition(lambda self: self.push is not None)
    @rule(count=st.integers(0, 3))
    def push_refused_as_committed(self, count: int) -> None:
        sent, layer = self.sent(), self.push.layer
        named = sent.copy().take(count)
        self.settle(layer, self.answers_for(layer, named))
        self.push = None
        self.tell(PushAnswered(Refused("committed", named.pairs()), sent, 0, 0.0))

    @precondition(lambda self: self.push is not None)
    @rule(code=st.sampled_from(["full", "no-session", "corrupt", "gone", "outputs", "kernels"]))
    def push_refused(self, code: str) -> None:
        sent, push, self.push = self.sent(), self.push, None
        assert push is not None
        if code == "gone" and any(layer == push.layer for layer, _ in self.anew):
            self.settle(push.layer, self.answers_for(push.layer, sent))
        elif code == "gone":
            self.settle(push.layer, RangeSet([(0, SHARDS)]))
            self.known.discard(push.layer)
            self.forget_reports(push.layer)
        if code in {"outputs", "kernels"}:
            for number in self.answers_for(push.layer, sent):
                if (push.layer, number) in self.done:
                    attempt, _ = self.done.pop((push.layer, number))
                    self.owed["failed" if code == "outputs" else "lost", push.layer, number, attempt] += 1
        if code == "no-session" and push.session == self.session:
            self.session = 0
        self.tell(PushAnswered(Refused(code), sent, 0, 0.0))

    @precondition(lambda self: self.recheck)
    @rule()
    def part_is_damaged(self) -> None:
        name = self.recheck.pop()
        if name not in self.parts or (self.push and name in dict(self.push.pieces)):
            return
        for shard in [s for s, (_, part) in self.done.items() if part == name]:
            attempt, _ = self.done.pop(shard)
            self.owed.update([("lost", *shard, attempt)])
        del self.parts[name]
        self.tell(PartDamaged(name))

    @precondition(lambda self: not self.ended)
    @rule(free=st.sampled_from([0, 5 << 20, 1 << 40]))
    def disk_is_seen(self, free: int) -> None:
        self.tell(SpaceSeen(free))

    @precondition(lambda self: not self.ended and not self.draining)
    @rule(sure=st.integers(0, 9))
    def drain(self, sure: int) -> None:
        if sure:
            return
        self.begin_drain()
        self.give_back_waiting()
        self.tell(DrainAsked("asked"))

    @precondition(lambda self: not self.ended and not self.draining)
    @rule(cpus=st.sampled_from([0, 1, 2, 3, 3]))
    def is_lent(self, cpus: int) -> None:
        self.lent = cpus
        if not cpus:
            self.give_back_waiting()
        self.tell(Lent(cpus, "" if cpus else "paused"))

    # --- what must hold ---

    @invariant()
    def no_more_runs_than_is_lent(self) -> None:
        running = [runs for slot, runs in self.runs.items() if runs and slot not in self.frozen | self.doomed]
        cpus = sum(max(LAYERS[run.info.layer.digest] for run in runs) for runs in running)
        assert self.ended or cpus <= self.lent or (self.lent and len(running) == 1), f"{cpus} cpus, {self.lent} lent"
        assert self.ended or not self.frozen or self.lent < 3, "stopped for nothing"

    @invariant()
    def state_is_sane(self) -> None:
        state = self.core.state
        state.check()
        held = {(d, n): h.attempt_of(n)[1] for d, h in state.holdings.items() for n in {*h.waiting, *h.placed}}  # type: ignore[index]
        assert held == self.open
        assert {(d, n) for d in state.finished_parts.layers(FARM) for n in state.finished_parts.live(FARM, d)} == set(
            self.done
        )
        if not self.open and not self.busy():
            assert disk_budget.reserved(state) == self.bytes_coming(), "a reservation for nothing"

    def bytes_coming(self) -> int:
        """Of inputs on their way."""
        return 0

    def teardown(self) -> None:
        """From any state, with a willing world: everything is said and pushed, and it leaves."""
        if self.ended or not self.attempts:
            return
        self.tell(SpaceSeen(1 << 40))
        if not self.draining:
            self.is_lent(3)
        self.finish_all()
        if not self.draining:
            self.begin_drain()
            self.give_back_waiting()
            self.tell(DrainAsked("the end"))
        for _ in range(200):
            if self.ended:
                break
            self.one_step_to_the_end()
        assert self.ended, "a drain that does not end"
        assert not self.open and not self.done and not self.owed, "left with something unsaid"
        under_way = {name for name, _ in self.push.pieces} if self.push else set()  # the next join asks about these
        assert not set(self.parts) - under_way, "left parts on the disk"
        assert not any(self.runs.values())

    def finish_all(self) -> None:
        """Whatever is held comes to its end, with a world that is willing from now on."""
        for _ in range(400):
            if self.draining or self.ended or not self.open:
                break
            self.one_step_to_the_end()
        assert self.draining or self.ended or not self.open, "shards that are held and never run"

    def one_step_to_the_end(self) -> None:
        if self.asked is not None:
            self.answer_kindly()
        elif self.push is not None:
            self.push_settled()
        elif self.doomed:
            self.kill_is_done()
        elif self.busy():
            self.finish(next(runs for runs in self.runs.values() if runs).pop(0))
        elif not self.up:
            self.link_comes()
        elif not self.push_up:
            self.push_comes()
        elif len(self.slots_up) < len(self.runs):
            self.slot_comes(min(self.runs.keys() - self.slots_up))
        else:
            self.time_passes(2.0)

    def finish(self, run: Run) -> None:
        good = tuple(n for n, _, _ in run.items)
        outcome = Outcome(good, 1, SHARD_BYTES * len(good), 1, 0.1, 1, ())
        self.batch_model(run, outcome)
        self.tell(BatchEnded(run.ticket, outcome))

    def answer_kindly(self) -> None:
        message = self.asked.message
        if isinstance(message, Hello):
            self.welcome(set(), [])
        elif isinstance(message, Leave):
            self.asked = None
            self.tell(Heard(Bye("left")))
        else:
            self.answer(News())


class RemoteDeskMachine(DeskMachine):
    """An agent that pulls its inputs. Both layers have one source, and the budget is for four shards."""

    budget = 4 * (IN_BYTES + SHARD_BYTES)
    in_place = False

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes | None] = {}  # in the spool, with the digest of those that are whole
        self.pulls: dict[str, Pull | PullCode] = {}
        self.codes: set[str] = set()
        self.pull_up = False
        self.spoilt: set[str] = set()

    def info_of(self, layer: str) -> LayerInfo:
        made = info_of(layer)
        source = ArraySource("/x.npy", 128, "|u1", (SHARDS, IN_BYTES), Stamp(1, 2, 3, 4))
        cut = msgspec.structs.replace(made.layer, source=source, rows=SHARDS, in_bytes=IN_BYTES)
        work = msgspec.structs.replace(made.work, code=CODE if LAYERS[layer] == 2 else None)
        return LayerInfo(made.job, cut, work)

    def name(self, layer: str, number: int) -> str:
        return name_of(FARM, self.info_of(layer).layer.window(number))

    def bytes_coming(self) -> int:
        return IN_BYTES * sum(isinstance(pull, Pull) for pull in self.pulls.values())

    # --- orders ---

    def obey(self, order: Action) -> None:
        match order:
            case Pull():
                self.obey_pull(order)
            case PullCode(_, name):
                assert self.pull_up and name == CODE and name not in self.pulls and name not in self.codes
                self.pulls[name] = order
            case Discard(name, digest):
                assert self.files.pop(name) == digest, "deleted what is not there"
                assert name not in self.pulls, "deleted what is coming"
                assert name in self.spoilt or name not in self.inputs_read(), "deleted what is being read"
            case _:
                super().obey(order)

    def obey_pull(self, pull: Pull) -> None:
        assert self.pull_up and not self.draining and pull.session
        assert pull.name == self.name(pull.layer, pull.number) and pull.nbytes == IN_BYTES
        assert (pull.layer, pull.number) in self.open, "pulled for nobody"
        assert self.files.get(pull.name) is None and pull.name not in self.pulls, "pulled twice"
        self.files[pull.name], self.pulls[pull.name] = None, pull
        self.check_budget()

    def obey_run(self, run: Run) -> None:
        super().obey_run(run)
        for number, _, _ in run.items:
            copy = run.inputs[number]
            assert copy.name == self.name(run.info.layer.digest, number)
            assert self.files[copy.name] == copy.digest, "ran before its input was whole"
        assert run.info.work.code is None or CODE in self.codes, "ran before its code was there"

    def inputs_read(self) -> set[str]:
        return {copy.name for runs in self.runs.values() for run in runs for copy in run.inputs.values()}

    def bytes_of_inputs(self) -> int:
        return IN_BYTES * len(self.files)

    # --- rules ---

    @precondition(lambda self: not self.ended and not self.pull_up)
    @rule()
    def pull_comes(self) -> None:
        self.pull_up = True
        self.tell(PullUp())

    @precondition(lambda self: self.pulls and not self.ended)
    @rule()
    def pull_ends(self) -> None:
        name, pull = next(iter(self.pulls.items()))
        del self.pulls[name]
        if isinstance(pull, Pull):
            self.files[name] = name.encode()
        else:
            self.codes.add(name)
        self.tell(Pulled(name, name.encode(), IN_BYTES, 0.5))

    @precondition(lambda self: self.pulls and not self.ended)
    @rule(code=st.sampled_from(["cut", "full", "changed", "gone", "no-session", "refused"]))
    def pull_fails(self, code: Any) -> None:
        name, pull = next(iter(self.pulls.items()))
        if code == "cut":
            self.pull_up = False
            for name in list(self.pulls):
                del self.pulls[name]
                self.tell(NotPulled(name, "cut", "the link broke"))
            return
        del self.pulls[name]
        self.files.pop(name, None)
        if code in {"changed", "gone"}:
            self.goes_back(pull, code)
        if code == "no-session" and pull.session == self.session:
            self.session = 0
        self.tell(NotPulled(name, code, "no"))

    def goes_back(self, pull: Pull | PullCode, code: str) -> None:
        for layer, number in [shard for shard in self.open if shard not in self.flying]:
            whole = code == "changed" or isinstance(pull, PullCode)
            same = LAYERS[layer] == 2 if isinstance(pull, PullCode) else layer == pull.layer
            if same and (whole or number == pull.number):
                self.end((layer, number), "returned")

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def inputs_are_spoilt(self, data: st.DataObject) -> None:
        """Their copies are not what was pulled: once they run again, with others."""
        slot = data.draw(st.sampled_from([s for s, runs in self.runs.items() if runs]))
        run = self.runs[slot].pop(0)
        layer = run.info.layer.digest
        for number, copy in run.inputs.items():
            again = copy.name not in self.spoilt
            self.spoilt.add(copy.name)
            if self.flying.get((layer, number)) == run.ticket:
                del self.flying[layer, number]
                if not again or self.draining or not self.lent:
                    self.end((layer, number), "returned" if again else "lost")
        mishaps = tuple(Mishap(n, "input", "not what was pulled", "", 0.1, 5) for n, _, _ in run.items)
        self.tell(BatchEnded(run.ticket, Outcome((), 0, 0, 0, 0.0, 0, mishaps)))

    def one_step_to_the_end(self) -> None:
        if self.asked is None and not self.pull_up and self.up:
            self.pull_comes()
        elif self.asked is None and self.pulls:
            self.pull_ends()
        else:
            super().one_step_to_the_end()


DeskMachine.TestCase.settings = RemoteDeskMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),  # shrinking a run of this machine takes minutes
)
TestDesk = DeskMachine.TestCase
TestRemoteDesk = RemoteDeskMachine.TestCase
