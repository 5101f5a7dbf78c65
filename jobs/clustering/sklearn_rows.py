"""Clustering rows of several features: sklearn's KMeans on each. Owns only its threads, seeds and dtypes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from muster.jobs.clustering.initial_centers import stream
from muster.jobs.clustering.lloyd import Clusters

if TYPE_CHECKING:
    from muster.jobs.clustering.params import ClusterParams

SKLEARNS_TOL = 1e-4


def cluster(rows: NDArray[Any], params: ClusterParams, first_row: int, threads: int) -> Clusters:
    """Each row of `rows` (count, n, features) by itself, on `threads` threads: their number decides sklearn's bits."""
    count, n, features = rows.shape
    k = params.n_clusters
    found = Clusters(
        centers=np.empty((count, k, features)),
        counts=np.empty((count, k), np.int64),
        inertia=np.empty(count),
        iterations=np.empty(count, np.int32),
        labels=np.empty((count, n), np.int32),
        ok=np.isfinite(rows).all(axis=(1, 2)),
    )
    with threadpool_limits(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters: see docs/cluster.md
        for i in np.flatnonzero(found.ok).tolist():
            fitted = _fitted(rows[i], params, first_row + i)
            found.centers[i], found.labels[i] = fitted.cluster_centers_, fitted.labels_
            found.counts[i] = np.bincount(fitted.labels_, minlength=k)
            found.inertia[i], found.iterations[i] = fitted.inertia_, fitted.n_iter_
    return found


def _fitted(row: NDArray[Any], params: ClusterParams, number: int) -> Any:
    values = row.astype(np.float32 if row.dtype.kind == "f" and row.dtype.itemsize <= 4 else np.float64)
    model = KMeans(
        n_clusters=params.n_clusters,
        init=np.array(params.init, values.dtype) if isinstance(params.init, list) else params.init or "k-means++",
        n_init=1 if isinstance(params.init, list) else params.n_init,
        max_iter=params.max_iter,
        tol=SKLEARNS_TOL if params.tol is None else params.tol,
        random_state=stream(params.random_state, number),
        algorithm=params.algorithm,
    )
    return model.fit(values)
