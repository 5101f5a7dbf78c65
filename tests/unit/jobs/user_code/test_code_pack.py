"""A user's files: what is refused at submit, and that unpacking writes exactly what was packed and nowhere else."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest

from muster.jobs.common.errors import DamagedError, JobFileError
from muster.jobs.user_code import code_pack
from muster.jobs.user_code.code_pack import CodeBundle, collect, pack, unpack


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A job's folder with some code in it."""
    files = {
        "work.py": "import os\ndef embed(rows): return rows\nclass Model: pass\nif os: late = embed\n",
        "helpers.py": "ONE = 1\n",
        "pkg/__init__.py": "",
        "pkg/deep/table.csv": "1,2\n",
        "pkg/__pycache__/x.pyc": "compiled",
        "pkg/.git/config": "hidden",
        "pkg/.env": "secret",
        "pkg/old.pyc": "compiled",
    }
    for name, text in files.items():
        (tmp_path / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "job" / name).write_text(text)
    return tmp_path / "job"


def refused(entry: str, include: list[str], base: Path) -> JobFileError:
    with pytest.raises(JobFileError) as caught:
        collect(entry, include, base)
    return caught.value


def packed_raw(entry: str, files: dict[str, bytes]) -> tuple[bytes, str]:
    raw = code_pack.MAGIC + msgspec.msgpack.encode([entry, files])
    return raw, blake2b(raw, digest_size=16).hexdigest()


# --- collecting -------------------------------------------------------------------------------------------


def test_entry_alone(base: Path) -> None:
    bundle = collect("work.py:embed", [], base)
    assert bundle.entry == "work.py:embed"
    assert list(bundle.files) == ["work.py"]
    assert len(bundle.digest) == 32


def test_folders_are_taken_without_caches_and_hidden_files(base: Path) -> None:
    bundle = collect("./work.py:embed", ["pkg", "helpers.py", "helpers.py"], base)
    assert list(bundle.files) == ["helpers.py", "pkg/__init__.py", "pkg/deep/table.csv", "work.py"]
    assert bundle.entry == "work.py:embed"


def test_absolute_path_below_the_base_is_the_same(base: Path) -> None:
    assert collect(f"{base}/work.py:embed", [], base) == collect("work.py:embed", [], base)


@pytest.mark.parametrize("function", ["Model", "late", "os"])
def test_anything_named_at_the_top_level_will_do(base: Path, function: str) -> None:
    assert collect(f"work.py:{function}", [], base).entry == f"work.py:{function}"


def test_star_import_may_bring_the_function(base: Path) -> None:
    (base / "star.py").write_text("from helpers import *\n")
    assert collect("star.py:anything", ["helpers.py"], base).files


def test_missing_function_names_the_nearest(base: Path) -> None:
    error = refused("work.py:embd", [], base)
    assert error.message == "code.entry: work.py defines no 'embd'"
    assert error.hint == "did you mean work.py:embed?"


def test_nested_function_is_not_at_the_top_level(base: Path) -> None:
    (base / "work.py").write_text("def outer():\n  def inner(rows): pass\n")
    assert "no 'inner'" in refused("work.py:inner", [], base).message


def test_missing_file_names_the_nearest(base: Path) -> None:
    error = refused("wrk.py:embed", [], base)
    assert (error.message, error.hint) == ("code.entry: there is no file 'wrk.py'", "did you mean 'work.py'?")
    assert (
        "code.include[1]: there is no file 'nowhere/x'" in refused("work.py:embed", ["pkg", "nowhere/x"], base).message
    )


def test_syntax_error_has_its_line(base: Path) -> None:
    (base / "work.py").write_text("x = 1\ndef embed(rows:\n")
    error = refused("work.py:embed", [], base)
    assert "work.py, line 2: " in error.message and "def embed(rows:" in error.hint


@pytest.mark.parametrize("content", [b"\x00", b"\xff\xfe", b"(" * 100_000])
def test_what_is_not_python(base: Path, content: bytes) -> None:
    (base / "work.py").write_bytes(content)
    assert "work.py" in refused("work.py:embed", [], base).message


