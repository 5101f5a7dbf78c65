"""What a fingerprint names beside a machine's own numerics: versions of what a job rests on, where its code runs."""

from __future__ import annotations

import msgspec
import pytest

from muster.jobs.contract.plan import Environment
from muster.jobs.contract.requirements import COMMON, rest_of
from muster.jobs.kinds import registry

THERE = Environment("3.11.4", {"numpy": "1.26.4", "torch": "2.9.1+cpu", "scikit-learn": "1.5.0", "rich": "13"})


@pytest.mark.parametrize(
    ("env", "rests_on", "said"),
    [
        (None, None, ""),
        ("nlp", None, ""),
        (None, (), ""),
        (None, ("numpy", "onnxruntime", "torch"), ", torch 2.9.1+cpu"),
        ("nlp", (), ", nlp python 3.11.4, nlp numpy 1.26.4"),
        ("nlp", ("torch",), ", nlp python 3.11.4, nlp numpy 1.26.4, nlp torch 2.9.1+cpu"),
    ],
)
def test_it_is_of_the_environment_that_computes(env: str | None, rests_on: tuple[str, ...] | None, said: str) -> None:
    assert rest_of(env, THERE, rests_on) == said


def test_an_interpreter_nobody_asked_is_not_known() -> None:
    assert rest_of("/opt/nlp/bin/python", None, ("torch",)) == ", /opt/nlp/bin/python not known"


@pytest.mark.parametrize(
    ("name", "params", "has_code", "wanted"),
    [
        ("cluster", {"n_clusters": 4}, False, ()),
        ("infer", {"model": "a.npz"}, False, ()),
        ("infer", {"model": "a.onnx"}, False, ("onnxruntime",)),
        ("infer", {"model": "a.pt"}, False, ("torch",)),
        ("infer", {}, True, COMMON),
        ("map", {}, True, COMMON),
        ("train", {"model": "mlp"}, False, ()),
    ],
)
def test_a_kind_says_what_it_rests_on(name: str, params: dict[str, object], has_code: bool, wanted: object) -> None:
    kind = registry.load(name)
    assert kind.rests_on(msgspec.convert(params, kind.Params), has_code) == wanted
