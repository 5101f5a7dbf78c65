"""Command lines with placeholders, as GNU Parallel has them: checked once, the same text for every item.

Of an item called a/b.jpg: {} and {in} are a/b.jpg, {.} a/b, {/} b.jpg, {//} a, {/.} b, {#} its number from 1, {out}
where its output goes, {code} the folder of the job's code; {column} is a value of a table's line, {column.} and so on
what the same forms make of it. A shell gets them as values of variables, so that it never reads what is in them as its
own text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from muster.jobs.common.errors import JobFileError
from muster.jobs.common.validation import nearest
from muster.jobs.user_code.shell_contexts import Place, ShellText

OF_NAMES = ("", ".", "/", "//", "/.")  # what a name gives
FORMS = ("/.", "//", "/", ".")  # the same of a column's value
IN, OUT, NUMBER, CODE = "in", "out", "#", "code"
SHELL = "/bin/sh"
PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ -]*", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]*")
_LOCAL = re.compile(r"\./([A-Za-z0-9_@%+=:,./-]+)(?=[\s;&|()<>]|$)", re.ASCII)
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
    """A run of text as it is, or a placeholder's name, and where that stands."""

    text: str
    is_placeholder: bool
    place: Place = "plain"
    starts_word: bool = False

    def value(self, values: Values) -> str:
        """What stands for it: a path that begins a word is no option."""
        value = values[self.text]
        return f"./{value}" if self.starts_word and self.text in OF_NAMES and value.startswith("-") else value


@dataclass(frozen=True)
class Template:
    """A checked template."""

    pieces: tuple[Piece, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(piece.text for piece in self.pieces if piece.is_placeholder)

    @property
    def evaluated(self) -> frozenset[str]:
        """Those of which a shell reads the value once more, so that only a whole number may be one."""
        return frozenset(piece.text for piece in self.pieces if piece.place == "evaluated") - {NUMBER}

    def filled(self, values: Values) -> str:
        """As plain text."""
        return "".join(values[piece.text] if piece.is_placeholder else piece.text for piece in self.pieces)

    def shell_words(self, values: Values) -> list[str]:
        """What starts a shell with this text, the same for all values: they are its variables."""
        held = self._held()
        kept = " ".join(f"muster_{n}=${{{n}}}" for n in range(1, len(held) + 1))
        line = f"{kept}; set --; {self._referring(held)}" if held else self._referring(held)
        return [SHELL, "-c", line, SHELL, *(piece.value(values) for piece in held)]

    def _held(self) -> list[Piece]:
        """A placeholder for each variable."""
        found = {(one.text, one.starts_word): one for one in reversed(self.pieces) if one.is_placeholder}
        return list(found.values())

    def _referring(self, held: list[Piece]) -> str:
        """The text, each placeholder as what a shell puts its variable's value for."""
        numbers = {(one.text, one.starts_word): n for n, one in enumerate(held, 1)}
        text = ""
        for piece in self.pieces:
            bare = f"${{muster_{numbers[piece.text, piece.starts_word]}}}" if piece.is_placeholder else piece.text
            text += f'"{bare}"' if piece.is_placeholder and piece.place == "plain" else bare
        return text

    def shown(self, values: Values) -> str:
        """For people: as they would type it."""
        return "".join(
            piece.text
            if not piece.is_placeholder
            else shlex.quote(piece.value(values))
            if piece.place == "plain"
            else piece.value(values)
            for piece in self.pieces
        )

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
    """A command line. A JobFileError for a name that nothing has, and for a place where no value can stand."""
    known = _known(columns) | {OUT, CODE}
    pieces: list[Piece] = []
    reader = ShellText(text)
    end = i = 0
    while i < len(text):
        match = _PLACEHOLDER.match(text, i)
        if match is None or text[i - 1 : i] == "$" or not _is_meant(match[1], known, reader.place, path):
            i = reader.step(i)
            continue
        placeholder = Piece(match[1], True, reader.place, reader.starts_word)
        pieces += [Piece(text[end:i], False), placeholder]
        reader.skip()
        end = i = match.end()
    pieces.append(Piece(text[end:], False))
    return _made(pieces)


def local_files(text: str) -> Iterator[tuple[int, str]]:
    """The words of a command line that say `./NAME`, but for what it writes to: where each begins, and the name."""
    reader, i = ShellText(text), 0
    while i < len(text):
        match = _LOCAL.match(text, i) if reader.starts_word and reader.place == "plain" else None
        if match is not None and not text[:i].rstrip().endswith(">"):
            yield i, match[1]
        i = reader.step(i)


def _is_meant(name: str, known: set[str], place: Place, path: str) -> bool:
    """Whether `{name}` is a placeholder there, and no text that looks like one."""
    if name not in known:
        if place == "quoted" or not _NAME.fullmatch(name):
            return False
        raise _unknown(name, known, path)
    if place == "quoted":
        hint = "leave the quotes out, of a here-document's delimiter too: a value is one word, whatever is in it"
        raise JobFileError(f"{path}: {{{name}}} stands in quotes", hint)
    if place == "evaluated" and name in (OUT, CODE):
        raise not_whole(name, "which", path)
    return True


def not_whole(name: str, what: str, path: str) -> JobFileError:
    """For a placeholder in a place where a shell reads its value once more."""
    wrong = f"{path}: {{{name}}} stands where a shell evaluates it, and {what} is no whole number"
    return JobFileError(wrong, f"give it to a variable first, such as x={{{name}}}")


def is_whole(value: str) -> bool:
    return _WHOLE.fullmatch(value) is not None


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


class LineValues(dict[str, str]):
    """Of a line of a table: its columns' values, and what the forms of a name make of each, once it is asked for."""

    def __missing__(self, name: str) -> str:
        for form in FORMS:
            if name.endswith(form) and name.removesuffix(form) in self:
                return values_of(self[name.removesuffix(form)], 0)[form]
        raise KeyError(name)


def line_values(line: Values, number: int) -> dict[str, str]:
    """The same of a line of a table; where it has one column, that is the item's name."""
    values = LineValues({**line, NUMBER: str(number)})
    return LineValues({**values_of(next(iter(line.values())), number), **values}) if len(line) == 1 else values


def _known(columns: Iterable[str]) -> set[str]:
    """Of files, or of a table with these columns."""
    names = list(columns)
    of_names = {*OF_NAMES, IN} if len(names) <= 1 else set()
    return {*names, *(name + form for name in names for form in FORMS), *of_names, NUMBER}


def _unknown(name: str, known: set[str], path: str) -> JobFileError:
    near = nearest(name, [one for one in known if one.isidentifier()])
    question = f"; did you mean {{{near}}}?" if near else ""
    told = ", ".join(f"{{{one}}}" for one in sorted(known))
    return JobFileError(f"{path}: there is no {{{name[:40]}}}{question}", f"there are {told}"[:400])


def _made(pieces: list[Piece]) -> Template:
    return Template(tuple(piece for piece in pieces if piece.text or piece.is_placeholder))
