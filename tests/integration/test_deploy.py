"""`deploy` to machines with an sshd, a home and a crontab each: up, twice, a job over all, changed, removed, down."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster import VERSION
from muster.deploy.rollout import alone
from muster.jobs.common.processes import ProcessId, identify
from tests.support import site as sites
from tests.support import versions, wheelhouse
from tests.support.farm import arrays, until
from tests.support.processes import is_running
from tests.support.site import Site
from tests.support.sshd import Sshd

NAMES = ("lab3", "gpu1", "dmz")
NAPS = "import time\ndef f(rows):\n    time.sleep(0.2)\n    return rows * 2\n"
SEARCH = """
import time
def train(config, state, budget):
    time.sleep(0.5)
    return {"accuracy": config["lr"]}, 0
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Shared: an agent takes seconds to start."""
    with sites.running(tmp_path_factory.mktemp("site"), *NAMES) as made:
        yield made


@pytest.fixture
def ready(site: Site) -> Site:
    """With every machine as the inventory wants it."""
    site.fields = {name: site.fields.get(name, {}) for name in NAMES}
    site.know(*NAMES)
    site.write()
    done = site.deploy("up")
    assert done.returncode == 0, done.stderr
    return site


def states(told: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: one["state"] for name, one in told.items()}


def all_of(state: str) -> dict[str, str]:
    return dict.fromkeys(NAMES, state)


def agents(site: Site) -> dict[str, ProcessId]:
    """The process of each machine's agent."""
    return {
        name: identify(site.farm.processes("muster.agent join", f"--name {name} ")[0])
        for name in NAMES
        if site.farm.processes("muster.agent join", f"--name {name} ")
    }


def seen(site: Site) -> dict[str, dict[str, tuple[int, int]]]:
    """Each machine's files but for spools and logs, with their inodes and times."""
    return {
        name: {
            str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in one.home.rglob("*")
            if ".local/state" not in str(path) and path.suffix != ".log"
        }
        for name, one in site.targets.items()
    }


def test_check_says_what_would_change_and_touches_nothing(site: Site) -> None:
    keys = site.authorized.read_text()
    assert states(site.told("up", "--check")) == all_of("would change")
    assert all(one.left() == [] for one in site.targets.values())
    assert site.authorized.read_text() == keys


def test_a_machine_that_cannot_be_reached_stops_itself_alone(site: Site) -> None:
    site.targets["dmz"].sshd.stop()
    (site.targets["lab3"].home / ".local").write_text("a file where the folder goes")
    told = site.told("up")
    assert states(told) == {"lab3": "failed", "gpu1": "changed", "dmz": "failed"}
    assert "nothing listens" in told["dmz"]["steps"][-1]["said"]
    assert "mkdir" in told["lab3"]["steps"][-1]["said"]
    (site.targets["lab3"].home / ".local").unlink()
    site.targets["dmz"].sshd.start()
    site.know(*NAMES)
    site.write()


def test_up_brings_all_and_a_second_run_changes_nothing(site: Site) -> None:
    done = site.deploy("up")
    assert done.returncode == 0, done.stderr
    assert all(site.farm.is_live(name) for name in NAMES)
    running, files, keys = agents(site), seen(site), site.authorized.stat()
    assert states(site.told("up")) == all_of("ok")
    assert agents(site) == running and len(running) == len(NAMES)
    assert seen(site) == files
    assert site.authorized.stat() == keys


