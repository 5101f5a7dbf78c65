"""A user's own files: collected and checked at submit, digested, packed, unpacked on the machine that runs them.

Never imports or runs them. A pack is the same bytes for the same files, wherever and whenever they were collected.
"""

from __future__ import annotations

import ast
import os
import secrets
import shutil
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path, PurePosixPath

import msgspec

from muster.jobs.common import units
from muster.jobs.common.errors import DamagedError, JobFileError
from muster.jobs.common.validation import did_you_mean, nearest
from muster.jobs.contract.kind import CalledWith

MAGIC = b"muscode1"
DIGEST_BYTES = 16
BYTES_LIMIT = 64 << 20  # of all files together
FILES_LIMIT = 10_000
NAME_LIMIT = 512
PACK_LIMIT = BYTES_LIMIT + FILES_LIMIT * (NAME_LIMIT + 16)  # bytes of a pack
_PROGRAMS = (b"#!", b"\x7fELF")  # that a file begins with which says how it is run: it may be
_NO_COMPILED = (".pyc", ".pyo")


class _Content(msgspec.Struct, frozen=True, array_like=True):
    """What a pack holds after its magic."""

    entry: str
    files: dict[str, bytes]  # by name, sorted


@dataclass(frozen=True)
class CodeBundle:
    """Files by their names relative to the job file's folder, and which function of them is meant."""

    entry: str  # "work.py:embed"
    files: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """32 hex digits over the names, the bytes and the entry: these files are shipped and cached under it."""
        return blake2b(pack(self), digest_size=DIGEST_BYTES).hexdigest()


# --- collecting -------------------------------------------------------------------------------------------


def collect(entry: str, include: Sequence[str], base: Path) -> CodeBundle:
    """The entry's file, if there is one, and what `include` names, files or folders, all below `base`; a JobFileError
    otherwise."""
    file, _, function = entry.partition(":")
    base = base.resolve()
    if not entry:
        return CodeBundle("", dict(sorted(_read_all(base, _included(base, include)).items())))
    path = _below(base, file, "code.entry")
    if not path.is_file():
        raise _missing(base, file, "code.entry")
    files = _read_all(base, [path, *_included(base, include)])
    name = path.relative_to(base).as_posix()
    tree = _parsed(name, files[name])
    _check_function(tree, name, function)
    _check_siblings(tree, path, base, files)
    return CodeBundle(f"{name}:{function}", dict(sorted(files.items())))


def _included(base: Path, include: Sequence[str]) -> Iterator[Path]:
    for i, text in enumerate(include):
        path = _below(base, text, f"code.include[{i}]")
        if path.is_dir():
            yield from _walk(path)
        elif path.is_file():
            yield path
        else:
            raise _missing(base, text, f"code.include[{i}]")


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(files):
            if not name.startswith(".") and not name.endswith(_NO_COMPILED) and Path(root, name).is_file():
                yield Path(root, name)


def _below(base: Path, text: str, field: str) -> Path:
    """The path as it is named, not where a link in it leads: the name is what the user's imports go by."""
    path = Path(os.path.normpath(base / text))
    if path != base and base not in path.parents:
        raise JobFileError(f"{field}: {text!r} is not below the job file's folder", "keep code beside the job file")
    return path


def _missing(base: Path, text: str, field: str) -> JobFileError:
    near = nearest(text, (path.relative_to(base).as_posix() for path in (base / text).parent.glob("*")))
    hint = f"did you mean {near!r}?" if near else "paths are relative to the job file's folder"
    return JobFileError(f"{field}: there is no file {text!r}", hint)


