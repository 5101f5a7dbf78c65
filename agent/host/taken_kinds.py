"""Which work whoever lends this machine lets run on it: some kinds alone, or no code of others. Runs none."""

from __future__ import annotations

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


def listed(text: str) -> tuple[str, ...]:
    """Kinds with commas between; a UsageError for one that is not here."""
    kinds, here = [kind.strip() for kind in text.split(",")] if text else [], registry.names()
    for kind in kinds:
        if kind not in here:
            raise UsageError(f"--kinds: there is no kind {kind!r} here", f"kinds here: {', '.join(sorted(here))}")
    return tuple(sorted(set(kinds)))