def test_the_private_key_stays_there_and_its_public_half_does_one_thing(ready: Site) -> None:
    for name, one in ready.targets.items():
        key = one.agent_folder / "key"
        assert key.stat().st_mode & 0o777 == 0o600
        lines = [line for line in ready.authorized.read_text().splitlines() if line.endswith(f" {name}")]
        assert lines == [f'restrict,command="{ready.farm.root.launcher} --as {name}" {lines[0].split(" ", 3)[3]}']
        options = ["-F", str(one.agent_folder / "ssh_config"), "-p", str(ready.server.port)]
        command = ["ssh", *options, "-o", "BatchMode=yes", f"{ready.server.user}@127.0.0.1", "id"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0 and "uid=" not in done.stdout


def test_a_job_runs_over_all_of_them(ready: Site) -> None:
    job = ready.farm.submit(arrays(layers=3, rows=96), shard_rows=4)
    ready.farm.wait(job, seconds=90.0)
    ready.farm.check_result(job)


def test_status_shows_what_has_drifted(ready: Site) -> None:
    for one in ready.told("status").values():
        assert one["drift"] == [] and one["link"] == "live" and one["room"]
        assert one["version"] == VERSION and one["fingerprint"].startswith("numpy ")
    (ready.targets["gpu1"].agent_folder / "join").chmod(0o600)
    (ready.targets["gpu1"].agent_folder / "join").write_text("#!/bin/sh\n")
    ready.authorized.write_text(ready.authorized.read_text().replace("--as dmz", "--as root"))
    told = ready.told("status")
    assert {name: one["drift"] for name, one in told.items()} == {"lab3": [], "gpu1": ["files"], "dmz": ["authorized"]}


def test_an_agent_that_nobody_deployed_is_named(ready: Site) -> None:
    ready.fields.pop("gpu1")
    ready.write()
    assert ready.told("status")["gpu1"]["drift"] == ["not in the inventory"]
    ready.fields["gpu1"] = {}
    ready.write()


def test_what_the_inventory_changes_is_changed_and_no_other_machine_is_touched(ready: Site) -> None:
    before = agents(ready)
    ready.fields["lab3"]["nice"] = 7
    ready.write()
    assert states(ready.told("up")) == {**all_of("ok"), "lab3": "changed"}
    after = agents(ready)
    assert after["lab3"] != before["lab3"] and after["dmz"] == before["dmz"]
    assert "--nice 7" in (ready.targets["lab3"].agent_folder / "join").read_text()
    assert states(ready.told("up")) == all_of("ok")


def test_an_agent_that_is_killed_comes_back(ready: Site) -> None:
    before = agents(ready)["gpu1"]
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: agents(ready).get("gpu1", before) != before, "another agent")


def test_after_a_restart_cron_brings_it_back_and_one_alone(ready: Site) -> None:
    target = ready.targets["gpu1"]
    [line] = (target.home / ".crontab").read_text().splitlines()
    event, _, command = line.partition(" ")
    assert event == "@reboot"
    before = agents(ready)["gpu1"]
    assert subprocess.run(["sh", "-c", command], check=False, timeout=30).returncode == 0  # one is there already
    keeper = int((target.agent_folder / "keep.pid").read_text().split()[0])
    for pid in (keeper, before.pid):
        os.kill(pid, signal.SIGKILL)
    until(lambda: "gpu1" not in agents(ready), "the machine to be without an agent")
    ready.farm.real["cron"] = ready.farm.run(["env", f"HOME={target.home}", "sh", "-c", command], "cron.out")
    until(lambda: agents(ready).get("gpu1", before) != before, "the agent to be back")
    until(lambda: ready.farm.is_live("gpu1"), "it to be joined")


def test_logs_are_the_agents_and_may_be_followed(ready: Site, tmp_path: Path) -> None:
    done = ready.deploy("logs", "lab3", "-n", "500")
    assert done.returncode == 0 and "as lab3" in done.stdout, done.stderr
    [log] = ready.targets["lab3"].home.rglob("agent.log")
    with (tmp_path / "said").open("wb") as out:
        follows = ready.farm.run(ready.command("logs", "lab3", "-f", "-n", "1"), "logs.out", stdout=out)
        until((tmp_path / "said").read_text, "the last line")
        with log.open("a") as file:
            file.write("and what comes\n")
        until(lambda: (tmp_path / "said").read_text().endswith("and what comes\n"), "another")
        follows.send_signal(signal.SIGINT)
        assert follows.wait(60.0) == 130


def test_two_at_once_are_one_too_many(site: Site) -> None:
    with alone(site.farm.root):
        done = site.deploy("up")
    assert done.returncode == 7
    assert "another `deploy` is at work" in done.stderr


def test_a_host_key_that_nobody_has_seen_is_shown_and_not_taken(ready: Site, tmp_path: Path) -> None:
    ready.know("lab3", "gpu1")
    said = ready.told("up")
    mark = said["dmz"]["steps"][-1]["said"]
    assert states(said) == {"lab3": "ok", "gpu1": "ok", "dmz": "failed"}
    assert mark.startswith("its host key is not known here: ed25519 SHA256:")
    (tmp_path / "marks").write_text(f"256 {mark.split()[-1]} root@dmz (ED25519)\n")
    assert states(ready.told("up", "--fingerprints", str(tmp_path / "marks"))) == all_of("ok")
    assert states(ready.told("up")) == all_of("ok")  # kept beside the root


