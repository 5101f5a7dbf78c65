"""What a job of the kind `cluster` says of its clusterings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SEED_LIMIT = (1 << 32) - 1  # as in sklearn


class ClusterParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """sklearn.cluster.KMeans' parameters under its names; `init: density`, `algorithm: exact` and `labels` are ours.

    Without `tol`, each center of one feature comes to rest; of several, it is sklearn's own.
    """

    n_clusters: Annotated[int, Meta(ge=1)] = 8
    init: Literal["density", "k-means++", "random"] | list[float | list[float]] | None = None
    n_init: Literal["auto"] | Annotated[int, Meta(ge=1)] = "auto"
    max_iter: Annotated[int, Meta(ge=1)] = 300
    tol: Annotated[float, Meta(ge=0)] | None = None
    random_state: Annotated[int, Meta(ge=0, le=SEED_LIMIT)] = 0
    algorithm: Literal["lloyd", "elkan", "exact"] = "lloyd"
    labels: bool = False
    on_item_error: Literal["fail", "record"] | msgspec.UnsetType = msgspec.UNSET  # said in plans where it is `record`