@pytest.mark.parametrize("outside", ["../other.py", "/etc/hostname", "pkg/../../other.py"])
def test_outside_of_the_base(base: Path, outside: str) -> None:
    (base.parent / "other.py").write_text("def f(): pass\n")
    assert "not below" in refused(f"{outside}:f", [], base).message
    assert "not below" in refused("work.py:embed", [outside], base).message


def test_import_of_a_file_left_at_home(base: Path) -> None:
    (base / "work.py").write_text("import numpy\nimport helpers\nfrom pkg.deep import x\ndef embed(rows): pass\n")
    error = refused("work.py:embed", ["pkg"], base)
    assert error.message == "code.include: work.py imports helpers, and helpers.py is not included"
    assert error.hint == "add `include: [helpers.py]` below `code`"
    assert "pkg is not included" in refused("work.py:embed", ["helpers.py"], base).message
    assert collect("work.py:embed", ["helpers.py", "pkg"], base).files


def test_too_much(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_pack, "BYTES_LIMIT", 70)
    assert "more than" in refused("work.py:embed", ["helpers.py"], base).message
    monkeypatch.setattr(code_pack, "BYTES_LIMIT", 1 << 20)
    monkeypatch.setattr(code_pack, "FILES_LIMIT", 2)
    assert "more than 2 files" in refused("work.py:embed", ["pkg", "helpers.py"], base).message


@pytest.mark.parametrize("include", [["leak.py"], ["pkg"], ["out/leak.py"]])
def test_a_link_that_leads_out_is_no_code(
    base: Path, tmp_path_factory: pytest.TempPathFactory, include: list[str]
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "leak.py").write_text("a secret")
    (base / "leak.py").symlink_to(elsewhere / "leak.py")
    (base / "pkg" / "leak.py").symlink_to(elsewhere / "leak.py")
    (base / "out").symlink_to(elsewhere)
    with pytest.raises(JobFileError, match="which is not below the job file's folder"):
        collect("work.py:embed", include, base)