def test_a_host_key_that_has_changed_is_refused(ready: Site) -> None:
    line = ready.targets["dmz"].sshd.known_hosts.read_text()
    other = ready.server.host_key.with_name("host_key.pub").read_text().split()[1]
    ready.know("lab3", "gpu1")
    ready.known_hosts.write_text(line.replace(line.split()[2], other) + ready.known_hosts.read_text())
    (ready.farm.root.path / "deploy-known_hosts").unlink(missing_ok=True)
    told = ready.told("up", "dmz")
    assert "has changed" in told["dmz"]["steps"][-1]["said"]
    ready.know(*NAMES)


def test_a_profile_that_prints_is_no_harm(ready: Site) -> None:
    """sshd runs commands by the login shell, whose start-up files are the account's own: here a program before ours."""
    target = ready.targets["lab3"]
    target.program("sh", '#!/bin/sh\necho "welcome to lab3"; printf "no newline"; exec /bin/sh "$@"\n')
    assert states(ready.told("up", "lab3")) == {"lab3": "ok"}
    (target.programs / "sh").unlink()


def test_an_inventory_that_is_edited_meanwhile_is_what_it_was_when_it_was_read(ready: Site, tmp_path: Path) -> None:
    ready.fields["lab3"]["nice"] = 3
    ready.write()
    with (tmp_path / "said").open("wb") as out:
        first = ready.farm.run(ready.command("up"), "up.out", stdout=out, stderr=out)
        until(lambda: "lab3: files: changed" in (tmp_path / "said").read_text(), "the first step")
        ready.fields["lab3"]["nice"] = 4
        ready.write()
        assert first.wait(60.0) == 0
    joined = ready.targets["lab3"].agent_folder / "join"
    assert "--nice 3" in joined.read_text()
    assert states(ready.told("up")) == {**all_of("ok"), "lab3": "changed"}
    assert "--nice 4" in joined.read_text()


def test_one_is_added_while_a_job_runs(ready: Site) -> None:
    assert states(ready.told("remove", "gpu1")) == {"gpu1": "changed"}
    place = ready.ssh("gpu1")
    del ready.fields["gpu1"]
    ready.write()
    before = ready.inventory.read_text()
    job = ready.farm.submit(arrays(layers=3, rows=96, seed=2), shard_rows=2)
    wrong = ready.deploy("add", "gpu1", "ssh=-oX=y")
    assert wrong.returncode == 3 and "machines.gpu1.ssh: " in wrong.stderr and ready.inventory.read_text() == before
    assert states(ready.told("add", "gpu1", f"ssh={place}", "nice=2", "--check")) == {"gpu1": "would change"}
    assert ready.inventory.read_text() == before
    assert states(ready.told("add", "gpu1", f"ssh={place}", "nice=2")) == {"gpu1": "changed"}
    assert ready.inventory.read_text() == f"{before}  gpu1: {{ssh: '{place}', nice: 2}}\n"
    ready.farm.wait(job, seconds=90.0)
    ready.farm.check_result(job)
    assert ready.deploy("add", "gpu1", f"ssh={place}").returncode == 2
    ready.fields["gpu1"] = {}


def test_one_is_removed_while_a_job_runs_and_nothing_is_computed_twice(ready: Site) -> None:
    job = ready.farm.submit(arrays(layers=3, rows=96, seed=1), shard_rows=2)
    told = ready.told("remove", "dmz")
    assert states(told) == {"dmz": "changed"}
    assert ready.targets["dmz"].left() == []
    assert " dmz" not in ready.authorized.read_text()
    ready.farm.wait(job, seconds=90.0)
    ready.farm.check_result(job)
    assert "dmz" not in agents(ready)


