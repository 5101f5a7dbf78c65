"""Which classes and functions a pickle from a machine may name here: pairs of module and name, each harmless to call
with anything. Never whole modules: `builtins.eval` is a name too."""

from __future__ import annotations

import builtins
import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any


def _pairs() -> Iterator[tuple[str, str]]:
    values = "bool bytearray bytes complex dict float frozenset int list range set slice str tuple"
    yield from (("builtins", name) for name in values.split())
    yield from (("builtins", name) for name, one in vars(builtins).items() if _is_error(one))
    yield from (("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque"))
    yield from (("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone"))
    yield from (("decimal", "Decimal"), ("fractions", "Fraction"), ("uuid", "UUID"))
    yield from (("pathlib", name) for name in ("Path", "PosixPath", "PurePath", "PurePosixPath"))
    yield from (("pathlib._local", name) for name in ("Path", "PosixPath", "PurePath", "PurePosixPath"))
    yield from (("numpy", "dtype"), ("numpy", "ndarray"))
    for core in ("numpy._core", "numpy.core"):  # as numpy 2 and 1 have it
        yield from ((f"{core}.multiarray", "_reconstruct"), (f"{core}.multiarray", "scalar"))
        yield f"{core}.numeric", "_frombuffer"


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Exception)


KNOWN = frozenset(_pairs())


class UnknownNameError(pickle.UnpicklingError):
    """A pickle names what is not on the list."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(f"{module}.{name}")
        self.what = f"{module}.{name}"


class KnownUnpickler(pickle.Unpickler):
    """Resolves what is on the list, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise UnknownNameError(module, name)
        return super().find_class(module, name)


def opened(pieces: Sequence[Any]) -> Any:
    """What a pickle with its buffers is; an UnknownNameError where it names anything else."""
    return KnownUnpickler(io.BytesIO(pieces[0]), buffers=pieces[1:]).load()
