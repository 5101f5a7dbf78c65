"""Calls of a session, a batch at a time, for a runner: numpy, Python 3.8 or later; nothing of ours.

How batches are written down is decided here, for both ends. A batch is `written`: the length of a JSON
(8 bytes), the JSON, then pieces of bytes. A function, a call, a result are each some pieces: a body, and the buffers
that it refers to. In a batch a piece is a number of bytes that follow, or a place in its sheet, which is mapped.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import pickle
import struct
import sys
import time
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, List, Tuple  # noqa: UP035 (3.8)

import numpy as np

# By its path: a user's module may have the same name
loading = ModuleType("loading")
loading.__file__ = str(Path(__file__).with_name("loading.py"))
SourceFileLoader("loading", loading.__file__).exec_module(loading)
values = loading.sibling("values")

LENGTH = struct.Struct("<Q")
APART_BYTES = 64 << 10  # of an array: then it is a buffer of its own, and not copied into the body
FUNCTIONS_KEPT = 64  # opened, by what they were written as
TRACE_LIMIT = 7_000  # characters
LINE_LIMIT = 400
RAISED, OUTPUT = (
    "raised",
    "output",
)  # how a call ended that gave nothing: its function raised; what it gave cannot travel

Pieces = List[Any]  # noqa: UP006 (3.8)   bytes, or whatever is like them
Where = Any  # of a piece: how many bytes follow, or [offset, bytes] in the sheet
Writer = Callable[[Any], Pieces]


# --- frames -----------------------------------------------------------------------------------------------


def written(head: dict[str, Any], pieces: Pieces) -> bytes:
    raw = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([LENGTH.pack(len(raw)), raw, *pieces])


def opened(raw: Any) -> tuple[dict[str, Any], memoryview]:
    """The JSON, and what follows it; a ValueError for what is no such thing."""
    view = memoryview(raw)
    if len(view) < LENGTH.size:
        raise ValueError("no head")
    end = LENGTH.size + LENGTH.unpack(view[: LENGTH.size])[0]
    if end > len(view):
        raise ValueError("a head that was cut")
    head = json.loads(bytes(view[LENGTH.size : end]))
    if not isinstance(head, dict):
        raise ValueError("a head that is none")
    return head, view[end:]


class PieceReader:
    """Pieces one after the other, and from a sheet."""

    def __init__(self, view: memoryview, sheet: Any = None) -> None:
        self._view, self._sheet = view, sheet

    def take(self, places: list[Where]) -> Pieces:
        return [self._taken(place) for place in places]

    def _taken(self, place: Where) -> memoryview:
        if isinstance(place, list):
            offset, count = place
            return memoryview(self._sheet)[offset : offset + count]
        if not 0 <= place <= len(self._view):
            raise ValueError("a piece that was cut")
        piece, self._view = self._view[:place], self._view[place:]
        return piece


# --- values as pickles ------------------------------------------------------------------------------------


def to_pickle(value: Any, dumps: Callable[..., bytes] = pickle.dumps) -> Pieces:
    buffers: Pieces = []

    def stays(buffer: Any) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= APART_BYTES:
            buffers.append(raw)
            return False
        return True

    body = dumps(value, protocol=5, buffer_callback=stays)
    return [body, *buffers]


def _far_pickle(value: Any) -> Pieces:
    """By name where that can be, else by value, as cloudpickle has it."""
    try:
        return to_pickle(value)
    except Exception:
        import cloudpickle

        return to_pickle(value, cloudpickle.dumps)


def from_pickle(pieces: Pieces) -> Any:
    return pickle.loads(pieces[0], buffers=pieces[1:])


# --- the process --------------------------------------------------------------------------------------------


_sessions: Dict[str, Calls] = {}  # noqa: UP006 (3.8)


def answer(rows: Any, **settings: Any) -> dict[str, Any]:
    """The runner's function: the settings are the same in every call."""
    if "only" not in _sessions:
        _sessions["only"] = Calls(**settings)
    return {"out": np.frombuffer(_sessions["only"].run(memoryview(rows)), np.uint8)}


