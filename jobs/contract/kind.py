"""What a kind of job is: the class to derive, and what it is given and gives back. `muster.jobs.kinds` hands it on.

A kind says how to run a shard; it never merges, retries or talks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from muster.jobs.common.errors import JobFileError
from muster.jobs.contract.failure_codes import DataCode, ShardCode
from muster.jobs.contract.pictures import Picture
from muster.jobs.contract.plan import Output, Work
from muster.jobs.contract.requirements import COMMON
from muster.jobs.contract.shard_size import RowCost

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


@dataclass(frozen=True)
class Shape:
    """What a kind may know of its rows at submit time."""

    row: tuple[int, ...]  # one row's shape, () for a scalar
    dtype: str


@dataclass(frozen=True)
class Listed:
    """What a kind may know of a list of items at submit time: files, or lines with these columns."""

    columns: tuple[str, ...]
    items: Callable[[], Iterator[str | Mapping[str, str]]]  # names of files, or lines, from the first on


@dataclass(frozen=True)
class Items:
    """A shard's items: files, which lie under their `names` below `folder`, or `lines` of a table."""

    folder: Path  # of this shard alone; empty for lines
    names: Sequence[str] = ()
    lines: Sequence[Mapping[str, str]] = ()

    def __len__(self) -> int:
        return len(self.names) + len(self.lines)


@dataclass(frozen=True)
class Shard:
    """One shard's input, in the worker."""

    layer: str
    number: int
    first_row: int
    rows: np.ndarray[Any, Any] | None  # None where it has items, or was made: then `payload` has its input
    payload: bytes = b""
    items: Items | None = None
    sheet: Path | None = None  # of a round: what its driver laid out, here; to be read or mapped, never written
    job: str = ""  # the first one that it was granted for here: another may have the same layer


@dataclass(frozen=True)
class Ragged:
    """A ragged output: `lengths[i]` values belong to row i."""

    lengths: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Total:
    """A `sum` output where nothing was declared: integers, to be added up over all shards."""

    value: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Written:
    """A `files` output: files below `folder`, each with the position of its item in the shard, or -1, in order."""

    folder: Path
    files: Sequence[tuple[int, str]]


Result = Mapping[str, "np.ndarray[Any, Any] | Ragged | Total | Written"]


@dataclass(frozen=True)
class JobPlace:
    """Where a kind finds what there is of a job; either folder may be missing."""

    result: Path  # a folder for each merged layer
    checkpoints: Path  # what its driver keeps


@dataclass(frozen=True)
class EarlierJob:
    """A job of the farm that a new one goes on from."""

    id: str
    kind: str
    stands: bool  # whether it goes on no more by itself, as far as anybody can tell
    model: str | None  # the digest of the file that every machine got a copy of
    place: JobPlace


@dataclass(frozen=True)
class Site:
    """What a kind may look at while its job is planned, in the process of who submits."""

    base: Path  # the job file's folder
    shapes: tuple[Shape, ...]  # of the source's layers, each once; none where rows are made
    cpus: int
    has_code: bool
    python: str | None  # the job's `env`
    entry: str | None = None  # of the user's code, which lies below `base`
    moved: Mapping[str, Path] = field(default_factory=dict)  # files named in the job file that are elsewhere by now
    may_try: bool = True  # whether the submitter's model may be run here; not on a server that is another's
    earlier: Callable[[str], EarlierJob | None] = lambda name: None  # a job of the farm by its name or id; None where
    #   no farm is known, a MusterError where it has no such job


@dataclass(frozen=True)
class Bench:
    """What a worker lends a kind for as long as it is open."""

    params: Any  # an instance of the kind's Params
    cpus: int  # threads of the numeric libraries
    timeout: float | None
    scratch: Path  # a folder of this worker's own, on the spool's disk
    code: Path | None = None  # where the user's files were unpacked
    entry: str | None = None
    python: str | None = None  # interpreter for the user's code; None: the one we run in
    env: Mapping[str, str] = field(default_factory=dict)  # more environment for the user's code
    model: Path | None = None  # this machine's copy of the job's model
    check_code: Callable[[], None] = lambda: None  # to be called before each start of a process that runs the user's
    #   code: `code` then holds what was submitted and nothing else. It was, when the kind was opened


