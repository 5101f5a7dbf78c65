"""Values in a shell's text: wherever a placeholder may stand, real shells see the value and run nothing of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.jobs.common.errors import JobFileError
from muster.jobs.user_code.command_template import is_whole, line_values, parse_command

SHELLS = sorted({str(Path(found).resolve()) for name in ("sh", "dash", "bash") if (found := which(name))})
EXAMPLES = 25  # each starts a process

# A text, what it prints around the value, and whether a substitution takes the last line breaks away
CONTEXTS = [
    ("printf %s {x}", "", "", False),
    ("printf %s a{x}b", "a", "b", False),
    ("v={x}; printf %s \"$v\"", "", "", False),
    ("# don't\nprintf %s {x} # isn't {x} '\n", "", "", False),
    ("printf %s `printf %s it\\'s`{x}", "it's", "", False),
    ('printf %s "`printf %s {x}`"', "", "", True),
    ('printf %s "$(printf %s {x})"', "", "", True),
    ("case {x} in {x}) printf %s {x};; esac", "", "", False),
    ("cat <<E\nit's {x}\nE\n", "it's ", "\n", False),
    ("cat <<-E\n\t{x}.\n\tE\nprintf %s \"'\"", "", ".\n'", False),
    ("cat <<'E' && printf %s {x}\n$x \"'\nE\n", "$x \"'\n", "", False),
    ("f() { printf %s {x}; }; f a b", "", "", False),
    ("set -- a b; printf %s {x}", "", "", False),
    ("for i in {x}; do printf %s \"$i\"; done", "", "", False),
    ("printf %s ${nothing:-a}{x}", "a", "", False),
]  # fmt: skip
ODD = r"""$(touch ran)
`touch ran`
'; touch ran; '
"; touch ran; "
a[$(touch ran)]
|touch ran
; touch ran #
${x}
{x}
))
'
"
\
*
-n
%s
~
&""".splitlines()
NASTY = st.sampled_from([*ODD, "\nE\ntouch ran\n", "\n", " ", "\x81", "€"])
VALUES = st.lists(NASTY | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=6).map(
    "".join
)


def printed(shell: str, text: str, value: str, folder: Path) -> str:
    """By the text with this value; nothing else was done."""
    _, *words = parse_command(text, ("x", "y"), "params.run").shell_words(line_values({"x": value, "y": ""}, 1))
    done = subprocess.run([shell, *words], capture_output=True, check=True, cwd=folder, timeout=30)
    assert not done.stderr and not list(folder.iterdir())
    return done.stdout.decode()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("text", "before", "after", "stripped"), CONTEXTS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(value=VALUES)
def test_a_value_is_printed_as_it_is_and_nothing_of_it_runs(
    tmp_path_factory: pytest.TempPathFactory,
    shell: str, text: str, before: str, after: str, stripped: bool, value: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.getbasetemp() / "empty"
    folder.mkdir(exist_ok=True)
    wanted = value.rstrip("\n") if stripped else value
    assert printed(shell, text, value, folder) == f"{before}{wanted}{after}"


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(value=st.integers(-(1 << 31), 1 << 31).map(str))
def test_a_whole_number_may_stand_in_arithmetic(
    tmp_path_factory: pytest.TempPathFactory, shell: str, value: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "empty"
    folder.mkdir(exist_ok=True)
    assert is_whole(value)
    assert printed(shell, "printf %s $(( {x} + 1 ))", value, folder) == str(int(value) + 1)


@given(
    text=st.lists(NASTY | st.sampled_from(["<<E", "<<'E'", "$((", "((", "$(", "`", "#", "{x}", "let "])).map("".join)
)
def test_no_text_is_too_odd_to_be_read(text: str) -> None:
    try:
        template = parse_command(text, ("x", "y"), "params.run")
    except JobFileError:
        return
    assert "".join(f"{{{piece.text}}}" if piece.is_placeholder else piece.text for piece in template.pieces) == text
