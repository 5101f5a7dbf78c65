"""A manifest is not believed: whatever is changed of it is found, by its digest and, but for a few words, without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.jobs.common.hashing import of_bytes
from muster.jobs.contract.plan import Layer
from muster.jobs.parts.manifest import MANIFEST
from muster.jobs.results.merge import merge_layer
from muster.jobs.results.open_result import verify_layer
from tests.support.shards import layer_of, result_of, write_part

JOB = "job.1"
Place = tuple[Any, ...]  # of a value: keys and positions
UNDERIVABLE = frozenset({"fingerprints"})  # texts that stand nowhere else


@pytest.fixture
def layer() -> Layer:
    return layer_of(22, 4)


@pytest.fixture
def merged(tmp_path: Path, layer: Layer) -> Path:
    part = write_part(tmp_path / "a.part", layer, [(n, result_of(n, layer.rows_of(n))) for n in range(layer.count)])
    folder = tmp_path / "result"
    folder.mkdir()
    merge_layer(layer, [part.path], folder, job=JOB)
    return folder


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Of every value in it."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*at, key))


def changed(value: Any, place: Place) -> list[Any]:
    """The value with others in that place, of its type and of none."""
    made = []
    for other in _others(_at(value, place)):
        copy = json.loads(json.dumps(value))
        holder = _at(copy, place[:-1])
        if other is None and isinstance(holder, dict):
            del holder[place[-1]]
        else:
            holder[place[-1]] = other
        made.append(copy)
    return made


def _at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def _others(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [value + "x", value[:-1] + chr(ord(value[-1]) ^ 1), "", None]
    if isinstance(value, int):
        return [value + 1, value - 1, value ^ 64, None]
    return [[], value[:-1], [*value, *value[:1]], None] if isinstance(value, list) else [None]


def test_every_change_of_a_manifest_is_found(merged: Path, layer: Layer) -> None:
    raw = (merged / MANIFEST).read_bytes()
    said, known = json.loads(raw), of_bytes(raw)
    assert verify_layer(merged, JOB, layer, known) == verify_layer(merged, JOB, layer) == []
    tried = 0
    for place in places(said):
        for other in changed(said, place):
            if other == said:
                continue
            (merged / MANIFEST).write_text(json.dumps(other))
            assert verify_layer(merged, JOB, layer, known), (place, other)
            if place[0] not in UNDERIVABLE and not _means_the_same(said, place, other):
                assert verify_layer(merged, JOB, layer), (place, other)
            tried += 1
    assert tried > 200


def _means_the_same(said: Any, place: Place, other: Any) -> bool:
    """Left out, a value is its default."""
    value = _at(said, place)
    return place[-1] in ("bytes", "items", "more", "rounds") and not value and place[-1] not in _at(other, place[:-1])


def test_rounds_are_a_trainings_alone(merged: Path, layer: Layer) -> None:
    said = json.loads((merged / MANIFEST).read_bytes())
    (merged / MANIFEST).write_text(json.dumps({**said, "rounds": [3]}))
    assert "number of counts of rounds is 1, not 0" in verify_layer(merged, JOB, layer)[0]


def test_every_flipped_byte_of_a_manifest_is_found(merged: Path, layer: Layer) -> None:
    raw = (merged / MANIFEST).read_bytes()
    known = of_bytes(raw)
    for at in range(len(raw)):
        (merged / MANIFEST).write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        assert verify_layer(merged, JOB, layer, known)


def test_the_result_of_another_layer_or_job_is_found(merged: Path, layer: Layer, tmp_path: Path) -> None:
    shutil.copytree(merged, tmp_path / "copy")
    assert verify_layer(tmp_path / "copy", JOB, layer) == []
    assert verify_layer(tmp_path / "copy", "job.2", layer) and verify_layer(tmp_path / "copy", JOB, layer_of(21, 4))