Answers = Mapping[str, "tuple[np.ndarray[Any, Any], Any]"]  # what came, and what is right; by what it is

P = TypeVar("P", bound=msgspec.Struct)


@dataclass(frozen=True)
class Prepared(Generic[P]):
    """What planning made of a job's parameters: nothing of them is left to be found out later."""

    params: P
    model: str | None = None  # a file that every machine gets a copy of, relative to the job file's folder
    needs: tuple[str, ...] = ()  # packages that a machine must have, as `muster.jobs.contract.requirements` knows them
    proven: bool = False  # whether a shard fails by the machine's fault alone, so that no first one need be awaited
    row_seconds: float | None = None  # roughly, where planning could tell and the parameters do not; see `row_cost`
    same_kernels: bool = False  # whether machines of other kernels are left out, as if the job file said so


@dataclass(frozen=True)
class CalledWith:
    """What a user's function gets behind its first argument, by name."""

    given: frozenset[str]  # what the job says
    offered: frozenset[str]  # what it gets if it has a parameter for it


@dataclass(frozen=True)
class KindForecast:
    """What a kind says of a job before it runs, in place of shards and layers. Its driver is to report in this unit."""

    total: int
    unit: str  # one of what its driver counts: "round"
    head: str  # in a few words: "mlp with 610 parameters"
    lines: tuple[str, ...]  # for people, each with its label: "data     1,437 rows"
    numbers: Mapping[str, float | str]  # the same for programs


def draw_nothing(folder: Path) -> Sequence[Path]:
    """Of a kind that has no files of its own to write."""
    return ()


def no_curves() -> Sequence[Sequence[msgspec.Struct]]:
    """Of a kind whose jobs have no parts with curves of their own."""
    return ()


@dataclass(frozen=True)
class KindReport:
    """How jobs of one kind went, side by side: of each a row for people, and a value for programs."""

    header: tuple[str, ...]
    right: str  # an `r` for each column that is aligned to the right, any other character for the others
    rows: Sequence[tuple[str, ...]]
    values: Sequence[msgspec.Struct]
    draw: Callable[[Path], Sequence[Path]] = draw_nothing  # pictures and their numbers, into a folder; the files
    pictures: Sequence[Picture] = ()  # for the report's own page
    below: Sequence[str] = ()  # lines for people, under the table
    curves: Callable[[], Sequence[Sequence[msgspec.Struct]]] = no_curves  # for programs: each job's parts


class Nothing(msgspec.Struct, frozen=True):
    """What a kind has to say that keeps nothing of its own."""


class Runner(ABC):
    """A kind, opened once per worker and job."""

    peak: int = 0  # bytes of memory its own processes took for the last shard, where it has any
    printed: str = ""  # what the user's code printed for the last shard, its middle left out
    made: Mapping[str, bytes] = MappingProxyType({})  # of the last shard: what another may read as its sheet, by digest

    @abstractmethod
    def run(self, shard: Shard) -> Result:
        """The outputs of one shard. Raises ShardFailure for what is the shard's own fault."""

    def close(self) -> None:  # noqa: B027 - most kinds have nothing to give back
        """Give back processes and files. Called once; never raises."""


