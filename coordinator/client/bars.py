"""Progress bars of the Python client, and how often they are drawn. Knows nothing of what they count."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

WATCHED_SECONDS = 0.1
UNWATCHED_SECONDS = 10.0  # where each drawing is a line more of some log


def is_watched() -> bool:
    """Whether a bar is drawn over itself: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def bar(progress: bool, **options: Any) -> tqdm[Any]:
    """One that is shown where there is to be `progress`."""
    from tqdm.auto import tqdm

    seconds = WATCHED_SECONDS if is_watched() else UNWATCHED_SECONDS
    return tqdm(disable=not progress, mininterval=seconds, **options)


def byte_bar(progress: bool, what: str, total: int) -> tqdm[Any]:
    return bar(progress, desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024)
