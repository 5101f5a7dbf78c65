"""A job file read, planned and laid ready for the daemon, all in the process of who submits. Starts nothing."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.farm_root.submission_folders import locked_folder
from muster.coordinator.submission.earlier_jobs import EarlierJobs
from muster.jobs.common.durable import fsync, fsync_folder, naming_space, write_durably
from muster.jobs.common.errors import RefusedError
from muster.jobs.contract.plan import ITEMS_LIST, Plan, encode_plan
from muster.jobs.inference import model_file
from muster.jobs.job_file.make_plan import make_plan
from muster.jobs.job_file.read import parse_job, read_text
from muster.jobs.user_code.code_pack import CodeBundle, collect, pack


@dataclass(frozen=True)
class Planned:
    """A plan, and what it was made from."""

    plan: Plan
    job_file: bytes
    code: CodeBundle | None
    base: Path  # what paths in the job file start at
    items: ItemsAt
    model: Path | None = None  # where it is; None: where `params.model` says


class ItemsAt:
    """Where planning writes the list of items, if there are some, until somebody takes it away; gone with this."""

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="muster-plan-"))
        self.path = self.folder / ITEMS_LIST
        weakref.finalize(self, shutil.rmtree, self.folder, True)


def plan_file(path: Path, root: Root | None = None, old: str | None = None) -> Planned:
    """The plan of a job file; whatever is wrong with it or its source is an error that says where. `root`: the farm
    that may have the same layers; `old`: the job of it that comes first there."""
    return plan_text(read_text(path), path.name, path.absolute().parent, root, old)


def plan_text(text: str, where: str, base: Path, root: Root | None = None, old: str | None = None) -> Planned:
    """The same of a job file's text; `where` starts every error, `base` is what its paths start at."""
    job = parse_job(text, where)
    code = collect(job.code.entry, job.code.include, base) if job.code else None
    items = ItemsAt()
    earlier = EarlierJobs(root, old) if root is not None else None
    plan = make_plan(job, base, code, items.path, precedents=earlier)
    return Planned(msgspec.structs.replace(plan, base=str(base)), text.encode(), code, base, items)


@contextmanager
def submission(
    root: Root, planned: Planned, arrays: Mapping[str, Path] | None = None, after: Sequence[str] = ()
) -> Iterator[str]:
    """The name of a folder under ROOT/tmp with all that the daemon needs; gone afterwards unless the daemon took it.

    `arrays`: uploads by layer, kept beside the job file as links. `after`: jobs that are to be complete before it
    starts, beside those of the job file.
    """
    planned = _after_known(root, planned, after)
    try:
        with naming_space(root.tmp), locked_folder(root.tmp) as folder:
            try:
                link_arrays(folder / "arrays", arrays or {})
                _write(folder, planned)
                yield folder.name
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise RefusedError(f"{root.tmp}: {error.strerror or error}", "submit as the user the root belongs to") from None


def _after_known(root: Root, planned: Planned, more: Sequence[str]) -> Planned:
    """The same, where the jobs that it starts after have their full ids: a name is the latest of it at this moment."""
    named = dict.fromkeys([*planned.plan.after, *more])
    ids = tuple(dict.fromkeys(ask_daemon.job_named(root, name, for_good=True) for name in named))
    return replace(planned, plan=msgspec.structs.replace(planned.plan, after=ids))


def link_arrays(folder: Path, arrays: Mapping[str, Path]) -> None:
    """`folder`/LAYER.npy for each."""
    for name, target in arrays.items():
        link = folder / f"{name}.npy"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _write(folder: Path, planned: Planned) -> None:
    write_durably(folder / "job.yaml", planned.job_file)
    write_durably(folder / "plan.msgpack", encode_plan(planned.plan))
    if planned.code:
        write_durably(folder / "code.pack", pack(planned.code))
    if (model := planned.plan.work.model) is not None:
        model_file.copy(planned.model or model_file.find(model.name, planned.base), folder / "model", model)
    if planned.items.path.exists():
        shutil.copyfile(planned.items.path, folder / ITEMS_LIST)
        with (folder / ITEMS_LIST).open("rb") as file:
            fsync(file.fileno())
    fsync_folder(folder.parent)
