"""Makes mistakes in the agent's core and the scheduler, one at a time, in a copy, and sees which world shows each.

`python -m tests.simulator.mistakes [WORD...]` tries all, or those whose name has one of the words; it is no part of
CI's run. tests/mutations.py does the same for the scheduler alone, with its own state machine as the judge.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.mutations import MUTATIONS, Mutation, copied, planted, python

SCHEDULES = int(os.environ.get("MUSTER_SCHEDULES", "3000"))  # at most, for each
CORE, SCHEDULER = "agent/core", "coordinator/scheduler"

OWN = (
    # the wedge of shared layers, each of its races again (docs/decisions/0011)
    Mutation("a report of an earlier opening of its layer", f"{SCHEDULER}/commits.py",
             "    if (report.boot, report.attempt) <= layer.opened_after:\n        return\n"
             "    key = (layer.digest, report.boot, report.attempt)\n"
             "    holding = agent.holdings.get(key)\n"
             "    granted = holding.granted if holding is not None else agent.ended.get(key)\n",
             "    holding, granted = agent.holdings.get((layer.digest, report.boot, report.attempt)), now\n"
             "    if holding is None and (counted := told - layer.committed):\n"
             "        grant = (agent.name, layer.job, layer.digest, report.boot, report.attempt)\n"
             "        holding = Holding(*grant, now, RangeSet())\n"
             "        state.add_holding(holding)\n"
             "        take_in(state, agent, holding, counted)\n"),
    Mutation("a settled answer applied to what was granted anew", f"{CORE}/push_policy.py",
             "RangeSet(numbers) - state.push.anew)", "RangeSet(numbers))"),
    Mutation("a 'gone' applied to what was granted anew", f"{CORE}/push_policy.py",
             'case "gone" if push.anew:', 'case "gone" if False:'),
    Mutation("an offer that does not know its layer", f"{CORE}/push_policy.py",
             "push.farm, push.offered, push.anew = farm, layer, RangeSet()\n", "push.farm = farm\n"),
    Mutation("a finished layer of the next job forgotten", f"{SCHEDULER}/state.py",
             "        return damaged or any(not self.jobs[layer.job].ended for layer in waiting)\n",
             "        return damaged\n"),
    # the scheduler beside them
    Mutation("a shard that kills its worker copied for ever", f"{SCHEDULER}/entities.py",
             "if one.failures or one.kicked or len(one.losses) > 1)", "if one.failures or one.kicked)"),
    Mutation("losses that are not counted", f"{SCHEDULER}/failures.py", "    losses.add(run)\n", ""),
    Mutation("a dead machine's finished shards forgotten", f"{SCHEDULER}/sessions.py",
             "        state.release(state.open_layers[holding.layer], holding.everything())\n",
             "        state.release(state.open_layers[holding.layer], holding.open)\n"),
    Mutation("limbo that goes nowhere", f"{SCHEDULER}/sessions.py", "        state.release(layer, limbo)\n", ""),
    Mutation("rows that come while their layer is closed forgotten", f"{SCHEDULER}/layers.py",
             "                layer.settle(event.numbers)\n", "                pass\n"),
    Mutation("a job that ends incomplete and does not say why", f"{SCHEDULER}/job_states.py",
             '_end(state, job, "incomplete", "; ".join(part for part in (why, more) if part))',
             '_end(state, job, "incomplete", "")'),
    # slots
    Mutation("a batch for a slot whose worker is still to come", f"{CORE}/slots.py",
             'if slot.worker != "up" or slot.killing', "if slot.killing"),
    # what is finished
    Mutation("a drop that deletes finished work", f"{CORE}/state_machine.py",
             "        state.drop(drop)\n",
             "        state.drop(drop)\n"
             "        numbers = RangeSet(drop.numbers)\n"
             "        push_policy.delete(state, state.finished_parts.settle(state.farm, drop.layer, numbers))\n"),
    Mutation("a part deleted on 'later'", f"{CORE}/push_policy.py",
             "            _put_layer_off(state, layer, message, now)\n",
             "            push.emptied += state.gone(layer)\n"),
    Mutation("a part deleted while it is sent", f"{CORE}/push_policy.py",
             "    busy = {name for name, _ in push.under_way.pieces} if push.under_way else set()\n",
             "    busy = set[str]()\n"),
    Mutation("a part kept that a dead worker's batch left, and known to nobody", f"{CORE}/dispatch.py",
             "        _rescue(state, flight, event.kept, now)\n", "        pass\n"),
    Mutation("a part that nobody wants left on the disk", f"{CORE}/dispatch.py",
             "        state.emit(Delete(flight.part))\n", ""),
    Mutation("a part under two numbers of the same shard", f"{CORE}/finished_parts.py",
             "            part.strike(other.live)\n", "            pass\n"),
    Mutation("a finished shard granted anew stays under its old grant", f"{CORE}/finished_parts.py",
             "                part.regrant(attempt, shared)\n", ""),
    Mutation("a damaged part that nobody hears of", f"{CORE}/state.py",
             "            self.reports.lose(Loss(job, part.layer, boot, attempt, numbers.pairs(), False,",
             "            str((job, part.layer, boot, attempt, numbers.pairs(), False,"),
    Mutation("a committed shard that is offered for ever", f"{CORE}/push_policy.py",
             "state.settle(layer, numbers - push.anew)", "state.settle(layer, RangeSet())"),
    # what is said
    Mutation("a hello that names nothing finished", f"{CORE}/state.py",
             "for a in sorted({*running, *finished})]", "for a in sorted({*running})]"),
    Mutation("a hello that names nothing that runs", f"{CORE}/state.py",
             "for a in sorted({*running, *finished})]", "for a in sorted({*finished})]"),
    Mutation("counts without what is finished", f"{CORE}/state.py",
             "            counts[layer] = counts.get(layer, 0) + finished\n", "            del finished\n"),
    Mutation("losses not told after a kill", f"{CORE}/state_machine.py",
             "            state.reports.lose(loss)\n", "            pass\n"),
    Mutation("a failure that nobody hears of", f"{CORE}/state.py", "            self.reports.fail(failure)\n", ""),
    Mutation("shards handed back and not said to be", f"{CORE}/state.py",
             "            self.reports.give_back(holding.info.layer.digest, attempt, held)\n", "            pass\n"),
    Mutation("a changed source that nobody hears of", f"{CORE}/dispatch.py",
             "        state.reports.change(flight.layer, outcome.change)\n", ""),
    Mutation("outputs refused and not said to be failed", f"{CORE}/push_policy.py",
             "state.reports.fail(", "str("),
    Mutation("kernels refused and not said to be lost", f"{CORE}/push_policy.py",
             "state.reports.lose(", "str("),
    Mutation("losses that are gone with their answer", f"{CORE}/reports.py",
             "        self.next.losses[:0] = self.sent.losses\n", ""),
    Mutation("a hello that is said once", f"{CORE}/session.py",
             "and not self.session and now >= self._hello_at", "and not self.session and self._hello_at < 0"),
    # what runs, and when it is tried again
    Mutation("the rest of a batch that nobody runs again", f"{CORE}/dispatch.py",
             "    elif left:\n        holding.put_back(left, now)\n", ""),
    Mutation("a shard that kills its worker is nobody's to blame", f"{CORE}/dispatch.py",
             "    state.fail(holding, mishap, running)\n", ""),
    Mutation("a push refused once and never tried again", f"{CORE}/push_policy.py",
             "and push.retry.is_over(now)\n", "and not push.retry.failures\n"),
    Mutation("a layer put off for ever", f"{CORE}/push_policy.py",
             "if not retry.is_over(now)}", "if retry.failures}"),
    Mutation("a full disk that is never tried again", f"{CORE}/state.py",
             "        return not self.retry.is_over(now)\n", "        return bool(self.full)\n"),
    Mutation("a cut bundle that is thought to be on its way", f"{CORE}/push_policy.py",
             "    bundle, push.under_way = push.under_way, None\n",
             "    bundle = push.under_way\n    push.under_way = bundle if isinstance(event, PushDown) else None\n"),
    Mutation("a cut pack of code that is thought to be coming", f"{CORE}/pull_policy.py",
             "state.pull.codes_coming.pop(event.name, None)", "state.pull.codes_coming.get(event.name)"),
    Mutation("a cut pull that is thought to be coming", f"{CORE}/pull_policy.py",
             "            state.inputs.cut(event.name)\n", "            pass\n"),
    Mutation("an input of a cut link taken for one that is here", f"{CORE}/inputs.py",
             "        self.halves[name] = self.coming.pop(name).nbytes\n",
             "        pull = self.coming.pop(name)\n        self.whole[name] = Copy(name, pull.nbytes, b'')\n"),
    Mutation("a grant that takes over what a later one has", f"{CORE}/layers.py",
             "            if other >= attempt:\n", "            if False:\n"),
    Mutation("a worker's end that is taken for the end of another's batch", f"{CORE}/layers.py",
             "if self.placed.get(number) == ticket]", "if number in self.placed]"),
    Mutation("a session that ended kept", f"{CORE}/session.py",
             "        self.asked = None\n        self.session = None\n", "        self.asked = None\n"),
    Mutation("what a closed channel asked is waited for", f"{CORE}/session.py",
             "        self.up, self.session, self.asked = True, None, None\n\n"
             "    def closed(self, why: str) -> None:\n"
             "        self.up, self.session, self.asked, self.why_down = False, None, None, why\n",
             "        self.up, self.session = True, None\n\n"
             "    def closed(self, why: str) -> None:\n"
             "        self.up, self.session, self.why_down = False, None, why\n"),
    Mutation("a sheet of a round that is not asked for again", f"{CORE}/round_sheets.py",
             "    for sheet in state.followed.pop(event.layer, []):\n", "    for sheet in list[str]():\n"),
)  # fmt: skip

ALSO = {  # of those that tests/mutations.py makes
    "a report on what its grant has no more",
    "a hello on an earlier opening of a layer",
    "the high-water mark ignored",
    "a high-water mark that gets lost",
    "two jobs with the same layer open",
    "a hello believed to hold what it does not name",
    "a lease that never ends",
    "a name taken twice",
    "damaged shards not run again",
}
MISTAKES = (*(one for one in MUTATIONS if one.name in ALSO), *OWN)


def first_seed(mistake: Mutation, where: Path) -> str:
    """The first world that shows it, and what it said; "" where none did."""
    with planted(mistake, where):
        command = ("-m", "tests.simulator", "--schedules", str(SCHEDULES), "--first")
        done = python(where, *command, seconds=60.0 + SCHEDULES)
    said = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else next((line for line in said if line.startswith("seed ")), said[-1])


def main(words: list[str]) -> int:
    chosen = [one for one in MISTAKES if not words or any(word in one.name for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        for mistake in chosen:
            said = first_seed(mistake, Path(folder))
            missed += not said
            print(f"{'caught' if said else 'MISSED'} | {mistake.name} | {said[:160]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
