"""The space of a search: what each parameter may be, checked, and its value at a point of [0, 1). Draws nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from muster.jobs.common.errors import JobFileError, UsageError
from muster.jobs.common.validation import nearest, one_line

Config = dict[str, Any]  # parameter → value; one whose `when` does not hold is not in it

RANGES = ("uniform", "loguniform", "randint", "int", "logint", "normal")
LISTS = ("choice", "grid")
FORMS = (*RANGES, *LISTS)
WHOLE = ("randint", "int", "logint")
LOG = ("loguniform", "logint")
BESIDE = ("step", "when")
PARAMETERS_MOST = 256
VALUES_MOST = 1 << 20  # of one parameter
VALUES_SHOWN = 8
STEP_SLACK = 1e-9  # of a step: 0.1 to 0.9 in steps of 0.1 has nine values, whatever binary fractions are


@dataclass(frozen=True)
class Domain:
    """What one parameter may be."""

    name: str
    form: str  # one of FORMS, or "constant"
    low: float = 0.0  # of normal: the mean
    high: float = 0.0  # the last value that is allowed; of normal: the deviation
    step: float | None = None
    values: tuple[Any, ...] = ()  # of lists and constants
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # other parameters, and values of which each must have one

    @property
    def count(self) -> int | None:
        """How many values there are; None for a continuum."""
        if self.values:
            return len(self.values)
        if self.form == "normal" or (self.step is None and self.form not in WHOLE):
            return None
        return int((self.high - self.low) / (self.step or 1) + STEP_SLACK) + 1

    def nth(self, number: int) -> Any:
        """One of `count` values, in order."""
        if self.values:
            return self.values[number]
        return self._number(self.low + number * (self.step or 1))

    def at(self, point: float) -> Any:
        """The value at a point of [0, 1), each as likely as it should be."""
        if self.form == "normal":
            value = NormalDist(self.low, self.high).inv_cdf(min(max(point, 2**-53), 1 - 2**-53))
            return value if self.step is None else round(value / self.step) * self.step
        if self.form in LOG:
            return self._log_at(point)
        if self.count is not None:
            return self.nth(min(int(point * self.count), self.count - 1))
        return min(self.low + point * (self.high - self.low), self.high)

    def _log_at(self, point: float) -> Any:
        """Of whole numbers each has the share of its own interval [n, n + 1)."""
        top = self.high + 1 if self.form == "logint" else self.high
        value = math.exp(math.log(self.low) + point * (math.log(top) - math.log(self.low)))
        if self.form == "logint" and self.step is None:
            value = math.floor(value)
        if self.step is not None:
            assert self.count is not None
            return self.nth(min(max(round((value - self.low) / self.step), 0), self.count - 1))
        return self._number(min(max(value, self.low), self.high))

    def _number(self, value: float) -> float | int:
        return round(value) if self.form in WHOLE else min(value, self.high)

    def allows(self, value: Any) -> bool:
        """Whether the value could have been drawn here."""
        if self.values:
            return any(_is_same(value, one) for one in self.values)
        if not _is_number(value) or (self.form in WHOLE and value != int(value)):
            return False
        start = 0.0 if self.form == "normal" else self.low
        if self.form != "normal" and not self.low <= value <= self.high:
            return False
        steps = (value - start) / self.step if self.step is not None else 0.0
        return bool(abs(steps - round(steps)) <= STEP_SLACK * max(1.0, abs(steps)))

    def __str__(self) -> str:
        """As a job file says it, in short."""
        if self.values:
            shown = ", ".join(str(value) for value in self.values[:VALUES_SHOWN])
            return f"one of {shown}{', ...' if len(self.values) > VALUES_SHOWN else ''}"
        if self.form == "normal":
            text = "a number"
        else:
            text = f"{'a whole number' if self.form in WHOLE else 'a number'} from {self.low:g} to {self.high:g}"
        return text if self.step is None else f"{text} in steps of {self.step:g}"

    def holds(self, config: Mapping[str, Any]) -> bool:
        """Whether it belongs to a configuration, by what is in it already."""
        return all(other in config and config[other] in values for other, values in self.when)


class Space:
    """All parameters, each behind those that it depends on."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """A JobFileError, naming the parameter, for what is none."""
        if len(given) > PARAMETERS_MOST:
            raise JobFileError(f"params.space: {len(given)} parameters, a space may have {PARAMETERS_MOST}")
        domains = {name: _domain(name, said, given) for name, said in given.items()}
        _check_when(domains)
        self.domains = _ordered(domains)

    @property
    def gridded(self) -> tuple[Domain, ...]:
        return tuple(domain for domain in self.domains if domain.form == "grid")

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Refuse a configuration that names what is not in the space, or gives it what no parameter can be."""
        for name, value in config.items():
            self._named(name, where)
            if not _is_value(value):
                raise JobFileError(f"{where}.{name}: expected a finite number, a text, or a list of such")

    def check_within(self, config: Mapping[str, Any], where: str) -> None:
        """Refuse, with a UsageError, a configuration that could never have been drawn from this space."""
        for name, value in config.items():
            try:
                domain = self._named(name, where)
            except JobFileError as error:
                raise UsageError(error.message, error.hint) from None
            if not domain.allows(value):
                shown = one_line(repr(value)[:80])
                raise UsageError(f"{where}: {name} {shown} lies outside the space", f"{name} is {domain}")
            if not domain.holds(config):
                others = ", ".join(f"{other}={values[0]}" for other, values in domain.when)
                raise UsageError(f"{where}: {name} is there only beside other values", f"give {others} as well")

    def _named(self, name: str, where: str) -> Domain:
        names = {domain.name: domain for domain in self.domains}
        if name not in names:
            near = nearest(name, names)
            hint = f"did you mean `{near}`?" if near else f"the space has: {', '.join(list(names)[:8])}"
            raise JobFileError(f"{where}: there is no parameter `{one_line(name[:80])}`", hint)
        return names[name]


