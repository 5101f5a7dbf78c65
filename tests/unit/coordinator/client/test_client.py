"""The API's parts one by one: arrays as files, uploads, records over a pipe, ssh's words as errors, drafts of jobs."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from muster.coordinator.client.arrays import Outgoing
from muster.coordinator.client.backends.ssh import Ssh
from muster.coordinator.client.farm import _data_files
from muster.coordinator.client.job_draft import from_fields, from_file
from muster.coordinator.client.results import Result
from muster.coordinator.client.shards import assemble, parse_cursor
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root import uploads
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.result_downloads import file_server, shard_stream
from muster.coordinator.result_downloads.shard_stream import Beat, Cursor, Record
from muster.coordinator.submission import client_job
from muster.jobs.common.errors import (
    AccessError,
    DamagedError,
    IncompleteError,
    JobFileError,
    LinkError,
    MusterError,
    NoCommandError,
    NotFoundError,
    ProtocolError,
    RefusedError,
    SourceError,
    UsageError,
)
from muster.jobs.common.locations import Host
from muster.jobs.contract.plan import Output
from muster.jobs.kinds import registry
from muster.jobs.results.open_result import RaggedRows
from muster.jobs.user_code.code_pack import MAGIC, CodeBundle, opened, pack
from tests.support import tiny

# --- arrays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 63, 200, 5_000])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(2_000.0).reshape(40, 50),
        np.arange(2_000).reshape(40, 50)[::2, ::3],
        np.asfortranarray(np.arange(900, dtype=">i2").reshape(30, 30)),
        np.zeros((3, 1 << 19), "f4"),
        np.ones((7,), bool),
    ],
)
def test_an_array_is_sent_as_the_file_that_numpy_reads(array: Any, start: int, tmp_path: Path) -> None:
    out = Outgoing(array, "it")
    whole = b"".join(out.pieces(0))
    assert len(whole) == out.nbytes
    assert xxhash.xxh3_128_hexdigest(whole) == out.digest
    assert b"".join(out.pieces(start)) == whole[start:]
    (tmp_path / "a.npy").write_bytes(whole)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)


@pytest.mark.parametrize("array", [np.float64(3), np.zeros((0, 3)), np.array(["a"]), np.array([object()])])
def test_arrays_that_no_layer_can_be(array: Any) -> None:
    with pytest.raises(SourceError):
        Outgoing(np.asarray(array), "it")


# --- uploads ----------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return roots.prepare(tmp_path / "root")


def test_an_upload_that_was_cut_goes_on_and_is_whole_at_the_end(root: Root) -> None:
    raw = os.urandom(3 << 20)
    digest = xxhash.xxh3_128_hexdigest(raw)
    with pytest.raises(LinkError, match="ended after"):
        uploads.receive(root, digest, len(raw), 0, io.BytesIO(raw[: 2 << 20]).read)
    assert uploads.listed(root) == [uploads.Upload(digest, 2 << 20, False)]
    with pytest.raises(RefusedError, match="goes on at byte"):
        uploads.receive(root, digest, len(raw), 0, io.BytesIO(raw).read)
    made = uploads.receive(root, digest, len(raw), 2 << 20, io.BytesIO(raw[2 << 20 :]).read)
    assert made == uploads.Upload(digest, len(raw), True)
    assert (root.uploads / f"{digest}.npy").read_bytes() == raw
    assert uploads.receive(root, digest, len(raw), 0, io.BytesIO(b"").read) == made  # nothing is read
    assert [path.name for path in root.uploads.iterdir()] == [f"{digest}.npy"]


def test_an_upload_of_other_bytes_is_not_kept(root: Root) -> None:
    with pytest.raises(DamagedError):
        uploads.receive(root, "0" * 32, 4, 0, io.BytesIO(b"abcd").read)
    assert uploads.listed(root) == []


@pytest.mark.parametrize("digest", ["../../etc/passwd", "0" * 31, "0" * 33, "G" * 32, ""])
def test_an_upload_has_a_digest_for_a_name(root: Root, digest: str) -> None:
    with pytest.raises(UsageError):
        uploads.receive(root, digest, 4, 0, io.BytesIO(b"abcd").read)
    with pytest.raises(UsageError):
        client_job.submit(root, client_job.ClientJob("name: a", None, {"a": digest}))


@pytest.mark.parametrize("nbytes", [0, -1, 1 << 60])
def test_an_upload_has_a_size_that_can_be(root: Root, nbytes: int) -> None:
    with pytest.raises(UsageError):
        uploads.receive(root, "0" * 32, nbytes, 0, io.BytesIO(b"").read)


def test_what_no_job_needs_goes_after_a_day(root: Root) -> None:
    for name in ("a" * 32 + ".npy", "b" * 32 + ".part", "c" * 32 + ".npy", "d" * 32 + ".npy", "notes.txt"):
        (root.uploads / name).write_bytes(b"x")
        if name[0] != "d":
            os.utime(root.uploads / name, (time.time() - uploads.KEPT_SECONDS - 60,) * 2)
    uploads.sweep(root, {"c" * 32})
    assert sorted(path.name[0] for path in root.uploads.iterdir()) == ["c", "d", "n"]


# --- records ----------------------------------------------------------------------------------------------

OUTPUTS = (Output("x", "rows", "<f4", (2,)), Output("r", "ragged", "<i8"))
BODY = [np.arange(6, dtype="<f4").tobytes(), np.array([1, 0, 2], "<i8").tobytes(), np.arange(3, dtype="<i8").tobytes()]


def record(**changed: Any) -> Record:
    fields: dict[str, Any] = {
        "cursor": Cursor(4, 2),
        "layer": "conv",
        "number": 2,
        "first_row": 6,
        "rows": 3,
        "outputs": OUTPUTS,
        "sizes": tuple(map(len, BODY)),
        "digest": xxhash.xxh3_128_digest(b"".join(BODY)),
        **changed,
    }
    return Record(**fields)


def test_records_come_over_a_pipe_as_arrays() -> None:
    pipe = io.BytesIO()
    sent: list[tuple[Record | Beat, Iterator[bytes]]] = [
        (record(), iter([b"".join(BODY)])),
        (Beat(), iter(())),
        (record(number=3), iter(BODY)),
    ]
    shard_stream.send(sent, pipe.write, pipe.flush)
    pipe.seek(0)
    shards = [assemble(news, pieces) for news, pieces in shard_stream.receive(pipe.read) if isinstance(news, Record)]
    assert [shard.number for shard in shards] == [2, 3]
    for shard in shards:
        ragged = shard.outputs["r"]
        assert isinstance(ragged, RaggedRows)
        assert [ragged[i].tolist() for i in range(3)] == [[0], [], [1, 2]]
        np.testing.assert_array_equal(shard.outputs["x"], np.arange(6).reshape(3, 2))
        assert parse_cursor(shard.cursor) == Cursor(4, 2)


def test_a_pipe_that_ends_within_a_shard() -> None:
    pipe = io.BytesIO()
    shard_stream.send([(record(), iter(BODY))], pipe.write, pipe.flush)
    raw = pipe.getvalue()
    for end in range(1, len(raw), 7):
        with pytest.raises(LinkError):
            for news, pieces in shard_stream.receive(io.BytesIO(raw[:end]).read):
                assert isinstance(news, Record)
                assemble(news, pieces)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"digest": b"\0" * 16}, DamagedError),
        ({"sizes": (24, 24, 25)}, ProtocolError),
        ({"sizes": (24, 24)}, ProtocolError),
        ({"sizes": (1 << 60, 24, 24)}, ProtocolError),
        ({"rows": -1}, ProtocolError),
        ({"rows": 1 << 57, "outputs": (Output("x", "rows", "<f8"),), "sizes": (1 << 60,)}, ProtocolError),
        ({"rows": 1 << 70, "outputs": (Output("x", "rows", "<f8"),), "sizes": (1 << 73,)}, ProtocolError),
        ({"outputs": (Output("../x", "rows", "<f4"),)}, ProtocolError),
        ({"outputs": (Output("x", "rows", "|O"),)}, ProtocolError),
    ],
)
def test_records_that_cannot_be(changed: Any, error: type[MusterError]) -> None:
    with pytest.raises(error):
        assemble(record(**changed), iter(BODY))


def test_lengths_that_add_up_around_the_end_of_int64_are_not_those_of_the_values() -> None:
    lengths = np.array([1 << 62, 1 << 62, 1 << 62, (1 << 62) + 2], "<i8").tobytes()
    ragged = Output("y", "ragged", "<f4")
    made = record(rows=4, outputs=(ragged,), sizes=(32, 8), digest=b"")
    with pytest.raises(DamagedError, match="the lengths of y"):
        assemble(made, iter([lengths, bytes(8)]))


@pytest.mark.parametrize("text", ["", "1", "a:b", "-1:2", "1:2:3", "9" * 40 + ":1"])
def test_cursors_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError):
        parse_cursor(text)


# --- ssh --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words", "error"),
    [
        (255, "ssh: Could not resolve hostname x: Name or service not known", LinkError),
        (255, "me@x: Permission denied (publickey).", AccessError),
        (255, "Host key verification failed.", AccessError),
        (255, "client_loop: send disconnect: Broken pipe", LinkError),
        (127, "sh: 1: coordinator: not found", NoCommandError),
        (6, "error: there is no job a\nhint: look\n", NotFoundError),
        (11, "warning: noise\nerror: a.1 is halted\nhint: look\n", IncompleteError),
        (1, "Traceback", LinkError),
    ],
)
def test_how_a_command_there_failed(status: int, words: str, error: type[MusterError]) -> None:
    assert type(Ssh(Host("x")).failure(status, words)) is error


def test_nothing_that_ssh_or_a_shell_takes_for_something_else() -> None:
    line = Ssh(Host("x", "me", 22, "/a root"))._line("coordinator", ["status", "--", "$(reboot)"])
    assert line[-3:] == ["--", "x", "env MUSTER_CONFIG= coordinator status -- '$(reboot)'"]


# --- jobs before they are sent ----------------------------------------------------------------------------


def test_a_path_means_the_server_or_this_machine(tmp_path: Path, monkeypatch: Any) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 4)))
    monkeypatch.chdir(tmp_path)
    fields = {"name": "j", "kind": "cluster", "params": {"n_clusters": np.int64(2)}}
    assert from_fields(fields, "a.npy", here=True).fields["source"] == {"path": str(tmp_path / "a.npy")}
    assert list(from_fields(fields, Path("a.npy"), here=False).arrays) == ["a"]
    for far in ("/data/a.npy", "~/a.npy"):
        draft = from_fields(fields, far, here=False)
        assert (draft.fields["source"], draft.arrays) == (far, {})
    (tmp_path / "job.yaml").write_text("name: j\nkind: cluster\nsource: a.npy\nparams: {n_clusters: 2}\n")
    assert list(from_file(tmp_path / "job.yaml", here=False).arrays) == ["a"]
    with pytest.raises(JobFileError, match=r"job\.yaml:2: attemps"):
        (tmp_path / "job.yaml").write_text("name: j\nattemps: 2\n")
        from_file(tmp_path / "job.yaml", here=False)
    with pytest.raises(JobFileError, match="a set cannot stand"):
        from_fields({**fields, "params": {"n_clusters": {1}}}, "a.npy", here=True)


def test_a_folder_of_this_machine_is_sent_and_what_is_left_out_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    values = np.arange(8, dtype="<f4").reshape(2, 4)
    (tmp_path / "raw" / "a.bin").write_bytes(values.tobytes())
    np.savez(tmp_path / "raw" / "x.npz", x=values)
    fields = {"name": "j", "kind": "cluster", "params": {"n_clusters": 2}}
    source = {"path": "raw", "dtype": "<f4", "shape": [-1, 4]}
    with pytest.warns(UserWarning, match=r"skipped: 1 \.npz file"):
        draft = from_fields(fields, source, here=False)
    assert (list(draft.arrays), draft.fields["source"]) == (["a"], {"path": "arrays"})
    assert b"".join(draft.arrays["a"].pieces(0)).endswith(values.tobytes())


def test_a_model_goes_along_where_the_kind_says_that_it_is_a_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "load", tiny.load)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.bin").write_bytes(b"weights")
    fields = {"name": "j", "kind": "modelled", "params": {"model": "net.bin"}}
    far = from_fields(fields, "/data/a.npy", here=False)
    assert far.model is not None and far.model[0] == "net.bin"
    here = from_fields(fields, "/data/a.npy", here=True)
    assert here.fields["params"] == {"model": str(tmp_path / "net.bin")}
    assert from_fields({**fields, "params": {}}, "/data/a.npy", here=False).model is None


def test_files_are_not_sent_and_a_table_goes_with_its_job(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text("def f(lines): return lines")
    fields = {"name": "a", "kind": "map", "code": "work.py:f"}
    for key in ("files", "table"):
        here = from_fields(fields, {key: "img/*.jpg"}, here=True)
        assert here.fields["source"] == {key: f"{tmp_path}/img/*.jpg"}
        far = from_fields(fields, {key: "~/img/*.jpg"}, here=False)
        assert far.fields["source"] == {key: "~/img/*.jpg"}
    with pytest.raises(UsageError, match="of this machine"):
        from_fields(fields, {"files": "img/*.jpg"}, here=False)
    (tmp_path / "t.csv").write_bytes(b"name\none\n")
    sent = from_fields(fields, {"table": "t.csv"}, here=False).parcel()
    assert sent.table == ("t.csv", b"name\none\n") and "table: t.csv" in sent.job
    assert from_fields(fields, {"table": "t.csv"}, here=True).parcel().table is None
    with pytest.raises(SourceError, match="No such file"):
        from_fields(fields, {"table": "none.csv"}, here=False)


def test_parcels_and_packs_that_cannot_be() -> None:
    for raw in (b"", b"\xc1", b"\x80", client_job.encode(client_job.ClientJob("x"))[:-1]):
        with pytest.raises(ProtocolError):
            client_job.decode(raw)
    whole = CodeBundle("work.py:f", {"work.py": b"x"})
    assert opened(pack(whole)) == whole
    for bad in (CodeBundle("other.py:f", {"work.py": b""}), CodeBundle("work.py:f", {"../work.py": b""})):
        with pytest.raises(DamagedError):
            opened(pack(bad))
    with pytest.raises(DamagedError):
        opened(MAGIC)
    with pytest.raises(UsageError, match="layer's name"):
        client_job.check_layers({".hidden": ""})


def test_a_request_for_a_file_that_no_manifest_names(root: Root, tmp_path: Path) -> None:
    with pytest.raises(LinkError):
        file_server.received(io.BytesIO(b"").read)
    with pytest.raises(ProtocolError):
        file_server.received(io.BytesIO(b"Welcome to this server").read)


def test_a_result_says_what_there_is(tmp_path: Path) -> None:
    result = Result("a.1", tmp_path, ["b", "c"])
    assert (list(result), len(result), "b" in result, "d" in result) == (["b", "c"], 2, True, False)
    with pytest.raises(KeyError):
        result["d"]
    with pytest.raises(UsageError, match="2 layers: b, c"):
        result.array()
    with pytest.raises(NotFoundError):
        result.array(layer="d")


def test_a_data_set_that_has_a_name_is_no_file_and_arrays_become_some(tmp_path: Path) -> None:
    named = {"name": "mnist", "rows": 100}
    assert _data_files(named, tmp_path, True) == named and _data_files("digits", tmp_path, False) == "digits"
    given = _data_files({"x": np.zeros((2, 3)), "y": "labels.npy"}, tmp_path, True)
    assert given == {"x": str(tmp_path / "x.npy"), "y": str(Path("labels.npy").absolute())}
