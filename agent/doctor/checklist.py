"""The sheet of a visit: checks in order, each with its outcome, and what a failure keeps from being tried. No I/O.

A check is told as soon as it is settled. Those before it that nobody settled are told first, as not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from muster.jobs.common.errors import MusterError

Outcome = Literal["pass", "warn", "fail", "not tried"]


@dataclass(frozen=True)
class Rung:
    """A check to be made, once those it needs went well."""

    name: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """A check that is settled."""

    name: str
    outcome: Outcome
    detail: str
    fix: str = ""
    exit_code: int = 0  # of a failure
    stops: bool = False  # whether those that need it are not tried
    figures: dict[str, float] = field(default_factory=dict)  # the numbers in `detail`, for machines


class Checklist:
    """`rungs` in the order they are told in; each needs only earlier ones."""

    def __init__(self, rungs: Iterable[Rung], tell: Callable[[Check], None]) -> None:
        self._rungs = {rung.name: rung for rung in rungs}
        self._tell = tell
        self._settled: dict[str, Check] = {}

    # --- what came of it ---

    def passed(self, name: str, detail: str, **figures: float) -> None:
        self._settle(Check(name, "pass", detail, figures=figures))

    def warned(self, name: str, detail: str, fix: str, stops: bool = False) -> None:
        self._settle(Check(name, "warn", detail, fix, stops=stops))

    def failed(self, name: str, error: MusterError) -> None:
        self._settle(Check(name, "fail", error.message, error.hint, error.exit_code, stops=True))

    def left_out(self, name: str, why: str) -> None:
        self._settle(Check(name, "not tried", why, stops=True))

    def close(self) -> None:
        """Whatever is left was not tried."""
        for name in self._rungs:
            self._settle_before(name)
            if name not in self._settled:
                self.left_out(name, self._why(name))

    # --- what to try ---

    def may(self, name: str) -> bool:
        """Whether what this needs went well."""
        return not self._blocker(name)

    def next_of(self, names: Sequence[str]) -> str:
        """The first of these that is to be told and not settled; the last if there is none."""
        left = [name for name in self._rungs if name in names and name not in self._settled]
        return left[0] if left else names[-1]

    # --- as a whole ---

    @property
    def checks(self) -> list[Check]:
        return list(self._settled.values())

    @property
    def exit_code(self) -> int:
        """Of the first failure; 0 if there is none."""
        return next((check.exit_code for check in self.checks if check.outcome == "fail"), 0)

    # --- settling ---

    def _settle(self, check: Check) -> None:
        """The first outcome stands: a person may have been asked, and steps taken twice."""
        if check.name in self._settled:
            return
        self._settle_before(check.name)
        self._settled[check.name] = check
        self._tell(check)

    def _settle_before(self, name: str) -> None:
        for earlier in self._rungs:
            if earlier == name:
                break
            if earlier not in self._settled:
                check = Check(earlier, "not tried", self._why(earlier), stops=True)
                self._settled[earlier] = check
                self._tell(check)

    def _why(self, name: str) -> str:
        blocker = self._blocker(name)
        return f"needs `{blocker}`" if blocker else "it did not come to this"

    def _blocker(self, name: str) -> str:
        """The first of those it needs, and these need, that did not go well; "" if all did."""
        for need in self._rungs[name].needs:
            check = self._settled.get(need)
            if check is None or check.outcome == "not tried":
                return self._blocker(need) or need
            if check.stops:
                return need
        return ""
