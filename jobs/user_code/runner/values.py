"""Values as text, for both ends of a session of calls: numpy, Python 3.8 or later; nothing of ours. Opening one makes
instances of the classes listed here and calls nothing else, whatever was written: a client opens what any machine sent.

A value is a JSON and the buffers that it refers to, each once. What JSON has not is an object with the key MARK.
"""

from __future__ import annotations

import builtins
import datetime
import json
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from typing import Any, Callable, Dict, List, Tuple  # noqa: UP035 (3.8)
from uuid import UUID

import numpy as np

Pieces = List[Any]  # noqa: UP006 (3.8)   the JSON, then buffers: bytes, or whatever is like them

MARK = "\0is"
PLAIN = (type(None), bool, int, float, str)
WIDE = 1 << 63  # from here on an int goes as hexadecimal, of which Python reads any length
NUMBERS = "biuf"  # kinds of dtypes whose scalars are numbers of JSON
NUMBER_BYTES = 8
COLUMNS = {float: "<f8", int: "<i8"}  # what a long list of only these goes as
COLUMN_LENGTH = 256
BYTES = "biufcSUmMV"  # kinds of dtypes that are their bytes
ERRORS = {one.__name__: one for one in vars(builtins).values() if isinstance(one, type) and issubclass(one, Exception)}


# --- written ------------------------------------------------------------------------------------------------


def to_text(value: Any) -> Pieces:
    """A TypeError names what cannot travel."""
    buffers: Pieces = []
    try:
        return [json.dumps(_plain(value, buffers), separators=(",", ":")).encode(), *buffers]
    except RecursionError:
        raise TypeError("a value too deep to travel, or within itself") from None


def _plain(value: Any, buffers: Pieces) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value if kind is not int or -WIDE < value < WIDE else {MARK: "int", "of": hex(value)}
    if kind is list:
        return _plain_list(value, buffers)
    if kind is dict and MARK not in value and {str}.issuperset(map(type, value)):
        return {key: _plain(one, buffers) for key, one in value.items()}
    if kind is bytes or kind is bytearray:
        buffers.append(value)
        return {MARK: kind.__name__, "of": len(buffers)}
    if kind in _TAKEN:
        name, take = _TAKEN[kind]
        return {MARK: name, "of": [_plain(one, buffers) for one in take(value)]}
    if isinstance(value, np.generic) or kind in (np.ndarray, np.memmap):
        return _plain_array(value, buffers)
    if isinstance(value, np.dtype):
        return {MARK: "dtype", "of": _spec(value)}
    if kind is type and value in _NAMES:
        return {MARK: "class", "of": _NAMES[value]}
    raise TypeError(f"a {kind.__name__} cannot travel as text")


def _plain_list(value: List[Any], buffers: Pieces) -> Any:  # noqa: UP006 (3.8)
    """Long ones of one kind are not looked at number by number."""
    dtype = COLUMNS.get(type(value[0])) if len(value) >= COLUMN_LENGTH else None
    if dtype is not None and len(set(map(type, value))) == 1:
        try:
            buffers.append(np.array(value, dtype).data.cast("B"))
        except OverflowError:  # an int of more bits
            return [_plain(one, buffers) for one in value]
        return {MARK: "column", "of": len(buffers), "dtype": dtype}
    return [_plain(one, buffers) for one in value]


