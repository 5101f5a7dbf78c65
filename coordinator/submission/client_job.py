"""A job as a client sends it: the job file's text, the user's code packed, its arrays as digests of uploads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from muster.coordinator.api.requests import Submit, Submitted
from muster.coordinator.farm_root import ask_daemon, uploads
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.farm_root.submission_folders import locked_folder
from muster.coordinator.submission.earlier_jobs import EarlierJobs
from muster.coordinator.submission.submit import ItemsAt, Planned, link_arrays, submission
from muster.jobs.common.durable import naming_space
from muster.jobs.common.errors import ProtocolError, RefusedError, UsageError
from muster.jobs.common.names import is_layer
from muster.jobs.job_file.cut_layers import Precedents
from muster.jobs.job_file.make_plan import make_plan
from muster.jobs.job_file.read import FILE_LIMIT, parse_job
from muster.jobs.user_code.code_pack import PACK_LIMIT, CodeBundle, opened

ARRAYS = "arrays"  # what the source of a job over uploads is called in its job file
ARRAYS_LIMIT = 65_536
TABLE_LIMIT = 64 << 20  # bytes of a table that goes with its job
BYTES_LIMIT = FILE_LIMIT + PACK_LIMIT + ARRAYS_LIMIT * 640 + TABLE_LIMIT


class ClientJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`arrays`: layer → digest; then the job file's source is `arrays`. `model`: the name in `params.model`, digest.
    `table`: the file that `source.table` names. A server of a version before a field takes parcels without it."""

    job: str
    code: bytes | None = None
    arrays: dict[str, str] = {}
    model: tuple[str, str] | None = None
    table: tuple[str, bytes] | None = None


def encode(parcel: ClientJob) -> bytes:
    return msgspec.msgpack.encode(parcel)


def decode(raw: bytes) -> ClientJob:
    """What another process sent; a ProtocolError for anything else."""
    if len(raw) > BYTES_LIMIT:
        raise ProtocolError(f"a parcel of more than {BYTES_LIMIT} bytes", "include less code")
    try:
        return msgspec.msgpack.decode(raw, type=ClientJob)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"that is no parcel: {error}") from None


def submit(root: Root, parcel: ClientJob, after: Sequence[str] = (), old: str | None = None, owner: str = "") -> str:
    """The id of the job. `after`: jobs that it starts after, beside those that it names itself; `old`: one whose merged
    layers it takes over where they would come out the same; `owner`: the second person whose it is."""
    origin = roots.resolve_job(root, old) if old is not None else None
    check_layers(parcel.arrays)
    uploads.check_there(root, [*parcel.arrays.values(), *([parcel.model[1]] if parcel.model else [])])
    files = {name: uploads.path_of(root, digest) for name, digest in parcel.arrays.items()}
    with _scratch(root) as folder:
        link_arrays(folder / ARRAYS, files)
        if parcel.model:
            _link_model(root, folder, *parcel.model)
        if parcel.table:
            _write_table(folder, *parcel.table)
        with submission(root, _planned(root, parcel, folder, origin, owner), files, after) as taken:
            return ask_daemon.ask(root, Submit(taken, origin), Submitted).job


def check_layers(names: Mapping[str, object]) -> None:
    """A UsageError for what cannot be a layer's name."""
    if len(names) > ARRAYS_LIMIT:
        raise UsageError(f"{len(names)} arrays, a job may have {ARRAYS_LIMIT}", "put more rows into each")
    for name in names:
        if not isinstance(name, str) or not is_layer(name) or any(part.startswith(".") for part in name.split("/")):
            hint = "letters, digits, spaces and `_.+@=,-`, not starting with a dot and not ending in .npy"
            raise UsageError(f"{str(name)[:80]!r} cannot be a layer's name", hint)


def is_file_name(name: str) -> bool:
    return is_layer(name) and "/" not in name and not name.startswith(".")


def _link_model(root: Root, folder: Path, name: str, digest: str) -> None:
    """Under its own name, which says its format: a symbolic link would be resolved."""
    if not is_file_name(name):
        raise UsageError(f"{name[:80]!r} cannot be the name of a model", "use letters, digits and `_.-`")
    (folder / name).hardlink_to(uploads.path_of(root, digest))


def _write_table(folder: Path, name: str, raw: bytes) -> None:
    """Its items become the job's list: nobody needs it afterwards."""
    if not is_file_name(name):
        raise UsageError(f"{name[:80]!r} cannot be the name of a table", "use letters, digits and `_.-`")
    (folder / name).write_bytes(raw)


def _planned(root: Root, parcel: ClientJob, folder: Path, old: str | None, owner: str) -> Planned:
    from muster.coordinator.submission import foreign_job

    before = foreign_job.check(root, owner, parcel) if owner else ()
    code = opened(parcel.code) if parcel.code is not None else None
    made = plan_in(folder, parcel.job, code, EarlierJobs(root, old), may_try=not owner)
    return replace(made, plan=foreign_job.owned(made.plan, owner, before)) if owner else made


def plan_in(
    folder: Path, text: str, code: CodeBundle | None, precedents: Precedents | None = None, may_try: bool = True
) -> Planned:
    """The plan of a job file's text, whose paths start at `folder`; `may_try` as `make_plan` has it."""
    items = ItemsAt()
    plan = make_plan(parse_job(text, "job"), folder, code, items.path, precedents=precedents, may_try=may_try)
    return Planned(plan, text.encode(), code, folder, items)


@contextmanager
def _scratch(root: Root) -> Iterator[Path]:
    """A folder for the time of planning; swept if we are killed."""
    try:
        with naming_space(root.tmp), locked_folder(root.tmp) as folder:
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except PermissionError as error:
        raise RefusedError(f"{root.tmp}: {error.strerror}", "submit as the user the root belongs to") from None
