"""One word of a command line for a far shell, whichever it is. Runs nothing."""

from __future__ import annotations

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-")


def quote(word: str) -> str:
    """One word to sh, csh and fish alike: `'` and `!` are not the same within quotes in all of them, nor is `\\`."""
    if word and all(letter in _PLAIN for letter in word):
        return word
    quoted, run = [], ""
    for letter in word:
        if letter in "'!\\":
            quoted += [f"'{run}'" if run else "", f"\\{letter}"]
            run = ""
        else:
            run += letter
    return "".join(quoted) + (f"'{run}'" if run or not quoted else "")
