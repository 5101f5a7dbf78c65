"""Whether machines of one kernel fingerprint give the same bits, by what they answer to a kind's known problem.

Which of two is right nobody here can know. What most of them say counts, and of as many what was said first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from muster.coordinator.protocol.control import Hello
from muster.coordinator.scheduler import commits
from muster.coordinator.scheduler.actions import SendDiffers, StoreAnswers
from muster.coordinator.scheduler.entities import Agent, Obstacle, Problem, Said
from muster.coordinator.scheduler.state import State

PROBLEMS_KEPT = 128  # the newest
AGENTS_KEPT = 16  # of each problem the first: so many are enough to compare with
SHOWN = 12  # digits of a digest
_rows = msgspec.msgpack.Decoder(list[tuple[Problem, Said]])


def compare(state: State, agent: Agent) -> None:
    """Keep what its hello answers. Whoever differs gets no more of that kind, and hears why."""
    if _note(state, agent):
        state.emit(StoreAnswers())
        for other in list(state.present_agents()):
            _judge(state, other)
    else:
        _judge(state, agent)


def _note(state: State, agent: Agent) -> bool:
    """Whether anything of it is new."""
    is_new = False
    for problem, bits in _answers_of(agent.hello):
        said = state.answers.setdefault(problem, {})
        if said.get(agent.name) != bits and (agent.name in said or len(said) < AGENTS_KEPT):
            said.pop(agent.name, None)  # it says so since now
            said[agent.name] = bits
            is_new = True
    while len(state.answers) > PROBLEMS_KEPT:
        del state.answers[next(iter(state.answers))]
    return is_new


def _judge(state: State, agent: Agent) -> None:
    found = {}
    for problem, bits in _answers_of(agent.hello):
        other, theirs = counted(state.answers.get(problem) or {agent.name: bits})
        if bits != theirs:
            found[problem.kind] = Obstacle("differs", _difference(problem.kind, agent.name, bits, other, theirs))
    if found == agent.differs:
        return
    fresh, agent.differs = found.keys() - agent.differs.keys(), found
    state.emit(SendDiffers(agent.session, {kind: why.text for kind, why in found.items()}))
    state.work_added = True
    for job in state.running.values():
        if job.work.kind in fresh and not job.plan.machine:
            commits.hand_back_all(state, agent, job.id)


def _answers_of(hello: Hello) -> Iterator[tuple[Problem, str]]:
    """What it was asked, and the bits of its answer; of the kinds it takes part in."""
    for kind, (problem, bits) in hello.answers.items():
        if kind in hello.kernels:
            yield Problem(kind, hello.kernels[kind], hello.fingerprint, problem), bits


def counted(said: Said) -> tuple[str, str]:
    """The bits that count, behind the first agent that says them."""
    votes = Counter(said.values())
    most = max(votes.values())
    return next((name, bits) for name, bits in said.items() if votes[bits] == most)


def _difference(kind: str, name: str, bits: str, other: str, theirs: str) -> str:
    return (
        f"answers the known problem of {kind} with other bits ({bits[:SHOWN]}) than {other} ({theirs[:SHOWN]}), whose"
        f" kernels have the same fingerprint: `coordinator verify JOB --rerun 100 --on {name}`, or a third machine,"
        " finds which of the two is wrong; join that one again once it is mended"
    )


def packed(answers: dict[Problem, Said]) -> bytes:
    """As the store keeps them."""
    return msgspec.msgpack.encode(list(answers.items()))


def unpacked(raw: bytes | None) -> dict[Problem, Said]:
    return dict(_rows.decode(raw)) if raw is not None else {}
