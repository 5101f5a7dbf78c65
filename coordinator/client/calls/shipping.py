"""Functions, arguments and results of a session on their way: as text, or as pickles where the user wishes. What a
machine sent is opened as text, of a closed list of classes, unless the user asks for pickles of it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

import msgspec
import xxhash

from muster.coordinator.client.calls.errors import CallFailed, FarTraceback, RemoteError
from muster.coordinator.client.function_source import call_text, is_own
from muster.jobs.common.errors import UsageError
from muster.jobs.user_code.runner import calls as far
from muster.jobs.user_code.runner import values

BLOB_BYTES = 256 << 10  # of a piece: from then on it goes up once, under its digest
SMALL_BYTES = 64 << 10  # the same, where all pieces together would be too much
INLINE_BYTES = 1 << 20
Results = Literal["known", "any"]
Ship = Literal["text", "pickle"]


@dataclass(frozen=True, eq=False)
class Packed:
    """A function, or a call's arguments, written down."""

    pieces: tuple[memoryview, ...]
    digests: tuple[str, ...]  # of each piece that goes up apart; "" for one that goes along

    @property
    def blobs(self) -> dict[str, memoryview]:
        return {digest: piece for digest, piece in zip(self.digests, self.pieces, strict=True) if digest}

    @property
    def inline(self) -> list[memoryview]:
        return [piece for digest, piece in zip(self.digests, self.pieces, strict=True) if not digest]

    @cached_property
    def nbytes(self) -> int:
        """That it adds to a batch."""
        return sum(piece.nbytes for piece in self.inline)

    @cached_property
    def key(self) -> str:
        """The same for the same bytes."""
        found = xxhash.xxh3_128()
        for digest, piece in zip(self.digests, self.pieces, strict=True):
            found.update(digest.encode() or piece)
            found.update(piece.nbytes.to_bytes(8, "little"))
        return found.hexdigest()

    def places(self, offsets: Mapping[str, int]) -> list[far.Where]:
        """Where its pieces are: behind one another, or in a sheet of which this is the layout."""
        return [
            [offsets[digest], piece.nbytes] if digest else piece.nbytes
            for digest, piece in zip(self.digests, self.pieces, strict=True)
        ]


def pack(pieces: Sequence[Any]) -> Packed:
    views = tuple(memoryview(piece).cast("B") for piece in pieces)
    total = sum(view.nbytes for view in views if view.nbytes < BLOB_BYTES)
    least = SMALL_BYTES if total > INLINE_BYTES else BLOB_BYTES
    return Packed(views, tuple(xxhash.xxh3_128_hexdigest(one) if one.nbytes >= least else "" for one in views))


class Shipper(Protocol):
    """How a session writes things down."""

    answers_are_pickles: bool  # results, and what calls raised
    hint: str  # where a result cannot travel

    def function(self, function: Callable[..., Any]) -> Packed: ...

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed: ...

    def opened(self, pieces: Sequence[Any]) -> Any:
        """A result. Any exception means that it cannot be opened."""


class TextShipper:
    """The source of functions, plain values, arrays."""

    answers_are_pickles = False
    hint = "return plain values and arrays, or open the session with ship='pickle', results='any'"

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Callable[..., Any], Packed] = WeakKeyDictionary()

    def function(self, function: Callable[..., Any]) -> Packed:
        """Its source is read once, and what it refers to is what that was then."""
        try:
            if (found := self._known.get(function)) is not None:
                return found
        except TypeError:  # it has no weak references, or no hash
            return self._written(function)
        self._known[function] = made = self._written(function)
        return made

    def _written(self, function: Callable[..., Any]) -> Packed:
        try:
            code = call_text(function)
        except UsageError as error:
            raise UsageError(error.message, f"{error.hint}, or open the session with ship='pickle'") from None
        head = {"entry": code.entry, "files": list(code.files)}
        return pack([json.dumps(head).encode(), *code.files.values()])

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
        try:
            return pack(values.to_text((args, kwargs)))
        except TypeError as error:
            _refuse_futures(args, kwargs)
            raise TypeError(f"{error}: give plain values and arrays, or open the session with ship='pickle'") from None

    def opened(self, pieces: Sequence[Any]) -> Any:
        return values.from_text(list(pieces))


