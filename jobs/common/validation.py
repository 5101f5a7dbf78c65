"""Plain values into typed structs, with errors to act on: the path, what was expected, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TypeVar

import msgspec
from msgspec import inspect

from muster.jobs.common import printable
from muster.jobs.common.errors import JobFileError

T = TypeVar("T")
one_line = printable.one_line

_AT = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|(\[[^\]]*\])")
_WORDS = {"array": "a list", "object": "a mapping", "str": "text", "int": "a whole number", "float": "a number"}
_WORDS |= {"null": "nothing", "bool": "true or false", "bytes": "bytes"}


class FieldError(Exception):
    """One field is wrong. The caller knows the file and the line, and makes a JobFileError of it."""

    def __init__(self, path: str, text: str, hint: str | None = None, meant: str | None = None) -> None:
        super().__init__(one_line(f"{path}: {text}" if path else text))
        self.path = path
        self.hint = hint
        self.meant = meant  # the field that was probably meant by an unknown one
        self.place = path  # where it stands, if that is under another name

    def as_user_error(self) -> JobFileError:
        return JobFileError(str(self), self.hint)


def convert(value: object, wanted: type[T], prefix: str = "", *, strict: bool = True) -> T:
    """`value` as a `wanted`; a FieldError otherwise. `prefix` is the path of `value` itself."""
    try:
        return msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        raise _explained(str(error), wanted, prefix) from None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    found = get_close_matches(name, list(known), 1)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question that ends an error about an unknown name; "" where no known one is near."""
    near = nearest(name, known)
    return f"; did you mean `{near}`?" if near else ""


def _explained(message: str, wanted: type, prefix: str) -> FieldError:
    match = _AT.fullmatch(message)
    what, inner = (match["what"], match["path"] or "") if match else (message, "")
    path = f"{prefix}{inner}" if prefix else inner.removeprefix(".")
    here = list(_types_at(inspect.type_info(wanted), inner))
    if unknown := _UNKNOWN.fullmatch(what):
        return _unknown_field(path, unknown[1], here)
    if missing := _MISSING.fullmatch(what):
        return FieldError(_join(path, missing[1]), "missing: this field must be given")
    if what.startswith("Invalid enum value"):
        return _not_among(path, what.removeprefix("Invalid enum value "), here)
    hint = "write it in quotes" if what.startswith("Expected `str") and ", got `" in what else None
    return FieldError(path, _plain(what), hint if "`array`" not in what and "`object`" not in what else None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _plain(what: str) -> str:
    """`Expected `int | null`, got `str`` in words."""
    text = re.sub(r"`([a-z |]+)`", lambda found: _worded(found[1]), what)
    return text[:1].lower() + text[1:]


def _worded(types: str) -> str:
    """The wanted types in words. Nothing may stand for any optional field, which helps nobody: left out."""
    names = types.split(" | ")
    return " or ".join(_WORDS.get(name, name) for name in names if name != "null" or len(names) == 1)


def _unknown_field(path: str, name: str, here: list[inspect.Type]) -> FieldError:
    known = [name for kind in here if isinstance(kind, inspect.StructType) for name in _writable(kind)]
    near = nearest(name, known)
    shown = name if len(name) <= 80 else name[:77] + "..."
    hint = f"fields here: {', '.join(known)}" if known else "leave it out; there are no fields here"
    text = f"unknown field; did you mean `{near}`?" if near else "unknown field"
    return FieldError(_join(path, shown), text, hint, near)


def _writable(kind: inspect.StructType) -> list[str]:
    """The fields that are people's to write, not those that `RESOLVED` says a submit fills in."""
    resolved = getattr(kind.cls, "RESOLVED", ())
    return [field.encode_name for field in kind.fields if field.encode_name not in resolved]


def _not_among(path: str, given: str, here: list[inspect.Type]) -> FieldError:
    known = [str(value) for kind in here if isinstance(kind, inspect.LiteralType) for value in kind.values]
    question = did_you_mean(given.strip("'"), known)
    return FieldError(path, f"expected one of {', '.join(known)}, got {given[:80]}{question}")


def _types_at(root: inspect.Type, path: str) -> Iterator[inspect.Type]:
    """Every type that may stand at `path`, unions taken apart."""
    found = list(_apart(root))
    for name, item in _STEP.findall(path):
        found = [inner for kind in found for inner in _inside(kind, name, bool(item))]
    yield from found


def _apart(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _apart(one)
    elif isinstance(kind, inspect.Metadata):
        yield from _apart(kind.type)
    else:
        yield kind


def _inside(kind: inspect.Type, name: str, item: bool) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.StructType) and not item:
        for field in kind.fields:
            if field.encode_name == name:
                yield from _apart(field.type)
    elif isinstance(kind, inspect.CollectionType) and item:
        yield from _apart(kind.item_type)
    elif isinstance(kind, inspect.DictType) and item:
        yield from _apart(kind.value_type)
