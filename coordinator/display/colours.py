"""Colours of states at a terminal, for users who want them. Text with colours is plain text to whoever does not ask for
them, and both are harmless. Knows no job and no machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TextIO

from muster.jobs.common.printable import harmless

GREEN, YELLOW, RED, CYAN = (f"\x1b[{code}m" for code in (32, 33, 31, 36))
PLAIN = "\x1b[0m"
_OF = {
    **dict.fromkeys(("complete", "merged", "live"), GREEN),
    **dict.fromkeys(("running", "open", "merging"), CYAN),
    **dict.fromkeys(("waiting", "paused", "draining", "cancelled", "silent"), YELLOW),
    **dict.fromkeys(("halted", "damaged", "incomplete", "gone", "failed", "changed"), RED),
}


class Painted(str):
    """The text itself; and how it looks in colours."""

    __slots__ = ("coloured",)
    coloured: str

    @classmethod
    def made(cls, text: str, coloured: str) -> Painted:
        new = cls(text)
        new.coloured = coloured
        return new

    def rstrip(self, chars: str | None = None, /) -> Painted:
        return Painted.made(super().rstrip(chars), self.coloured.rstrip(chars))


def state(word: str, of: str | None = None) -> str:
    """A state as people know it; `of`: the one whose colour it has."""
    colour = _OF.get(of or word)
    return word if colour is None else Painted.made(word, f"{colour}{harmless(word)}{PLAIN}")


def joined(between: str, parts: Iterable[str]) -> str:
    """As `between.join(parts)`, with the colours of the parts."""
    found = list(parts)
    text = between.join(found)
    if not any(isinstance(part, Painted) for part in found):
        return text
    return Painted.made(text, between.join(map(_coloured, found)))


def shown(text: str, stream: TextIO) -> str:
    """As it is written there."""
    return _coloured(text) if isinstance(text, Painted) and are_wanted(stream) else harmless(text)


def are_wanted(stream: TextIO) -> bool:
    """At a terminal, unless NO_COLOR says no; anywhere, where FORCE_COLOR says so."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _coloured(text: str) -> str:
    return text.coloured if isinstance(text, Painted) else harmless(text)
