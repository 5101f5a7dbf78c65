"""The tables of docs/arena.md, from the lines that are kept in docs/arena.json. Pure; measures nothing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.arena.line import Line

BEGIN, END = "<!-- tables: written by `make arena` -->", "<!-- end of tables -->"
HEAD = ("| system | lost | done twice | wrong | hung | seconds more | by hand |", "|---|---|---|---|---|---|---|")


def page(text: str, lines: Sequence[Line]) -> str:
    """The page with the tables of these lines in the place of those it had."""
    before, rest = text.split(BEGIN)
    return "\n".join([before + BEGIN, *_tables(lines), END]) + rest.split(END)[1]


def _tables(lines: Sequence[Line]) -> Iterable[str]:
    quiet = {line.system: _rounds(lines, line.system, "peace") for line in lines if line.fault == "peace"}
    peace = {system: _seconds(rounds) for system, rounds in quiet.items() if not rounds[0].cannot}
    yield from (
        "",
        "In peace:",
        "",
        "| system | version | seconds | lost | done twice | wrong |",
        "|---|---|---|---|---|---|",
    )
    for system, rounds in quiet.items():
        if rounds[0].cannot:
            yield f"| {system} | | {rounds[0].cannot} | | | |"
        else:
            yield f"| {system} | {rounds[0].version} | {peace[system]:.1f} | {_counts(rounds)} |"
    for fault in dict.fromkeys(line.fault for line in lines if line.fault != "peace"):
        yield from ("", f"**{fault.capitalize()}**", "", *HEAD)
        for system, seconds in peace.items():
            if rounds := _rounds(lines, system, fault):
                yield _row(system, rounds, seconds)


def _rounds(lines: Sequence[Line], system: str, fault: str) -> list[Line]:
    return [line for line in lines if (line.system, line.fault) == (system, fault)]


def _seconds(rounds: Sequence[Line]) -> float:
    return statistics.median(line.seconds for line in rounds)


def _counts(rounds: Sequence[Line]) -> str:
    """Of each the worst round."""
    return " | ".join(str(max(getattr(line, name) for line in rounds)) for name in ("lost", "twice", "wrong"))


def _row(system: str, rounds: Sequence[Line], peace: float) -> str:
    if rounds[0].cannot:
        return f"| {system} | {rounds[0].cannot} | | | | | |"
    hung = sum(line.hung for line in rounds)
    ended = [line for line in rounds if not line.hung]
    more = f"{_seconds(ended) - peace:+.1f}" if ended else ""
    hands = max((line.by_hand for line in rounds), key=len)
    cells = (_counts(rounds), f"{hung} of {len(rounds)}" if hung else "no", more, _times(hands) or "nothing")
    return f"| {system} | {' | '.join(cells)} |"


def _times(hands: Sequence[str]) -> str:
    """What was done by hand, and how often."""
    return "; ".join(what + (f", {count} times" if count > 1 else "") for what, count in Counter(hands).items())
