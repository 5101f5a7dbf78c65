"""joblib on a farm: `with muster.joblib(farm): GridSearchCV(...).fit(X, y)`. A thin skin on an executor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from joblib import parallel_config
from joblib._parallel_backends import AutoBatchingMixin, ParallelBackendBase, SequentialBackend
from joblib.parallel import BatchedCalls

from muster.coordinator.client.calls.executor import Executor

if TYPE_CHECKING:
    from muster.coordinator.client.farm import Farm

PICKLED = {"joblib": "joblib", "sklearn": "scikit-learn", "scipy": "scipy"}  # modules that what travels may be of


@contextmanager
def joblib(
    farm: Farm, *, results: Literal["known", "any"] = "known", packages: Sequence[str] = (), **more: Any
) -> Iterator[Executor]:
    """Have `joblib.Parallel`, and scikit-learn's `n_jobs`, run on `farm`. Calls and arguments are pickled; the other
    arguments are those of `Farm.executor`. `results="any"` opens results of any class, such as fitted estimators."""
    there = {name for module, name in PICKLED.items() if module in sys.modules and _is_installed(name)}
    needs = [*sorted(there), *packages]
    opened = farm.executor(**{"name": "joblib", **more}, ship="pickle", results=results, packages=needs)
    with opened as executor, parallel_config(backend=FarmBackend(executor)):
        yield executor


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


class FarmBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """What joblib asks of a backend. The session outlives calls of `Parallel`."""

    supports_retrieve_callback = True  # and with it `timeout` and `return_as="generator"`
    supports_inner_max_num_threads = True
    default_n_jobs = -1
    MAX_IDEAL_BATCH_DURATION = 1.0

    def __init__(self, executor: Executor, **more: Any) -> None:
        super().__init__(nesting_level=0, **more)
        self._executor = executor
        self._begun: list[Future[Any]] = []  # by the call of `Parallel` that is under way

    def __reduce__(self) -> Any:
        """A call that takes it along runs what it nests by itself: a farm within a call would wait for its own slot."""
        return SequentialBackend, ()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """As many as the machines that suit run at once, whatever is asked for."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        return max(1, self._executor.slots)

    def submit(self, func: BatchedCalls, callback: Callable[[Future[Any]], None] | None = None) -> Future[Any]:
        future = self._executor.submit(BatchedCalls.__call__, func)
        self._begun.append(future)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def start_call(self) -> None:
        self._begun = []

    def stop_call(self) -> None:
        self._begun = []

    def terminate(self) -> None:
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        begun, self._begun = self._begun, []
        self._executor.withdraw(begun)

    def get_nested_backend(self) -> tuple[ParallelBackendBase, int | None]:
        return SequentialBackend(nesting_level=1), None
