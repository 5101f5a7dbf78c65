"""Texts of others: none steers a terminal, and none becomes longer than what is kept."""

from __future__ import annotations

import msgspec
import pytest

from muster.jobs.common.printable import harmless, joined, one_line
from muster.jobs.contract.text_limits import kept, kept_line

ODD = ["\x1b[2J" * 4_000, "\r\x00\x07" * 5_000, "\u202e" * 16_000, "\U0001f600" * 16_000, "\x9b" * 16_000]


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_what_is_kept_is_no_longer_than_its_limit_however_it_is_written(text: str) -> None:
    for short in (kept(text, 1_000), kept(text, 1_000, end=True), kept_line(text, 1_000)):
        assert len(short.encode()) <= 1_000
        assert len(msgspec.json.encode(short)) <= 2_002
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 or char == "\u202e" for char in short)


def test_honest_texts_stay_as_they_are() -> None:
    text = 'Traceback:\n\tFile "näme.py", line 3\n'
    assert kept(text, 1_000) == harmless(text) == text
    assert kept_line("ValueError: 数 is odd", 1_000) == "ValueError: 数 is odd"


def test_the_end_of_evidence_is_what_is_kept_of_it() -> None:
    assert kept("a" * 500 + "\nthe error", 9, end=True) == "the error"


def test_a_line_stays_one() -> None:
    assert one_line("a\nb\x1b") == "a\\nb\\x1b"
    assert joined("a\n  b\x1b") == "a b\\x1b"
