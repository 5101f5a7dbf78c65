"""However shards are grouped into parts, parts into bundles, and bundles ordered, the merge gives the same bytes."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.jobs.common.errors import DamagedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Layer, MadeSource
from muster.jobs.parts.part_file import check_body, read_index
from muster.jobs.results.bundle import Bundle, HeldPart, take
from muster.jobs.results.merge import DamagedBundle, Incomplete, merge_layer
from muster.jobs.results.open_result import RaggedRows, open_result, verify_layer
from muster.jobs.results.outputs import SumTooLarge
from tests.support.shards import ALL_FORMS, files_of, layer_of, result_of, store, write_part


def groups_of(numbers: list[int], rng: random.Random) -> list[list[int]]:
    """The numbers dealt out to some groups, none empty."""
    pool_controller: list[list[int]] = [[] for _ in range(rng.randint(1, len(numbers)))]
    for number in numbers:
        rng.choice(pool_controller).append(number)
    return [hand for hand in pool_controller if hand]


def parts_of(layer: Layer, folder: Path, rng: random.Random) -> list[HeldPart]:
    parts = groups_of(list(range(layer.count)), rng)
    rng.shuffle(parts)
    return [
        write_part(folder / f"{i}.part", layer, [(n, result_of(n, layer.rows_of(n))) for n in numbers])
        for i, numbers in enumerate(parts)
    ]


def bundles_of(parts: list[HeldPart], folder: Path, rng: random.Random) -> list[Path]:
    groups = groups_of(list(range(len(parts))), rng)
    rng.shuffle(groups)
    return [store(Bundle([parts[i] for i in group]), folder / f"{k}.bundle") for k, group in enumerate(groups)]


def merged(layer: Layer, bundles: list[Path], folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    merge_layer(layer, bundles, folder, job="job.1")
    assert verify_layer(folder) == []
    return files_of(folder)


def serial(layer: Layer, folder: Path) -> dict[str, bytes]:
    results = [(n, result_of(n, layer.rows_of(n))) for n in range(layer.count)]
    return merged(layer, [write_part(folder / "serial.part", layer, results).path], folder / "serial")


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 40), shard_rows=st.integers(1, 7), seed=st.integers(0, 1 << 32), declared=st.booleans())
def test_any_grouping_merges_to_the_bytes_of_one_serial_part(
    rows: int, shard_rows: int, seed: int, declared: bool
) -> None:
    layer = layer_of(rows, shard_rows)
    with TemporaryDirectory() as name:
        folder = Path(name)
        expected = serial(layer, folder)
        rng = random.Random(seed)
        bundles = bundles_of(parts_of(layer, folder, rng), folder, rng)
        known = layer if declared else layer_of(rows, shard_rows, None)
        assert merged(known, bundles, folder / "merged") == expected


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1 << 32), nbytes=st.integers(0, 2000), shards=st.integers(1, 9))
def test_bundles_cut_to_a_limit_take_every_shard_once(seed: int, nbytes: int, shards: int) -> None:
    layer = layer_of(60, 3)
    with TemporaryDirectory() as name:
        folder = Path(name)
        left = parts_of(layer, folder, random.Random(seed))
        bundles: list[Path] = []
        while taken := take(left, nbytes, shards):
            bundle = Bundle(taken)
            assert len(bundle.numbers) == 1 or (bundle.nbytes <= nbytes and len(bundle.numbers) <= shards)
            bundles.append(store(bundle, folder / f"{len(bundles)}.bundle"))
            left = [HeldPart(part.path, part.index, part.wanted - bundle.numbers) for part in left]
        assert merged(layer, bundles, folder / "merged") == serial(layer, folder)


def test_the_merge_has_what_the_shards_gave(tmp_path: Path) -> None:
    layer = layer_of(23, 4)
    serial(layer, tmp_path)
    found = open_result(tmp_path / "serial")
    results: list[dict[str, Any]] = [dict(result_of(n, layer.rows_of(n))) for n in range(layer.count)]
    for name in ("means", "flag"):
        assert np.array_equal(np.array(found.outputs[name]), np.concatenate([result[name] for result in results]))
    words = found.outputs["words"]
    assert isinstance(words, RaggedRows)
    expected = [row for r in results for row in np.split(r["words"].values, np.cumsum(r["words"].lengths)[:-1])]
    assert len(words) == layer.rows and all(np.array_equal(words[i], row) for i, row in enumerate(expected))
    assert found.outputs["hits"] == sum(int(result["hits"]) for result in results)
    assert np.allclose(np.array(found.outputs["total"]), sum(result["total"] for result in results), atol=1e-5)
    assert found.shards["shard"].tolist() == list(range(6)) and found.shards["rows"].tolist() == [4, 4, 4, 4, 4, 3]
    assert found.shards["agent"].tolist() == [f"agent-{n % 3}" for n in range(6)]
    assert found.manifest.rows == 23 and found.manifest.shards == 6 and found.manifest.fingerprints == ("fp",)


def test_fingerprints_are_told_apart_whatever_the_order(tmp_path: Path) -> None:
    layer = layer_of(4, 1)
    parts = [
        write_part(tmp_path / f"{n}.part", layer, [(n, result_of(n, 1))], fingerprint=f"fp-{n % 2}").path
        for n in range(4)
    ]
    one, other = merged(layer, parts, tmp_path / "one"), merged(layer, parts[::-1], tmp_path / "other")
    assert one == other
    assert open_result(tmp_path / "one").shards["fingerprint"].tolist() == [0, 1, 0, 1]


def test_what_is_missing_or_there_twice_is_named(tmp_path: Path) -> None:
    layer = layer_of(10, 1)
    one = write_part(tmp_path / "one", layer, [(n, result_of(n, 1)) for n in (0, 1, 2, 5)])
    two = write_part(tmp_path / "two", layer, [(n, result_of(n, 1)) for n in (2, 3)])
    with pytest.raises(Incomplete) as caught:
        merge_layer(layer, [one.path, two.path], tmp_path, job="j.1")
    assert caught.value.missing == RangeSet([(4, 5), (6, 10)]) and caught.value.double == RangeSet.of([2])


def test_a_layer_of_made_shards_and_one_of_none(tmp_path: Path) -> None:
    made = Layer("made", "f" * 32, MadeSource(), 0, 1, 3, 0, 0, ALL_FORMS)
    part = write_part(tmp_path / "part", made, [(n, result_of(n, 1)) for n in range(3)])
    assert len(merged(made, [part.path], tmp_path / "made")) == 10
    merged(layer_of(0, 1), [], tmp_path / "none")
    assert open_result(tmp_path / "none").outputs["means"].shape == (0, 3)


def test_sums_that_do_not_fit_are_refused_and_not_wrapped(tmp_path: Path) -> None:
    outputs = (ALL_FORMS[3].__class__("big", "sum", "<i8"),)
    layer = layer_of(2, 1, outputs)
    held = [write_part(tmp_path / f"{n}", layer, [(n, {"big": np.array((1 << 63) - 1 if n else 1)})]) for n in range(2)]
    with pytest.raises(SumTooLarge):
        Bundle(held)
    with pytest.raises(SumTooLarge):
        merge_layer(layer, [part.path for part in held], tmp_path, job="j.1")


def damage_shows(layer: Layer, path: Path, folder: Path) -> bool:
    """Whether a merge, and a check of the part by itself, both refuse the file."""
    with pytest.raises(DamagedError):
        check_body(path, read_index(path))
    with pytest.raises(DamagedBundle) as caught:
        merge_layer(layer, [path], folder, job="j.1")
    return caught.value.path == path


def whole_files(layer: Layer, folder: Path) -> list[bytes]:
    """A part and a bundle of the same shards."""
    part = write_part(folder / "part", layer, [(n, result_of(n, layer.rows_of(n))) for n in range(layer.count)])
    return [part.path.read_bytes(), store(Bundle([part]), folder / "bundle").read_bytes()]


def test_a_part_cut_at_any_byte_is_noticed(tmp_path: Path) -> None:
    layer = layer_of(3, 2)
    for raw in whole_files(layer, tmp_path):
        for cut in range(len(raw)):
            (tmp_path / "cut").write_bytes(raw[:cut])
            assert damage_shows(layer, tmp_path / "cut", tmp_path), cut


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    layer = layer_of(3, 2)
    for raw in whole_files(layer, tmp_path):
        for at, bit in itertools.product(range(len(raw)), (1, 128)):
            flipped = bytearray(raw)
            flipped[at] ^= bit
            (tmp_path / "flipped").write_bytes(flipped)
            assert damage_shows(layer, tmp_path / "flipped", tmp_path), at


def test_a_missing_bundle_is_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(DamagedBundle, match="No such file"):
        merge_layer(layer_of(2, 1), [tmp_path / "gone"], tmp_path, job="j.1")


def test_a_bundle_of_another_layer_or_cut_is_refused(tmp_path: Path) -> None:
    part = write_part(tmp_path / "part", layer_of(6, 2), [(0, result_of(0, 2))])
    with pytest.raises(DamagedBundle, match="rows"):
        merge_layer(layer_of(6, 3), [part.path], tmp_path, job="j.1")
    with pytest.raises(DamagedBundle, match="other outputs"):
        merge_layer(layer_of(6, 2, ALL_FORMS[:2]), [part.path], tmp_path, job="j.1")


def test_a_changed_result_is_named_by_verify(tmp_path: Path) -> None:
    layer = layer_of(5, 2)
    serial(layer, tmp_path)
    folder = tmp_path / "serial"
    raw = bytearray((folder / "means.npy").read_bytes())
    raw[-1] ^= 1
    (folder / "means.npy").write_bytes(raw)
    (folder / "flag.npy").write_bytes(b"")
    (folder / "shards.npy").unlink()
    problems = verify_layer(folder)
    assert [problem.split(":")[0].rsplit("/")[-1] for problem in problems] == ["means.npy", "flag.npy", "shards.npy"]
    (folder / "manifest.json").unlink()
    assert "not a finished layer" in verify_layer(folder)[0]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1 << 32), wanted=st.sets(st.integers(0, 13), min_size=1))
def test_some_shards_of_a_layer_merge_to_their_rows_alone(seed: int, wanted: set[int]) -> None:
    layer = layer_of(41, 3)
    some = msgspec.structs.replace(layer, only=tuple(RangeSet.of(sorted(wanted)).pairs()))
    rng = random.Random(seed)
    with TemporaryDirectory() as name:
        folder = Path(name)
        groups = groups_of(sorted(wanted), rng)
        bundles = [
            write_part(folder / f"{i}.part", some, [(n, result_of(n, some.rows_of(n))) for n in numbers]).path
            for i, numbers in enumerate(groups)
        ]
        files = merged(some, bundles, folder / "some")
        assert files.keys() == serial(layer, folder).keys()
        found, whole = open_result(folder / "some"), open_result(folder / "serial")
        numbers = found.shards["shard"].tolist()
        rows = [row for n in sorted(wanted) for row in range(3 * n, 3 * n + layer.rows_of(n))]
        assert numbers == sorted(wanted) and found.manifest.shards == len(wanted) and found.manifest.rows == len(rows)
        assert np.array_equal(np.array(found.outputs["means"]), np.array(whole.outputs["means"])[rows])
        assert found.shards["out_digest"].tolist() == whole.shards[numbers]["out_digest"].tolist()
        with pytest.raises(Incomplete):
            merge_layer(some, bundles[1:], folder / "some", job="job.1")


def test_no_shard_took_longer_than_its_job_is_old(tmp_path: Path) -> None:
    layer = layer_of(3, 1)
    bundles = [write_part(tmp_path / f"{n}.part", layer, [(n, result_of(n, 1))]).path for n in range(3)]
    for bundle in bundles:
        os.utime(bundle, (1000.1, 1000.1))
    (tmp_path / "one").mkdir()
    merge_layer(layer, bundles, tmp_path / "one", job="job.1", since=1000.0)
    assert open_result(tmp_path / "one").shards["seconds"].tolist() == pytest.approx([0.1] * 3)