class Calls:
    """The functions of a session that were opened here, and the sheet that was mapped last."""

    def __init__(self, ship: str, folder: str | None, scratch: str) -> None:
        ours = str(Path(__file__).parent)
        sys.path[:] = [*([folder] if folder else []), *(entry for entry in sys.path if entry != ours)]
        self._scratch = Path(scratch)
        self._is_text = ship == "text"
        self._functions: Dict[str, Any] = {}  # noqa: UP006 (3.8)
        self._sheet: Tuple[str, Any] = ("", None)  # noqa: UP006 (3.8)

    def run(self, raw: memoryview) -> bytes:
        """A batch: what became of each call. What ends the process, or finds no memory, is of all of them."""
        outer, inner = opened(raw)
        head, rest = opened(inner)
        pieces = PieceReader(rest, self._mapped(outer["sheet"]))
        made = pieces.take(head["function"])
        calls = [pieces.take(places) for places in head["calls"]]
        write = _far_pickle if head["pickles"] else values.to_text
        heads, results = [], []
        for call in calls:
            found, parts = self._called(head["key"], made, call, write)
            heads.append({**found, "sizes": [memoryview(part).nbytes for part in parts]})
            results += parts
        return written({"calls": heads}, results)

    def _mapped(self, path: str) -> Any:
        if path and path != self._sheet[0]:
            with open(path, "rb") as file:  # noqa: PTH123
                self._sheet = path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._sheet[1] if path else None

    def _called(self, key: str, made: Pieces, call: Pieces, write: Writer) -> tuple[dict[str, Any], Pieces]:
        begun = time.perf_counter()
        try:
            function = self._function(key, made)
            args, kwargs = values.from_text(call) if self._is_text else from_pickle(call)
            value = function(*args, **kwargs)
        except MemoryError:
            raise
        except Exception as error:
            return self._raised(error, time.perf_counter() - begun, write)
        seconds = time.perf_counter() - begun
        try:
            return {"seconds": seconds, "type": type(value).__name__}, write(value)
        except MemoryError:
            raise
        except Exception as error:
            message = f"the result, a {type(value).__name__}, cannot travel: {_text(error)}"
            return {"seconds": seconds, "code": OUTPUT, "message": message[:LINE_LIMIT]}, []

    def _raised(self, error: BaseException, seconds: float, write: Writer) -> tuple[dict[str, Any], Pieces]:
        told = {
            "seconds": seconds,
            "code": RAISED,
            "type": type(error).__name__,
            "message": _text(error)[:LINE_LIMIT],
            "trace": _trace(error),
        }
        if self._is_text:
            return told, []
        try:
            return told, write(error.with_traceback(None))  # which some packages teach pickle to follow, frame by frame
        except Exception:
            return told, []

    def _function(self, key: str, made: Pieces) -> Any:
        if key not in self._functions:
            self._functions[key] = self._loaded(key, made) if self._is_text else from_pickle(made)
            while len(self._functions) > FUNCTIONS_KEPT:
                del self._functions[next(iter(self._functions))]
        return self._functions[key]

    def _loaded(self, key: str, made: Pieces) -> Any:
        """The function that a text defines, from a folder of its own."""
        told = json.loads(bytes(made[0]))
        folder = self._scratch / key
        folder.mkdir(parents=True, exist_ok=True)
        for name, raw in zip(told["files"], made[1:]):
            (folder / name).write_bytes(raw)
        file, _, name = told["entry"].partition(":")
        spec = importlib.util.spec_from_file_location(f"muster_call_{key}", str(folder / file))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return getattr(module, name)


def _text(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())
    except Exception:  # a user's __str__
        return "(its text cannot be shown)"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text(error)}"


def _trace(error: BaseException) -> str:
    """From the user's first frame on; of a long one the end says more."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))[-TRACE_LIMIT:]
    except Exception:
        return _line(error)
