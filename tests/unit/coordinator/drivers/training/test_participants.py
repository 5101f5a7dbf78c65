"""What comes of a training's rounds, from machines that send what cannot be: clamped, refused, asked for again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import pytest

from muster.coordinator.api.status import Progress
from muster.coordinator.drivers.driver import Drive, Landed
from muster.coordinator.drivers.training.participants import WRONG_MOST, Participants
from muster.jobs.common.errors import TrainingError
from muster.jobs.contract.plan import Output
from muster.jobs.kinds.train import RoundOrder
from muster.jobs.parts.part_file import Index, PartEntry
from muster.jobs.training.aggregation.contribution import RoundHeader
from muster.jobs.training.params import Facts, TrainParams
from muster.jobs.training.steps.learner import digest_of

DIM = 5
PARAMS = TrainParams(workers=4, microbatch=8, bits=16, local_steps=1, facts=Facts(100, 20, (8,), 10))
WEIGHTS = np.zeros(DIM, "<f4")
HEADER = RoundHeader(round=3, redo=0, steps=1, scale=8.0, rate=0.1, weights=digest_of(WEIGHTS))
OUTPUTS = (Output("tally", "rows", "<i8", (7,)), Output("values", "sum", "<i2", (DIM,), narrow=True))
T = TypeVar("T")


class Farm:
    """Stands in for a Drive: what is made is kept, what shall come is told."""

    def __init__(self) -> None:
        self.next, self.cursor, self.state = 1 << 32, 0, SimpleNamespace(ended=False)
        self.landed: list[Landed] = []
        self.taken_away: list[str] = []

    def lay_out(self, data: Any, patch: bytes = b"") -> str:
        return digest_of(np.frombuffer(data, "<f4"))

    def take_away(self, sheet: str) -> None:
        self.taken_away.append(sheet)

    def patiently(self, write: Callable[[], T]) -> T:
        return write()

    def advance(self, to_seq: int, create: list[tuple[int, bytes]], **_: Any) -> bool:
        self.next += len(create)
        return True

    def wait(self) -> None:
        assert self.landed, "waited in vain"

    def take(self) -> list[Landed]:
        landed, self.landed = self.landed, []
        return landed


def progress() -> Progress:
    return Progress(0, 1, "round")


@pytest.fixture
def farm() -> Farm:
    return Farm()


@pytest.fixture
def participants(farm: Farm) -> Participants:
    """With a round out."""
    participants = Participants(cast(Drive, farm), PARAMS)
    participants.issue([RoundOrder(v, HEADER) for v in range(4)], WEIGHTS, digest_of(WEIGHTS), progress)
    return participants


def tally(workers: int = 1, samples: int = 8, loss: int = 1, **more: int) -> list[int]:
    values = {"saturated": 0, "odd": 0, "peak": 0, "buffer_peak": 0, **more}
    return [workers, samples, loss, *values.values()]


def bundle(numbers: list[int], values: Any, rows: list[list[int]] | None = None) -> Landed:
    """Of the shards with these numbers, counted from the first."""
    rows = rows or [tally() for _ in numbers]
    entries = tuple(PartEntry((1 << 32) + n, 1, 1, 1, "bad", 0.0, 0.0, 0, b"", 0, (56,), b"") for n in numbers)
    body = np.array(rows, "<i8").tobytes() + np.array(values).astype("<i2").tobytes()
    index = Index("f" * 32, "a" * 32, OUTPUTS, "k", entries, True, (2 * DIM,), b"")
    return Landed(index, body)


def test_what_can_be_is_added_up(farm: Farm, participants: Participants) -> None:
    farm.landed = [bundle([0, 2], [1, 2, 3, 4, 5])]
    (arrival,) = participants.take().sums
    assert arrival.workers == (0, 2) and arrival.header == HEADER and participants.busy
    assert arrival.part.values.tolist() == [1, 2, 3, 4, 5] and arrival.part.tally.samples == 16


@pytest.mark.parametrize(
    "wrong",
    [
        bundle([0], [PARAMS.limit + 1, 0, 0, 0, 0]),
        bundle([0, 1], [-2 * PARAMS.limit - 1, 0, 0, 0, 0]),
        bundle([0], [0] * DIM, [tally(samples=9)]),
        bundle([0], [0] * DIM, [tally(workers=2)]),
        bundle([0], [0] * DIM, [tally(loss=-1)]),
        bundle([0], [0] * DIM, [tally(peak=1 << 40)]),
        bundle([0, 77], [0] * DIM),
    ],
    ids=["beyond the range", "below it", "samples", "workers", "loss", "peak", "a stranger's"],
)
def test_what_cannot_be_does_not_count_and_is_asked_for_again(
    farm: Farm, participants: Participants, wrong: Landed
) -> None:
    farm.landed = [wrong]
    arrived = participants.take()
    assert not arrived.sums and arrived.wrong and arrived.wrong[0] == 0
    participants.issue([RoundOrder(v, HEADER) for v in arrived.wrong], WEIGHTS, digest_of(WEIGHTS), progress)
    again = farm.next - (1 << 32) - len(arrived.wrong)
    farm.landed = [bundle([again], [0] * DIM)]
    assert participants.take().sums[0].workers == (0,)


def test_what_nobody_waits_for_changes_nothing(farm: Farm, participants: Participants) -> None:
    farm.landed = [bundle([50], [9] * DIM)]
    arrived = participants.take()
    assert not (arrived.sums or arrived.wrong or arrived.scores)


def test_a_machine_that_goes_on_like_that_ends_the_training(farm: Farm, participants: Participants) -> None:
    with pytest.raises(TrainingError, match="bad sends what cannot be"):
        for n in range(0, 4 * WRONG_MOST + 4, 4):
            farm.landed = [bundle([n], [PARAMS.limit + 1] * DIM)]
            participants.take()
            participants.issue([RoundOrder(v, HEADER) for v in range(4)], WEIGHTS, digest_of(WEIGHTS), progress)


@pytest.mark.parametrize("row", [[21, 20, 0], [-1, 20, 0], [3, 19, 0], [3, 20, -5]])
def test_a_score_that_cannot_be_is_asked_for_again(farm: Farm, participants: Participants, row: list[int]) -> None:
    participants.judge(3, WEIGHTS, progress)
    farm.landed = [bundle([4], [0] * DIM, [[*row, 0, 0, 0, 0]])]
    arrived = participants.take()
    assert arrived.misjudged == [3] and not arrived.scores and not participants.judging


def test_a_score_may_come_in_one_bundle_with_contributions(farm: Farm, participants: Participants) -> None:
    participants.judge(3, WEIGHTS, progress)
    farm.landed = [bundle([1, 4], [7] * DIM, [tally(), [19, 20, 5, 0, 0, 0, 0]])]
    arrived = participants.take()
    assert arrived.scores[0][0] == 3 and arrived.scores[0][1].accuracy == 0.95
    assert arrived.sums[0].workers == (1,)


def test_sheets_stay_while_work_that_reads_them_is_out(farm: Farm, participants: Participants) -> None:
    for step in range(1, 8):
        weights = WEIGHTS + np.float32(step)
        header = msgspec.structs.replace(HEADER, round=3 + step, weights=digest_of(weights))
        participants.issue([RoundOrder(0, header)], weights, digest_of(weights), progress)
    assert digest_of(WEIGHTS) not in farm.taken_away
