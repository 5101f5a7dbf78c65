"""What README.md has to be: short, in its order, and true of what setup.cfg and the code say. And each decision has its
number."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from muster import Farm

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINES_MOST = 110  # two screens and a little
ORDER = (
    "**Use it when**", "**Do not use it when**", "## Two minutes on one machine", "## Add a machine", "## From Python",
    "## More",
)  # fmt: skip


def test_it_is_short_and_in_its_order() -> None:
    assert len(README.splitlines()) <= LINES_MOST
    places = [README.index(part) for part in ORDER]
    assert places == sorted(places)
    assert README.index("one Unix account") < README.index("## Two minutes")
    assert README.index("(docs/run.md)") < README.index("`muster run ") < README.index("## Add a machine")


def test_the_pythons_and_the_system_are_those_of_the_package() -> None:
    package = configparser.ConfigParser()
    package.read(ROOT / "setup.cfg")
    classifiers = package["metadata"]["classifiers"]
    versions = re.findall(r"Python :: (3\.\d+)", classifiers)
    assert f"Python {versions[0]} to {versions[-1]}" in README
    assert re.findall(r"Operating System :: (.*)", classifiers) == ["POSIX :: Linux"] and "needs Linux" in README


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((docs/[^)#]+)", README))))
def test_every_page_that_it_names_is_there(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_has_the_number_of_its_file_and_its_line_in_the_index(page: Path) -> None:
    number = page.name[:4]
    assert page.read_text().startswith(f"# {int(number)}. ")
    assert f"- [{number}](decisions/{page.name}) " in (ROOT / "docs" / "README.md").read_text()


def test_map_says_first_that_a_function_gets_a_block_of_rows() -> None:
    assert "block of rows" in (Farm.map.__doc__ or "").strip().splitlines()[0]
