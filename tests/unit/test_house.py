"""The house rules a machine can check: who may import whom, what starts fast, one version."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.version import VERSION

ROOT = Path(__file__).parents[2]
OURS = {"jobs", "coordinator", "agent", "deploy"}
MAY_IMPORT = {
    "jobs": set(),
    "coordinator": {"jobs"},
    "agent": {"jobs", "coordinator.protocol"},
    "deploy": {"jobs", "coordinator", "agent"},
}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def allowed(package: str, name: str) -> bool:
    if name.split(".", maxsplit=1)[0] in OURS - {package}:
        return any(name == door or name.startswith(f"{door}.") for door in MAY_IMPORT[package])
    return True


@pytest.mark.parametrize("package", sorted(OURS))
def test_packages_import_only_downwards(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(package)
        for name in imported(path)
        if not allowed(package, name)
    ]
    assert not wrong


def test_only_the_pool_imports_ray() -> None:
    users = {
        str(path.relative_to(ROOT))
        for package in OURS
        for path in modules(package)
        if any(name.split(".")[0] == "ray" for name in imported(path))
    }
    assert users == {"agent/pool.py"}


def test_the_scheduler_and_the_protocol_do_no_io() -> None:
    pure = modules("coordinator/scheduler") + modules("coordinator/protocol")
    io = {"os", "time", "socket", "asyncio", "threading", "subprocess", "pathlib", "sqlite3", "random", "logging"}
    wrong = [f"{path.name}: {name}" for path in pure for name in imported(path) if name.split(".")[0] in io]
    assert not wrong


@pytest.mark.parametrize("package", sorted(OURS))
def test_every_module_says_what_it_owns(package: str) -> None:
    silent = [str(path) for path in modules(package) if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("coordinator.connect", {"click", "numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("coordinator.receive", {"click", "numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("coordinator.cli", {"click", "numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("coordinator.commands.status", {"numpy", "ray", "sklearn", "yaml", "asyncio"}),
        ("coordinator.daemon", {"numpy", "ray", "sklearn", "paramiko"}),
        ("agent.cli", {"numpy", "ray", "sklearn", "paramiko"}),
    ],
)
def test_what_must_start_fast_imports_nothing_heavy(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_one_version() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["version"] == VERSION
