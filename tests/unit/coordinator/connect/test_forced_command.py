"""What a confined key asked for, read as data."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator import cli
from muster.coordinator.commands import connect, second_person
from muster.coordinator.connect import forced_command
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.errors import RefusedError, UsageError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def asked(root: Path, original: str | None, role: str = "") -> str:
    """The role that is honoured."""
    given = {"role": role, "root": str(root), "pinned": "lab3"}
    return connect._confined(given, original)["role"]


@pytest.mark.parametrize(
    "words",
    [
        "coordinator connect --role pull",
        "coordinator connect --role=pull",
        "/opt/venv/bin/coordinator connect --role pull",
        "/data/root/connect connect --role pull",
        "'coordinator' connect --role 'pull'",
    ],
)
def test_the_role_is_what_is_honoured(root: Path, words: str) -> None:
    assert asked(root, words) == "pull"


def test_its_own_root_may_be_named(root: Path) -> None:
    assert asked(root, f"coordinator connect --role push --root {root}") == "push"


def test_a_role_given_with_the_key_stands_without_a_question(root: Path) -> None:
    assert asked(root, None, "control") == "control"
    assert asked(root, "coordinator connect --role control", "control") == "control"
    with pytest.raises(RefusedError, match="--role control alone"):
        asked(root, "coordinator connect --role push", "control")


def test_no_folder_may_be_named_to_take_files_from(root: Path) -> None:
    with pytest.raises(RefusedError, match="no files"):
        asked(root, "coordinator connect --role push --files /etc")


@given(st.text(max_size=200))
def test_nothing_else_is(text: str) -> None:
    """Whatever it says, it is refused or it is one of three roles."""
    given = {"role": "", "root": "/nowhere/at/all", "pinned": "lab3"}
    for original in (text, f"coordinator connect {text}", f"coordinator connect --role {text}"):
        try:
            assert connect._confined(given, original)["role"] in connect.ROLES
        except (RefusedError, UsageError) as error:
            assert error.hint


def test_refusals_are_logged_in_one_line_each_and_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced_command, "LOG_BYTES", 2000)
    log = root / forced_command.LOG
    for text in ["\n\x1b[2J; id", "x" * 10_000, "\ud800"] * 10:
        with pytest.raises(RefusedError):
            asked(root, text)
    assert log.stat().st_size < 3000
    assert log.with_name("refused.log.1").exists()
    for line in log.read_text().splitlines():
        assert "key of lab3" in line
        assert line.isprintable()


def test_a_root_of_no_user_is_refused_and_logged(root: Path) -> None:
    with pytest.raises(RefusedError, match="no such user"):
        asked(root, "coordinator connect --role pull --root ~nosuchuser")
    assert "~nosuchuser" in (root / forced_command.LOG).read_text()


def test_a_log_that_cannot_be_written_refuses_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="nothing else"):
        asked(tmp_path / "missing", "sh")


def test_a_launcher_may_be_called_with_the_whole_command() -> None:
    assert connect.parse(["--root", "connect", "connect", "--role", "pull"]) == {
        "root": "connect",
        "role": "pull",
        "pinned": "",
        "files": "",
        "person": "",
    }


@pytest.mark.parametrize(
    "words",
    [
        None, "", "sh -c id", "env sh", "env PATH=/tmp coordinator status", "python3 -c 1", "coordinator", "scp -t x",
        *(f"coordinator {name}" for name in sorted(set(cli.COMMANDS) - set(second_person.COMMANDS))),
        "coordinator submit --parcel --owner bob", "coordinator submit job.yaml",
        "coordinator submit --parcel --set a=1", "coordinator submit --parcel --at elsewhere",
        "coordinator submit --parcel=1", "coordinator result a.1 --to=/tmp", "coordinator report a --html /tmp/page",
        "coordinator report a --plots /tmp", "coordinator status --root=/", "coordinator status --at elsewhere",
        "coordinator status; id", "coordinator 'status", "coordinator upload --size", "coordinator -h",
    ],
)  # fmt: skip
def test_a_second_persons_key_runs_nothing_else(words: str | None, root: Path) -> None:
    with pytest.raises((RefusedError, UsageError)):
        second_person.run(Root(root), "ann", words)
    assert "key of ann" in (root / forced_command.LOG).read_text()


@given(st.text(max_size=200))
def test_whatever_it_asks_it_is_one_of_its_commands(text: str) -> None:
    try:
        name, _ = forced_command.command_of(f"coordinator {text}")
    except RefusedError:
        return
    assert name == shlex.split(text)[0]


def test_a_person_whose_name_would_be_a_path_is_refused(root: Path) -> None:
    with pytest.raises(RefusedError, match="cannot name a person"):
        second_person.run(Root(root), "../ann", "coordinator status")