def test_ctrl_c_ends_a_removal_that_waits_for_a_shard_and_the_next_one_goes_on(ready: Site, tmp_path: Path) -> None:
    job = ready.farm.submit(
        arrays(layers=1, rows=6), shard_rows=1, work=NAPS.replace("0.2", "600"), kind="map", code="work.py:f"
    )
    until(lambda: ready.farm.status(job).totals.running >= len(NAMES), "all to compute")
    with (tmp_path / "said").open("wb") as out:
        first = ready.farm.run(ready.command("remove", "gpu1"), "remove.out", stdout=out, stderr=out)
        until(lambda: ready.farm.agent_status("gpu1").state == "draining", "it to be drained")
        first.send_signal(signal.SIGINT)
        assert first.wait(60.0) == 130
    assert agents(ready).keys() == set(NAMES)
    assert ready.farm.coordinator("cancel", job).returncode == 0
    assert states(ready.told("remove", "gpu1")) == {"gpu1": "changed"} and ready.targets["gpu1"].left() == []


def test_now_takes_the_key_away_first(ready: Site) -> None:
    told = ready.told("remove", "gpu1", "--now")
    assert [step["name"] for step in told["gpu1"]["steps"]] == ["key", "files"]
    assert ready.targets["gpu1"].left() == []


def test_what_was_not_pushed_is_kept_until_it_is_pushed_or_given_up(tmp_path: Path) -> None:
    with sites.running(tmp_path, "lab3", "gpu1") as site:
        lab3, gpu1 = site.targets.values()
        assert site.deploy("up").returncode == 0
        job = site.farm.submit(arrays(layers=1, rows=50), shard_rows=1, work=NAPS, kind="map", code="work.py:f")
        until(lambda: site.farm.status(job).totals.committed, "the first results")
        site.server.stop()
        until(lambda: all(list(one.home.rglob("done/**/*.part")) for one in (lab3, gpu1)), "results on both machines")
        told = site.told("remove", "lab3", "gpu1", "--now")
        assert states(told) == {"lab3": "failed", "gpu1": "failed"}
        assert all("were not pushed" in one["steps"][-1]["said"] for one in told.values())
        assert agents(site) == {} and lab3.agent_folder.exists() and not (lab3.home / ".crontab").exists()

        site.server.start()
        site.write()
        assert states(site.told("remove", "lab3")) == {"lab3": "failed"}
        assert states(site.told("remove", "lab3", "--force")) == {"lab3": "changed"} and lab3.left() == []
        had = {path.name for path in gpu1.home.rglob("done/**/*.part")}
        assert states(site.told("up", "gpu1")) == {"gpu1": "changed"} and had
        site.farm.wait(job, seconds=90.0)
        site.farm.check_result(job)
        until(lambda: not list(gpu1.home.rglob("done/**/*.part")), "what was kept to be pushed")


def test_now_locks_a_machine_out_that_cannot_be_reached(ready: Site) -> None:
    """Its agent has a connection, which outlives the key that opened it."""
    target = ready.targets["gpu1"]
    target.sshd.stop()
    told = ready.told("remove", "gpu1", "--now")
    assert states(told) == {"gpu1": "failed"} and not ready.farm.is_live("gpu1")
    log = ready.farm.root.log
    until(lambda: "gpu1 said hello and is locked out: refused" in log.read_text(), "it to have tried that")
    assert not ready.farm.is_live("gpu1") and " gpu1" not in ready.authorized.read_text()
    target.sshd.start()
    ready.know(*NAMES)
    ready.write()
    assert states(ready.told("up", "gpu1")) == {"gpu1": "changed"} and ready.farm.is_live("gpu1")


def test_down_leaves_homes_as_they_were(ready: Site) -> None:
    (ready.farm.root.path / "deploy-known_hosts").write_text("host ssh-ed25519 AAAA dmz\n")
    (ready.targets["lab3"].home / "thesis.tex").write_text("mine")
    assert states(ready.told("down", "--check")) == all_of("would change")
    assert ready.farm.is_live("lab3")
    assert ready.deploy("down").returncode == 0
    assert [ready.targets[name].left() for name in NAMES] == [["thesis.tex"], [], []]
    assert "muster" not in ready.authorized.read_text()
    assert (ready.farm.root.path / "deploy-known_hosts").read_text() == ""
    none = ready.deploy("logs", "lab3")
    assert none.returncode == 6 and "lab3 has no agent of this farm" in none.stderr
    assert agents(ready) == {} and ready.farm.processes("keep") == []


def test_a_machine_without_a_python_says_where_it_looked(site: Site) -> None:
    site.fields["lab3"]["python"] = "/opt/none/bin/python3"
    site.write()
    told = site.told("up", "lab3")["lab3"]["steps"][-1]
    assert told["name"] == "python" and "/opt/none/bin/python3" in told["said"] and "without root" in told["hint"]
    assert sys.executable  # the others' own


