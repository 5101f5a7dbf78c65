"""docs/configuration.md's lines from a real laptop: another account on another machine, which never logs into a shell
of the server, whose sshd has its defaults. As root; nothing of this machine is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import two_users
from tests.support.needs import skip_for
from tests.support.two_users import Account, TwoUsers

pytestmark = pytest.mark.root

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
WORK = "def double(rows):\n    return {'twice': rows * 2}\n"
JOB = "{name: weights, kind: map, source: x.npy, code: work.py:double, shard: {rows: 8}}\n"


@pytest.fixture
def two() -> Iterator[TwoUsers]:
    skip_for(two_users.obstacle())
    with two_users.running() as made:
        done(made.me, "coordinator serve --detach && MUSTER_POOL=processes agent join ~/.muster --detach")
        yield made
        made.me.run("agent leave; coordinator stop; true")


def done(account: Account, line: str, typed: str = "", **env: str) -> str:
    ran = account.run(line, typed, **env)
    assert ran.returncode == 0, f"{account.user}$ {line}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def lines() -> list[str]:
    """The block below its first heading."""
    block = PAGE.partition("## A farm elsewhere\n")[2].lstrip("\n").partition("\n\n")[0]
    return [line.strip() for line in block.splitlines()]


def test_a_laptop_of_another_user_does_all_of_it_and_logs_into_no_shell(two: TwoUsers) -> None:
    me, lab = two.me, two.lab
    done(lab, "mkdir -m 700 .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519")
    done(lab, "ssh-keyscan server >.ssh/known_hosts")
    done(me, "mkdir -m 700 .ssh && cat >.ssh/authorized_keys", typed=done(lab, "cat .ssh/id_ed25519.pub"))
    make = "import numpy as np; np.save('x.npy', np.arange(64, dtype='f4').reshape(16, 4))"
    done(lab, f'python3 -c "{make}" && cat >work.py', typed=WORK)
    done(lab, "cat >job.yaml", typed=JOB)

    status, submit, result, run = lines()
    assert "1 machine at work" in done(lab, status)
    assert done(lab, submit).startswith("weights.1\n")
    assert done(lab, result) == f"{lab.home}/out\n"
    told = "import numpy as np; print(np.load('out/x/twice.npy').sum())"
    assert done(lab, f'python3 -c "{told}"') == f"{2 * sum(range(64)):.1f}\n"
    printed = done(lab, run).splitlines()
    assert len(printed) == 100 and {"97: 97", "100: 2 2 5 5"} <= set(printed)
    refused = lab.run("muster status --at lab@server")
    assert refused.returncode != 0 and "does not let us in" in refused.stderr

    sessions = re.findall(r"Starting session: (\w+)", two.sshd_log.read_text())
    assert len(sessions) >= 8 and set(sessions) == {"command"}
    assert not (lab.home / ".muster").exists() and not list(me.home.glob("*.yaml"))
