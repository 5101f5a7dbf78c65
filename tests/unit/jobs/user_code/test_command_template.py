"""Placeholders in command lines: what each is, that a shell sees one word whatever is in it, and what is refused."""

from __future__ import annotations

import subprocess

import pytest

from muster.jobs.common.errors import JobFileError
from muster.jobs.user_code.command_template import Template, line_values, parse_command, parse_name, values_of
from tests.support.odd_names import ODD_NAMES


def filled(text: str, name: str = "a/b.tar.gz", number: int = 3) -> str:
    return parse_name(text, (), "params.out").filled(values_of(name, number))


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("{}", "a/b.tar.gz", "a/b.tar.gz"),
        ("{.}", "a/b.tar.gz", "a/b.tar"),
        ("{/}", "a/b.tar.gz", "b.tar.gz"),
        ("{//}", "a/b.tar.gz", "a"),
        ("{/.}", "a/b.tar.gz", "b.tar"),
        ("{#}-{/.}.png", "a/b.tar.gz", "3-b.tar.png"),
        ("{//}|{.}|{/.}", "noext", ".|noext|noext"),
        ("{.}|{/.}", "a.d/b", "a.d/b|b"),
        ("{.}|{/.}", ".hidden", ".hidden|.hidden"),
    ],
)
def test_they_are_what_gnu_parallel_has(text: str, name: str, expected: str) -> None:
    assert filled(text, name) == expected


def run(template: Template, name: str) -> str:
    return subprocess.run(template.shell_words(values_of(name, 1)), capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_shell_sees_one_word_whatever_is_in_a_name(name: str) -> None:
    template = parse_command(r"printf '%s\n' {} x{/}x", (), "params.run")
    path = f"./{name}" if name.startswith("-") else name
    assert run(template, name) == f"{path}\nx{name.rpartition('/')[2]}x\n"


@pytest.mark.parametrize(("text", "wanted"), [("{/}", "./-b.jpg"), ("{/.}.png", "./-b.png"), ("x{/}", "x-b.jpg")])
def test_a_path_that_begins_a_word_is_no_option(text: str, wanted: str) -> None:
    template = parse_command(f"printf '%s' {text}", (), "params.run")
    assert run(template, "a/-b.jpg") == wanted


def test_what_only_looks_like_one_stays() -> None:
    text = "awk '{print $1}' {in} ${HOME} {a,b} {1..3} ${x} \\{y\\}"
    template = parse_command(text, (), "params.run")
    assert template.names == {"in"} and template.shown(values_of("f", 1)) == text.replace("{in}", "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat {inn}", "there is no {inn}; did you mean {in}?"),
        ("cat '{in}'", "{in} stands in quotes"),
        ('cat "a {} b"', "{} stands in quotes"),
        ('echo "it\'s {.}"', "{.} stands in quotes"),
        ("cat {alpha}", "there is no {alpha}"),
        ("cat <<'E'\n{in}\nE\n", "{in} stands in quotes"),
        ("# don't\ncat '{in}'", "{in} stands in quotes"),
        ("echo $(({out} + 1))", "{out} stands where a shell evaluates it"),
    ],
)
def test_commands_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_command(text, (), "params.run")
    assert caught.value.message.startswith("params.run: ") and message in caught.value.message and caught.value.hint


def test_quotes_that_are_closed_do_no_harm() -> None:
    parse_command('echo \'a\' "b" {} it\\\'s {in} "\\"" {.}', (), "params.run")


@pytest.mark.parametrize(
    "text",
    [
        "echo $(({in} + 1))",
        "let x={in}",
        "A=1 let x={in}",
        "if let x={in}; then true; fi",
        "f() { let x={in}; }",
        "eval echo {in}",
        "echo ${x:{in}:1}",
        "x[{in}]=1",
        "(( {in} ))",
        'echo "$(( {in} * 2 ))"',
        "echo $[{in}]",
        "true && [[ {in} -eq 1 ]]",
    ],
)
def test_where_a_shell_evaluates_a_value_it_is_known(text: str) -> None:
    assert parse_command(text, (), "params.run").evaluated == {"in"}
    assert not parse_command(text.replace("{in}", "{#}"), (), "params.run").evaluated


@pytest.mark.parametrize("text", ["echo let {in}", "grep eval {in}", "let x=1; cat {in}", "echo $((1 + 2)) {in}"])
def test_where_none_does_it_is_known_too(text: str) -> None:
    assert not parse_command(text, (), "params.run").evaluated


def test_lines_have_columns_and_a_name_only_if_there_is_one() -> None:
    columns = ("alpha", "out dir")
    template = parse_command("sim --a {alpha} -o {out dir}/{#}", columns, "params.run")
    values = line_values({"alpha": "0.5; rm -rf", "out dir": "x y"}, 7)
    assert template.shown(values) == "sim --a '0.5; rm -rf' -o 'x y'/7"
    with pytest.raises(JobFileError, match=r"params\.run: there is no \{in\}"):
        parse_command("cat {in}", columns, "params.run")
    one = parse_command("fetch {} {url} {/}", ("url",), "params.run")
    assert one.shown(line_values({"url": "http://x/y"}, 1)) == "fetch http://x/y http://x/y y"


def test_an_output_is_no_input() -> None:
    for name in ("in", "out", "code", "nothing"):
        with pytest.raises(JobFileError, match=r"params\.out: there is no"):
            parse_name(f"{{{name}}}", (), "params.out")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", [["true"]]),
        ("cp {in} {out}", [["cp"], ["in"], ["out"]]),
        ("tool --to={out}.x  -v", [["tool"], ["--to=", "out", ".x"], ["-v"]]),
        ("cat {in} > {out}", None),
        ("A=1 tool", None),
        ("cd x", None),
        ("exit 3", None),
        ("{code}/tool {in}", None),
        ("tool $HOME", None),
        ("tool 'x y'", None),
        ("tool *", None),
        ("tool ~", None),
        ("a; b", None),
        (" ", None),
    ],
)
def test_what_needs_no_shell_is_taken_apart(text: str, expected: list[list[str]] | None) -> None:
    words = parse_command(text, (), "params.run").words()
    assert (None if words is None else [[piece.text for piece in word] for word in words]) == expected
