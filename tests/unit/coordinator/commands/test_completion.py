"""What a shell is told when somebody presses the tab key: by the protocol of its script, and in a real bash."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.coordinator.api import requests, status
from muster.coordinator.commands import complete_names
from muster.coordinator.farm_root import paths as roots
from muster.jobs.contract.states import AgentState
from tests.unit.coordinator.commands.test_commands import FixedDaemon

PROGRAMS = {
    "muster": "muster.__main__",
    "coordinator": "muster.coordinator.cli",
    "agent": "muster.agent.cli",
    "deploy": "muster.deploy.cli",
}
Complete = Callable[..., list[str]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> roots.Root:
    made = roots.prepare(tmp_path / "farm")
    monkeypatch.setenv("MUSTER_ROOT", str(made.path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for job in ("weights.1", "weights.2", "clean.1"):
        (made.jobs / job).mkdir()
    return made


@pytest.fixture
def daemon(root: roots.Root) -> Iterator[FixedDaemon]:
    made = FixedDaemon(root)
    machines = [machine("lab1", "live"), machine("lab2", "draining"), machine("old", "gone")]
    made.answers[requests.AgentsAsk] = status.Agents(100.0, machines)
    yield made
    made.close()


def machine(name: str, state: AgentState) -> status.AgentStatus:
    return status.AgentStatus(name, "host", state, 100.0, 1, 0, 0, 0)


def asked(*words: str, shell: str = "zsh") -> subprocess.CompletedProcess[str]:
    """What a shell's script asks for once the last of the words is begun."""
    program, line = words[0], " ".join(map(shlex.quote, words[:-1])) + f" {words[-1]}"
    env = {
        **os.environ,
        f"_{program.upper()}_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }
    code = f"import sys; from {PROGRAMS[program]} import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def completed(*words: str, shell: str = "zsh") -> list[str]:
    """The words themselves, of zsh's three lines a word, or of `type,word` of bash and `type,word TAB help` of fish."""
    done = asked(*words, shell=shell)
    assert (done.returncode, done.stderr) == (0, ""), done
    lines = done.stdout.splitlines()
    if shell == "zsh":
        return [word.replace("\\", "") for word in lines[1::3]]
    return [line.partition(",")[2].partition("\t")[0] for line in lines if line]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["coordinator", "status", "w"], ["weights", "weights.1", "weights.2"]),
        (["coordinator", "cancel", "weights.1", "weights."], ["weights.2"]),
        (["coordinator", "pause", "a"], ["all"]),
        (["coordinator", "logs", "l"], ["last"]),
        (["coordinator", "submit", "job.yaml", "--after", "c"], ["clean", "clean.1"]),
        (["coordinator", "drain", "l"], ["lab1", "lab2"]),
        (["muster", "drop", ""], ["lab1", "lab2"]),
        (["muster", "explain", "la"], ["lab1", "lab2", "last"]),
        (["coordinator", "cancel", "--state", "pa"], ["paused"]),
        (["coordinator", "dr"], ["drain", "drop"]),
        (["coordinator", "conn"], []),
        (["muster", "agent", "pa"], ["pause"]),
        (["agent", "join", "--idle"], ["--idle-timeout"]),
        (["deploy", "upg"], ["upgrade"]),
        (["coordinator", "nonsense", "zz"], []),
    ],
    ids=" ".join,
)
def test_words_are_completed(words: list[str], found: list[str], daemon: FixedDaemon) -> None:
    for shell in ("zsh", "bash", "fish"):
        assert completed(*words, shell=shell) == found, shell


def test_a_coordinator_that_is_not_there_or_not_quick_is_no_error(
    root: roots.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed("coordinator", "drain", "l") == []
    assert completed("coordinator", "status", "cl") == ["clean", "clean.1"]
    monkeypatch.setenv("MUSTER_ROOT", str(root.path / "nowhere"))
    assert completed("coordinator", "status", "cl") == []


def test_bash_itself_completes_by_the_script(daemon: FixedDaemon) -> None:
    """As it is read by a shell, and called as readline does."""
    folder = Path(sys.executable).parent
    script = """
        eval "$(coordinator completion bash)"
        COMP_WORDS=(coordinator drain la) COMP_CWORD=2
        _coordinator_completion coordinator
        echo "${COMPREPLY[*]}"
        complete -p muster agent deploy coordinator
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    first, *rest = done.stdout.splitlines()
    assert (done.returncode, done.stderr, first.split()) == (0, "", ["lab1", "lab2"])
    assert [line.split()[-1] for line in rest] == ["muster", "agent", "deploy", "coordinator"]


def test_nobody_waits_long_for_names() -> None:
    assert complete_names.ANSWER_SECONDS <= 0.3
