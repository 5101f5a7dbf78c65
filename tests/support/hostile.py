"""Messages that nobody of good will would send: any value that a message's types allow, and names that lead elsewhere.

Walks the types themselves, so that a new message or field is met without being named here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

ESCAPES = [
    "../../../../../../../../tmp/mark",
    "..",
    "/tmp/mark",
    "a/../../mark",
    "../" * 60,
    "x\n../y",
    "a\0b",
    "\x1b[2J\u202e",
    "a" * 64 + "\n",
]
DIGESTS = ["0123456789abcdef" * 2, "f" * 32, "0" * 32]
NAMES = ["one", "cluster", "j"]
TEXTS = st.sampled_from([*ESCAPES, *DIGESTS, *NAMES, "j.1", ""]) | st.text(max_size=20)
BIG = 1 << 53


def messages(types: Any, **known: Any) -> st.SearchStrategy[Any]:
    """As plain values, of each type a Decoder takes. `known`: fields that have one of these values half of the time."""
    return _values(inspect.type_info(types), known)


def _values(info: inspect.Type, known: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    many = 3 if depth < 3 else 1
    match info:
        case inspect.StructType():
            return _struct(info, known, depth + 1)
        case inspect.UnionType(types):
            return st.one_of([_values(one, known, depth) for one in types])
        case inspect.IntType(ge=ge, le=le):
            return _integers(-(1 << 63) if ge is None else ge, (1 << 63) - 1 if le is None else le)
        case inspect.FloatType(le=le):
            return st.sampled_from([0.0, 1e-9, 1.0, le or 1e10]) | st.floats(0, le or 1e10)
        case inspect.StrType(pattern=pattern):
            return TEXTS if pattern is None else _fitting(pattern)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return st.lists(_values(item, known, depth + 1), max_size=many)
        case inspect.TupleType(item_types=items):
            return st.tuples(*[_values(item, known, depth) for item in items])
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key, known, depth), _values(value, known, depth + 1), max_size=many)
        case inspect.BytesType():
            return st.binary(max_size=20)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType(values):
            return st.sampled_from(values)
        case inspect.AnyType():
            return st.none() | st.integers(-5, 5) | TEXTS
    raise AssertionError(f"a type nobody thought of: {info}")


def _fitting(pattern: str) -> st.SearchStrategy[str]:
    """Mostly what it allows: else nothing would get past the first check."""
    good = [text for text in ("", *DIGESTS, *NAMES) if re.search(pattern, text)]
    return st.sampled_from([*good * 10, *ESCAPES])


def _integers(least: int, most: int) -> st.SearchStrategy[int]:
    edges = [least, most, *(n for n in (0, 1, 2, 3, 5, BIG) if least <= n <= most)]
    return st.sampled_from(edges) | st.integers(max(least, -3), min(most, 12))


def _struct(info: inspect.StructType, known: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    fields = {field.encode_name: _field(field, known, depth) for field in info.fields}
    if info.array_like:
        return st.tuples(*fields.values())
    tag = {info.tag_field: st.just(info.tag)} if info.tag_field else {}
    return st.fixed_dictionaries({**tag, **fields})


def _field(field: inspect.Field, known: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    free = _values(field.type, known, depth)
    plain = isinstance(field.type, inspect.StrType | inspect.IntType)
    return st.sampled_from(known[field.name]) | free if plain and field.name in known else free


@st.composite
def spoilt(draw: st.DrawFn, samples: Sequence[msgspec.Struct]) -> Any:
    """A good message, as plain values, with up to three of its values changed for others."""
    message = msgspec.to_builtins(draw(st.sampled_from(samples)), builtin_types=(bytes,))
    for _ in range(draw(st.integers(0, 3))):
        way = draw(st.sampled_from(list(ways_in(message))))
        put(message, way, draw(ANYTHING))
    return message


ANYTHING: st.SearchStrategy[Any] = (
    TEXTS
    | st.sampled_from([None, True, 0, -1, 1, 2, BIG, -(1 << 63), 0.0, -1.0, 1e10, 1e308, b"", [], {}])
    | (st.floats() | st.integers(-3, 300) | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3))
)


def ways_in(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values below this one, but for the tags."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, inner in items:
        if key not in {"t", "type"}:
            yield (*way, key)
            yield from ways_in(inner, (*way, key))


def put(value: Any, way: tuple[Any, ...], new: Any) -> None:
    """Change what is at that way, or nothing where there is none any more."""
    for key in way[:-1]:
        try:
            inner = value[key]
            value[key] = list(inner) if isinstance(inner, tuple) else inner
        except (KeyError, IndexError, TypeError):
            return
        value = value[key]
    if isinstance(value, dict | list):
        with suppress(IndexError):
            value[way[-1]] = new


def texts_of(cls: type[msgspec.Struct]) -> Iterator[tuple[str, ...]]:
    """The way to each text there is in a message: names of fields, "*" for whatever is in a list."""
    yield from _texts(inspect.type_info(cls), (cls.__name__,))


def _texts(info: inspect.Type, way: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    match info:
        case inspect.StrType():
            yield way
        case inspect.StructType():
            for field in info.fields:
                yield from _texts(field.type, (*way, field.name))
        case inspect.UnionType(types):
            for one in types:
                yield from _texts(one, way)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _texts(item, (*way, "*"))
        case inspect.DictType(key_type=key):
            yield from _texts(key, (*way, "*"))
