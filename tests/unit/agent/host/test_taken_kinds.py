"""What a machine that takes not everything refuses by itself, whatever a coordinator says of the work."""

from __future__ import annotations

from typing import Any

import pytest

from muster.agent.host.taken_kinds import Takes, listed
from muster.jobs.common.errors import RefusedError, UsageError
from muster.jobs.contract.plan import Work

SAFE = Takes(no_code=True)


def work(kind: str, code: str | None = None, env: str | None = None, **params: Any) -> Work:
    """As a coordinator that lies tells it."""
    entry = "work.py:f" if code else None
    return Work(kind, 1, params, code, entry, env, 1, None, None, runs_code=False)


@pytest.mark.parametrize(
    "asked",
    [
        work("map", "c0de"),
        work("map"),
        work("command", run="true"),
        work("infer", "c0de", model="net.npz"),
        work("infer", model="net.pkl", trust_pickle=True),
        work("infer", model="net.pt"),
        work("infer", model="net.skops", trusted=["os.system"]),
        work("infer", model="net.xyz"),
        work("infer", model=["net.npz"]),
        work("infer"),
        work("infer", model="net.onnx", env="/tmp/a/program"),
        work("train", "c0de"),
    ],
)
def test_what_runs_others_code_is_refused(asked: Work) -> None:
    with pytest.raises(RefusedError, match="runs no code of others"):
        SAFE.check(asked)
    Takes().check(asked)


@pytest.mark.parametrize(
    "asked",
    [
        work("cluster", n_clusters=2),
        *(work("infer", model=f"net.{end}") for end in ("npz", "safetensors", "onnx", "skops", "ONNX")),
        work("infer", model="net.onnx", env="nlp"),
        work("train", model="mlp"),
    ],
)
def test_what_runs_none_is_taken(asked: Work) -> None:
    SAFE.check(asked)


def test_only_the_kinds_it_was_told_to_take_are_taken() -> None:
    picky = Takes(listed("infer, cluster,infer"))
    assert picky == Takes(("cluster", "infer")) and Takes(listed("")) == Takes()
    picky.check(work("cluster"))
    with pytest.raises(RefusedError, match="takes only the kinds cluster, infer, and not map"):
        picky.check(work("map", "c0de"))
    with pytest.raises(UsageError, match="there is no kind 'clutser' here"):
        listed("clutser")
