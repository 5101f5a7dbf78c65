"""joblib on a farm: `with muster.joblib(farm): GridSearchCV(...).fit(X, y)`, or by its name, "muster", once this is
imported. A thin skin on an executor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from joblib import parallel_config, register_parallel_backend
from joblib._parallel_backends import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend
from joblib.parallel import BatchedCalls, Parallel, get_active_backend

from muster.coordinator.client.calls.executor import Executor
from muster.coordinator.client.calls.opening import listed
from muster.jobs.common.errors import UsageError

if TYPE_CHECKING:
    from muster.coordinator.client.farm import Farm

PICKLED = {"joblib": "joblib", "sklearn": "scikit-learn", "scipy": "scipy"}  # modules that what travels may be of
ALONE = 1  # jobs that joblib runs in its own process, without asking a backend for more
OF_JOBLIB = frozenset({"max_nbytes", "temp_folder", "mmap_mode", "prefer", "require", "verbose", "context"})

_kept: list[tuple[object, Executor]] = []  # sessions of backends that were asked for by name, for as long as we run
_opening = Lock()


@contextmanager
def joblib(
    farm: Farm | str | Path | None = None,
    *,
    results: Literal["known", "any"] = "known",
    packages: str | Sequence[str] = (),
    inner_max_num_threads: int | None = None,
    **more: Any,
) -> Iterator[Executor]:
    """Have `joblib.Parallel`, and scikit-learn's `n_jobs`, run on `farm`, or where that is. Calls and arguments are
    pickled; the other arguments are those of `Farm.executor`. `results="any"` opens results of any class, such as
    fitted estimators. `inner_max_num_threads=4` gives each job four processors, and its libraries as many threads."""
    given = {"results": results, "packages": packages, "inner_max_num_threads": inner_max_num_threads, **more}
    with _opened(farm, **given) as executor, parallel_config(backend=FarmBackend(executor)):
        yield executor


def _opened(
    farm: Farm | str | Path | None,
    *,
    packages: str | Sequence[str] = (),
    inner_max_num_threads: int | None = None,
    **more: Any,
) -> Executor:
    from muster.coordinator.client.farm import Farm

    there = {name for module, name in PICKLED.items() if module in sys.modules and _is_installed(name)}
    if inner_max_num_threads is not None:
        more["resources"] = _with_threads(more.get("resources") or {}, inner_max_num_threads)
    place = farm if isinstance(farm, Farm) else Farm(farm)
    return place.executor(**{"name": "joblib", **more}, ship="pickle", packages=[*sorted(there), *listed(packages)])


def _with_threads(resources: Mapping[str, Any], threads: int) -> dict[str, Any]:
    if resources.get("cpus", threads) != threads:
        raise UsageError(
            f"inner_max_num_threads={threads}, and resources say cpus: {resources['cpus']}: a job has as many threads "
            "as processors",
            "give one of the two",
        )
    return {**resources, "cpus": threads}


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def _session(farm: Farm | str | Path | None, more: dict[str, Any]) -> Executor:
    """The session that was opened so before, unless it has ended."""
    with _opening:
        _kept[:] = [(how, executor) for how, executor in _kept if executor.is_open]
        for how, executor in _kept:
            if how == (farm, more):
                return executor
        executor = _opened(farm, **more)
        _kept.append(((farm, more), executor))
    return executor


class FarmBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """What joblib asks of a backend. The one in a `parallel_config` makes one for each `Parallel`."""

    supports_retrieve_callback = True  # and with it `timeout` and `return_as="generator"`
    default_n_jobs = -1
    MAX_IDEAL_BATCH_DURATION = 1.0

    def __init__(
        self,
        farm: Executor | Farm | str | Path | None = None,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        **more: Any,
    ) -> None:
        """`farm`: a session that is open, or where one is to be opened when it is needed, with `more` as `joblib` here
        takes it; None: that of the backend that joblib uses now, if it is such a one, or this machine's farm."""
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._farm, self._more = farm, more
        self.parallel: Parallel | None = None  # whose it is; joblib's own part looks there, too
        self._begun: set[Future[Any]] = set()  # and has not ended

    def __reduce__(self) -> Any:
        """A call that takes it along runs what it nests by itself: a farm within a call would wait for its own slot."""
        return SequentialBackend, ()

    @property
    def supports_inner_max_num_threads(self) -> bool:
        """Of a session that is open it is what it is."""
        return not isinstance(self._farm, Executor)

    @property
    def executor(self) -> Executor:
        if isinstance(self._farm, Executor):
            return self._farm
        active = get_active_backend()[0]
        if self._farm is None and active is not self and isinstance(active, FarmBackend):
            return active.executor
        threads = self.inner_max_num_threads
        return _session(self._farm, {**self._more, **({"inner_max_num_threads": threads} if threads else {})})

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """As many as the machines that suit run at once, whatever is asked for; but no job leaves this process where
        one is asked for, as joblib has it. Of a farm with one slot it is two, as joblib asks no backend for one."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        return ALONE if n_jobs == ALONE else max(ALONE + 1, self.executor.slots)

    def configure(self, n_jobs: int = 1, parallel: Parallel | None = None, **more: Any) -> int:
        if unknown := sorted(more.keys() - OF_JOBLIB):
            hint = f"say it in parallel_config('muster', {unknown[0]}=...) or muster.joblib(farm, {unknown[0]}=...)"
            raise UsageError(f"Parallel({unknown[0]}=...) is nothing that backend 'muster' takes there", hint)
        slots = self.effective_n_jobs(n_jobs)
        if slots > ALONE and parallel is not self.parallel:
            raise FallbackToBackend(self._for(parallel))
        return slots

    def _for(self, parallel: Parallel | None) -> FarmBackend:
        """What is aborted, and how jobs are batched, is of one `Parallel` alone."""
        one = FarmBackend(self.executor, self.nesting_level)
        one.parallel = parallel
        return one

    def submit(self, func: BatchedCalls, callback: Callable[[Future[Any]], None] | None = None) -> Future[Any]:
        future = self.executor.submit_alone(BatchedCalls.__call__, func)
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def terminate(self) -> None:
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        self.executor.withdraw(self._begun.copy())

    def get_nested_backend(self) -> tuple[ParallelBackendBase, int | None]:
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None


register_parallel_backend("muster", FarmBackend)
