"""Whose jobs and uploads are whose, where several people submit to a farm. Decides nothing of what they may run.

A job's plan says whose it is. Of an upload ROOT/people/NAME/DIGEST says that NAME sent all of it, and DIGEST.part is on
its way: two may send the same.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from muster.coordinator.farm_root import uploads
from muster.coordinator.farm_root.paths import JobFolder, Root
from muster.coordinator.farm_root.uploads import Read, Upload
from muster.jobs.common.errors import NotFoundError, RefusedError, SourceError
from muster.jobs.common.names import LAST_JOB, is_job, is_plain, split_job_id


class _Owned(msgspec.Struct):
    """What of a plan says whose it is."""

    owner: str = ""


def checked(person: str) -> str:
    """The name itself, which becomes a part of paths and of jobs' names."""
    if not is_plain(person):
        raise RefusedError(f"{person[:80]!r} cannot name a person", "use letters, digits, `_` and `-`")
    return person


def owner_of(folder: JobFolder) -> str:
    """Whose it is; nobody's but the farm's where that cannot be read."""
    try:
        return msgspec.msgpack.decode(folder.plan.read_bytes(), type=_Owned).owner
    except (OSError, msgspec.DecodeError):
        return ""


def jobs_of(root: Root, person: str) -> list[str]:
    """The person's, in the order in which they were submitted."""
    found: list[tuple[int, str]] = []
    with suppress(FileNotFoundError):
        for path in root.jobs.iterdir():
            folder = root.job(path.name)
            mine = is_job(path.name) and path.name.startswith(named(person, ""))
            if mine and owner_of(folder) == person:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    found.append((folder.plan.stat().st_mtime_ns, path.name))
    return [job for _, job in sorted(found)]


def job_of(root: Root, person: str, text: str) -> str:
    """The full id of a job of this person: `weights`, as it was called when it was submitted, `ann-weights`, a full id
    or `last`. What is another's is not there."""
    mine = jobs_of(root, person)
    if text == LAST_JOB and mine:
        return mine[-1]
    name, number = split_job_id(text)
    for called in (name, named(person, name)):
        numbers = [split_job_id(job)[1] or 0 for job in mine if split_job_id(job)[0] == called]
        wanted = max(numbers, default=0) if number is None else number
        if wanted in numbers:
            return f"{called}.{wanted}"
    raise NotFoundError(f"you have no job {text!r}", "`coordinator status` lists yours")


def named(person: str, job: str) -> str:
    """What a person's job is called here: a name alone is never taken for somebody else's."""
    return f"{person}-{job}"


def receive(root: Root, person: str, digest: str, nbytes: int, start: int, read: Read) -> Upload:
    """Take an array of this person in, and note whose it is. Only who sends all of it has it: with the digest of
    another's alone they would compute with it."""
    folder = root.people / checked(person)
    made = uploads.receive(root, digest, nbytes, start, read, apart=folder)
    (folder / digest).touch(mode=0o600)
    return made


def uploads_of(root: Root, person: str) -> list[Upload]:
    """Those that the person sent, as far as they are here. What is gone from here is forgotten."""
    there = {one.digest: one for one in uploads.listed(root) if one.complete}
    found: dict[str, Upload] = {}
    for path in sorted((root.people / person).glob("*")):
        if path.suffix != uploads.PARTIAL and path.name in there:
            found[path.name] = there[path.name]
        elif path.suffix != uploads.PARTIAL:
            path.unlink(missing_ok=True)
        elif path.stem not in found:
            with suppress(FileNotFoundError):  # whole meanwhile
                found[path.stem] = Upload(path.stem, path.stat().st_size, False)
    return list(found.values())


def check_sent(root: Root, person: str, digests: list[str]) -> None:
    """A SourceError unless the person sent each of these."""
    sent = {one.digest for one in uploads_of(root, person) if one.complete}
    for digest in digests:
        if digest not in sent:
            raise SourceError(f"the uploaded array {digest[:32]} is not here", "send it, then submit again")