def test_a_machine_that_ray_has_no_wheel_for_gets_plain_processes_and_the_table_says_so(tmp_path: Path) -> None:
    with sites.running(tmp_path, "alpine", "named") as site:
        site.targets["alpine"].program("getconf", "#!/bin/sh\nexit 1\n")  # as with musl: it knows no version of glibc
        site.fields["named"]["pool"] = "processes"
        site.write()
        done = site.deploy("up")
        assert done.returncode == 0, done.stderr
        said = {line.split()[0]: line for line in done.stdout.splitlines()}
        assert "plain processes: Ray has no wheel for Linux" in said["alpine"]
        assert "plain processes, as the inventory says" in said["named"]
        assert all("--pool processes" in (one.agent_folder / "join").read_text() for one in site.targets.values())
        site.farm.wait(site.farm.submit(arrays(layers=2, rows=32)), seconds=90.0)
        assert site.farm.processes("raylet") == []
        assert set(states(site.told("up")).values()) == {"ok"}


def test_systemd_keeps_an_agent_where_there_is_a_user_manager(tmp_path: Path) -> None:
    """A stand-in for it: what is shown is what we ask of it, and when."""
    with sites.running(tmp_path, "lab3") as site:
        target = site.targets["lab3"]
        target.has_systemd()
        done = site.deploy("up")
        assert done.returncode == 0, done.stderr
        unit = target.home / ".config/systemd/user/muster-lab3.service"
        assert unit.exists() and not (target.home / ".crontab").exists()
        verify = ["systemd-analyze", "--user", "verify", str(unit)]
        if shutil.which(verify[0]):
            said = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False).stderr
            assert "muster-lab3" not in said, said
        assert states(site.told("up")) == {"lab3": "ok"}
        assert site.told("status")["lab3"]["service"] == "systemd"
        first = (target.programs / "pid-muster-lab3.service").read_text()
        site.fields["lab3"]["nice"] = 5
        site.write()
        assert states(site.told("up")) == {"lab3": "changed"}
        assert (target.programs / "pid-muster-lab3.service").read_text() != first

        site.authorized.write_text("")
        again = [str(target.programs / "systemctl"), "--user", "restart", "muster-lab3.service"]
        assert site.farm.run(["env", f"HOME={target.home}", *again], "again.out").wait(60.0) == 0
        until(lambda: " does not let " in site.told("status")["lab3"]["error"], "its error")
        ended = int((target.programs / "pid-muster-lab3.service").read_text())
        until(lambda: not is_running(ended), "its end, after which a stand-in starts nothing again")
        assert states(site.told("up")) == {"lab3": "changed"}

        table = target.home / ".crontab"
        for service, has in (("cron", [False, True]), ("none", [False, False]), ("user", [True, False])):
            site.fields["lab3"]["service"] = service
            site.write()
            assert states(site.told("up")) == {"lab3": "changed"}
            assert [unit.exists(), table.exists()] == has
            assert (target.programs / "enabled-muster-lab3.service").exists() == has[0]
            assert len(site.farm.processes("muster.agent join")) == 1 and states(site.told("up")) == {"lab3": "ok"}
        assert states(site.told("down")) == {"lab3": "changed"}
        assert target.left() == [] and not (target.programs / "enabled-muster-lab3.service").exists()
        assert site.farm.processes("muster.agent join") == []


