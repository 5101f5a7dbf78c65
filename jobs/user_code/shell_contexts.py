"""Where in a shell's text a place stands: which quotes, here-documents and arithmetic are open there. Runs no shell.

It follows POSIX and bash as far as a placeholder's meaning depends on it. Where it is wrong a command may see its value
split or not at all; that no value is read as a command does not rest on this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# plain: a word's; quoted: a single or a double quote, or a here-document whose delimiter is quoted, is open;
# here: a here-document; evaluated: what is put there is read once more, as arithmetic or as a command
Place = Literal["plain", "quoted", "here", "evaluated"]

_HERE = re.compile(r"<<(-?)[ \t]*([^\s;&|<>()]+)")
_RESERVED = frozenset(re.findall(r"\S+", "! { do then else elif if while until time command builtin"))
_EVALUATING = frozenset(re.findall(r"\S+", "[[ alias declare eval let local mapfile read readarray trap typeset unset"))
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
_SUBSCRIPT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[[^\]]*")
_BREAKS = " \t\n;&|()"


@dataclass
class _Level:
    """One thing that is open. Of a command: which program it starts, and the word being read."""

    kind: Literal["command", "single", "double", "arithmetic", "parameter", "here", "comment"]
    end: str = ""
    word: str = ""
    program: str = ""
    depth: int = 0  # of parentheses, in arithmetic
    quoted: bool = False  # of a here-document: nothing in it is replaced
    tabs: bool = False  # may stand before its last line


class ShellText:
    """A text, read from its start to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._levels = [_Level("command")]
        self._awaited: list[_Level] = []  # here-documents that begin with the next line

    @property
    def place(self) -> Place:
        """Of what comes next."""
        level = self._levels[-1]
        if level.kind in ("arithmetic", "parameter"):
            return "evaluated"
        if level.kind == "here":
            return "quoted" if level.quoted else "here"
        if level.kind in ("single", "double"):
            return "quoted"
        in_subscript = not level.program and _SUBSCRIPT.fullmatch(level.word)
        return "evaluated" if in_subscript or level.program in _EVALUATING else "plain"

    @property
    def starts_word(self) -> bool:
        level = self._levels[-1]
        return level.kind == "command" and not level.word

    def skip(self) -> None:
        """Something stands next that is part of a word, whatever it is."""
        self._levels[-1].word += "_"

    def step(self, i: int) -> int:
        """Read what is at `i`; where it goes on."""
        level = self._levels[-1]
        char = self._text[i]
        if level.kind == "single":
            return self._until("'", char, i)
        if level.kind == "comment":
            if char == "\n":
                self._levels.pop()
                return i
            return i + 1
        if level.kind == "here":
            if self._text[i - 1] == "\n" and (after := self._after_here(level, i)):
                return after
            if level.quoted:
                return i + 1
        if char == "\\":
            level.word += "" if self._text.startswith("\n", i + 1) else "\\"
            return i + 2
        if opened := self._opened(i):
            return opened
        if level.kind == "command":
            return self._in_command(level, char, i)
        if level.kind == "arithmetic":
            return self._in_arithmetic(level, char, i)
        return i + 1 if level.kind == "here" else self._until(level.end, char, i)

    def _until(self, end: str, char: str, i: int) -> int:
        if char == end:
            self._levels.pop()
        return i + 1

    def _after_here(self, level: _Level, i: int) -> int:
        """Behind its last line, where that begins at `i`; else 0."""
        end = self._text.find("\n", i)
        line = self._text[i : end if end >= 0 else len(self._text)]
        if (line.lstrip("\t") if level.tabs else line) != level.end:
            return 0
        self._levels.pop()
        self._begin_here()
        return i + len(line)

    def _opened(self, i: int) -> int:
        """Behind what opens a substitution, which may stand almost anywhere; 0 where nothing does."""
        text = self._text
        if text.startswith("$((", i):
            return self._open(_Level("arithmetic"), i + 3)
        if text.startswith("$(", i):
            return self._open(_Level("command", ")"), i + 2)
        if text.startswith("${", i):
            return self._open(_Level("parameter", "}"), i + 2)
        if text.startswith("$[", i):
            return self._open(_Level("parameter", "]"), i + 2)
        if text[i] != "`":
            return 0
        open_ones = [n for n, level in enumerate(self._levels) if level.end == "`"]
        if not open_ones:
            return self._open(_Level("command", "`"), i + 1)
        del self._levels[open_ones[-1] :]
        return i + 1

    def _open(self, level: _Level, after: int) -> int:
        self._levels[-1].word += "_"
        self._levels.append(level)
        return after

    def _in_arithmetic(self, level: _Level, char: str, i: int) -> int:
        level.depth += {"(": 1, ")": -1}.get(char, 0)
        if level.depth >= 0:
            return i + 1
        self._levels.pop()
        return i + 2 if self._text.startswith("))", i) else i + 1

    def _in_command(self, level: _Level, char: str, i: int) -> int:
        if char in "'\"":
            return self._open(_Level("single" if char == "'" else "double", char), i + 1)
        if char == "#" and not level.word:
            self._levels.append(_Level("comment"))
            return i + 1
        if char == "<" and (match := _HERE.match(self._text, i)) and not self._text.startswith("<<<", i):
            bare = re.sub(r"['\"\\]", "", match[2])
            self._awaited.append(_Level("here", bare, quoted=bare != match[2], tabs=bool(match[1])))
            return match.end()
        if char not in _BREAKS:
            level.word += char
            return i + 1
        return self._after_word(level, char, i)

    def _after_word(self, level: _Level, char: str, i: int) -> int:
        if level.word and not level.program and level.word not in _RESERVED and not _ASSIGNMENT.fullmatch(level.word):
            level.program = level.word
        ends = char in "\n;|()" or (char == "&" and self._text[i - 1] not in "<>")
        level.word = ""
        if ends:
            level.program = ""
        if char == "(":
            twice = self._text.startswith("((", i)
            self._levels.append(_Level("arithmetic") if twice else _Level("command", ")"))
            return i + (2 if twice else 1)
        if char == ")" and level.end == ")":
            self._levels.pop()
        if char == "\n":
            self._begin_here()
        return i + 1

    def _begin_here(self) -> None:
        if self._awaited:
            self._levels.append(self._awaited.pop(0))
