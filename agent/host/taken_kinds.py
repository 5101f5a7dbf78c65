"""Which work whoever lends this machine lets run on it: some kinds alone, or no code of others. Runs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster.jobs.common.errors import RefusedError, UsageError
from muster.jobs.contract.plan import Work
from muster.jobs.kinds import registry


class Takes(NamedTuple):
    """As `agent join` was told."""

    kinds: tuple[str, ...] = ()  # (): all that are here
    no_code: bool = False

    def check(self, work: Work) -> None:
        """A RefusedError for work that this machine does not take. The coordinator knows, and grants none; but what it
        says of a job is not relied upon here."""
        if self.kinds and work.kind not in self.kinds:
            raise RefusedError(f"this machine takes only the kinds {', '.join(self.kinds)}, and not {work.kind}")
        if self.no_code and registry.load(work.kind).runs_code(work):
            raise RefusedError("this machine runs no code of others")


ALL = Takes()


def taken(kinds: Sequence[str], *, no_code: bool) -> Takes:
    """A UsageError for a kind that is not here."""
    here = registry.names()
    for kind in kinds:
        if kind not in here:
            raise UsageError(f"--kinds: there is no kind {kind!r} here", f"kinds here: {', '.join(sorted(here))}")
    return Takes(tuple(sorted(set(kinds))), no_code)
