"""Command lines with placeholders, as GNU Parallel has them: checked once, filled in for each item, quoted for a shell.

Of an item called a/b.jpg: {} and {in} are a/b.jpg, {.} a/b, {/} b.jpg, {//} a, {/.} b, {#} its number from 1, {out}
where its output goes, {code} the folder of the job's code; {column} is a value of a table's line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.jobs.common.errors import JobFileError
from muster.jobs.common.validation import nearest

OF_NAMES = ("", ".", "/", "//", "/.")  # what a name gives
IN, OUT, NUMBER, CODE = "in", "out", "#", "code"
PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ -]*", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]*")
# Words that only a shell knows, or knows better than the program of the same name
_SHELL_WORDS = frozenset(
    re.split(
        r"\s",
        "! . : [ alias bg break case cd command continue do done echo elif else esac eval exec exit export "
        "fg fi for function getopts hash if in jobs kill let local printf pwd read readonly return select "
        "set shift source test then time times trap type typeset ulimit umask unalias unset until wait while",
    )
)

Values = Mapping[str, str]


@dataclass(frozen=True)
class Piece:
    """A run of text as it is, or a placeholder's name."""

    text: str
    is_placeholder: bool


@dataclass(frozen=True)
class Template:
    """A checked template."""

    pieces: tuple[Piece, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(piece.text for piece in self.pieces if piece.is_placeholder)

    def filled(self, values: Values) -> str:
        """As plain text."""
        return "".join(values[piece.text] if piece.is_placeholder else piece.text for piece in self.pieces)

    def shell_line(self, values: Values) -> str:
        """For `sh -c`: each value is one word, whatever is in it."""
        return "".join(shlex.quote(values[p.text]) if p.is_placeholder else p.text for p in self.pieces)

    def words(self) -> list[list[Piece]] | None:
        """Apart, where no shell is needed to take them apart; else None."""
        literal = "".join(piece.text for piece in self.pieces if not piece.is_placeholder)
        words: list[list[Piece]] = [[]]
        for piece in self.pieces:
            if piece.is_placeholder:
                words[-1].append(piece)
                continue
            first, *rest = piece.text.split(" ")
            for i, text in enumerate([first, *rest]):
                if i:
                    words.append([])
                if text:
                    words[-1].append(Piece(text, False))
        found = [word for word in words if word]
        first_word = found[0] if found else []
        plain = len(first_word) == 1 and not first_word[0].is_placeholder and "=" not in first_word[0].text
        if not PLAIN.fullmatch(literal) or not plain or first_word[0].text in _SHELL_WORDS:
            return None
        return found


def parse_command(text: str, columns: Iterable[str], path: str) -> Template:
    """A command line. A JobFileError for a name that nothing has, and for quotes around a placeholder."""
    known = _known(columns) | {OUT, CODE}
    pieces: list[Piece] = []
    end, quote = 0, ""
    for match in _PLACEHOLDER.finditer(text):
        before = text[end : match.start()]
        quote = _quote_after(before, quote)
        name = match[1]
        literal = before.endswith("$") or (name not in known and (quote or not _NAME.fullmatch(name)))
        if not literal and name not in known:
            raise _unknown(name, known, path)
        if not literal and quote:
            hint = "leave the quotes out: what stands for it is quoted already, whatever is in it"
            raise JobFileError(f"{path}: {{{name}}} stands in quotes", hint)
        if literal:
            quote = _quote_after(match[0], quote)
        pieces += [Piece(before, False), Piece(match[0] if literal else name, not literal)]
        end = match.end()
    pieces.append(Piece(text[end:], False))
    return _made(pieces)


def parse_name(text: str, columns: Iterable[str], path: str) -> Template:
    """The name of a file for each item."""
    known = _known(columns) - {IN}
    pieces: list[Piece] = []
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        if match[1] not in known:
            raise _unknown(match[1], known, path)
        pieces += [Piece(text[end : match.start()], False), Piece(match[1], True)]
        end = match.end()
    return _made([*pieces, Piece(text[end:], False)])


def values_of(name: str, number: int) -> dict[str, str]:
    """What the placeholders stand for, of an item of this name. `number` counts from 1."""
    head, slash, last = name.rpartition("/")
    dot = last.rfind(".")
    stem = last[:dot] if dot > 0 else last
    return {
        "": name,
        IN: f"./{name}" if name.startswith("-") else name,
        ".": f"{head}{slash}{stem}",
        "/": last,
        "//": head or ".",
        "/.": stem,
        NUMBER: str(number),
    }


def line_values(line: Values, number: int) -> dict[str, str]:
    """The same of a line of a table; where it has one column, that is the item's name."""
    values = {**line, NUMBER: str(number)}
    return {**values_of(next(iter(line.values())), number), **values} if len(line) == 1 else values


def _known(columns: Iterable[str]) -> set[str]:
    """Of files, or of a table with these columns."""
    names = list(columns)
    of_names = {*OF_NAMES, IN} if len(names) <= 1 else set()
    return {*names, *of_names, NUMBER}


def _unknown(name: str, known: set[str], path: str) -> JobFileError:
    near = nearest(name, [one for one in known if one.isidentifier()])
    question = f"; did you mean {{{near}}}?" if near else ""
    told = ", ".join(f"{{{one}}}" for one in sorted(known))
    return JobFileError(f"{path}: there is no {{{name[:40]}}}{question}", f"there are {told}"[:400])


def _quote_after(text: str, quote: str) -> str:
    """Which quote is open behind `text`, if `quote` was before it."""
    escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
    return quote


def _made(pieces: list[Piece]) -> Template:
    return Template(tuple(piece for piece in pieces if piece.text or piece.is_placeholder))