def test_the_coordinator_is_kept_as_the_inventory_says(tmp_path: Path) -> None:
    """With stand-ins for cron and for systemd, as on the machines."""
    with sites.running(tmp_path, "lab3") as site:
        site.fields = {}
        farm, home, programs = site.farm, site.farm.folder / "home", tmp_path / "bin"
        unit, table = home / ".config/systemd/user", home / ".crontab"
        for folder in (home, programs):
            folder.mkdir(exist_ok=True)
        sites.put_cron(programs)
        farm.env |= {"PATH": f"{programs}:{os.environ['PATH']}", "XDG_CONFIG_HOME": ""}
        site.server_fields = {"service": "cron", "root": str(farm.root.path)}
        site.write()
        assert states(site.told("up", "--check")) == {"(server)": "would change"} and not table.exists()
        site.fields = {"lab3": {}}
        site.server_fields["root"] = str(tmp_path / "new")
        site.write()
        command = [word for word in site.command("up", "--check") if word not in ("--root", str(farm.root.path))]
        new = subprocess.run(command, env=farm.environment(), capture_output=True, text=True, check=False)
        assert new.returncode == 0 and not (tmp_path / "new").exists(), new.stderr
        assert [line.split()[:2] for line in new.stdout.splitlines()[1:]] == [["(server)", "would"], ["lab3", "would"]]
        site.fields, site.server_fields["root"] = {}, str(farm.root.path)
        site.write()
        table.write_text("0 3 * * * mine\n")
        assert states(site.told("up")) == {"(server)": "changed"}
        own, line = table.read_text().splitlines()
        assert own == "0 3 * * * mine" and line.startswith("@reboot ")
        assert states(site.told("up")) == {"(server)": "ok"}

        assert farm.stop() == 0
        site.fields = {"lab3": {}}
        site.write()
        assert states(site.told("up", "--check")) == {"(server)": "would change", "lab3": "would change"}
        site.fields = {}
        site.write()
        assert site.deploy("status").returncode == 5
        done = subprocess.run(["sh", "-c", line.removeprefix("@reboot ")], env=farm.environment(), check=False)
        assert done.returncode == 0  # as cron does when the server starts
        assert site.told("status")["(server)"]["drift"] == []
        table.write_text(own + "\n")
        assert site.told("status")["(server)"]["drift"] == ["coordinator"]

        sites.put_systemd(programs)
        site.server_fields["service"] = "user"
        site.write()
        refused = site.deploy("up")
        assert refused.returncode == 7 and "`coordinator stop`, then this" in refused.stderr
        assert farm.coordinator("stop").returncode == 0
        assert states(site.told("up")) == {"(server)": "changed"}
        assert len(list(unit.iterdir())) == 1 and table.read_text() == own + "\n"
        assert states(site.told("up")) == {"(server)": "ok"}
        site.server_fields["service"] = "cron"
        site.write()
        assert states(site.told("up")) == {"(server)": "changed"}
        assert list(unit.iterdir()) == [] and table.read_text().splitlines() == [own, line]
        assert farm.coordinator("stop").returncode == 0


def test_wheels_are_fetched_for_the_machines_and_those_that_cannot_be_are_named(tmp_path: Path) -> None:
    with sites.running(tmp_path, "lab3", "gone") as site:
        site.targets["gone"].sshd.stop()
        python = "{}.{}".format(*sys.version_info)
        wheelhouse.small_index(tmp_path / "index", uvicorn=["h11"], h11=[])
        site.farm.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}
        done = site.deploy("wheels", "lab3", "--to", str(tmp_path / "wheels"))
        assert done.returncode == 0 and f"for Python {python} on {os.uname().machine}" in done.stdout, done.stderr
        assert sorted(os.listdir(tmp_path / "wheels")) == sorted(os.listdir(tmp_path / "index"))

        site.farm.env["PIP_FIND_LINKS"] = str(tmp_path / "none")
        done = site.deploy("wheels", "--to", str(tmp_path / "wheels-2"))
        assert done.returncode == 9 and f"pip cannot fetch for Python {python} on {os.uname().machine}" in done.stderr
        assert "nothing listens" in done.stderr
        nowhere = site.deploy("up", "--wheelhouse", str(tmp_path / "none"))
        assert nowhere.returncode == 2 and "does not exist" in nowhere.stderr


def test_the_inventory_and_the_command_line_name_one_root(tmp_path: Path) -> None:
    with sites.running(tmp_path) as site:
        site.server_fields = {"root": str(site.farm.root.path)}
        site.write()
        command = site.command("status")
        at = command.index("--root")
        done = subprocess.run([*command[:at], *command[at + 2 :]], env=site.farm.environment(), check=False, timeout=60)
        assert done.returncode == 0
        site.server_fields = {"root": str(tmp_path / "other")}
        site.write()
        refused = site.deploy("up")
        assert refused.returncode == 2 and "is of the farm in" in refused.stderr
        assert not (tmp_path / "other").exists()


