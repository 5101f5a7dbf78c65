"""A function as source text that runs elsewhere: itself, what it calls of its own module, imports and literals.

Text and no pickle, so that the far machine may run another Python. What cannot be written down is refused by its name.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import math
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from sysconfig import get_paths
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from muster.jobs.common.errors import UsageError
from muster.jobs.common.units import format_size
from muster.jobs.user_code.code_pack import BYTES_LIMIT, CodeBundle

FILE = "work.py"
LITERAL_LIMIT = 1 << 20  # characters of one, written out
HEAD = "from __future__ import annotations\n"  # what annotations name is not needed there
_LEAVES = (type(None), bool, int, float, complex, str, bytes)
MODULE_NAMES = ("__name__", "__file__", "__doc__", "__builtins__", "__package__", "__spec__", "__loader__")
ARRAYS_LIMIT = BYTES_LIMIT - (4 << 20)  # bytes, with room for the text
LIBRARY, NUMPY, PATH = "_muster_library", "_muster_numpy", "_muster_path"  # names of ours in the text
_ARRAYS = (np.ndarray, np.memmap)
_FUNCTION = "give `map` a function written with `def` in a file or a notebook"
_WRAPPED = "call it in a function written with `def`, and import or make it within that"

Definition = FunctionType | type


def ship(function: Callable[..., Any]) -> CodeBundle:
    """The pack for a job of kind `map`; a UsageError that names what keeps it from being one."""
    if (line := _library_import(function)) is not None:
        name = function.__name__
        called = f"{HEAD}{line}\n\n\ndef {name}(rows, **more):\n    return {LIBRARY}(rows, **more)\n"
        return CodeBundle(f"{FILE}:{name}", {FILE: called.encode()})
    return _own_text(function)


def call_text(function: Callable[..., Any]) -> CodeBundle:
    """The same for a function that is called with arguments of any number, perhaps a builtin one."""
    line = _library_import(function)
    if line is None and getattr(builtins, getattr(function, "__name__", ""), None) is function:
        line = f"from builtins import {function.__name__} as {LIBRARY}"
    if line is None:
        return _own_text(function)
    return CodeBundle(f"{FILE}:{LIBRARY}", {FILE: f"{HEAD}{line}\n".encode()})


def _own_text(function: Callable[..., Any]) -> CodeBundle:
    made = _plain_function(inspect.unwrap(function))
    text = _Text(made)
    text.define(made.__name__, function, made)
    return CodeBundle(f"{FILE}:{made.__name__}", {FILE: text.whole().encode(), **text.arrays})


def _library_import(function: Callable[..., Any]) -> str | None:
    """The statement that imports a function of a library; None for one whose source is to be sent."""
    name = getattr(function, "__name__", "")
    if not (name.isidentifier() and callable(function)) or isinstance(function, type):
        return None
    for module, attribute in _origins(name, function):
        top = sys.modules.get(module.partition(".")[0])
        place = getattr(top, "__file__", None)
        is_it = "." not in attribute and _attribute(module, attribute) is function
        theirs = module in sys.builtin_module_names or (place and _is_library(module.partition(".")[0], place))
        if is_it and theirs:
            return f"from {module} import {attribute} as {LIBRARY}"
    return None


def _plain_function(function: object) -> FunctionType:
    if not isinstance(function, FunctionType):
        raise UsageError(f"{_shown(function)} is a {type(function).__name__}, not a function of yours", _WRAPPED)
    if function.__name__ == "<lambda>":
        raise UsageError("a lambda has no name and no source of its own", _FUNCTION)
    return function


class _Text:
    """What was written down so far. Everything a definition needs as it is made comes before it."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._imports: dict[str, str] = {}
        self._body: list[str] = []
        self._known: dict[str, object] = {}  # name → what it stands for in the text
        self.arrays: dict[str, bytes] = {}  # files beside the text

    def whole(self) -> str:
        return "\n".join([HEAD, *self._imports.values(), "", *self._body])

    def define(self, name: str, value: Any, made: Definition) -> None:
        """Something of the user's, defined by `made`'s source, under the name it has there."""
        if self._is_known(name, value):
            return
        source, scope = _source_of(made), _Scope(made)
        tree = _Bare().visit(ast.parse(source))
        for needed in _free_names(tree):
            if needed not in (made.__name__, *MODULE_NAMES) and (needed in scope or not hasattr(builtins, needed)):
                self._need(needed, scope)
        for module in _submodules(tree, scope):
            self._imports[module] = f"import {module}"
        self._body.append(source)
        if name != made.__name__:
            self._claim(made.__name__, value)
            self._body.append(f"{name} = {made.__name__}\n")

    def _is_known(self, name: str, value: object) -> bool:
        if name in self._known and self._known[name] is value:
            return True
        self._claim(name, value)
        return False

    def _claim(self, name: str, value: object) -> None:
        known = self._known.setdefault(name, value)
        if known is not value and not (type(known) is type(value) and _is_literal(known) and known == value):
            raise UsageError(f"`{name}` means two things in what {self._function.__name__} needs", "rename one of them")

    def _need(self, name: str, scope: _Scope) -> None:
        if name not in scope:
            raise UsageError(f"{scope.name} refers to `{name}`, which is not defined", "define or import it first")
        value = scope[name]
        made = inspect.unwrap(value) if callable(value) else value
        if isinstance(made, (FunctionType, type)) and made.__module__ == scope.module:
            if made.__name__ == "<lambda>":
                raise _refusal(scope.name, name, "a lambda")
            self.define(name, value, made)
        elif (line := _import_line(name, value, scope.name)) is not None:
            self._claim(name, value)
            self._imports[name] = line
        elif not self._is_known(name, value):
            is_array = type(value) in _ARRAYS or isinstance(value, np.generic)
            self._body.append(
                self._array(scope.name, name, value) if is_array else _assignment(scope.name, name, value)
            )

    def _array(self, user: str, name: str, value: Any) -> str:
        """The statement that reads an array from a file beside the text."""
        if value.dtype.hasobject:
            raise _refusal(user, name, f"an array of {value.dtype}")
        if value.nbytes + sum(map(len, self.arrays.values())) > ARRAYS_LIMIT:
            hint = f"write it to a file that every machine can read, and `np.load` that within {user}"
            why = f"with it the arrays that it needs are more than {format_size(ARRAYS_LIMIT)}"
            raise UsageError(f"{user} refers to `{name}`: {why}", hint)
        file, raw = f"array_{len(self.arrays)}.npy", io.BytesIO()
        np.save(raw, np.asarray(value), allow_pickle=False)
        self.arrays[file] = raw.getvalue()
        self._imports[NUMPY], self._imports[PATH] = f"import numpy as {NUMPY}", f"from pathlib import Path as {PATH}"
        scalar = "[()]" if isinstance(value, np.generic) else ""
        return f'{name} = {NUMPY}.load({PATH}(__file__).with_name("{file}"), allow_pickle=False){scalar}\n'


