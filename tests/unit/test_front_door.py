"""What people type and import, `muster` and `from muster import …`, as processes of their own where that matters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import VERSION, __main__
from muster.agent import cli as agent_cli
from muster.coordinator import cli as coordinator_cli
from muster.jobs.common.errors import UsageError
from tests import traps

OURS = ("agent", "coordinator", "deploy", "jobs")
SCRIPT = """\
import numpy as np
from muster import Farm, Job, LayerWriter

from jobs import MINE

with LayerWriter("layer.npy", (2,), "<f4") as layer:
    layer.append(np.ones((3, 2), "f4"))
print(MINE, np.load("layer.npy").shape, Farm.__module__, Job.__module__)
"""

Said = tuple[int, str, str]


@pytest.fixture
def muster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Said]:
    monkeypatch.setenv("HOME", str(tmp_path))  # where no join is remembered

    def call(*args: str) -> Said:
        code = __main__.main(list(args))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_it_lists_the_commands_of_both_programs(muster: Callable[..., Said]) -> None:
    _, listed, _ = muster("--help")
    assert "Usage: muster [OPTIONS]" in listed
    hidden = coordinator_cli.SECTIONS[coordinator_cli.OF_PROGRAMS]
    assert all((f"\n  {name} " in listed) != (name in hidden) for name in __main__.COMMANDS)
    titles = [line for line in listed.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options:", "Jobs:", "Look:", "Machines:", "The farm:"]
    machines = listed[listed.index("Machines:") : listed.index("The farm:")]
    assert all(f"\n  {name} " in machines for name in ("join", "agent", "deploy", "agents", "drain"))
    code, below, _ = muster("agent")
    assert code == 0 and "Usage: muster agent [OPTIONS]" in below
    assert all(f"  {name} " in below for name in agent_cli.COMMANDS)


@pytest.mark.parametrize(
    "words",
    [[name] for name in __main__.COMMANDS if name != "connect"] + [["agent", name] for name in agent_cli.COMMANDS],
    ids=" ".join,
)
def test_each_command_is_there_under_its_name(words: list[str], muster: Callable[..., Said]) -> None:
    code, said, _ = muster(*words, "--help")
    assert code == 0 and said.startswith(f"Usage: muster {' '.join(words)} [OPTIONS]")


NEIGHBOURS = [
    ("pause", "agent pause"),
    ("resume", "agent resume"),
    ("set", "agent set"),
    ("drain", "agent leave"),
    ("drain", "drop"),
    ("drop", "kick"),
    ("watch", "wait"),
    ("cancel", "pause"),
    ("priority", "set"),
    ("status", "watch"),
]


@pytest.mark.parametrize(("one", "other"), NEIGHBOURS)
def test_a_command_names_the_one_that_is_easily_taken_for_it(one: str, other: str, muster: Callable[..., Said]) -> None:
    there = [other if " " in other else f"coordinator {other}", f"coordinator {one}"]
    helps = [" ".join(muster(*words.split(), "--help")[1].split()) for words in (one, other)]
    assert f"`{there[0]}`" in helps[0]
    assert f"`{there[1]}`" in helps[1] or (one, other) in ONE_WAY


ONE_WAY = {("status", "watch"), ("cancel", "pause")}  # the second says nothing of the first


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["statsu"], "did you mean `muster status`?"),
        (["status", "--nope"], "see `muster status --help`"),
        (["join"], "see `muster join --help`"),
        (["agent", "jion"], "did you mean `muster agent join`?"),
        (["agent", "join"], "see `muster agent join --help`"),
    ],
)
def test_a_hint_has_the_words_that_were_typed(args: list[str], hint: str, muster: Callable[..., Said]) -> None:
    code, _, said = muster(*args)
    assert code == UsageError.exit_code and said.endswith(f"hint: {hint}\n")


@pytest.mark.parametrize("main", [__main__.main, coordinator_cli.main, agent_cli.main])
def test_each_program_says_its_version(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"muster {VERSION}\n"


def test_a_script_beside_files_called_as_our_folders_gets_its_own_and_ours(tmp_path: Path) -> None:
    here = traps.plant(tmp_path / "here", *OURS)
    (here / "jobs.py").write_text("MINE = 'my own'\n")
    (here / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "my own (3, 2) muster.coordinator.client.farm muster.coordinator.client.job\n"
    assert traps.sprung(here) == []
