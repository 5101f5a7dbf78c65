"""Breaks the scheduler by hand, one mistake at a time, in a copy, and sees that the state machine notices each, or else
one of the scheduler's own tests.

`python -m tests.mutations [WORD...]` runs all, or those whose name has one of the words; it is no part of CI's run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
EXAMPLES = 1_500
TIMEOUT_SECONDS = 600

RUNNER = f"""
import sys, traceback
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.property import test_scheduler
examples = 0
class Counted(test_scheduler.Farm):
    def __init__(self):
        global examples
        examples += 1
        super().__init__()
try:
    run_state_machine_as_test(Counted, settings=settings(
        max_examples={EXAMPLES}, stateful_step_count=50, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False))
except BaseException as error:
    while error.__context__ is not None:
        error = error.__context__
    said = (str(error).splitlines() or [""])[0]
    place = traceback.extract_tb(error.__traceback__)[-1]
    print(f"{{examples - 1}}|{{place.name}}|{{type(error).__name__}}: {{said[:110]}}")
    sys.exit(1)
"""


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str  # of coordinator/scheduler, or a path with the room it is in
    old: str
    new: str

    def path(self, where: Path) -> Path:
        """Of the file in a copy of the product that is there."""
        return where / self.file if "/" in self.file else where / "coordinator" / "scheduler" / self.file


MUTATIONS = (
    # the eight that must be caught
    Mutation("a bundle with a committed shard accepted", "commits.py", "elif event.numbers & layer.committed:", "elif False:"),
    Mutation(
        "a grant to a departed session", "sessions.py",
        "agent.state, agent.session, agent.hungry = as_state, 0, False\n    state.short.pop(agent.name, None)",
        "agent.state = as_state",
    ),
    Mutation("an attempt too many", "failures.py", "len(failures) >= job.plan.attempts", "len(failures) > job.plan.attempts"),
    Mutation("an attempt too few", "failures.py", "len(failures) >= job.plan.attempts", "len(failures) >= job.plan.attempts - 1"),
    Mutation("data at fault tried again", "failures.py", "spent = final or ", "spent = "),
    Mutation("a machine blamed for the data", "failures.py", "    if not (final or job.judged_elsewhere):\n        _blame(",
             "    if True:\n        _blame("),
    Mutation("a loss counted as a failure", "failures.py", "    losses.add(run)\n",
             "    losses.add(run)\n    layer.trouble(number).failures.add(run)\n"),
    Mutation("a slot leaked on loss", "failures.py", "    let_go(state, agent, layer, run, numbers, poison)\n",
             "    let_go(state, agent, layer, run, poison, poison)\n"),
    Mutation(
        "a drain that leaves finished work behind", "sessions.py",
        '        agent.state, agent.hungry = "draining", False\n',
        '        agent.state, agent.hungry = "draining", False\n'
        "        for held in list(agent.holdings.values()):\n"
        "            numbers = held.finished.copy()\n"
        "            held.discard(numbers)\n"
        "            state.prune(held)\n"
        "            state.release(state.open_layers[held.layer], numbers)\n",
    ),
    Mutation("a draining agent granted more", "state_machine.py", 'event.hungry and agent.state == "live"', "event.hungry"),
    Mutation("a late failure that touches a newer attempt", "failures.py",
             "    had = holding.those(numbers) if holding else RangeSet()\n", "    had = numbers & layer.held()\n"),
    Mutation("a late tick that expires everyone", "state_machine.py", "if late > LATE_TICKS * state.timing.tick:", "if False:"),
    # sessions and leases
    Mutation("a late tick that forgives too much", "sessions.py", "min(now, agent.heard + delay)", "agent.heard + delay"),
    Mutation("a lease that never ends", "sessions.py", "now - agent.heard > state.timing.lease", "False"),
    Mutation("a fenced process let in", "sessions.py", "if hello.process in state.fenced:", "if False:"),
    Mutation("a name taken twice", "sessions.py", "old.present and old.hello.spool != hello.spool:", "False:"),
    Mutation("a hello believed to hold what it does not name", "sessions.py",
             "        lost = holding.everything()\n", "        lost = RangeSet()\n"),
    Mutation("finished work of a hello done again", "commits.py",
             "    take_in(state, agent, holding, (finished & theirs) - layer.committed)\n", ""),
    Mutation("a hello believed about a grant that never was", "commits.py",
             "agent.left.get(key, RangeSet())", "layer.whole"),
    Mutation("seconds believed that cannot have been", "commits.py", "min(seconds, most, agent.unbilled / job.work.cpus)", "seconds"),
    Mutation("a drain forgotten on reconnecting", "sessions.py", '"draining" if draining else "live"', '"live"'),
    Mutation("a report on what its grant has no more", "commits.py", "holding.those(told))", "told)"),
    Mutation("a hello on an earlier opening of a layer", "sessions.py",
             "    if layer.opened_after < (claim.boot, claim.attempt) <= (state.boot, state.last_attempt):\n", "    if True:\n"),
    # restarts
    Mutation("a machine given up that is waited for after a restart", "sessions.py",
             "        state.expected.discard(name)\n", ""),
    Mutation("limbo released at once", "sessions.py", "(state.expected and now < state.limbo_until)", "False"),
    Mutation("limbo released twice", "sessions.py",
             "limbo, layer.limbo = layer.limbo, RangeSet()", "limbo = layer.limbo.copy()"),
    Mutation("limbo that waits for agents that are back", "sessions.py", "    state.expected.discard(hello.name)\n", ""),
    Mutation("limbo forgotten", "jobs.py", "            layer.limbo, layer.again = layer.again, RangeSet()\n", "            pass\n"),
    Mutation("the high-water mark ignored", "grants.py", ", below=layer.high_water)", ")"),
    Mutation("a high-water mark that gets lost", "layers.py",
             "    layer.raising = layer.high_water  # a mark on its way will find the layer closed\n", ""),
    Mutation("a failure counted again after a restart", "failures.py", "    if run in failures:\n        return\n", ""),
    Mutation("two jobs with the same layer open", "layers.py",
             "    if twin := state.open_layers.get(layer.digest):\n", "    if twin := None:\n"),
    # results
    Mutation("a quarantine ignored", "commits.py",
             "        state.release(layer, theirs - poison)\n    with state.counting(layer):\n"
             "        layer.quarantined.update(poison)\n",
             "        state.release(layer, theirs)\n"),
    Mutation("losses that quarantine one too late", "failures.py", "len(losses) < LOSSES_TO_QUARANTINE",
             "len(losses) <= LOSSES_TO_QUARANTINE"),
    Mutation("losses on one machine enough", "failures.py", "len(lost_on) >= min(MACHINES_TO_QUARANTINE, len(known))", "True"),
    Mutation("a copy not dropped when the other is finished", "commits.py",
             "            drop(state, layer, other, other.open & finished)\n", ""),
    Mutation("a copy not dropped when the other is committed", "commits.py",
             "    drop(state, layer, holding, unfinished)\n", ""),
    Mutation("a copy that makes its other pending when it is lost", "state.py",
             "free = numbers - self._still_held(layer, numbers & layer.copied)", "free = numbers.copy()"),
    Mutation("a finished shard still pending", "commits.py",
             "for waiting in (layer.fresh, layer.again, ", "for waiting in (layer.fresh, "),
    Mutation("a generation ignored by commits", "commits.py", "    elif layer.generation == event.generation:", "    else:"),
    Mutation("a generation ignored by merges", "layers.py",
             '(layer.job, layer.generation, layer.state) != (job_id, generation, "merging")',
             '(layer.job, layer.state) != (job_id, "merging")'),
    Mutation("a generation not bumped by a retry", "layers.py", '"waiting", layer.generation + 1', '"waiting", layer.generation'),
    Mutation("rows that come while the layer is closed forgotten", "commits.py",
             "        layers.commit_closed(state, event)\n", "        pass\n"),
    Mutation("damaged shards not run again", "commits.py", '    layer.state = "open"\n    state.release(layer, numbers)\n',
             '    layer.state = "open"\n    layer.committed.update(numbers)\n'),
    # what is kept for later
    Mutation("what waits for its turn refused", "commits.py",
             '    if state.is_kept(event.layer):\n        merged, code = False, "later"\n', ""),
    Mutation("a damaged job that keeps nothing", "state.py", "return damaged or any(", "return any("),
    Mutation("a removed job that keeps all", "jobs.py", "    state.damaged.pop(job, None)\n", ""),
    Mutation("a damaged job that keeps its layers open", "jobs.py",
             "    state.damaged[event.job] = frozenset(event.layers)\n    if job := ",
             "    state.damaged[event.job] = frozenset(event.layers)\n    if job := None and "),
    Mutation("what is unfinished of a layer that another job is to have runs on", "layers.py",
             "        elif holding.open:\n", "        elif False:\n"),
    # blame
    Mutation("a bad machine not barred", "failures.py", "if len(strikes) >= STRIKES_TO_BAR and", "if False and"),
    Mutation("a bad machine's failures held against the shards", "failures.py",
             "        _absolve(state, job, digest, number, agent.name)\n", "        pass\n"),
    Mutation("a barred machine granted more", "state.py", "        if job.id in agent.ineligible:\n", "        if False:\n"),
    Mutation("a hopeless job not halted", "failures.py", "if machines >= 2 and len(shards) >= 2:", "if False:"),
    Mutation("a hopeless job on a lone machine not halted", "failures.py",
             "elif alone and len(shards) >= FAILURES_TO_HALT_ALONE:", "elif False:"),
    Mutation("max_failures ignored", "failures.py", "if happened and job.quarantined >= job.plan.max_failures:", "if False:"),
    Mutation("a halted job left running", "job_states.py", "            revoke(state, layer)\n", "            pass\n"),
    # grants
    Mutation("more than a canary", "grants.py", "return -1 if held or _is_benched(state, agent, job) else 1",
             "return agent.slots(job)"),
    Mutation("disk room ignored", "grants.py", "    cost = agent.cost(layer)\n    return max(0, agent.room // cost) if cost else",
             "    return"),
    Mutation("a copy beyond the disk's room", "grants.py", "min(count, _room_for(agent, layer))", "count"),
    Mutation("a copy of what a machine that talks has finished", "grants.py",
             "holding.everything() if state.is_silent(state.agents[holding.agent]) else holding.open", "holding.everything()"),
    Mutation("shards that ran before first", "grants.py", "(_grant_fresh, _grant_again)", "(_grant_again, _grant_fresh)"),
    Mutation("a failed shard to the same machine", "grants.py", "    if agent.name not in tried:\n", "    if True:\n"),
    Mutation("a paused job granted", "job_states.py", "    state.running.pop(job.id, None)\n    if as_state", "    if as_state"),
    Mutation("a third copy", "grants.py", "            layer.copied.update(numbers)\n", ""),
    Mutation("a copy of what failed before", "grants.py", "RangeSet() if paused else layer.troubled()", "RangeSet()"),
    Mutation("a kicked shard that runs on", "failures.py", "        drop(state, layer, holding, holding.open & one)\n", ""),
    Mutation("a kicked shard that is waited for where it is finished", "failures.py",
             "        holding.finished.remove(one)\n", ""),
    Mutation("a kicked shard to the same machine", "entities.py", " | self.kicked\n", "\n"),
    Mutation("a paused machine that is waited for", "entities.py", " and not self.paused\n", "\n"),
    Mutation("a layer opened without space", "layers.py", "fits = layer.reserved <= room", "fits = True"),
    Mutation("a job that never ends", "job_states.py", "any(not layer.stuck for layer in (*job.queue, *job.opened)):\n",
             "job.queue or job.opened:\n"),
    # jobs after jobs
    Mutation("a job that starts before those it follows", "dependencies.py", 'before.state != "complete"', 'before.state == "waiting"'),
    Mutation("a job that waits for one that will not be complete", "dependencies.py", "job.state in STANDING and", "False and"),
    Mutation("a job that waits for one that is gone", "dependencies.py", '"is deleted" if state.last_tick is not None else ""', '""'),
    Mutation("one that is not read back yet taken for deleted", "dependencies.py", "state.last_tick is not None", "True"),
    Mutation("a wait that nobody looks at again", "job_states.py", "state.work_added = state.jobs_turned = True", "state.work_added = True"),
)  # fmt: skip


@contextmanager
def planted(mutation: Mutation, where: Path) -> Iterator[None]:
    """In the copy there, for as long as this lasts."""
    file = mutation.path(where)
    source = file.read_text()
    if source.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: {mutation.file} has its text {source.count(mutation.old)} times, not once")
    file.write_text(source.replace(mutation.old, mutation.new))
    try:
        yield
    finally:
        file.write_text(source)


def run(mutation: Mutation, where: Path) -> str:
    """What noticed this mistake, "" where nothing did."""
    with planted(mutation, where):
        return _machine(where) or _tests(where)


def _machine(where: Path) -> str:
    """After how many examples it broke, where, and what it said then."""
    done = python(where, "-c", RUNNER)
    return done.stdout.strip().splitlines()[-1] if done.returncode else ""


def _tests(where: Path) -> str:
    tests = map(str, sorted(where.glob("tests/unit/coordinator/scheduler/test_*.py")))
    done = python(where, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests)
    if done.returncode not in (0, 1):
        raise SystemExit(f"the scheduler's tests cannot be run in the copy: {(done.stdout + done.stderr)[-500:]}")
    return next((f"-|{line.split('::')[1]}" for line in done.stdout.splitlines() if line.startswith("FAILED")), "")


def python(where: Path, *args: str, seconds: float = TIMEOUT_SECONDS) -> subprocess.CompletedProcess[str]:
    """Of the copy there."""
    env = {**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=seconds, check=False)


def copied(where: Path) -> None:
    """The product and its tests, to be broken."""
    for package in ("muster", "agent", "coordinator", "deploy", "jobs", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HERE / package, where / package, symlinks=True, ignore=ignored)


def main(words: list[str]) -> int:
    chosen = [one for one in MUTATIONS if not words or any(word in one.name for word in words)]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        copied(where)
        for mutation in chosen:
            said = run(mutation, where)
            print(f"{'caught' if said else 'MISSED'} | {mutation.name} | {said}", flush=True)
            missed += [] if said else [mutation.name]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