class _Scope:
    """What names mean where something was defined: what it closes over, then its module."""

    def __init__(self, made: Definition) -> None:
        self.name, self.module = made.__name__, made.__module__
        functions = [made] if isinstance(made, FunctionType) else _methods_of(made)
        self._globals: Mapping[str, Any] = (
            functions[0].__globals__ if functions else vars(sys.modules.get(made.__module__, builtins))
        )
        self._cells: dict[str, Any] = {}
        for function in functions:
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if name != "__class__":
                    self._cells[name] = _content(cell)

    def __contains__(self, name: str) -> bool:
        return name in self._cells or name in self._globals

    def __getitem__(self, name: str) -> Any:
        return self._cells[name] if name in self._cells else self._globals[name]


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _Unset()


class _Unset:
    """Stands for a variable without a value."""


def _methods_of(made: type) -> list[FunctionType]:
    found = [getattr(value, "__func__", value) for value in vars(made).values()]
    return [value for value in found if isinstance(value, FunctionType)]


# --- source -----------------------------------------------------------------------------------------------


def _source_of(made: Definition) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(made))
        ast.parse(text)
    except (OSError, TypeError, SyntaxError, IndentationError) as error:
        why = f"the source of `{made.__name__}` cannot be found: {str(error).partition(chr(10))[0]}"
        raise UsageError(why, "define it in a file or a notebook cell, not at a prompt or by `exec`") from None
    return text if text.endswith("\n") else text + "\n"