def test_an_upgrade_switches_no_machine_before_all_have_it(tmp_path: Path) -> None:
    with sites.running(tmp_path, "lab3", "gpu1") as site:
        lab3, gpu1 = site.targets.values()
        for name, target in site.targets.items():
            site.fields[name]["python"] = "auto"
            build = target.has_venv()
        site.write()
        assert site.deploy("up").returncode == 0
        for target in (lab3, gpu1):
            target.has_venv("0.0.9")
            target.has_venv("0.0.8")
            (target.base / "current").unlink()
            (target.base / "current").symlink_to("0.0.9")
        job = site.farm.submit(arrays(layers=3, rows=96), shard_rows=4)
        before = agents(site)

        params = {"space": {"lr": {"uniform": [0, 1]}}, "metric": "accuracy", "trials": 2, "stop": {"iterations": 99}}
        search = site.farm.submit({}, work=SEARCH, kind="tune", code="work.py:train", params=params)
        refused = site.deploy("upgrade")
        assert refused.returncode == 7 and f"{search} would go back to its last checkpoint" in refused.stderr
        assert f"note: {search} would go back" in site.deploy("upgrade", "--check").stderr
        assert (lab3.base / "current").readlink() == Path("0.0.9") and agents(site) == before
        assert site.farm.coordinator("cancel", search).returncode == 0

        gpu1.sshd.stop()
        told = site.told("upgrade")
        assert states(told) == {"lab3": "ok", "gpu1": "failed"}
        assert (lab3.base / "current").readlink() == Path("0.0.9") and agents(site) == before

        gpu1.sshd.start()
        site.know("lab3", "gpu1")
        site.write()
        assert states(site.told("upgrade")) == {"lab3": "changed", "gpu1": "changed"}
        assert [str((one.base / "current").readlink()) for one in (lab3, gpu1)] == [build, build]
        assert (lab3.base / "0.0.9").is_dir() and not (lab3.base / "0.0.8").exists()
        after = agents(site)
        assert all(after[name] != before[name] for name in site.targets)
        assert states(site.told("upgrade")) == {"lab3": "ok", "gpu1": "ok"}
        site.farm.wait(job, seconds=90.0)
        site.farm.check_result(job)

        newer = versions.of_this_tree(tmp_path / "newer", "0.1.9")
        beside = newer.run("-c", "from muster.deploy import wheel; print(wheel.stamp(), wheel.build(wheel.stamp()))")
        for target in (lab3, gpu1):
            target.has_venv(beside.split()[1], newer.python, beside.split()[0])
        assert states(site.told("remove", "gpu1")) == {"gpu1": "changed"}
        job = site.farm.submit(arrays(layers=3, rows=96, seed=2), shard_rows=2)
        for version, python, name in ((newer.version, newer.python, beside.split()[1]), (VERSION, None, build)):
            site.python = python  # forth, and back by the same link
            assert states(site.told("upgrade")) == {"lab3": "changed", "gpu1": "absent"}
            assert (lab3.base / "current").readlink() == Path(name) and gpu1.left() == []
            assert [one.version for one in site.farm.agents_now()] == [version]
        site.farm.wait(job, seconds=90.0)
        site.farm.check_result(job)


def test_a_jump_host_is_passed_and_ctrl_c_leaves_what_the_next_up_goes_on_from(tmp_path: Path) -> None:
    with sites.running(tmp_path, "gate", "dmz") as site:
        gate = site.targets["gate"].sshd
        del site.fields["gate"]  # a way to another machine, and none of the farm's
        jump = site.fields["dmz"]["jump"] = f"{gate.user}@127.0.0.1:{gate.port}"
        site.write()
        site.known_hosts.write_text("")
        first = site.told("up")["dmz"]["steps"][-1]["said"]
        assert first.startswith(f"the host key of {jump}, on the way to it, is not known here: ed25519 SHA256:")
        marks, ours = tmp_path / "marks", site.farm.root.path / "deploy-known_hosts"
        marks.write_text(fingerprint(gate))
        assert "its host key is not known" in site.told("up", "--fingerprints", str(marks))["dmz"]["steps"][-1]["said"]
        ours.unlink()
        marks.write_text(fingerprint(gate) + fingerprint(site.targets["dmz"].sshd))
        assert states(site.told("up", "--check", "--fingerprints", str(marks))) == {"dmz": "would change"}
        assert not ours.exists()
        with (tmp_path / "said").open("wb") as out:
            up = site.command("up", "--fingerprints", str(marks))
            running = site.farm.run(up, "up.out", stdout=out, stderr=out)
            until(lambda: "dmz: key: changed" in (tmp_path / "said").read_text(), "the first steps")
            os.killpg(running.pid, signal.SIGINT)  # as a terminal sends it, to its ssh too
            assert running.wait(30.0) == 130
        done = site.deploy("up")
        assert done.returncode == 0, done.stderr
        assert "key: changed" not in done.stderr and site.farm.is_live("dmz")
        assert f"Accepted publickey for {gate.user}" in gate.log()
        assert [line.split()[3:] for line in ours.read_text().splitlines()] == [[], ["dmz"]]
        assert states(site.told("down")) == {"dmz": "changed"}
        assert site.targets["dmz"].left() == [] and site.targets["gate"].left() == []
        assert [line.split()[3:] for line in ours.read_text().splitlines()] == [[]]


