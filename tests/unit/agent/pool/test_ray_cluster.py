"""What is looked at before anybody asks a Ray cluster for anything."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from muster.agent.pool import ray_cluster, ray_host
from muster.agent.pool.ray_seats import unlike
from muster.jobs.common.errors import AccessError, LinkError, RefusedError, UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("head", "head:6379"),
        ("10.0.0.5:7000", "10.0.0.5:7000"),
        ("[::1]:7000", "[::1]:7000"),
        ("a-b.c_d", "a-b.c_d:6379"),
    ],
)
def test_an_address_is_a_host_and_perhaps_a_port(text: str, address: str) -> None:
    assert ray_cluster.checked_address(text) == address


@pytest.mark.parametrize("text", ["", "auto", "head:", "head:70000", "http://head:8265", "head:6379/x", "a b:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    if text == "auto":
        assert ray_cluster.checked_address(text) == "auto:6379"  # a host may be called so
        return
    with pytest.raises(UsageError):
        ray_cluster.checked_address(text)


def test_the_client_servers_address_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="no results can be streamed") as caught:
        ray_cluster.checked_address("ray://head:10001")
    assert "--ray head:6379" in caught.value.hint


def test_a_token_file_is_ours_alone_and_has_a_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(UsageError, match="No such file"):
        ray_cluster.read_token(path)
    path.write_text("secret\n")
    path.chmod(0o640)
    with pytest.raises(UsageError, match="others may read it") as caught:
        ray_cluster.read_token(path)
    assert caught.value.hint == f"chmod 600 {path}"
    path.chmod(0o600)
    assert ray_cluster.read_token(path) == "secret"
    path.write_bytes(b"\0" * 5000)
    with pytest.raises(UsageError, match="no token in it"):
        ray_cluster.read_token(path)


def test_an_address_where_nobody_is_says_how_a_cluster_is_started() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(LinkError, match=f"no Ray at 127.0.0.1:{port}") as caught:
        ray_cluster.check_head(f"127.0.0.1:{port}", "")
    assert "ray start --head" in caught.value.hint


def test_who_is_no_ray_is_said_to_be_none() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises((AccessError, LinkError)):
            ray_cluster.check_head(address, "token")


def test_what_nodes_get_imports_nothing_else_of_ours(tmp_path: Path) -> None:
    """The worker is found in what is sent, wherever else a muster may be."""
    there = ray_cluster._modules(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import muster.agent.pool.ray_far_worker as w;"
        " import muster.agent.pool.ray_actor, muster.jobs.workbench.workbench, muster.jobs.kinds.registry as r;"
        " [r.load(name) for name in r.kernels()];"
        " print(all(m.__file__.startswith(sys.argv[1]) for n, m in sys.modules.items() if n.split('.')[0] == 'muster'))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(there.parent)], capture_output=True, text=True, cwd="/", check=False
    )
    assert (run.stdout, run.stderr) == ("True\n", "")


HERE = {"python": "3.11.7", "kinds": "infer 1, train 1", "numerics": "numpy 2.4.6 AVX2, x86_64, torch 2.13.0"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, ""),
        ({"python": "3.11.2"}, ""),
        ({"python": "3.12.1", "missing": ["numpy"]}, "Python 3.11.7 here, Python 3.12.1 there"),
        ({"missing": ["numpy", "xxhash"]}, "its Python 3.11.7 has no numpy, xxhash"),
        ({"kinds": "infer 1, train 2"}, "other kinds: train 1 here, train 2 there"),
        (
            {"numerics": "numpy 2.4.5 AVX2, x86_64"},
            "other numerics: numpy 2.4.6 AVX2, torch 2.13.0 here, numpy 2.4.5 AVX2 there",
        ),
    ],
)
def test_a_node_of_another_environment_is_told_apart_by_both_versions(said: dict[str, object], why: str) -> None:
    there = {"host": "n", "node": "f00", "pid": 1, "missing": [], **HERE, **said}
    if there["missing"]:  # then nothing else can be asked of it
        there = {name: fact for name, fact in there.items() if name not in ("kinds", "numerics")}
    assert unlike(there, HERE) == why


def test_a_cluster_of_another_python_is_told_apart_by_both_versions() -> None:
    """Ray compares before anything of ours runs there; these are its words."""
    said = (
        "Version mismatch: The cluster was started with: Ray: 2.60.0 Python: 3.12.1"
        " This process on node 10.0.0.1 was started with: Ray: 2.60.0 Python: 3.11.7"
    )
    error = ray_host.not_joined("head:6379", said)
    assert isinstance(error, RefusedError)
    here = "here are Ray 2.60.0 and Python 3.11.7"
    assert error.message == f"the Ray cluster at head:6379 has Ray 2.60.0 and Python 3.12.1, {here}"
    assert error.hint == "join from an environment with Ray 2.60.0 and Python 3.12"
    assert "as it likes" in ray_host.not_joined("head:6379", "Version mismatch: as it likes").message