def _free_names(tree: ast.Module) -> list[str]:
    """Names a definition takes from around it."""
    table = symtable.symtable(ast.unparse(ast.fix_missing_locations(tree)), "source", "exec")
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    outside = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    inside = {name for child in table.get_children() for name in _globals_of(child)}
    return sorted((outside | inside) - own | (inside & own))


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global() and (symbol.is_referenced() or symbol.is_assigned()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals_of(child)


def _submodules(tree: ast.Module, scope: _Scope) -> Iterator[str]:
    """`xml.etree.ElementTree`, where that is written out and `xml` alone would not bring it."""
    for node in ast.walk(tree):
        inner, attributes = node, list[str]()
        while isinstance(inner, ast.Attribute):
            attributes.insert(0, inner.attr)
            inner = inner.value
        if attributes and isinstance(inner, ast.Name) and inner.id in scope:
            module = scope[inner.id]
            for attribute in attributes if isinstance(module, ModuleType) else ():
                module = getattr(module, attribute, None)
                if isinstance(module, ModuleType) and module.__name__ in sys.modules:
                    yield module.__name__


class _Bare(ast.NodeTransformer):
    """Takes annotations away."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


# --- what is not the user's own code ----------------------------------------------------------------------


def _import_line(name: str, value: object, user: str) -> str | None:
    """The statement that brings a module, or something of one, under this name; None if no import does."""
    if isinstance(value, ModuleType):
        _check_installed(value.__name__, user, name)
        return f"import {value.__name__}" if value.__name__ == name else _imported_as(value.__name__, name)
    for module, attribute in _origins(name, value):
        if _attribute(module, attribute) is value:
            _check_installed(module, user, name)
            head, _, inner = attribute.partition(".")
            line = f"from {module} import {head}" + (f" as {name}" if head != name or inner else "")
            return f"{line}\n{name} = {name}.{inner}" if inner else line
    return None


def _imported_as(module: str, name: str) -> str:
    """`import a.b` binds `a`: whoever has `a.b` under a name of its own said so."""
    return f"import {module} as {name}"


def _origins(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Where something may have been imported from, and what it is called there."""
    if isinstance(value, _LEAVES):
        return
    modules = [getattr(value, "__module__", None), getattr(type(value), "__module__", None)]
    names = [getattr(value, "__qualname__", None), getattr(value, "__name__", None), name]
    for module in modules:
        if isinstance(module, str) and module not in ("__main__", "builtins"):
            yield from ((module, found) for found in names if isinstance(found, str) and "<" not in found)


def _attribute(module: str, attribute: str) -> object:
    try:
        found: object = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def _check_installed(module: str, user: str, name: str) -> None:
    """Refuse a file of the user's own: it is on no other machine."""
    top = module.partition(".")[0]
    spec = sys.modules[top].__spec__ if top in sys.modules else None
    origin = spec.origin if spec else None
    if top in sys.stdlib_module_names or not origin or origin in ("built-in", "frozen") or _is_installed(top, origin):
        return
    raise UsageError(
        f"{user} refers to `{name}` of {origin}, a file of yours that is not installed",
        f"submit(kind='map', code={{'entry': 'work.py:{user}', 'include': [...]}}) takes files along, "
        "or define it beside the function",
    )


def is_own(name: str, module: ModuleType) -> bool:
    """Whether a module is a file of the user's own, which no other machine has."""
    top, place = name.partition(".")[0], getattr(module, "__file__", None)
    if not isinstance(place, str) or getattr(module, "__name__", "") != name or name == "__main__":
        return False
    return top not in sys.stdlib_module_names and not _package_is_installed(top)


@cache
def _package_is_installed(top: str) -> bool:
    """All modules below one name come from where that does."""
    place = getattr(sys.modules.get(top), "__file__", None)
    return top in _distributed() if place is None else _is_installed(top, place)


def _is_installed(top: str, origin: str) -> bool:
    return _is_in_packages(origin) or top in _distributed()


def _is_in_packages(origin: str) -> bool:
    """Whether a file is of the standard library or of a folder that packages are installed into."""
    packages = {Path(get_paths()[name]).resolve() for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    path = Path(origin).resolve()
    inside = any(package in path.parents for package in packages) or "site-packages" in path.parts
    return inside or "dist-packages" in path.parts


def _is_library(top: str, origin: str) -> bool:
    """Whether others have it as we do. What a developer installed in place lies elsewhere than what is said of it."""
    if top in sys.stdlib_module_names or _is_in_packages(origin):
        return True
    found = [metadata.distribution(name) for name in metadata.packages_distributions().get(top, ())]
    wheels = [Path(str(one.locate_file(""))).resolve() for one in found if one.read_text("WHEEL")]
    return any(folder in Path(origin).resolve().parents for folder in wheels)


@cache
def _distributed() -> frozenset[str]:
    """Names of installed packages, those that are read from a folder of their developer's among them."""
    return frozenset(metadata.packages_distributions())


def _assignment(user: str, name: str, value: object) -> str:
    if isinstance(value, _Unset):
        raise UsageError(f"{user} refers to `{name}`, which has no value yet", "call map after it is set")
    if not _is_literal(value):
        raise _refusal(user, name, f"a {type(value).__name__}")
    text = _written(value)
    if len(text) > LITERAL_LIMIT:
        raise _refusal(user, name, f"{len(text)} characters of {type(value).__name__}")
    return f"{name} = {text}\n"


def _refusal(user: str, name: str, what: str) -> UsageError:
    return UsageError(
        f"{user} refers to `{name}`, {what}: only functions, imports, literals and arrays travel with it",
        f"write `{name}` with `def`"
        if what == "a lambda"
        else f"make `{name}` within {user}; of arrays, name each one",
    )


def _is_literal(value: object) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_literal, value))  # type: ignore[call-overload]
    if type(value) is dict:
        return all(_is_literal(key) and _is_literal(one) for key, one in value.items())
    return type(value) in _LEAVES


def _written(value: Any) -> str:
    """As an expression; `repr` has none for what is infinite, or an empty set within something."""
    if type(value) in (list, tuple, set, frozenset):
        inner = ", ".join(map(_written, sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value))
        if type(value) is tuple:
            return f"({inner},)" if value else "()"
        return f"[{inner}]" if type(value) is list else f"{type(value).__name__}([{inner}])"
    if type(value) is dict:
        return "{" + ", ".join(f"{_written(key)}: {_written(one)}" for key, one in value.items()) + "}"
    if type(value) is float and (not math.isfinite(value)):
        return f"float({str(value)!r})"
    if type(value) is complex:
        return f"complex({_written(value.real)}, {_written(value.imag)})"
    return repr(value)


def _shown(value: object) -> str:
    return repr(value)[:80]
