"""What people are told of a training: rounds, scores, and the time until the last round or the target."""

from __future__ import annotations

from muster.coordinator.api.status import Progress
from muster.jobs.common.units import format_duration
from muster.jobs.kinds.train import ROUND


def progress_of(
    done: int,
    total: int,
    loss: float | None = None,  # of the last round; None before the first, and for what is no number
    accuracy: float | None = None,  # the last score
    best: float | None = None,
    target: float | None = None,
    rate: float = 0.0,  # rounds a second, evaluations left out
    seconds: float = 0.0,  # of training so far
    target_seconds: float | None = None,  # until the target, as scores go; None while nobody can tell
) -> Progress:
    """So many rounds of all, and how good its weights are."""
    scores = _scores(loss, accuracy, best)
    left, left_text = _left((total - done) / rate, target, target_seconds) if rate > 0 else (None, "")
    reached = " reached" if target is not None and best is not None and best >= target else ""
    aim = f", target {target:g}{reached}" if target is not None else ""
    return Progress(
        done,
        total,
        ROUND,
        rate=rate,
        left=left,
        left_text=left_text,
        took=f"{format_duration(seconds)} of training",
        facts=scores,
        lines=[f"scores    {', '.join(scores) or 'none yet'}{aim}"],
        numbers={
            "loss": loss,
            "accuracy": accuracy,
            "best": best,
            "target": target,
            "seconds": seconds,
            "target_seconds": target_seconds,
        },
    )


def _scores(loss: float | None, accuracy: float | None, best: float | None) -> list[str]:
    """Loss and accuracy, as far as they are known."""
    parts = [f"loss {loss:.4g}"] if loss is not None else []
    if accuracy is not None:
        more = f", best {best:.4f}" if best is not None and best > accuracy else ""
        parts.append(f"accuracy {accuracy:.4f}{more}")
    return parts


def _left(to_end: float, target: float | None, target_seconds: float | None) -> tuple[float, str]:
    """The seconds until the target, where scores go there before the last round, or else until that; and in words."""
    seconds = max(0.0, to_end)
    if target is None:
        return seconds, ""
    if target_seconds is not None and target_seconds < seconds:
        return target_seconds, f"about {format_duration(round(target_seconds))} to {target:g}"
    return seconds, f"at most {format_duration(round(seconds))}"
