"""Whatever a server answers a client, nothing is written outside of the given folder, and the end is one plain line."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.coordinator.client.backends.download import Download
from muster.coordinator.client.backends.remote import RemoteBackend
from muster.coordinator.client.backends.retry import Patience
from muster.coordinator.protocol.frames import frame
from muster.coordinator.result_downloads.file_server import Wanted
from muster.jobs.common.errors import MusterError, SpaceError
from muster.jobs.parts.manifest import MANIFEST

SLOW = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
DATA = b"some bytes"
DIGEST = xxhash.xxh3_128_hexdigest(DATA)
WORDS = [
    "..",
    ".",
    "",
    "a\0b",
    "\x1b[2J",
    "a\nb",
    "x" * 5000,
    "é" * 200,
    "out",
    "out.npy",
    "out/x",
    ".hidden.npy",
    "\ud800",
]
PATHS = ["../../mark", "/tmp/muster-mark", "a/../../../mark", "../mark.npy", DIGEST + "/../../../mark"]
ODD = st.sampled_from([*WORDS, *PATHS, MANIFEST])
NUMBER = st.sampled_from([0, 1, -1, len(DATA), 1 << 40, 1 << 62, 1 << 70])


class Talk:
    """The server's end of `fetch`: files by name, told with whatever length."""

    def __init__(self, files: dict[str, bytes], length: int | None = None) -> None:
        self._files, self._length, self._out = files, length, io.BytesIO()
        self.asked: list[str] = []

    def write(self, data: bytes) -> None:
        wanted = msgspec.json.decode(data, type=Wanted)
        self.asked.append(wanted.file)
        raw = self._files.get(wanted.file, DATA)[wanted.start :]
        said = len(raw) if self._length is None or wanted.file == MANIFEST else self._length
        at = self._out.tell()
        self._out.seek(0, io.SEEK_END)
        self._out.write(frame(msgspec.msgpack.encode({"nbytes": said})) + raw)
        self._out.seek(at)

    def flush(self) -> None:
        return

    def read(self, count: int) -> bytes:
        return self._out.read(count)


class Server:
    def __init__(self, talk: Talk | None = None, said: object = None) -> None:
        self._talk, self._said = talk, said

    @contextlib.contextmanager
    def talk(self, *_: str) -> Iterator[Any]:
        yield self._talk

    def run(self, *_: str, data: bytes = b"") -> bytes:
        return json.dumps(self._said).encode()


def file(name: str) -> dict[str, Any]:
    return {"file": name, "dtype": "<f4", "shape": [1], "bytes": len(DATA), "digest": DIGEST}


def manifest() -> dict[str, Any]:
    table = file("written.csv") | {"dtype": "csv"}
    outputs = [
        {"name": "out", "form": "rows", "files": [file("out.npy")]},
        {"name": "written", "form": "files", "files": [table], "bytes": len(DATA)},
    ]
    return {
        "format": 1, "job": "j.1", "layer": "l", "digest": DIGEST, "rows": 1, "shards": 1,
        "outputs": outputs, "table": file("shards.npy"), "fingerprints": ["f"], "more": [file("net.safetensors")],
    }  # fmt: skip


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where each leaf is."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    return [at] if inside is None else [one for key, inner in inside for one in paths_of(inner, (*at, key))]