def test_a_file_that_grows_while_it_is_read_is_not_read_without_end(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is what came, not what was said of it before."""
    monkeypatch.setattr(code_pack, "BYTES_LIMIT", 100)
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **more: os.stat_result((*stat(path, **more)[:6], 1, 0, 0, 0)))
    (base / "large.py").write_bytes(b"#" * 1000)
    with pytest.raises(JobFileError, match="more than"):
        collect("", ["large.py"], base)


def test_linked_file_is_taken_by_its_content_and_loops_end(base: Path) -> None:
    (base / "pkg" / "link.py").symlink_to(base / "helpers.py")
    (base / "pkg" / "loop").symlink_to(base / "pkg")
    assert collect("work.py:embed", ["pkg"], base).files["pkg/link.py"] == b"ONE = 1\n"


def test_unreadable_names_and_files(base: Path) -> None:
    (base / "pkg" / "bad\nname").touch()
    assert "cannot be the name" in refused("work.py:embed", ["pkg"], base).message


# --- packing ----------------------------------------------------------------------------------------------


def test_same_files_give_the_same_pack_whenever_and_however(base: Path) -> None:
    one = collect("work.py:embed", ["pkg", "helpers.py"], base)
    os.utime(base / "helpers.py", (1, 1))
    other = collect("work.py:embed", ["helpers.py", "pkg"], base)
    assert pack(one) == pack(other) and one.digest == other.digest


def test_digest_is_over_names_bytes_and_entry() -> None:
    digests = {
        CodeBundle(entry, {name: content}).digest
        for entry in ("a.py:f", "a.py:g")
        for name in ("a.py", "b.py")
        for content in (b"1", b"2")
    }
    assert len(digests) == 8


def test_unpack_gives_the_files_back(base: Path, tmp_path: Path) -> None:
    bundle = collect("work.py:embed", ["pkg"], base)
    folder = tmp_path / "spool" / bundle.digest
    assert unpack(pack(bundle), folder, bundle.digest) == bundle
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == bundle.files
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_unpack_again_touches_nothing_and_mends_what_was_spoilt(base: Path, tmp_path: Path) -> None:
    bundle = collect("work.py:embed", ["pkg"], base)
    folder = tmp_path / "code"
    unpack(pack(bundle), folder, bundle.digest)
    inode = (folder / "work.py").stat().st_ino
    (folder / "__pycache__").mkdir()
    unpack(pack(bundle), folder, bundle.digest)
    assert (folder / "work.py").stat().st_ino == inode
    (folder / "work.py").write_text("spoilt")
    unpack(pack(bundle), folder, bundle.digest)
    assert (folder / "work.py").read_bytes() == bundle.files["work.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "job"]


def test_unpack_again_deletes_what_is_not_of_the_pack(base: Path, tmp_path: Path) -> None:
    bundle = collect("work.py:embed", ["pkg"], base)
    folder, elsewhere = tmp_path / "code", tmp_path / "elsewhere"
    unpack(pack(bundle), folder, bundle.digest)
    inode = (folder / "work.py").stat().st_ino
    for place in (folder / "numpy.py", folder / "pkg" / "__pycache__" / "x.pyc", folder / "extra" / "__init__.py"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"strange")
    (folder / "empty").mkdir()
    elsewhere.mkdir()
    (elsewhere / "kept.py").write_bytes(b"another's")
    (folder / "linked").symlink_to(elsewhere)
    unpack(pack(bundle), folder, bundle.digest)
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert left == {*bundle.files, *(str(Path(name).parent) for name in bundle.files if "/" in name)}
    assert (folder / "work.py").stat().st_ino == inode, "what was right was written again"
    assert (elsewhere / "kept.py").read_bytes() == b"another's"


def test_a_folder_that_a_link_leads_to_is_not_taken_for_the_packs(tmp_path: Path) -> None:
    bundle = CodeBundle("pkg/a.py:f", {"pkg/a.py": b"same"})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.py").write_bytes(b"same")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "pkg").symlink_to(tmp_path / "elsewhere")
    unpack(pack(bundle), tmp_path / "code", bundle.digest)
    assert not (tmp_path / "code" / "pkg").is_symlink() and (tmp_path / "elsewhere" / "a.py").read_bytes() == b"same"


def test_changed_pack_is_refused(base: Path, tmp_path: Path) -> None:
    bundle = collect("work.py:embed", [], base)
    raw = bytearray(pack(bundle))
    raw[-1] ^= 1
    for damaged in (bytes(raw), pack(bundle)[:-1], b"", pack(bundle) + b"x"):
        with pytest.raises(DamagedError):
            unpack(damaged, tmp_path / "code", bundle.digest)
    assert not (tmp_path / "code").exists()


@pytest.mark.parametrize(
    "names",
    [
        ["../x"],
        ["/etc/x"],
        ["a/../../x"],
        ["a//b"],
        ["./a"],
        [""],
        ["a\\b"],
        ["a\x00"],
        ["x" * 513],
        ["/".join(["d"] * 3 + ["x" * 300])],
        ["a", "a/b"],
        ["b", "a"],
    ],
)
def test_hostile_names_write_nothing(tmp_path: Path, names: list[str]) -> None:
    raw, digest = packed_raw("a:f", dict.fromkeys(names, b"x"))
    with pytest.raises(DamagedError):
        unpack(raw, tmp_path / "spool" / "code", digest)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"\xc1", b"\x92\xa1f\xdf\xff\xff\xff\xff", b"\x91" * 100_000, b"\x92\x01\x80"]
)
def test_malformed_packs(tmp_path: Path, content: bytes) -> None:
    raw = code_pack.MAGIC + content
    with pytest.raises(DamagedError):
        unpack(raw, tmp_path / "code", blake2b(raw, digest_size=16).hexdigest())


def test_link_planted_in_the_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    bundle = CodeBundle("a.py:f", {"a.py": b"new"})
    (tmp_path / "victim").write_bytes(b"old")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").symlink_to(tmp_path / "victim")
    unpack(pack(bundle), tmp_path / "code", bundle.digest)
    assert (tmp_path / "victim").read_bytes() == b"old"
    assert (tmp_path / "code" / "a.py").read_bytes() == b"new"