def _check_when(domains: Mapping[str, Domain]) -> None:
    """A parameter that waits for what another never is would be in no configuration, and nobody would notice."""
    for domain in domains.values():
        for other, values in domain.when:
            if never := [value for value in values if not domains[other].allows(value)]:
                wrong = f"params.space.{domain.name}.when: {other} is never {one_line(repr(never[0])[:80])}"
                raise JobFileError(wrong, f"{other} is {domains[other]}")


def _ordered(domains: Mapping[str, Domain]) -> tuple[Domain, ...]:
    ordered: dict[str, Domain] = {}
    waiting = dict(domains)
    while waiting:
        free = [one for one in waiting.values() if all(other in ordered for other, _ in one.when)]
        if not free:
            circle = ", ".join(sorted(waiting))
            raise JobFileError(f"params.space: {circle}: each waits for another's `when`", "take one `when` out")
        for domain in free:
            ordered[domain.name] = waiting.pop(domain.name)
    return tuple(ordered.values())


def _domain(name: str, said: Any, space: Mapping[str, Any]) -> Domain:
    where = f"params.space.{one_line(name[:80])}"
    if not name.isidentifier():
        raise JobFileError(f"{where}: not a name that a parameter can have", "use letters, digits and _")
    if isinstance(said, (list, tuple)):
        raise JobFileError(f"{where}: a bare list", f"write `{name}: {{choice: [...]}}`, or `grid` to try each of them")
    if not isinstance(said, Mapping):
        if not _is_plain(said):
            raise JobFileError(f"{where}: expected a finite number, a text or a mapping such as {{uniform: [0, 1]}}")
        return Domain(name, "constant", values=(said,))
    forms = [key for key in said if key not in BESIDE]
    if len(forms) != 1 or forms[0] not in FORMS:
        wrong = next((key for key in forms if key not in FORMS), None)
        near = nearest(str(wrong), FORMS) if wrong is not None else None
        found = f"there is no `{one_line(str(wrong)[:80])}`" if wrong is not None else f"{len(forms)} forms, expected 1"
        raise JobFileError(f"{where}: {found}", f"did you mean `{near}`?" if near else f"one of: {', '.join(FORMS)}")
    form, when = forms[0], _when(where, name, said.get("when"), space)
    if form in LISTS:
        return Domain(name, form, values=_values(f"{where}.{form}", said[form], said), when=when)
    low, high = _ends(f"{where}.{form}", form, said[form])
    return Domain(name, form, low, high, _step(where, form, said.get("step")), when=when)