def _read_all(base: Path, paths: Iterable[Path]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for path in paths:
        name = path.relative_to(base).as_posix()
        if not _is_name(name):
            raise JobFileError(f"code: {name!r} cannot be the name of a file on every machine", "rename it")
        if name in files:
            continue
        files[name] = _read(base, path, name, BYTES_LIMIT - total)
        total += len(files[name])
        if total > BYTES_LIMIT or len(files) > FILES_LIMIT:
            limits = f"{FILES_LIMIT} files and {units.format_size(BYTES_LIMIT)}"
            raise JobFileError(f"code: more than {limits}", "include code alone")
    return files


def _read(base: Path, path: Path, name: str, limit: int) -> bytes:
    """At most a byte more than `limit`, of what is opened once: it may be something else by the next look."""
    try:
        real = path.resolve()
        if base not in real.parents:
            raise JobFileError(
                f"code: {name} is a link to {real}, which is not below the job file's folder", "copy the file there"
            )
        with os.fdopen(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise JobFileError(f"code: {name} is no regular file", "include code alone")
            return file.read(limit + 1)
    except (OSError, RuntimeError) as error:  # the latter of links in a circle
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise JobFileError(f"code: {name} cannot be read: {why}") from None


# --- checking what the entry says -------------------------------------------------------------------------


def _parsed(name: str, raw: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(raw, name)
    except SyntaxError as error:
        text = (error.text or "").strip()
        raise JobFileError(f"code.entry: {name}, line {error.lineno}: {error.msg}", f"correct `{text}`") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise JobFileError(f"code.entry: {name} is not Python: {error}") from None


def _check_function(tree: ast.Module, file: str, function: str) -> None:
    found = set(_top_names(tree.body))
    if function in found or "*" in found:
        return
    near = nearest(function, found)
    hint = f"did you mean {file}:{near}?" if near else "define it at the top level of the file"
    raise JobFileError(f"code.entry: {file} defines no {function!r}", hint)


def check_call(bundle: CodeBundle, called: CalledWith) -> None:
    """Refuse arguments that the entry cannot be called with, where its file says what it takes."""
    file, _, function = bundle.entry.partition(":")
    defined = [node for node in _parsed(file, bundle.files[file]).body if getattr(node, "name", "") == function]
    if len(defined) != 1 or not isinstance(node := defined[0], ast.FunctionDef) or node.decorator_list:
        return  # what a decorator makes of it, or an assignment, nobody knows before it runs
    takes = node.args
    plain = [*takes.posonlyargs, *takes.args]
    if not plain and takes.vararg is None:
        raise JobFileError(
            f"code.entry: {function} takes no argument", f"def {function}(rows, ...): what it computes on"
        )
    named = [arg.arg for arg in (*plain[1:], *takes.kwonlyargs) if arg not in takes.posonlyargs]
    wrong = sorted(called.given - set(named)) if takes.kwarg is None else []
    if wrong:
        text = f"params.args: {function} has no parameter {wrong[0]!r}{did_you_mean(wrong[0], named)}"
        raise JobFileError(text, f"its parameters: {', '.join(named) or 'none but the rows'}")
    optional = {arg.arg for arg in plain[len(plain) - len(takes.defaults) :]}
    optional |= {arg.arg for arg, value in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if value is not None}
    if missing := [name for name in named if name not in optional | called.given | called.offered]:
        text = f"params.args: {function} wants {missing[0]!r}, which has no default"
        raise JobFileError(text, f"params: {{args: {{{missing[0]}: ...}}}}")


def _top_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Every name a module may define, `*` where it imports what we cannot see."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id
            elif isinstance(inner, ast.stmt) and inner is not node:
                yield from _top_names([inner])


def _check_siblings(tree: ast.Module, path: Path, base: Path, files: Mapping[str, bytes]) -> None:
    """Refuse an import of a file that lies beside the entry and would stay at home."""
    packed = {parent.as_posix() for name in files for parent in [PurePosixPath(name), *PurePosixPath(name).parents]}
    for module in sorted(set(_imported(tree))):
        for folder in dict.fromkeys([path.parent, base]):
            for sibling in (folder / f"{module}.py", folder / module):
                name = sibling.relative_to(base).as_posix()
                if sibling.exists() and (sibling.suffix or any(sibling.glob("*.py"))) and name not in packed:
                    text = f"code.include: {path.name} imports {module}, and {name} is not included"
                    raise JobFileError(text, f"add `include: [{name}]` below `code`")


def _imported(tree: ast.Module) -> Iterator[str]:
    """First parts of the modules imported at the top level, where an import is not guarded by anything."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


# --- packing ----------------------------------------------------------------------------------------------


def pack(bundle: CodeBundle) -> bytes:
    """As it is stored and shipped."""
    return MAGIC + msgspec.msgpack.encode(_Content(bundle.entry, dict(sorted(bundle.files.items()))))


def unpack(raw: bytes, folder: Path, digest: str) -> CodeBundle:
    """Make `folder` hold these files and no others, unless it does already. A DamagedError where `digest` does not fit.

    What is right stays as it is: other processes may be reading it.
    """
    bundle = _decoded(raw, digest)
    if _is_cleared(folder, bundle) and _holds(folder, bundle):
        return bundle
    tmp = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    try:
        _write_all(tmp, bundle)
        _move_in(tmp, folder, bundle)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
    return bundle


def opened(raw: bytes) -> CodeBundle:
    """A pack that a stranger sent, whatever its digest. A DamagedError unless its names and its entry can be used."""
    bundle = _decoded(raw, blake2b(raw, digest_size=DIGEST_BYTES).hexdigest())
    file, _, function = bundle.entry.partition(":")
    if bundle.entry and (file not in bundle.files or not function.isidentifier()):
        raise DamagedError("a pack of code whose entry is not in it")
    return bundle


def _decoded(raw: bytes, digest: str) -> CodeBundle:
    if len(raw) > PACK_LIMIT:
        raise DamagedError(f"a pack of code of {len(raw)} bytes")
    if blake2b(raw, digest_size=DIGEST_BYTES).hexdigest() != digest or not raw.startswith(MAGIC):
        raise DamagedError(f"the pack of code {digest} does not match its digest")
    try:
        content = msgspec.msgpack.decode(raw[len(MAGIC) :], type=_Content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedError(f"the pack of code {digest} does not decode: {error}") from None
    names = list(content.files)
    taken = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    bad = next((name for name in names if not _is_name(name) or name in taken), None)
    if bad is not None or len(names) > FILES_LIMIT or any(a >= b for a, b in pairwise(names)):
        raise DamagedError(f"the pack of code {digest} has names that are not allowed, such as {bad!r}"[:200])
    return CodeBundle(content.entry, content.files)


def _is_name(name: str) -> bool:
    """A relative path of printable parts, none of which leads elsewhere."""
    parts = name.split("/")
    plain = 0 < len(name) <= NAME_LIMIT and name.isprintable() and "\\" not in name
    return plain and all(part not in {"", ".", ".."} and len(part.encode()) <= 255 for part in parts)


def _is_cleared(folder: Path, bundle: CodeBundle) -> bool:
    """Delete what is not the pack's; whether that worked. A module that lies there may be imported in another's place,
    and compiled files (`__pycache__`) are believed without a look at what they were made of."""
    strange = list(_strangers(folder, bundle))
    for path in strange:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    return not strange or not any(_strangers(folder, bundle))


def _strangers(folder: Path, bundle: CodeBundle) -> Iterator[Path]:
    """What lies in the folder and is not of the pack, or is a link where that has a folder."""
    known = {parent.as_posix() for parent in {PurePosixPath(name).parent for name in bundle.files}}
    known |= {parent.as_posix() for name in known for parent in PurePosixPath(name).parents}
    for root, folders, files in os.walk(folder):
        above = f"{root}/"[len(str(folder)) + 1 :]
        kept = [name for name in folders if above + name in known and not Path(root, name).is_symlink()]
        yield from (Path(root, name) for name in folders if name not in kept)
        yield from (Path(root, name) for name in files if above + name not in bundle.files)
        folders[:] = kept


def _holds(folder: Path, bundle: CodeBundle) -> bool:
    """Whether every file is there and whole: the user's code may have changed them."""
    return all(_is_same(f"{folder}/{name}", content) for name, content in bundle.files.items())


def _is_same(path: str, content: bytes) -> bool:
    """Without the comfort of `Path`: there may be thousands, and a runner waits."""
    try:
        info = os.lstat(path)
        if not stat.S_ISREG(info.st_mode) or info.st_size != len(content):
            return False
        if content.startswith(_PROGRAMS) and not info.st_mode & stat.S_IXUSR:
            return False
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.read() == content
    except OSError:
        return False


def _write_all(folder: Path, bundle: CodeBundle) -> None:
    folder.mkdir(parents=True)
    for name, content in bundle.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if content.startswith(_PROGRAMS):
            path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _move_in(tmp: Path, folder: Path, bundle: CodeBundle) -> None:
    """Rename, so that nobody sees half of it. What was there and is spoilt goes with `tmp`'s remains."""
    old = tmp.with_name(f"{tmp.name}.old")
    try:
        if folder.exists():
            folder.rename(old)
        tmp.rename(folder)
    except OSError:
        if not _holds(folder, bundle):  # else another process was first
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
