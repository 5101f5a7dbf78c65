"""Every string that names a module, a file or a class of ours names one that is there: launchers, entry points.

No import checks these. Found by how they look, in all that is compiled and in the texts beside it.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from muster.agent import cli as agent_cli
from muster.coordinator import cli as coordinator_cli
from muster.deploy import cli as deploy_cli
from muster.jobs.inference.sandboxed import CLASSES
from tests.mutations import MUTATIONS, Mutation
from tests.simulator.mistakes import MISTAKES

ROOT = Path(__file__).parents[2]
PRODUCT = ("jobs", "coordinator", "agent", "deploy", "muster")
FOLDERS = (*PRODUCT, "tests", "benchmarks")
OURS = f"(?:{'|'.join(FOLDERS)})"
TEXTS = ("*.md", "docs/**/*.md", "docs/**/*.py", "Makefile", ".ci/*", "tests/*.sh", "setup.cfg", "pyproject.toml")

DOTTED = re.compile(rf"{OURS}(?:\.\w+)+(?::\w+)?|{OURS}(?:\.\w+)*[.:]")  # the second is completed as it runs
IMPORT_FROM = re.compile(rf"\bfrom ({OURS}(?:\.\w+)*) import (?:\(([\w,\s]+)|([\w, ]+))")
IMPORT = re.compile(rf"(?:^|[;\n])\s*import ({OURS}(?:\.\w+)*)")
STARTED = re.compile(rf"-m ({OURS}(?:\.\w+)*)\b")
QUOTED = re.compile(rf"`({OURS}(?:\.\w+)+)`")
PATH = re.compile(rf"(?:{OURS}|docs)/[\w/.*-]*")
PATH_WITHIN = re.compile(rf"(?<![\w./-])(?:{OURS}|docs)/[\w/.*-]*\.(?:py|md|sh)\b")
BESIDE = re.compile(r"(\w+\.py):(\w*)")
TYPED = re.compile(r"(?:`|^ {4,}|&& )(coordinator|agent|deploy) ([a-z]+)\b(?![.:])([^`#\n&]*)", re.MULTILINE)
LOGGER = re.compile(r"getLogger\(\"([\w.]+)\"\)")
DEFINED = re.compile(r"^(?:class|def) (\w+)", re.MULTILINE)
RAY_ACTOR = re.compile(r"ray::(\w+)")

NO_MODULES = {
    "agent.log": "a file of the spool",
    "agent.py": "a file of a user",
    "agent.sock": "a socket of a test",
    "benchmarks.json": "a file of docs",
    "benchmarks.md": "a file of docs",
    "coordinator.py": "a file of a user",
    "jobs.kernels": "a column of the store",
    "jobs.py": "a file of a user",
    "jobs:MINE": "something in it",
    "muster": "what a user's code finds none of",
    "muster.drivers": "a group of entry points",
    "muster.kinds": "a group of entry points",
}
NO_PATHS = {"benchmarks/toy.py": "a file that a test makes"}


@cache
def sources() -> dict[str, str]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        path for path in found if path.name not in ("house_rules.py", "test_house.py")
    ]  # names below `muster`, see test_house
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


@cache
def strings(file: str) -> frozenset[str]:
    """All but the names of loggers, which are ours to choose. Compiled, as syntax trees take ten times as long."""
    return frozenset(_strings(compile(sources()[file], file, "exec"))) - set(LOGGER.findall(sources()[file]))


def _strings(constant: object) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    more = constant.co_consts if isinstance(constant, CodeType) else constant
    if isinstance(more, (tuple, frozenset)):
        for one in more:
            yield from _strings(one)


@cache
def texts() -> dict[str, str]:
    found = [path for pattern in TEXTS for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


def modules_in(text: str) -> set[str]:
    """What a string names if it is there: modules, with a class or a function after `:`, or after a dot."""
    named = {text} if DOTTED.fullmatch(text) else set()
    for module, inside, plain in IMPORT_FROM.findall(text):
        named |= {f"{module}:{name.split()[0]}" for name in (inside or plain).split(",") if name.strip()}
    return named | set(IMPORT.findall(text)) | set(STARTED.findall(text)) | set(QUOTED.findall(text))


@cache
def exists(name: str) -> bool:
    """Of a name as `modules_in` gives it."""
    if name.partition(".")[0].partition(":")[0] not in importable():
        return False
    dotted, _, attribute = name.rstrip(".:").partition(":")
    parts, more = dotted.split("."), [attribute] if attribute else []
    while parts and not is_module(".".join(parts)):
        more.insert(0, parts.pop())
    return bool(parts) and has(".".join(parts), more)


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is none
        return False


def has(module: str, names: list[str]) -> bool:
    found: object = import_module(module) if names else None
    for name in names:
        if not hasattr(found, name) and not is_module(f"{module}.{name}"):
            return False
        found = getattr(found, name, None)
    return True


@cache
def importable() -> frozenset[str]:
    """Packages that are installed, and those that are beside them in this tree."""
    include = config(ROOT / "setup.cfg")["options.packages.find"]["include"].split()
    return frozenset(name.rstrip("*.") for name in include) | {"tests", "benchmarks"}


def config(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.read(path)
    return found


def is_there(path: str) -> bool:
    """Of a file, a folder, a pattern, or a module without its suffix."""
    return any(ROOT.glob(path.rstrip("/"))) or any(ROOT.glob(f"{path}.py"))


def defined() -> Iterator[tuple[str, str]]:
    """Each class and function at the top of the product's modules, with the module's file name."""
    for file, source in sources().items():
        if file.startswith(PRODUCT):
            yield from ((Path(file).name, name) for name in DEFINED.findall(source))


# --- the tests -----------------------------------------------------------------------------------------------


def test_modules_named_in_strings_are_there() -> None:
    named = {(file, name) for file in sources() for text in strings(file) for name in modules_in(text)}
    assert len(named) > 100, "it does not find them"
    assert not sorted(where for where in named if where[1] not in NO_MODULES and not exists(where[1]))
    assert not set(NO_MODULES) - {name for _, name in named}, "no string is so any more"


def test_modules_named_in_texts_are_there() -> None:
    named = {(file, name) for file, text in texts().items() for name in modules_in(text)}
    assert {Path(file).suffix for file, _ in named} >= {"", ".md", ".py"}
    assert not sorted(where for where in named if where[1] not in NO_MODULES and not exists(where[1]))


def test_what_is_imported_is_there() -> None:
    """Inside functions too, and in benchmarks, which no test runs."""
    named = {(file, name) for file, source in sources().items() for name in modules_in(source)}
    assert len(named) > 1000, "it does not find them"
    assert not sorted(where for where in named if where[1] not in NO_MODULES and not exists(where[1]))


def test_files_named_in_strings_and_texts_are_there() -> None:
    named = {(file, text) for file in sources() for text in strings(file) if PATH.fullmatch(text)}
    everything = [*texts().items(), *((file, text) for file in sources() for text in strings(file))]
    named |= {(file, path) for file, text in everything for path in PATH_WITHIN.findall(text)}
    assert len(named) > 50, "it does not find them"
    assert not sorted(where for where in named if where[1] not in NO_PATHS and not is_there(where[1]))


@pytest.mark.parametrize("file", ["setup.cfg", "tests/plugin/muster_chain-1.0.dist-info/entry_points.txt"])
def test_entry_points_are_there(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "plugin")
    found = config(ROOT / file)
    groups = found["options.entry_points"].values() if file == "setup.cfg" else map(_lines, found.values())
    points = [line.partition("=")[2].strip() for group in groups for line in group.splitlines() if "=" in line]
    assert points
    for point in points:
        module, _, name = point.partition(":")
        assert callable(getattr(import_module(module), name)), point


def _lines(section: configparser.SectionProxy) -> str:
    return "\n".join(f"{name} = {value}" for name, value in section.items())


@pytest.mark.parametrize("program", [agent_cli, coordinator_cli], ids=lambda program: program.__name__)
def test_every_command_is_a_module_and_every_module_a_command(program: Any) -> None:
    renamed = getattr(program, "MODULES", {})
    names = set(program.COMMANDS) - {"connect"}  # which is started without click
    files = {unwrap(program.load(name).callback).__code__.co_filename for name in names}
    assert {Path(file).stem for file in files} == {renamed.get(name, name) for name in names}
    beside = {
        str(path)
        for path in Path(program.__file__).parent.glob("commands/*.py")
        if "command" in DEFINED.findall(path.read_text())
    }
    assert beside == files


def test_the_index_of_documents_names_every_page() -> None:
    """Of a folder that has a README of its own, that README."""
    index = texts()["docs/README.md"]
    pages = {str(Path(file).relative_to("docs")) for file in texts() if re.match(r"docs/.*\.md$", file)}
    pages -= {"README.md"} | {one for one in pages if f"{Path(one).parent}/README.md" in pages - {one}}
    assert sorted(pages - set(re.findall(r"\]\(([^)]+)\)", index))) == []


def test_links_between_documents_lead_somewhere() -> None:
    links = {(file, link) for file, text in texts().items() if file.endswith(".md")
             for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", text)}  # fmt: skip
    assert len(links) > 50, "it does not find them"
    assert sorted((file, link) for file, link in links if not ((ROOT / file).parent / link).exists()) == []


def test_commands_in_documents_are_there_with_their_options() -> None:
    programs = {"coordinator": coordinator_cli, "agent": agent_cli, "deploy": deploy_cli}
    named = {
        (file, program, name, option)
        for file, text in texts().items()
        if file.endswith(".md") and "decisions" not in file and file != "CHANGELOG.md"
        for program, name, rest in TYPED.findall(text)
        for option in ["", *re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)]
    }
    assert len(named) > 100, "it does not find them"
    wrong = set()
    for file, program, name, option in named:
        if name not in programs[program].COMMANDS:
            wrong.add((file, f"{program} {name}"))
        elif option and name != "connect":
            known = [text for one in programs[program].load(name).params for text in one.opts]
            wrong |= {(file, f"{program} {name} {option}")} if option not in [*known, "--help"] else set()
    assert sorted(wrong) == []


def test_what_runners_open_by_path_is_there() -> None:
    known = set(defined())
    named = {found.groups() for file in sources() if file.startswith(PRODUCT) for text in strings(file)
             if (found := BESIDE.fullmatch(text))}  # fmt: skip
    assert named
    files = {file for file, _ in known}
    assert not [one for one in named if (one not in known if one[1] else one[0] not in files)]
    assert {("models.py", name) for name in CLASSES.values()} <= known


def test_actors_that_processes_are_found_by_are_there() -> None:
    named = {name for file in sources() for text in strings(file) for name in RAY_ACTOR.findall(text)}
    assert named and named <= {name for _, name in defined()}


@pytest.mark.parametrize("mutation", [*MUTATIONS, *MISTAKES], ids=lambda one: one.name)
def test_each_mutation_has_its_place(mutation: Mutation) -> None:
    source = mutation.path(ROOT).read_text()
    assert source.count(mutation.old) == 1


def test_settings_of_tools_are_for_files_that_are_there() -> None:
    table = re.search(r"\[tool.ruff.lint.per-file-ignores\]\n((?:\".*\n)+)", texts()["pyproject.toml"])
    assert table is not None
    assert all(is_there(pattern) for pattern in re.findall(r'^"(.*?)" =', table[1], re.MULTILINE))
