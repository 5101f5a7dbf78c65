"""README.md's walk over two machines as it is written there: two accounts, a real sshd with its defaults, a password
that is typed once, to ssh-copy-id. As root; nothing of this machine is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import two_users
from tests.support.farm import until
from tests.support.needs import skip_for
from tests.support.two_users import Account, TwoUsers

pytestmark = [pytest.mark.ray, pytest.mark.root]

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture
def two() -> Iterator[TwoUsers]:
    skip_for(two_users.obstacle())
    with two_users.running() as made:
        yield made
        for account in (made.lab, made.me):
            account.run("agent leave; true")
        made.me.run("coordinator stop; true")


def lines_of(section: str) -> list[str]:
    """The commands of an indented block below a heading, but for making an environment: there is one on the PATH."""
    text = README.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [line for line in lines if "muster-venv" not in line and line != "pip install ."]


def done(account: Account, line: str, typed: str = "", **env: str) -> str:
    ran = account.run(line, typed, **env)
    assert ran.returncode == 0, f"{account.user}$ {line}\n{ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


def test_a_second_machine_is_added_as_the_readme_says(two: TwoUsers) -> None:
    me, lab = two.me, two.lab
    serve, join_here = lines_of("Two minutes on one machine")
    printed = done(me, serve)
    assert f"\n  agent join me@server:{me.home}/.muster --detach" in printed
    done(me, join_here)

    keygen, copy_id, *rest = lines_of("Add a machine")
    done(lab, keygen, typed="\n\n\n", SSH_ASKPASS_REQUIRE="never")  # a key without a passphrase
    assert "Number of key(s) added: 1" in done(lab, copy_id)
    try_it, doctor, join = rest
    done(lab, try_it)
    said = done(lab, doctor)
    assert "agent join me@server" in said.splitlines()[-1]
    done(lab, join)

    until(lambda: len(re.findall(r"\blive\b", done(me, "coordinator agents"))) == 2, "both machines to be there", 60)
    submit(me)
    assert "(20000,)" in done(me, 'python3 -c "import numpy as np, sys; print(np.load(sys.argv[1]).shape)" '
                                  '"$(coordinator result features)/train/mean.npy"')  # fmt: skip
    done(lab, "agent leave")
    until(lambda: "left" in done(me, "coordinator agents"), "the server to know of it")
    done(me, "agent leave && coordinator stop")


def submit(me: Account) -> None:
    """The job of the first walk, from its blocks."""
    for name, text in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        done(me, f"cat > {name}", typed=text)
    make = "import numpy as np; np.save('images/train.npy', np.random.default_rng(0).random((20000, 784), 'f4'))"
    done(me, f'mkdir -p images && python3 -c "{make}"')
    done(me, "coordinator submit job.yaml --wait")
