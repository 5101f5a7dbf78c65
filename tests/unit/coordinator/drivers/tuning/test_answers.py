"""What a machine says of a trial: what cannot be is refused, and what is none of its business is left out."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import xxhash

from muster.coordinator.drivers.tuning.answers import believed
from muster.jobs.tuning.trial_runner import TrialOrder
from muster.jobs.tuning.trials import Segment

ORDER = TrialOrder(3, 2, 5, {"lr": 0.1}, state="d" * 32)
STATE = b"weights"
GOOD = Segment(
    3, 2, 5, [{"accuracy": 0.5}], [1.0], state=xxhash.xxh3_128_hexdigest(STATE), state_bytes=len(STATE), machine="a"
)


def changed(**fields: Any) -> Segment:
    return msgspec.structs.replace(GOOD, **fields)


def test_what_may_be_is_believed() -> None:
    assert believed(GOOD, ORDER, "accuracy", STATE) == changed(machine="")
    assert believed(changed(curve=[{"accuracy": math.nan}], why="diverged"), ORDER, "accuracy", STATE).why == "diverged"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"trial": 4}, "asked for 3"),
        ({"start": 1}, "asked for 3 from 2"),
        ({"to": 6}, "asked for 3"),
        ({"curve": [{"accuracy": 0.5}] * 4, "seconds": [1.0] * 4}, "4 iterations"),
        ({"seconds": []}, "1 iterations"),
        ({"seconds": [math.nan]}, "no time that there is"),
        ({"seconds": [-1.0]}, "no time that there is"),
        ({"curve": [{"loss": 0.5}]}, "without accuracy"),
        ({"curve": [], "seconds": []}, "nothing came of it"),
        ({"state": "0" * 32}, "its digest"),
        ({"score": {"accuracy": 1.0}}, "not asked for"),
    ],
)
def test_what_cannot_have_come_of_an_order_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        believed(changed(**fields), ORDER, "accuracy", STATE)


def test_what_a_machine_has_no_business_to_say_is_left_out() -> None:
    said = changed(queued=7, config={"lr": 9}, at=1e12, state_bytes=1 << 50, machine="another")
    assert believed(said, ORDER, "accuracy", STATE) == changed(machine="")


def test_a_failure_is_kept_as_far_as_texts_are_and_by_a_code_that_there_is() -> None:
    said = Segment(3, 2, 5, why="failed", message="m\x1b[2J" * 10_000, evidence="e" * 100_000, code="of its own")
    found = believed(said, ORDER, "accuracy", b"")
    assert len(found.message) <= 2000 and "\x1b" not in found.message and len(found.evidence) <= 16_000
    assert found.code == "output"


def test_a_score_that_cannot_be_had_is_none() -> None:
    order = msgspec.structs.replace(ORDER, score=True)
    assert believed(Segment(3, 2, 5, why="failed", message="no"), order, "accuracy", b"").score == {}
    assert believed(Segment(3, 2, 5, score={"accuracy": 1.0}), order, "accuracy", b"").score == {"accuracy": 1.0}
