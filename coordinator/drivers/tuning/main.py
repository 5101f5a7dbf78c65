"""The driver of a search: segments of trials out, what came of them into the journal, an end. Ranks nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from heapq import nsmallest

import msgspec

from muster.coordinator.api.status import Progress
from muster.coordinator.drivers.driver import Drive, Landed, run
from muster.coordinator.drivers.tuning.answers import believed, given_up
from muster.coordinator.drivers.tuning.progress import progress_of
from muster.coordinator.drivers.tuning.result import publish_search
from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import Root, resolve_job
from muster.jobs.common.errors import DamagedError, NotFoundError, UsageError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.tuning.journal import Journal, SearchHead, adopted
from muster.jobs.tuning.params import TuneParams
from muster.jobs.tuning.queue import Queue
from muster.jobs.tuning.stopping import Judge
from muster.jobs.tuning.trial_runner import TrialOrder
from muster.jobs.tuning.trials import Segment

SLOTS_AHEAD = 2  # segments out for each slot: one that runs, one that waits
OUT_LEAST = 4
KEPT_BEST = 3  # checkpoints of trials that have ended
WRONG_MOST = 20  # answers that cannot be, before there is no going on
TELL_SECONDS = 0.2  # between what people are told
LOOK_SECONDS = 1.0  # between looks at the budget, while nothing comes


def main() -> int:
    return run(_drive, goes_on=True)


def _drive(drive: Drive) -> None:
    try:
        TuningDriver(drive).run()
    except (DamagedError, NotFoundError, UsageError) as error:
        drive.give_up(f"{error.message}; {error.hint}")


class TuningDriver:
    """Keeps nothing that its journal does not have: one that is started again goes on from that."""

    def __init__(self, drive: Drive) -> None:
        plan = plans.load(drive.place)
        params = msgspec.convert(drive.state.params, TuneParams)
        head = SearchHead(params, plan.work.cpus)
        self._drive = drive
        self._search = head.search
        self._journal = Journal(drive.place.checkpoints)
        drive.patiently(lambda: self._journal.begin(head))
        self._adopt(params)
        segments = self._journal.segments()
        for segment in segments:
            self._search.commit(segment)
        self._try_failed_again()
        self._queue = Queue(drive.place.checkpoints)
        self._queued = 1 + max((one.queued for one in segments if one.queued is not None), default=-1)  # next place
        self._out: dict[int, TrialOrder] = {}  # shard → what it is to do
        self._wrong = 0
        self._told = float("-inf")  # when people were told last
        self._before, self._since = self._search.elapsed, time.monotonic()

    def _adopt(self, params: TuneParams) -> None:
        """Begin where another search is."""
        if params.extends is None or len(self._journal):
            return
        root = Root(self._drive.place.path.parents[1])
        segments, states = adopted(root.job(resolve_job(root, params.extends)).checkpoints, params)
        self._drive.patiently(lambda: self._journal.append(segments, states))

    def _try_failed_again(self) -> None:
        """Where somebody had the job retried since. The journal says it, as all that decides who goes on."""
        if (told := self._drive.state.retried) not in (0.0, self._search.retried):
            self._note(Segment(-1, 0, 0, retried=told, at=self._search.elapsed))

    @property
    def _seconds(self) -> float:
        """Of the search, those of earlier lives included."""
        return self._before + time.monotonic() - self._since

    @property
    def _busy(self) -> set[int]:
        return {order.trial for order in self._out.values()}

    def run(self) -> None:
        while self._goes_on() or not self._closed():
            self._take()
            if why := self._search.hopeless(self._drive.state.max_failures):
                self._drive.give_up(why)
                return
        self._retire(list(self._out))
        while self._wants_score():
            self._take()
        if not self._drive.over:
            self._finish()

    # --- what people say ---

    def _hear(self) -> None:
        """What people enqueued since: a trial each; or that they want an end."""
        new = self._queue.since(self._queued)
        for queued in new:
            if not queued.closed:
                self._note(self._search.added(self._queued, queued.config, self._seconds))
                self._queued += 1
            elif queued.asked and not self._search.stopped:
                self._note(Segment(-1, 0, 0, stopped=True, at=self._seconds))
        if new:
            self._drive.advance(self._drive.cursor, durable=False, progress=self._progress(at_once=True))

    def _note(self, said: Segment) -> None:
        """In the journal before it counts: a driver that is started again promotes the same."""
        self._drive.patiently(partial(self._journal.append, [said], {}))
        self._search.commit(said)

    def _closed(self) -> bool:
        """Take no more from people; False where something came in meanwhile."""
        return self._drive.over or self._drive.patiently(lambda: self._queue.close(self._queued))

    # --- out ---

    def _goes_on(self) -> bool:
        """Have more done; whether anything is under way."""
        if not self._drive.over:
            self._hear()
        if self._drive.over or self._search.ending(self._seconds):
            return False
        most = max(OUT_LEAST, SLOTS_AHEAD * self._drive.state.slots)
        first = not (self._search.table.begun or self._out)  # one iteration, so that soon one shard has succeeded
        orders = [self._order(trial, to) for trial, to in self._search.orders(self._busy, most - len(self._out))]
        if first and orders:
            orders[0] = msgspec.structs.replace(orders[0], limit=0.0)
        self._issue([order for order in orders if not order.state])
        for order in orders:
            if order.state:
                self._issue([order])
        return bool(self._out)

    def _order(self, number: int, to: int) -> TrialOrder:
        trial = self._search.table.trials.get(number)
        order = TrialOrder(number, 0, to, self._search.config(number), limit=self._search.params.segment)
        if trial is None or not trial.iterations:
            return order
        judge = Judge(self._search.params)
        judge.recall(metrics[self._search.params.metric] for metrics in trial.curve)
        return msgspec.structs.replace(
            order, start=trial.iterations, state=trial.state, standing=judge.standing, spent=sum(trial.seconds)
        )

    def _issue(self, orders: list[TrialOrder]) -> None:
        """A shard for each; all go on from the same checkpoint, or from none."""
        if not orders:
            return
        drive, state = self._drive, orders[0].state
        sheet = drive.patiently(lambda: drive.lay_out(self._journal.state(state))) if state else ""
        numbered = list(enumerate(orders, drive.next))
        create = [(number, msgspec.msgpack.encode(order)) for number, order in numbered]
        self._out.update(numbered)
        near = self._search.table.trials[orders[0].trial].nearest if state else ""
        if not drive.advance(drive.cursor, create, durable=False, sheet=sheet, progress=self._progress(), near=near):
            raise RuntimeError("the job was moved on by somebody else")

    def _wants_score(self) -> bool:
        """Have the best one's test rows scored, once, where there are any; whether that is under way."""
        search, best = self._search, self._search.table.best
        has_test = search.params.trial != "code"  # whose data is its own affair
        if self._drive.over or not has_test or search.score is not None or best is None or not best.state:
            return False
        if not self._out:
            self._issue([msgspec.structs.replace(self._order(best.number, best.iterations), score=True)])
        return True

    def _retire(self, numbers: list[int]) -> None:
        """Nobody wants these any more."""
        if not numbers or self._drive.over:
            return
        self._drive.advance(self._drive.cursor, durable=False, retire=RangeSet.of(numbers), progress=self._progress())
        for number in numbers:
            self._forget(self._out.pop(number))

    def _forget(self, order: TrialOrder) -> None:
        if order.state and all(other.state != order.state for other in self._out.values()):
            self._drive.take_away(order.state)

    # --- in ---

    def _take(self) -> None:
        """Wait for something; what is news is durable before it counts."""
        self._drive.wait(LOOK_SECONDS)
        found: list[Segment] = []
        states: dict[str, bytes] = {}
        for landed in self._drive.take():
            for segment, state in self._answers(landed):
                if self._search.commit(segment):
                    found.append(segment)
                    states.update({segment.state: state} if segment.state else {})
        found += [segment for segment in self._given_up() if self._search.commit(segment)]
        if not found:
            return
        self._drive.patiently(lambda: self._journal.append(found, states))
        self._journal.keep(self._wanted())
        self._move()

    def _answers(self, landed: Landed) -> Iterator[tuple[Segment, bytes]]:
        for entry, pieces in landed.shards():
            order = self._out.pop(entry.number, None)
            if order is None:
                continue
            self._forget(order)
            state = bytes(pieces[1])
            try:
                said = msgspec.msgpack.decode(pieces[3], type=Segment)
                segment = believed(said, order, self._search.params.metric, state)
            except (msgspec.MsgspecError, ValueError) as error:
                self._refuse(entry.agent, str(error))
                continue
            if segment.why == "failed":
                last = self._search.table.failures(order.trial) + 1 >= self._drive.state.attempts
                segment = msgspec.structs.replace(segment, final=segment.final or last)
                about = f"trial {order.trial}: {segment.message}"
                self._drive.tell_failed(entry, segment.code, about, segment.evidence)
            config = order.config if self._search.params.searcher == "optuna" else None
            yield msgspec.structs.replace(segment, machine=entry.agent, at=self._seconds, config=config), state

    def _given_up(self) -> list[Segment]:
        """Of shards that the farm gave up, each the end of its trial."""
        found = []
        for one in self._drive.take_given_up():
            order = self._out.pop(one.number, None)
            if order is not None:
                self._forget(order)
                found.append(given_up(order, one.why, one.evidence, self._seconds))
        return found

    def _refuse(self, agent: str, why: str) -> None:
        self._wrong += 1
        print(f"{agent} sent what cannot be: {why}", file=sys.stderr, flush=True)
        if self._wrong > WRONG_MOST:
            raise DamagedError(f"{agent} sends what cannot be: {why}", "look after that machine, then retry the job")

    def _wanted(self) -> set[str]:
        """Checkpoints that may still be gone on from, and those of the best."""
        table = self._search.table
        ended = [trial for trial in table.trials.values() if trial.ended and trial.state]
        failed = (trial for trial in ended if trial.why == "failed")  # a retry goes on with them
        best = nsmallest(KEPT_BEST, ended, key=table.rank)
        return {trial.state for trial in (*table.open.values(), *failed, *best)}

    # --- keeping it ---

    def _move(self, finish: bool = False) -> None:
        drive = self._drive
        first = min([low for low, _ in drive.state.created], default=drive.next)
        every = RangeSet([(first, drive.next)]) if finish else None
        to = max(drive.cursor, len(self._journal))
        if not drive.advance(to, finish=finish, retire=every, progress=self._progress(finish)):
            raise RuntimeError("the job was moved on by somebody else")

    def _progress(self, at_once: bool = False) -> Progress | None:
        """None for a while after people were told: with thousands of trials it takes a while itself."""
        now = time.monotonic()
        if now < self._told + TELL_SECONDS and not at_once:
            return None
        self._told = now
        return progress_of(self._search, self._busy, self._seconds)

    def _finish(self) -> None:
        """The result is in its place before the job is said to be done."""
        self._drive.patiently(lambda: publish_search(self._drive, self._search, self._journal))
        self._move(finish=True)
