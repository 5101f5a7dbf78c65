"""Parts: what may be declared, what an index may say, and bodies checked as they come."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from muster.jobs.common.errors import DamagedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import (
    BodyCheck,
    Index,
    Layout,
    check_body,
    decode_index,
    encode_index,
    item_bytes,
    out_digest,
    read_index,
    tail_of,
)
from muster.jobs.results.bundle import Bundle, HeldPart
from tests.support.shards import layer_of, result_of, store, write_part


@pytest.fixture
def part(tmp_path: Path) -> HeldPart:
    layer = layer_of(7, 2)
    return write_part(tmp_path / "part", layer, [(n, result_of(n, layer.rows_of(n))) for n in range(4)])


def body_of(part: HeldPart) -> bytes:
    return part.path.read_bytes()[: part.index.body_bytes]


@pytest.mark.parametrize(
    ("dtype", "size"), [("<f4", 4), ("|b1", 1), ("<c16", 16), ("|S12", 12), ("<U3", 12), ("<M8[ns]", 8)]
)
def test_item_bytes(dtype: str, size: int) -> None:
    assert item_bytes(dtype) == size


@pytest.mark.parametrize("dtype", ["|O", ">f4", "<f3", "<f16", "f4", "|V8", "<U0", "|S0", "<f4\n", "<M8[xs]", ""])
def test_dtypes_that_no_output_has(dtype: str) -> None:
    with pytest.raises(ValueError, match="dtype"):
        item_bytes(dtype)


@pytest.mark.parametrize(
    "output",
    [
        Output("../x", "rows", "<f4"),
        Output("shards", "rows", "<f4"),
        Output("x", "files", "<f4"),
        Output("x", "rows", "<f4", (-1,)),
        Output("x", "ragged", "<f4", (0,)),
        Output("x", "sum", "<f4", scale=0.0),
        Output("x", "sum", "<f4", scale=float("nan")),
        Output("x", "rows", "<f4", scale=1.0),
    ],
)
def test_outputs_that_cannot_be(output: Output) -> None:
    with pytest.raises(ValueError, match="output"):
        Layout((output,))


def test_two_outputs_of_one_name_cannot_be() -> None:
    with pytest.raises(ValueError, match="same name"):
        Layout((Output("x", "rows", "<f4"), Output("x", "sum", "<i8")))


def test_what_was_written_is_read_back(part: HeldPart) -> None:
    assert decode_index(encode_index(part.index)) == part.index
    assert [entry.number for entry in part.index.entries] == [0, 1, 2, 3]
    check_body(part.path, part.index)


def changed(index: Index, **fields: object) -> Index:
    """The index with its second entry changed."""
    entries = list(index.entries)
    entries[1] = msgspec.structs.replace(entries[1], **fields)
    return msgspec.structs.replace(index, entries=tuple(entries))


@pytest.mark.parametrize(
    "fields",
    [
        {"number": 0},
        {"number": -1},
        {"number": 1 << 60},
        {"rows": 3},
        {"sizes": ()},
        {"digest": b"short"},
        {"in_digest": b""},
        {"sum_digest": b""},
        {"agent": "x" * 65},
    ],
)
def test_an_index_that_cannot_be_is_damaged(part: HeldPart, fields: dict[str, object]) -> None:
    with pytest.raises(DamagedError):
        decode_index(encode_index(changed(part.index, **fields)))


def test_sizes_that_do_not_fit_the_outputs_are_damage(part: HeldPart) -> None:
    sizes = part.index.entries[1].sizes
    for at in range(len(sizes)):
        other = (*sizes[:at], sizes[at] + 1, *sizes[at + 1 :])
        with pytest.raises(DamagedError):
            decode_index(encode_index(changed(part.index, sizes=other)))


@pytest.mark.parametrize(
    "fields", [{"summed": True}, {"sum_sizes": (8,)}, {"sum_digest": bytes(16)}, {"summed": True, "sum_sizes": (16, 8)}]
)
def test_sums_that_are_not_declared_are_damage(part: HeldPart, fields: dict[str, object]) -> None:
    with pytest.raises(DamagedError):
        decode_index(encode_index(msgspec.structs.replace(part.index, **fields)))


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode([1] * 5), b"\x91" * 5000])
def test_bytes_that_are_no_index(raw: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_index(raw)


def test_a_tail_that_claims_more_than_the_file_has(tmp_path: Path) -> None:
    tail = bytearray(tail_of(b"index"))
    tail[-16:-8] = (1 << 60).to_bytes(8, "big")
    (tmp_path / "part").write_bytes(tail)
    with pytest.raises(DamagedError, match="cut short"):
        read_index(tmp_path / "part")


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_body_is_checked_however_it_is_cut(part: HeldPart, step: int) -> None:
    body = body_of(part)
    check = BodyCheck(part.index)
    for start in range(0, len(body), step):
        check.feed(body[start : start + step])
    check.finish()


def test_a_body_of_another_length_is_damage(part: HeldPart) -> None:
    check = BodyCheck(part.index)
    check.feed(body_of(part))
    with pytest.raises(DamagedError, match="longer"):
        check.feed(b"x")
    check = BodyCheck(part.index)
    check.feed(body_of(part)[:-1])
    with pytest.raises(DamagedError, match="ends within shard 3"):
        check.finish()


def test_a_damaged_shard_is_named(part: HeldPart) -> None:
    body = bytearray(body_of(part))
    spans = {entry.number: offset for entry, offset, _ in part.index.spans()}
    body[spans[2]] ^= 1
    with pytest.raises(DamagedError, match="shard 2"):
        BodyCheck(part.index).feed(bytes(body))


def test_a_shard_has_one_digest_in_part_and_bundle(part: HeldPart, tmp_path: Path) -> None:
    stored = read_index(store(Bundle([part]), tmp_path / "bundle"))
    assert stored.summed
    assert [out_digest(entry) for entry in stored.entries] == [out_digest(entry) for entry in part.index.entries]


def test_only_parts_that_are_alike_make_a_bundle(part: HeldPart) -> None:
    other = HeldPart(part.path, msgspec.structs.replace(part.index, fingerprint="other"), part.wanted)
    with pytest.raises(ValueError, match="share"):
        Bundle([part, other])
    with pytest.raises(ValueError, match="two parts"):
        Bundle([part, part])
    with pytest.raises(ValueError, match="share"):
        Bundle([])


def test_a_part_damaged_since_is_not_summed(part: HeldPart) -> None:
    raw = bytearray(part.path.read_bytes())
    raw[part.index.body_bytes - 1] ^= 1
    part.path.write_bytes(raw)
    with pytest.raises(DamagedError, match="shard 3"):
        Bundle([part])


def test_a_part_cut_while_it_is_sent_is_noticed(part: HeldPart) -> None:
    bundle = Bundle([HeldPart(part.path, part.index, RangeSet([(0, 4)]))])
    part.path.write_bytes(b"")
    with pytest.raises(DamagedError, match="cut short"):
        bundle.write_body(lambda _: None)
