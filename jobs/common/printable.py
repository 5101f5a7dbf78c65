"""Texts that others wrote, fit for a terminal, a log or a file that people read: no character of them steers it."""

from __future__ import annotations

import re

_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    """Whatever cannot be printed, a line's end among it, is escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def joined(text: str) -> str:
    """The same, after all white space became single spaces."""
    return one_line(" ".join(text.split()))


def harmless(text: str) -> str:
    """Lines and tabs stay; whatever else steers a terminal has a mark in its place, and nothing becomes longer."""
    return text if text.isprintable() else _STEERS.sub("\N{REPLACEMENT CHARACTER}", text)