def _plain_array(value: Any, buffers: Pieces) -> Any:
    dtype, is_scalar = value.dtype, isinstance(value, np.generic)
    if is_scalar and dtype.kind in NUMBERS and dtype.itemsize <= NUMBER_BYTES:
        return {MARK: "number", "of": value.item(), "dtype": dtype.str}
    if dtype.kind == "O":
        items = [_plain(one, buffers) for one in value.reshape(-1).tolist()]
        return {MARK: "objects", "of": items, "shape": list(value.shape)}
    by_column = value.flags.f_contiguous and not value.flags.c_contiguous
    array = np.ascontiguousarray(value.T if by_column else value)
    which = "scalar" if is_scalar else "by column" if by_column else "array"
    told = {MARK: which, "of": len(buffers) + 1, "dtype": _spec(dtype), "shape": list(value.shape)}
    buffers.append(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return told


def _spec(dtype: Any) -> Any:
    """What `_dtype` makes the same of: a TypeError where it would not."""
    spec = _spec_of(dtype)
    try:
        if _dtype(spec) == dtype:
            return spec
    except Exception:  # a dtype of another package, which numpy does not know by its text
        pass
    raise TypeError(f"an array of {dtype} cannot travel as text")


def _spec_of(dtype: Any) -> Any:
    if dtype.subdtype is not None:
        return [_spec_of(dtype.base), list(dtype.shape)]
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_spec_of(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
    }


# --- opened -------------------------------------------------------------------------------------------------


def from_text(pieces: Pieces) -> Any:
    """Any exception means that it was not written so."""
    head, *buffers = pieces
    return _value(json.loads(bytes(head)), buffers)


def _value(plain: Any, buffers: Pieces) -> Any:
    if isinstance(plain, list):
        return [_value(one, buffers) for one in plain]
    if not isinstance(plain, dict):
        return plain
    which = plain.get(MARK)
    if which is None:
        return {key: _value(one, buffers) for key, one in plain.items()}
    of = plain["of"]
    if which in _MADE:
        return _MADE[which](*[_value(one, buffers) for one in _listed(of)])
    if which in ("bytes", "bytearray"):
        return (bytes if which == "bytes" else bytearray)(_taken(buffers, of))
    if which == "int":
        return int(of, 16)
    if which == "class":
        return _CLASSES[of]
    if which == "dtype":
        return _dtype(of)
    return _array(which, plain, buffers)


def _array(which: str, plain: Dict[str, Any], buffers: Pieces) -> Any:  # noqa: UP006 (3.8)
    of = plain["of"]
    if which == "objects":
        made = np.empty(len(of), object)
        for i, one in enumerate(_listed(of)):
            made[i] = _value(one, buffers)
        return made.reshape(plain["shape"])
    dtype = _dtype(plain["dtype"])
    if which == "number":
        if dtype.kind not in NUMBERS or type(of) not in PLAIN:
            raise ValueError("a number that is none")
        return dtype.type(of)
    if which not in ("array", "by column", "scalar", "column"):
        raise ValueError(f"nothing is written as {which!r}")
    array = np.frombuffer(_taken(buffers, of), dtype)
    if which == "column":
        return array.tolist()
    array = array.reshape(plain["shape"], order="F" if which == "by column" else "C")
    return array[()] if which == "scalar" else array


def _taken(buffers: Pieces, number: int) -> Any:
    """A buffer, which nothing else has: the same one a million times over would be no memory's size."""
    found, buffers[number - 1] = buffers[number - 1], None
    if found is None:
        raise ValueError("a buffer that is there twice")
    return found


def _dtype(spec: Any) -> Any:
    """A dtype that is its bytes: nothing of it refers to an object."""
    if isinstance(spec, list):
        base, shape = spec
        return np.dtype((_dtype(base), tuple(shape)))
    if isinstance(spec, dict):
        layout: Any = {name: spec[name] for name in ("names", "offsets", "itemsize")}
        layout["formats"] = [_dtype(one) for one in spec["formats"]]
        return np.dtype(layout)
    found = np.dtype(str(spec))
    if found.kind not in BYTES or found.names is not None or found.subdtype is not None or not found.itemsize:
        raise ValueError(f"a dtype {spec!r}")
    return found


def _listed(of: Any) -> List[Any]:  # noqa: UP006 (3.8)
    if type(of) is not list:
        raise ValueError("parts that are no list")
    return of


# --- classes ------------------------------------------------------------------------------------------------


def _whole(*numbers: Any) -> Tuple[int, ...]:  # noqa: UP006 (3.8)
    """Integers: from other things some classes are made in ways of their own."""
    if not {int}.issuperset(map(type, numbers)):
        raise ValueError("a number that is not whole")
    return numbers


def _pairs(one: Any) -> Any:
    return [[key, value] for key, value in one.items()]


def _paired(*pairs: Any) -> Any:
    return {key: value for key, value in pairs}  # noqa: C416 (each is unpacked, and never made a list of)


def _moment(cls: Callable[..., Any]) -> Callable[..., Any]:
    return lambda zone, fold, *numbers: cls(*_whole(*numbers), tzinfo=zone, fold=fold)


def _clock(one: Any) -> Tuple[Any, ...]:  # noqa: UP006 (3.8)
    return one.hour, one.minute, one.second, one.microsecond


def _error_parts(error: Exception) -> Tuple[Any, ...]:  # noqa: UP006 (3.8)
    reduced: Any = error.__reduce__()
    _, args, *state = reduced
    return (type(error).__name__, args, *state)


def _error(name: str, args: Any, state: Any = None) -> Exception:
    if range in map(type, args):
        raise ValueError("an argument that some errors would make a list of")
    made = ERRORS[name](*args)
    if state is not None:
        if any(key.startswith("__") and key != "__notes__" for key in state):
            raise ValueError("an attribute that is Python's own")
        made.__setstate__(state)
    if isinstance(made, UnicodeError) and type(made) is not UnicodeError:
        one: Any = made
        if not 0 <= one.start <= one.end <= len(one.object):  # Python believes these when it shows the error
            raise ValueError("a place that is outside of its text")
    return made


# name → class, what an instance is made of, and what makes one of that again
_FORMS: Dict[str, Tuple[type, Callable[[Any], Any], Callable[..., Any]]] = {  # noqa: UP006 (3.8)
    "tuple": (tuple, list, lambda *items: items),
    "dict": (dict, _pairs, _paired),
    "set": (set, list, lambda *items: set(items)),
    "frozenset": (frozenset, list, lambda *items: frozenset(items)),
    "complex": (complex, lambda one: (one.real, one.imag), complex),
    "range": (range, lambda one: (one.start, one.stop, one.step), range),
    "slice": (slice, lambda one: (one.start, one.stop, one.step), slice),
    "collections.OrderedDict": (OrderedDict, _pairs, lambda *pairs: OrderedDict(_paired(*pairs))),
    "collections.Counter": (Counter, _pairs, lambda *pairs: Counter(_paired(*pairs))),
    "collections.defaultdict": (
        defaultdict,
        lambda one: (one.default_factory, *_pairs(one)),
        lambda factory, *pairs: defaultdict(factory, _paired(*pairs)),
    ),
    "collections.deque": (deque, lambda one: (one.maxlen, *one), lambda most, *items: deque(items, most)),
    "datetime.date": (
        datetime.date,
        lambda one: (one.year, one.month, one.day),
        lambda *numbers: datetime.date(*_whole(*numbers)),
    ),
    "datetime.time": (
        datetime.time,
        lambda one: (one.tzinfo, one.fold, *_clock(one)),
        _moment(datetime.time),
    ),
    "datetime.datetime": (
        datetime.datetime,
        lambda one: (one.tzinfo, one.fold, one.year, one.month, one.day, *_clock(one)),
        _moment(datetime.datetime),
    ),
    "datetime.timedelta": (
        datetime.timedelta,
        lambda one: (one.days, one.seconds, one.microseconds),
        lambda *numbers: datetime.timedelta(*_whole(*numbers)),
    ),
    "datetime.timezone": (datetime.timezone, lambda one: one.__getinitargs__(), datetime.timezone),
    "decimal.Decimal": (Decimal, lambda one: (str(one),), Decimal),
    "fractions.Fraction": (
        Fraction,
        lambda one: (one.numerator, one.denominator),
        lambda *numbers: Fraction(*_whole(*numbers)),
    ),
    "uuid.UUID": (UUID, lambda one: (one.hex,), UUID),
    "pathlib.Path": (PosixPath, lambda one: (str(one),), Path),
    "pathlib.PurePath": (PurePosixPath, lambda one: (str(one),), PurePath),
}
_MADE = {**{name: make for name, (_, _, make) in _FORMS.items()}, "error": _error}
_TAKEN = {cls: (name, take) for name, (cls, take, _) in _FORMS.items()}
_TAKEN.update((cls, ("error", _error_parts)) for cls in ERRORS.values())
_CLASSES = {
    **{one.__name__: one for one in (bool, bytearray, bytes, float, int, list, str)},
    **{name: cls for name, (cls, _, _) in _FORMS.items()},
    **ERRORS,
}
_NAMES = {cls: name for name, cls in _CLASSES.items()}
