"""Options that nobody typed: of the user's file, a project's, and variables; and what of them is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from muster import __main__ as muster
from muster.agent import cli as agent
from muster.coordinator import cli as coordinator
from muster.jobs.common import configuration
from muster.jobs.common.errors import UsageError

EXIT = UsageError.exit_code
Written = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Write the user's file and the project's, into whose folder we go."""
    for name in (configuration.VARIABLE, configuration.FARM_VARIABLE, "MUSTER_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "muster").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    def written(user: str = "", project: str = "") -> None:
        configuration.user_file().write_text(user)
        configuration.PROJECT.write_text(project)

    return written


def commands(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Those of `muster run` over the numbers that a configuration gives it."""
    assert muster.main(["run", "--dry-run", *options, "echo"]) == 0
    return capsys.readouterr().out.splitlines()


def refusal(capsys: pytest.CaptureFixture[str], *argv: str, main: Callable[[list[str]], int] = muster.main) -> str:
    assert main(list(argv)) == EXIT
    said = capsys.readouterr().err
    assert said.count("\n") == 2 and said.startswith("error: ")
    return said


def test_what_is_typed_wins_over_variables_over_the_project_over_the_user(
    write: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("run: {array: 1-1}")
    assert commands(capsys) == ["echo 1"]
    write("run: {array: 1-1}", "run: {array: 2-3}")
    assert commands(capsys) == ["echo 2", "echo 3"]
    monkeypatch.setenv("MUSTER_RUN_ARRAY", "4-4")
    assert commands(capsys) == ["echo 4"]
    assert commands(capsys, "--array", "5-5") == ["echo 5"]


def test_an_empty_variable_leaves_files_and_variables_out_and_another_names_a_file(
    write: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write("run: {array: 1-1}", "farm: is refused here")
    (tmp_path / "other.yaml").write_text("farm: me@server\nrun: {array: 7-7}")
    monkeypatch.setenv(configuration.VARIABLE, str(tmp_path / "other.yaml"))
    assert commands(capsys) == ["echo 7"]
    monkeypatch.setenv(configuration.VARIABLE, "")
    assert configuration.farm() is None
    assert commands(capsys, "--array", "5-5") == ["echo 5"]


def test_a_list_and_a_flag_are_written_as_they_are_typed(
    write: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME", "1")
    write("run: {dry-run: true, env: [SOME, PATH], name: 12:30}")  # no number is made of this
    assert muster.main(["run", "echo", ":::", "a"]) == 0
    assert capsys.readouterr().out == "echo a\n"
    write("run: {dry-run: 'no', env: [MUSTER_IS_NOT_THERE]}")
    assert "--env MUSTER_IS_NOT_THERE: there is no such variable here" in refusal(
        capsys, "run", "--dry-run", "echo", ":::", "a"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rnu: {array: 1-1}", "rnu: there is no such command; did you mean `run`?"),
        ("run: {aray: 1-1}", "run.aray: there is no such option; did you mean `array`?"),
        ("run: {array: {from: 1}}", "run.array: a text or a number is expected"),
        ("run: {array: [1-1]}", "run.array: a text or a number is expected"),
        ("run: {env: {A: b}}", "run.env: a text or a number is expected, or a list of these"),
        ("run: 7", "run: a mapping of options is expected"),
        ("rm: {yes: true}", ""),  # of another command
        ("- run", "a mapping is expected"),
        ("run: {array: [", "is no YAML"),
    ],
)
def test_what_is_not_known_is_an_error_with_the_nearest_name(
    text: str, said: str, write: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    write(text)
    if said:
        found = refusal(capsys, "run", "--dry-run", "echo", ":::", "a")
        assert said in found and str(configuration.user_file()) in found
    else:
        assert muster.main(["run", "--dry-run", "echo", ":::", "a"]) == 0


def test_consent_is_typed_and_never_configured(
    write: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("rm: {yes: true}")
    assert "rm.yes: there is no such option" in refusal(capsys, "rm", "all")
    write()
    monkeypatch.setenv("MUSTER_RM_YES", "1")
    command = coordinator.load("rm")
    assert coordinator.main(["rm", "--help"]) == 0
    assert [one.envvar for one in command.params if one.name == "yes"] == [None]


@pytest.mark.parametrize("key", ["farm: me@server", "run: {ship: pickle}", "agent: {join: {cpus: 1}}"])
def test_a_project_sends_nothing_elsewhere_and_sets_nothing_of_this_machine(
    key: str, write: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    write("", key)
    assert "a project may not set it" in refusal(capsys, "run", "--dry-run", "echo", ":::", "a")


def test_a_value_that_does_not_do_is_named_with_its_place(
    write: Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("agent: {join: {port: many}}")
    for words, main in ((["join", "host"], muster.main), (["join", "host"], agent.main)):
        said = refusal(capsys, *words, main=main)
        assert "join.port` in " in said and f"in {configuration.user_file()}\n" in said
    monkeypatch.setenv("MUSTER_AGENT_JOIN_PORT", "0")
    assert "hint: correct the variable MUSTER_AGENT_JOIN_PORT" in refusal(capsys, "agent", "join", "host")


def test_variables_that_were_there_before_mean_what_they_meant(write: Written) -> None:
    write()
    command = agent.load("join")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_POOL", "processes")
        assert agent.main(["join", "--help"]) == 0
        context = command.make_context("join", ["host"], resilient_parsing=True)
    assert context.params["pool"] == "processes"


def test_the_farm_is_named_by_a_variable_before_a_root_before_a_file(
    write: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("farm: me@server")
    assert configuration.farm() == ("me@server", str(configuration.user_file()))
    monkeypatch.setenv("MUSTER_ROOT", "/data/farm")
    assert configuration.farm() is None
    monkeypatch.setenv(configuration.FARM_VARIABLE, "host")
    assert configuration.farm() == ("host", "$MUSTER_FARM")