class Kind(ABC, Generic[P]):
    """One kind of job. Instances hold no state."""

    name: ClassVar[str]
    kernel: ClassVar[int]  # raise it whenever the same input would give other bytes
    Params: ClassVar[type[msgspec.Struct]]  # forbid_unknown_fields, every field with a default where one is sane
    wants_code: ClassVar[bool] = False  # whether the job file must name `code`
    may_have_code: ClassVar[bool] = False  # whether it may
    has_entry: ClassVar[bool] = True  # whether code has a function that is called
    sourceless: ClassVar[bool] = False  # all its shards are made, by a driver, and a job file has no `source`
    names_model: ClassVar[bool] = False  # whether `params.model` is a file, which goes along to a farm elsewhere
    model_is: ClassVar[str] = "model"  # what the file is that its machines get a copy of, in a word
    goes_on_by: ClassVar[str] = ""  # the parameter that names an earlier job of this kind, which this one goes on from
    takes_target: ClassVar[bool] = False  # whether its reports compare jobs by a score that may be asked for
    driven: ClassVar[bool] = False  # whether a driver makes shards as results arrive: a process, found by our name

    def check(self, params: P, shape: Shape | None) -> None:
        """Refuse, with a JobFileError naming the field, what could never run. `shape` is None where rows are made."""

    def prepare(self, params: P, site: Site) -> Prepared[P]:
        """Resolve, once and before all else, what is `auto`; find the model. May raise a JobFileError, as `check`."""
        return Prepared(params)

    def rounds(self, params: P) -> Literal["", "whole", "each"]:
        """Of a kind with a driver: whether its shards come in rounds, see `muster.jobs.contract.plan.Delivery`."""
        return ""

    def patched(self, params: P, sheet: bytes, patch: bytes) -> bytes:
        """The sheet that a patch of this kind's driver makes of an earlier one; a ValueError for one that does not fit.
        Runs in the agent itself, so that a machine gets no more than what changed; a digest tells if it is right."""
        raise ValueError("this kind has no patches")

    def repeats(self, params: P, shape: Shape | None, threads: int, has_code: bool) -> bool:
        """Whether one input gives the same bytes whenever it is computed on machines of one kernel fingerprint, so that
        any result is that of a serial run. To be said only where all that computes is the kind's own: users' code and
        others' libraries may draw numbers, read the clock, or add in whatever order their threads come."""
        return False

    def runs_code(self, work: Work) -> bool:
        """Whether shards of this work run what its submitter wrote, or a program that he names: a machine may take none
        of that. Asked at submit, and by each agent itself before it runs anything, of work that may be made up."""
        return self.wants_code or work.code is not None or "/" in (work.env or "")

    def known_answers(self) -> Answers:
        """A small problem that what solves its shards solves in some milliseconds, with the answer that is known. Each
        worker asks before its first shard of the kind; where integers are not equal, or floats not nearly so, its
        machine takes no part in the kind. The agent asks as it joins, so that bits are compared between machines that
        should give the same. Nothing, for a kind whose numerics are others'."""
        return {}

    def rests_on(self, params: P, has_code: bool) -> tuple[str, ...]:
        """Packages whose versions decide the bits of its results, beside numpy, its BLAS and scikit-learn, which every
        fingerprint names. Of users' code nobody knows: then those that are common."""
        return COMMON if has_code else ()

    def called_with(self, params: P) -> CalledWith | None:
        """How the function that a job file names is called, for planning to compare with what it takes; None where it
        is no function, or nobody knows."""
        return None

    def forecast(self, params: P, entry: str | None) -> KindForecast | None:
        """What a job will be, where its driver counts something else than shards, else None. `entry`: of its code."""
        return None

    def report(self, places: Mapping[str, JobPlace], target: float | None) -> KindReport:
        """What is this kind's own of how jobs go or went, beside what is measured of every job; a NotFoundError while
        there is nothing yet. `target`: a score to compare them by."""
        return KindReport((), "", [() for _ in places], [Nothing() for _ in places])

    def grain(self, params: P) -> int:
        """Rows a shard had better be a multiple of, where its size is ours to choose."""
        return 1

    def row_cost(self, params: P, shape: Shape, work: Work) -> RowCost:
        """Roughly what a row takes, where the kind can tell, for a shard whose size is ours to choose."""
        return RowCost()

    @abstractmethod
    def declare(self, params: P, shape: Shape | None) -> tuple[Output, ...] | None:
        """The outputs, or None where only the first shard can tell."""

    def declare_items(self, params: P, listed: Listed) -> tuple[Output, ...] | None:
        """The same for items of a list, and what `check` does. Kinds that take none refuse them."""
        raise JobFileError(f"source: kind `{self.name}` computes on arrays", "source: {path: weights/}")

    @abstractmethod
    def open(self, bench: Bench) -> Runner:
        """Ready to run shards, in the worker."""


class ShardFailure(Exception):
    """A shard that failed by itself: an exception, a bad exit, a timeout, a wrong output. Never a lost machine. With
    the code `data` it is not tried again: its input has no answer, whoever computes it."""

    def __init__(self, code: ShardCode | DataCode, message: str, evidence: str = "") -> None:
        super().__init__(message)
        self.code: ShardCode | DataCode = code
        self.message = message
        self.evidence = evidence


class RunnerLost(Exception):
    """The process that ran the user's code was killed from outside: a loss, not a failure."""