def test_a_machine_that_cannot_reach_the_server_comes_by_the_way_that_is_dialled() -> None:
    with tempfile.TemporaryDirectory(prefix="mst-", dir="/tmp") as short, sites.running(Path(short), "dmz") as site:
        port = site.server.port
        site.server_fields = {"address": f"ssh://{site.server.user}@server.invalid:{port}", "sshd": f"127.0.0.1:{port}"}
        site.fields["dmz"] |= {"reach": "in", "spool": f"{short}/another disk/spool"}
        site.write()
        done = site.deploy("up")
        assert done.returncode == 0, done.stderr
        target = site.targets["dmz"]
        [way] = (target.agent_folder / "in").iterdir()
        assert way.is_socket() and way.parent.stat().st_mode & 0o777 == 0o700
        assert states(site.told("up")) == {"dmz": "ok"}
        job = site.farm.submit(arrays(layers=3, rows=96), shard_rows=2)

        [dial] = site.farm.processes("ssh", "-N", f"{target.agent_folder}/in/")
        os.kill(dial, signal.SIGKILL)  # another is made, under another name, and the agent finds it
        until(lambda: [one for one in (target.agent_folder / "in").iterdir() if one != way], "another way")
        until(lambda: not way.exists(), "the dead way to be swept by who came after it")
        site.farm.wait(job, seconds=90.0)
        site.farm.check_result(job)

        dials = site.farm.folder / "home/.local/share/muster/agents/dial.dmz"
        (dials / "join").write_text("#!/bin/sh\nexit 1\n")
        assert site.told("status")["dmz"]["drift"] == ["dialled"]
        assert states(site.told("up")) == {"dmz": "changed"}
        target.sshd.stop()  # a lock-out wants nothing of the machine
        assert states(site.told("remove", "dmz", "--now")) == {"dmz": "failed"}
        assert not dials.exists() and " dmz" not in site.authorized.read_text()
        assert site.farm.processes("ssh", "-N") == []
        target.sshd.start()
        site.know("dmz")
        site.write()
        assert states(site.told("down")) == {"dmz": "changed"}
        assert target.left() == []


def fingerprint(daemon: Sshd) -> str:
    """A line as whoever administers it would give it."""
    command = ["ssh-keygen", "-lf", f"{daemon.host_key}.pub"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unmount(folder: Path) -> None:
    subprocess.run(["umount", folder], check=True)


@pytest.mark.root
def test_homes_that_take_nothing_and_a_farm_that_is_not_served(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    options = {"full": ["size=4k,nr_inodes=3"], "fixed": ["ro"]}
    with sites.running(tmp_path, *options) as site, contextlib.ExitStack() as mounted:
        for name, more in options.items():
            home = site.targets[name].home
            subprocess.run(["mount", "-t", "tmpfs", "-o", *more, "none", home], check=True)
            mounted.callback(unmount, home)
        os.chown(site.authorized, 65534, 65534)
        for command in ("up", "upgrade", "down"):
            done = site.deploy(command)
            assert done.returncode == 7 and "belongs to another user" in done.stderr and not done.stdout
        os.chown(site.authorized, 0, 0)
        told = site.told("up")
        said = {name: one["steps"][-1]["said"] for name, one in told.items()}
        assert "No space left on device" in said["full"] and "Read-only file system" in said["fixed"]
        assert "muster farm" not in site.authorized.read_text()
        site.farm.stop()
        done = site.deploy("up")
        assert done.returncode == 5 and "no coordinator serves" in done.stderr
