"""The house rules a machine can check: who may import whom, what is pure, what starts fast, one version."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from muster import VERSION
from tests.unit.house_rules import FOR_NOW, IMPURE, IMPURE_CALLS, NAMED_FOR_NOW, NO_NUMPY, PURE, RULES, SAID, USERS

ROOT = Path(__file__).parents[2]
OURS = ("jobs", "coordinator", "agent", "deploy")
INSTALLED = "muster."  # the package that has ours in it once it is installed: not part of a name here


@cache
def modules() -> dict[str, Path]:
    """Every module of ours by its name."""
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "muster").glob("*.py")}
    found["muster"] = found.pop("muster.__init__")
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


def imports(module: str, types: bool = True) -> set[str]:
    """What a module imports anywhere in it: modules of ours, and names of others. `types`: also for types alone."""
    names: set[str] = set()
    for node in _nodes(tree(module), types):
        if isinstance(node, ast.Import):
            names.update(alias.name.removeprefix(INSTALLED) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: a relative import"
            source = f"{node.module}.".removeprefix(INSTALLED)
            for alias in node.names:
                full = alias.name if not source and alias.name in OURS else f"{source or INSTALLED}{alias.name}"
                names.add(source[:-1] if source.split(".")[0] in OURS and full not in modules() else full)
    return names


def _nodes(node: ast.AST, types: bool) -> Iterator[ast.AST]:
    """Everything below `node`; without `types`, all but what stands below `if TYPE_CHECKING`."""
    yield node
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types:
        return
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, types)


def room_of(module: str) -> str | None:
    """The room with the longest name that `module` is in."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        prefix = ".".join(parts[:end])
        if prefix in RULES:
            return prefix
    return None


def is_allowed(module: str, imported: str) -> bool:
    here, there = room_of(module), room_of(imported)
    assert here is not None
    return here == there or imported == "muster.VERSION" or bool({imported, there} & RULES[here])


def test_every_module_has_a_room() -> None:
    roots = {"jobs", "coordinator", "agent"}
    assert [module for module in modules() if module not in roots and room_of(module) is None] == []


def test_every_room_has_a_module() -> None:
    assert [room for room in RULES if not within((room,))] == []


def test_rooms_import_only_what_stands_below_them() -> None:
    found = {
        f"{module} -> {name}"
        for module in modules()
        for name in imports(module)
        if name.split(".")[0] in (*OURS, "muster") and name not in OURS and not is_allowed(module, name)
    }
    assert sorted(found - FOR_NOW) == []
    assert sorted(FOR_NOW - found) == [], "these are mended: take them out of FOR_NOW"


@pytest.mark.parametrize("folder", [*OURS, "muster", "tests", "benchmarks", "docs"])
def test_nothing_takes_one_of_our_folders_for_a_package(folder: str) -> None:
    """`import jobs` may find anybody's jobs.py: ours is `muster.jobs`."""
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if name.partition(".")[0] in OURS
    }
    assert sorted(found) == []


def test_jobs_names_nothing_above_it() -> None:
    above = re.compile(r"(muster\.)?(coordinator|agent|deploy)(\.\w+)+(:\w+)?")
    found = {
        node.value
        for module in modules()
        if module.startswith("jobs.")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and above.fullmatch(node.value)
    }
    assert sorted(found - NAMED_FOR_NOW) == []
    assert sorted(NAMED_FOR_NOW - found) == [], "these are mended: take them out of NAMED_FOR_NOW"


def libraries(module: str) -> set[str]:
    """The packages that a running module imports, whether at once or when something is called."""
    return {name.partition(".")[0] for name in imports(module, types=False)}


def within(rooms: tuple[str, ...]) -> list[str]:
    """The modules of these rooms, and of rooms in them."""
    return [module for module in modules() if any(f"{room_of(module)}.".startswith(f"{room}.") for room in rooms)]


def test_the_pure_packages_do_no_io() -> None:
    wrong = {
        f"{module}: {name}" for module in within(PURE) for name in imports(module, types=False) if IMPURE.match(name)
    }
    wrong |= {
        f"{module}: {node.func.id}()"
        for module in within(PURE)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    }
    assert sorted(wrong) == []


def test_the_agent_process_knows_the_core_by_its_door_alone() -> None:
    used = {
        node.attr
        for node in ast.walk(tree("agent.process"))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self._core"
    }
    assert used == {"handle", "patience", "snapshot"}


def classes(module: str) -> set[str]:
    return {node.name for node in ast.walk(tree(module)) if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("said", sorted(SAID))
def test_what_the_agents_core_is_told_and_says_has_no_second_set_of_types(said: str) -> None:
    """Else somebody translates one into the other, and each field stands in three places."""
    others = [module for module in modules() if module.startswith("agent.") and module != said]
    assert {module: twice for module in others if (twice := classes(module) & classes(said))} == {}


def test_rooms_that_start_fast_name_no_numpy() -> None:
    assert [module for module in within(NO_NUMPY) if "numpy" in libraries(module)] == []


@pytest.mark.parametrize("library", sorted(USERS))
def test_a_library_has_its_users_and_no_others(library: str) -> None:
    users = {module for module in modules() if library in libraries(module)}
    seen = {place for place in USERS[library] if any(f"{user}.".startswith(f"{place}.") for user in users)}
    assert sorted(user for user in users if not any(f"{user}.".startswith(f"{place}.") for place in seen)) == []
    assert seen == USERS[library]


def test_every_module_says_what_it_owns() -> None:
    assert [module for module in modules() if tree(module).body and not ast.get_docstring(tree(module))] == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("muster.coordinator.connect.main", {"click", "numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("muster.coordinator.connect.serve_push", {"click", "numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("muster.coordinator.cli", {"click", "numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("muster.coordinator.commands.status", {"numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("muster.coordinator.daemon.serve", {"numpy", "ray", "sklearn", "yaml", "paramiko"}),
        ("muster.jobs.kinds", {"click", "numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("muster.agent.cli", {"numpy", "ray", "sklearn", "paramiko"}),
        ("muster.__main__", {"click", "numpy", "ray", "sklearn", "yaml", "asyncio", "paramiko"}),
    ],
)
def test_what_must_start_fast_imports_nothing_heavy(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_the_command_that_a_machine_waits_for_starts_without_click() -> None:
    code = "import sys; from muster.__main__ import main; main(['connect', '--no-such']); print('click' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "connect does not know '--no-such'" in found.stderr
    assert found.stdout.split() == ["False"]


def test_one_version() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["version"] == VERSION