class OwnModules:
    """Modules that are files of the user's own: no machine has them, so that what is of them goes by value."""

    _dumping = threading.Lock()  # what goes by value is told to cloudpickle for the whole process

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._found: list[ModuleType] = []

    @contextmanager
    def by_value(self) -> Iterator[None]:
        import cloudpickle

        with self._dumping:
            told = [one for one in self._look() if one.__name__ not in cloudpickle.list_registry_pickle_by_value()]
            for module in told:
                cloudpickle.register_pickle_by_value(module)
            try:
                yield
            finally:
                for module in told:
                    cloudpickle.unregister_pickle_by_value(module)

    def _look(self) -> list[ModuleType]:
        if len(sys.modules) != len(self._seen):
            new = {name: one for name, one in list(sys.modules.items()) if name not in self._seen}
            self._found += [one for name, one in new.items() if is_own(name, one)]
            self._seen |= set(sys.modules)
        return self._found


class PickleShipper:
    """Pickles by cloudpickle, between the user's own client and the user's own runners."""

    def __init__(self, results: Results) -> None:
        self.answers_are_pickles = results == "any"
        self.hint = _HINTS[results]
        self._own = OwnModules()

    def function(self, function: Callable[..., Any]) -> Packed:
        return self._packed(function, "the function")

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
        try:
            return self._packed((args, kwargs), "an argument")
        except TypeError:
            _refuse_futures(args, kwargs)
            raise

    def _packed(self, value: Any, what: str) -> Packed:
        import cloudpickle

        try:
            with self._own.by_value():
                return pack(far.to_pickle(value, cloudpickle.dumps))
        except Exception as error:  # whatever a class of the user's raises when it is asked for its state
            raise TypeError(f"{what} cannot be pickled: {error}") from error

    def opened(self, pieces: Sequence[Any]) -> Any:
        return far.from_pickle(list(pieces)) if self.answers_are_pickles else values.from_text(list(pieces))


_HINTS: dict[Results, str] = {
    "known": "return plain values and arrays; results='any' opens all, if you trust these machines as this one",
    "any": "return what can be pickled",
}


# --- what came back -----------------------------------------------------------------------------------------


class Reply(msgspec.Struct, frozen=True):
    """What a runner says of one call, before the pieces of what it gave."""

    sizes: list[int]
    seconds: float = 0.0
    code: str = ""
    type: str = "Exception"
    message: str = ""
    trace: str = ""


class Replies(msgspec.Struct, frozen=True):
    calls: list[Reply]


@dataclass(frozen=True)
class Said:
    """A reply with its pieces."""

    reply: Reply
    pieces: list[Any]


def replies(raw: bytearray, count: int) -> list[Said]:
    """What came of a batch of so many calls; a ValueError for what no runner wrote."""
    head, rest = far.opened(raw)
    try:
        found = msgspec.convert(head, Replies).calls
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if len(found) != count:
        raise ValueError(f"{len(found)} results of {count} calls")
    reader = far.PieceReader(rest)
    return [Said(one, reader.take(one.sizes)) for one in found]


def outcome(shipper: Shipper, said: Said, machine: str) -> tuple[Any, BaseException | None]:
    """A call's result, or what its future raises."""
    reply = said.reply
    if reply.code == far.RAISED:
        error = _raised(shipper, said, machine)
        error.__cause__ = FarTraceback(reply.trace)
        return None, error
    if reply.code:
        return None, CallFailed("output", reply.message or reply.code, machine, hint=shipper.hint)
    try:
        return shipper.opened(said.pieces), None
    except Exception as error:  # bytes of a machine may be anything
        return None, CallFailed("output", f"the result cannot be opened: {type(error).__name__}: {error}", machine)


def _raised(shipper: Shipper, said: Said, machine: str) -> BaseException:
    """The exception itself where it may be opened, else what it was called."""
    if said.pieces:
        try:
            error = shipper.opened(said.pieces)
        except Exception:
            error = None
        if isinstance(error, Exception):
            return error
    return RemoteError(said.reply.type, said.reply.message, machine)


def _refuse_futures(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """What cannot travel may be the most natural thing to try."""
    if any(isinstance(one, Future) for one in (*args, *kwargs.values())):
        raise TypeError("a future is no argument of another call: pass its `result()`") from None


def shipper_of(ship: Ship, results: Results) -> Shipper:
    return TextShipper() if ship == "text" else PickleShipper(results)
