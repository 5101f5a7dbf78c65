"""Names that become paths: what a job, an agent and a layer may be called. Nothing else may turn text into a path."""

from __future__ import annotations

import re

from muster.jobs.common.errors import UsageError

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_LAYER_PART = re.compile(r"[A-Za-z0-9_.+@=,\- ]{1,128}", re.ASCII)
_JOB_ID = re.compile(r"([A-Za-z0-9_-]{1,64})\.([1-9][0-9]{0,8})", re.ASCII)
_ENVIRONMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)

NAME_LIMIT = 64  # of a job or an agent
LAYER_NAME_LIMIT = 512


LAST_JOB = "last"  # where a job is named, the one that was submitted last
ALL_JOBS = "all"  # where several may be named, all that a command is for


def is_plain(text: str) -> bool:
    """Whether `text` may name a job or an agent."""
    return _PLAIN.fullmatch(text) is not None


def is_job(text: str) -> bool:
    """Whether `text` is a job's full id, such as `weights.2`."""
    return _JOB_ID.fullmatch(text) is not None


def is_environment(text: str) -> bool:
    """Whether `text` may name a Python environment."""
    return _ENVIRONMENT.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def is_layer(text: str) -> bool:
    """A relative path of checked parts. No part may pass for a file that a merge writes."""
    if not 0 < len(text) <= LAYER_NAME_LIMIT:
        return False
    return all(_is_layer_part(part) for part in text.split("/"))


def _is_layer_part(part: str) -> bool:
    if part in {".", "..", "manifest.json"} or part.endswith(".npy"):
        return False
    return _LAYER_PART.fullmatch(part) is not None


def check_name(text: str, what: str) -> str:
    """`text` itself where it may name a `what`; else an error that says what a name is."""
    if is_plain(text):
        return text
    shown = repr(text if len(text) <= 40 else text[:37] + "...")
    raise UsageError(f"{what} name {shown} is not allowed", "use 1 to 64 letters, digits, `_` and `-`")


def split_job_id(text: str) -> tuple[str, int | None]:
    """`weights.2` is ("weights", 2); `weights`, meaning its latest, is ("weights", None)."""
    match = _JOB_ID.fullmatch(text)
    if match:
        return match[1], int(match[2])
    return check_name(text, "job"), None


def parse_shard(text: str) -> tuple[str, int]:
    """`conv1/17` is layer conv1, shard 17."""
    layer, _, number = text.rpartition("/")
    if not layer or not number.isdecimal():
        raise UsageError(f"{text!r} is not a shard", "write LAYER/NUMBER, such as conv1/17")
    return layer, int(number)
