"""How much is believed of what a machine says came of a trial. No I/O."""

from __future__ import annotations

import xxhash

from muster.jobs.contract.failure_codes import CODES
from muster.jobs.contract.text_limits import EVIDENCE_BYTES, MESSAGE_BYTES, kept, kept_line
from muster.jobs.tuning.trial_runner import TrialOrder
from muster.jobs.tuning.trials import Segment

LONGEST_SECONDS = 1e9  # of an iteration


def believed(said: Segment, order: TrialOrder, metric: str, state: bytes) -> Segment:
    """What may be of an answer to that order, its texts cut to what is kept; a ValueError for what cannot have come of
    it. Whatever a machine has no business to say, such as that somebody added a trial, is left out."""
    if (said.trial, said.start, said.to) != (order.trial, order.start, order.to):
        raise ValueError(f"trial {said.trial} from {said.start}, asked for {order.trial} from {order.start}")
    if len(said.curve) > order.to - order.start or len(said.curve) != len(said.seconds):
        raise ValueError(f"{len(said.curve)} iterations from {order.start} to {order.to}")
    if any(metric not in metrics for metrics in said.curve):
        raise ValueError(f"an iteration without {metric}")
    if not all(0 <= seconds <= LONGEST_SECONDS for seconds in said.seconds):
        raise ValueError("an iteration that took no time that there is")
    if not (said.curve or said.why or order.score):
        raise ValueError("nothing came of it")
    if said.score is not None and not order.score:
        raise ValueError("a score that was not asked for")
    if said.state and xxhash.xxh3_128_hexdigest(state) != said.state:
        raise ValueError("a checkpoint that is not what its digest says")
    return Segment(
        order.trial,
        order.start,
        order.to,
        said.curve,
        said.seconds,
        said.why,
        kept_line(said.message, MESSAGE_BYTES),
        kept(said.evidence, EVIDENCE_BYTES),
        said.final,
        state=said.state,
        state_bytes=len(state) if said.state else 0,
        score={} if order.score and said.score is None else said.score,  # it cannot be had: no harm to the search
        code=said.code if said.code in CODES else "output" if said.why == "failed" else "",
    )


def given_up(order: TrialOrder, why: str, evidence: str, at: float) -> Segment:
    """What came of a shard that no machine is tried with any more. Without its score a search is none the worse."""
    if order.score:
        return Segment(order.trial, order.start, order.to, score={}, at=at)
    return Segment(order.trial, order.start, order.to, why="failed", message=why, evidence=evidence, final=True, at=at)