def _values(where: str, given: Any, said: Mapping[str, Any]) -> tuple[Any, ...]:
    if not isinstance(given, (list, tuple)) or not given:
        raise JobFileError(f"{where}: expected a list of values, such as [16, 32]")
    if len(given) > VALUES_MOST:
        raise JobFileError(f"{where}: {len(given)} values, one parameter may have {VALUES_MOST}")
    if "step" in said:
        raise JobFileError(f"{where}: a list has no `step`", "leave it out")
    for value in given:
        if not _is_value(value):
            raise JobFileError(f"{where}: {one_line(repr(value)[:80])} is no finite number, text, or list of such")
    return tuple(given)


def _ends(where: str, form: str, given: Any) -> tuple[float, float]:
    """The least and the largest value there may be."""
    pair = isinstance(given, (list, tuple)) and len(given) == 2 and all(_is_number(one) for one in given)
    if not pair:
        raise JobFileError(f"{where}: expected two numbers, such as [0.1, 0.9]")
    low, high = given
    if form == "normal":
        if high <= 0:
            raise JobFileError(f"{where}: a deviation of {high:g}", "normal: [mean, deviation]")
        return float(low), float(high)
    if form in WHOLE and (low != int(low) or high != int(high)):
        raise JobFileError(f"{where}: {low:g} to {high:g} are not whole numbers", "write uniform or loguniform")
    if low > high or (low == high and form != "int"):
        raise JobFileError(f"{where}: the range {low:g} to {high:g} is empty", "write the smaller end first")
    if form in LOG and low <= 0:
        raise JobFileError(f"{where}: from {low:g} on a log scale", "begin above zero")
    if form in WHOLE:
        return int(low), int(high) - (form == "randint")  # whose upper end is left out, as in numpy
    return float(low), float(high)


def _step(where: str, form: str, step: Any) -> float | None:
    if step is None:
        return None
    if not _is_number(step) or step <= 0 or (form in WHOLE and step != int(step)):
        kind = "whole number" if form in WHOLE else "number"
        raise JobFileError(f"{where}.step: expected a {kind} above zero")
    return step  # type: ignore[no-any-return]


def _when(where: str, name: str, given: Any, space: Mapping[str, Any]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise JobFileError(f"{where}.when: expected a mapping, such as {{optimizer: sgd}}")
    for other in given:
        if other not in space or other == name:
            raise JobFileError(f"{where}.when: there is no other parameter `{one_line(str(other)[:80])}`")
    return tuple((other, _alternatives(value)) for other, value in given.items())


def _alternatives(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_same(value: Any, other: Any) -> bool:
    """True is not 1; a list is whatever holds the same."""
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(map(_is_same, value, other))
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _is_value(value: Any) -> bool:
    """Whether a parameter may be that: one plain value, or a list of them."""
    return _is_plain(value) or (isinstance(value, (list, tuple)) and all(map(_is_plain, value)))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, bool)) or _is_number(value)


def differing(configs: Sequence[Config]) -> list[str]:
    """The parameters that are not the same in all of them, in the order in which they come."""
    names = dict.fromkeys(name for config in configs for name in config)
    missing = object()
    return [
        name for name in names if any(config.get(name, missing) != configs[0].get(name, missing) for config in configs)
    ]
