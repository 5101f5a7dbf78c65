"""Kinds too small to compute anything, for tests of what happens around a kind."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.kind import Bench, Kind, Listed, Runner, Shape
from muster.jobs.contract.plan import Output


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: Literal["density", "random"] | list[list[float]] = "density"


class TinyParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    n_clusters: Annotated[int, Meta(ge=1)] = 8
    tol: float = 1
    inner: Inner = Inner()
    named: Annotated[dict[str, Inner], Meta(min_length=1)] | None = None


class Tiny(Kind[TinyParams]):
    name = "tiny"
    kernel = 3
    Params = TinyParams
    asked: ClassVar[list[Shape | None]] = []

    def check(self, params: TinyParams, shape: Shape | None) -> None:
        if shape is not None and params.n_clusters > 1000:
            raise JobFileError("params.n_clusters: more than there are values in a row", "choose fewer")

    def declare(self, params: TinyParams, shape: Shape | None) -> tuple[Output, ...] | None:
        self.asked.append(shape)
        return (Output("centers", "rows", "<f4", (params.n_clusters,)), Output("seen", "sum", "<i8"))

    def open(self, bench: Bench) -> Runner:
        raise NotImplementedError


class Coded(Tiny):
    name = "coded"
    wants_code = True

    def declare(self, params: TinyParams, shape: Shape | None) -> tuple[Output, ...] | None:
        return None


class Driven(Tiny):
    name = "driven"
    driven = True


class Sourceless(Driven):
    name = "sourceless"
    sourceless = True


class ModelParams(TinyParams, frozen=True, forbid_unknown_fields=True):
    model: str | None = None


class Modelled(Tiny):
    """Takes a file."""

    name = "modelled"
    Params = ModelParams
    names_model = True


class Listing(Tiny):
    """Takes items."""

    name = "listing"

    def declare_items(self, params: TinyParams, listed: Listed) -> tuple[Output, ...] | None:
        return None


ALL = (Tiny, Modelled, Listing, Coded, Driven, Sourceless)
KINDS: dict[str, type[Kind[Any]]] = {kind.name: kind for kind in ALL}


def load(name: str) -> Kind[Any]:
    if name not in KINDS:
        raise JobFileError(f"kind: there is no kind {name!r}", "kinds here: tiny")
    return KINDS[name]()
