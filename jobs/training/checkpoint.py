"""A training's state in one file, durable and checked; the last few of them, and when the next is due. Knows no round's
numerics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load, save

from muster.jobs.common import durable
from muster.jobs.common.errors import DamagedError, RefusedError
from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes
from muster.jobs.training.aggregation.synchronous import SynchronousRounds
from muster.jobs.training.params import Facts, TrainParams
from muster.jobs.training.progress import BestMark, CourseRecord, TrainingCourse

Array = np.ndarray[Any, Any]

FORMAT = "muster-train-1"
KEPT = 3
DUE_SECONDS = 10.0  # of training, after which one is due however few rounds there were
BEST = "best.safetensors"
HINT = "another checkpoint of the job may be whole: they lie side by side"
_NAME = re.compile(r"round-([0-9]{10})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """What a driver goes on from."""

    outer: SynchronousRounds | AsynchronousPushes
    course: TrainingCourse


@dataclass(frozen=True)
class CheckpointTold:
    """What people are told of a training, whoever asks."""

    params: TrainParams
    round: int
    record: CourseRecord
    best: BestMark | None
    reached: BestMark | None


def is_due(params: TrainParams, record: CourseRecord, round_: int, seconds: float) -> bool:
    """Whether the state after `round_`, so many seconds into the training, is to be kept."""
    passed = round_ - record.saved_round >= params.checkpoint_rounds
    return round_ > record.saved_round and (passed or seconds - record.saved_seconds >= DUE_SECONDS)


def name_of(round_: int) -> str:
    return f"round-{round_:010d}.safetensors"


def model_text(params: TrainParams, facts: Facts | None) -> str:
    """What a checkpoint's model is called where it is refused."""
    shape = "x".join(map(str, facts.row)) if facts else "?"
    inner = "-".join(map(str, params.layers)) if params.model == "mlp" else str(params.filters)
    size = f" ({inner})" if params.model in ("mlp", "conv1") else ""
    return f"{params.model}{size} for rows of {shape} in {facts.classes if facts else '?'} classes"


def encode(outer: SynchronousRounds | AsynchronousPushes, course: TrainingCourse) -> bytes:
    """The file's bytes: what `decode` makes the same state of."""
    arrays, values = outer.state_dict()
    course_arrays, course_values = course.state_dict()
    state = msgspec.msgpack.encode({"outer": values, "course": course_values, "params": outer.params})
    tensors = {f"outer.{name}": array for name, array in arrays.items()}
    tensors |= {f"course.{name}": array for name, array in course_arrays.items()}
    tensors["state"] = np.frombuffer(state, np.uint8)
    told = {
        "format": FORMAT,
        "model": model_text(outer.params, outer.params.facts),
        "params": _digest_of_params(outer.params),
        "round": str(outer.round),
        "digest": _digest_of(tensors),
    }
    return save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, told)


def write(folder: Path, outer: SynchronousRounds | AsynchronousPushes, course: TrainingCourse) -> Path:
    """A durable checkpoint of the round at hand; older ones than the last few go."""
    durable.make_folder(folder)
    path = folder / name_of(outer.round)
    durable.write_durably(path, encode(outer, course))
    for old in _all(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def write_best(folder: Path, course: TrainingCourse, params: TrainParams) -> None:
    """The best weights so far, durable beside the checkpoints."""
    assert course.best is not None and course.best_weights is not None, "something was scored"
    durable.make_folder(folder)
    told = {"format": FORMAT, "model": model_text(params, params.facts), "iteration": str(course.best.iteration)}
    durable.write_durably(folder / BEST, save({"weights": np.ascontiguousarray(course.best_weights, "<f4")}, told))


def read_best(folder: Path) -> Array | None:
    """The best weights' flat vector, where there are any."""
    path = folder / BEST
    return _loaded(path)[0]["weights"] if path.exists() else None


def read(path: Path, params: TrainParams, stepped: int, dim: int) -> Checkpoint:
    """The state in a file. DamagedError, or RefusedError where it is of another model or job; both name the file."""
    tensors = _checked(path, params)
    try:
        values = msgspec.msgpack.decode(tensors["state"].tobytes())
        arrays, kept = _under("outer.", tensors), _under("course.", tensors)
        if len(arrays["weights"]) != dim:
            raise RefusedError(f"{path.name}: {len(arrays['weights'])} weights, but the model has {dim}", HINT)
        kind = AsynchronousPushes if params.mode == "async" else SynchronousRounds
        outer = kind.resume(params, stepped, arrays, values["outer"])
        return Checkpoint(outer, TrainingCourse.resume(params, kept, values["course"]))
    except (msgspec.MsgspecError, KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"{path.name}: {error}", HINT) from None


def latest(folder: Path, params: TrainParams, stepped: int, dim: int) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of this job, and what is wrong with newer ones. Another model's is refused.

    The best weights of a future that is given up by this go.
    """
    refused, found = [], None
    for path in _all(folder):
        try:
            found = read(path, params, stepped, dim)
            break
        except DamagedError as error:
            refused.append(error.message)
    _forget_best(folder, found.course.best.iteration if found and found.course.best else -1)
    return found, refused


def newest_told(folder: Path) -> CheckpointTold | None:
    """What the newest whole checkpoint says of its training; None where there is none."""
    for path in _all(folder):
        try:
            tensors, told = _loaded(path)
            values = msgspec.msgpack.decode(tensors["state"].tobytes())
            course = values["course"]
            return CheckpointTold(
                msgspec.convert(values["params"], TrainParams),
                int(told["round"]),
                msgspec.convert(course["record"], CourseRecord),
                msgspec.convert(course["best"], BestMark | None),
                msgspec.convert(course["reached"], BestMark | None),
            )
        except (DamagedError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
            continue
    return None


def _forget_best(folder: Path, known: int) -> None:
    path = folder / BEST
    try:
        future = path.exists() and int(_loaded(path)[1].get("iteration", "")) > known
    except (DamagedError, ValueError):
        future = True
    if future:
        path.unlink()


def _under(prefix: str, tensors: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}


def _all(folder: Path) -> list[Path]:
    """The newest first."""
    found = [path for path in folder.glob("round-*.safetensors") if _NAME.fullmatch(path.name)]
    return sorted(found, reverse=True)


def _checked(path: Path, params: TrainParams) -> dict[str, Array]:
    tensors, told = _loaded(path)
    if told.get("format") != FORMAT:
        raise RefusedError(f"{path.name}: not a checkpoint of this version", HINT)
    model = model_text(params, params.facts)
    if told.get("model") != model:
        raise RefusedError(f"{path.name}: of another model: {told.get('model')}, not {model}", HINT)
    if told.get("params") != _digest_of_params(params):
        raise RefusedError(f"{path.name}: of a job with other parameters", HINT)
    if told.get("digest") != _digest_of(tensors):
        raise DamagedError(f"{path.name}: its bytes are not those that were written", HINT)
    return tensors


def _loaded(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """A safetensors file's arrays, and what it says of them."""
    try:
        raw = path.read_bytes()
        tensors: dict[str, Array] = load(raw)
        length = int.from_bytes(raw[:8], "little")
        told: dict[str, str] = msgspec.json.decode(raw[8 : 8 + length])["__metadata__"]
    except (SafetensorError, msgspec.MsgspecError, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path.name}: no whole checkpoint: {error}", HINT) from None
    return tensors, told


def _digest_of(tensors: dict[str, Array]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype.str} {tensors[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()


def _digest_of_params(params: TrainParams) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(params, order="deterministic"))