@st.composite
def lies(draw: st.DrawFn) -> tuple[dict[str, bytes], int | None]:
    """A manifest and a table of written files with some fields that cannot be, or could."""
    told = manifest()
    row = [draw(ODD | st.just("a.txt")), draw(NUMBER | st.just(len(DATA))), draw(ODD | st.just(DIGEST))]
    lines = f"item,name,bytes,digest\n0,{row[0]},{row[1]},{row[2]}\n1,dir/b.txt,{len(DATA)},{DIGEST}\n"
    table = draw(st.just(lines.encode(errors="replace")) | st.binary(max_size=60))
    for one in told["outputs"][1]["files"]:
        one |= {"bytes": len(table), "digest": xxhash.xxh3_128_hexdigest(table)}
    for path in draw(st.lists(st.sampled_from(paths_of(told)), max_size=2)):
        spoilt = told
        for key in path[:-1]:
            spoilt = spoilt[key]
        spoilt[path[-1]] = draw(NUMBER if isinstance(spoilt[path[-1]], int) else ODD)
    raw = draw(st.just(json.dumps(told).encode()) | st.binary(max_size=40))
    return {MANIFEST: raw, "written.csv": table}, draw(st.none() | NUMBER.filter(lambda one: 0 <= one < 1 << 50))


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@SLOW
@given(lie=lies())
def test_a_download_stays_in_its_folder_and_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: tuple[dict[str, bytes], int | None]
) -> None:
    def at_once(_: Patience, error: MusterError) -> None:
        raise error

    monkeypatch.setattr(Patience, "endure", at_once)
    folder = tmp_path / "one" / "two" / "cache"
    before = everything(tmp_path)
    try:
        Download(Server(Talk(*lie)), "j.1", folder).run(["l"], progress=False)  # type: ignore[arg-type]
    except MusterError as error:
        assert error.message.isprintable(), error.message
    assert all(folder / "l" in {path, *path.parents} or path in folder.parents or path == folder
               for path in everything(tmp_path) - before)  # fmt: skip
    assert not Path("/tmp/muster-mark").exists()
    shutil.rmtree(tmp_path / "one", ignore_errors=True)


def test_what_is_true_comes_whole(tmp_path: Path) -> None:
    """Files of any format beside the arrays, too."""
    told, table = manifest(), f"item,name,bytes,digest\n0,dir/b.txt,{len(DATA)},{DIGEST}\n".encode()
    told["outputs"][1]["files"][0] |= {"bytes": len(table), "digest": xxhash.xxh3_128_hexdigest(table)}
    talk = Talk({MANIFEST: json.dumps(told).encode(), "written.csv": table})
    Download(Server(talk), "j.1", tmp_path).run(["l"], progress=False)  # type: ignore[arg-type]
    for name in ("out.npy", "shards.npy", "net.safetensors", "written/dir/b.txt"):
        assert (tmp_path / "l" / name).read_bytes() == DATA
    assert (tmp_path / "l" / MANIFEST).is_file()


def test_a_digest_that_leads_elsewhere_is_one_plain_error(tmp_path: Path) -> None:
    told = manifest()
    told["table"]["digest"] = "/../../../mark"
    with pytest.raises(MusterError, match=r"a file 'shards\.npy' of digest '/\.\./\.\./\.\./mark'"):
        Download(Server(Talk({MANIFEST: json.dumps(told).encode()})), "j.1", tmp_path / "cache").run(["l"], False)  # type: ignore[arg-type]


def test_more_than_the_disk_has_is_not_begun(tmp_path: Path) -> None:
    told = manifest()
    told["outputs"][0]["files"][0]["bytes"] = 1 << 52
    talk = Talk({MANIFEST: json.dumps(told).encode()})
    with pytest.raises(SpaceError, match="layer l needs 4 PiB in "):
        Download(Server(talk), "j.1", tmp_path / "cache").run(["l"], False)  # type: ignore[arg-type]
    assert talk.asked == [MANIFEST]


@pytest.mark.parametrize("said", [{"farm": "../..", "layers": [], "missing": []},
                                  {"farm": DIGEST, "layers": ["../../mark"], "missing": []}])  # fmt: skip
def test_a_farm_and_a_layer_have_names_that_can_be(tmp_path: Path, said: object) -> None:
    backend = RemoteBackend(Server(said=said), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(MusterError, match="calls"):
        backend.result("j.1", [], False)


def test_what_a_server_says_steers_no_terminal() -> None:
    error = MusterError("it \x1b[2J said\r so", "do \x07 this")
    assert (str(error), error.message, error.hint) == ("it \ufffd[2J said\ufffd so",) * 2 + ("do \ufffd this",)
