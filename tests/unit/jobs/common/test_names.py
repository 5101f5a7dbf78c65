"""Names that become paths: nothing gets out of its folder, or passes for a file of ours."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.common import names
from muster.jobs.common.errors import UsageError

BAD_JOBS = ["", "a/b", "..", ".", "a.b", "a\n", "a\0", "a b", "é", "x" * 65, "x" * 300, "a;id", "$(id)", "-\n"]

BAD_LAYERS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/..",
    "../a",
    "a/./b",
    "a\\b",
    "a\nb",
    "a\n",
    "é",
    "a\0",
    "~",
    "*",
]
BAD_LAYERS += ["manifest.json", "a/manifest.json", "shards.npy", "a.npy/b", "x" * 129, "/".join(["x" * 100] * 6)]


@pytest.mark.parametrize("name", ["a", "weights", "A-1_b", "x" * 64, "-", "0"])
def test_plain_names(name: str) -> None:
    assert names.is_plain(name)
    assert names.check_name(name, "job") == name


@pytest.mark.parametrize("name", BAD_JOBS)
def test_names_that_are_refused(name: str) -> None:
    assert not names.is_plain(name)
    with pytest.raises(UsageError) as caught:
        names.check_name(name, "job")
    assert "job name" in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 100
    assert "letters" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "name", ["conv1", "layer1.0.conv1.weight", "block/conv1", "a b", "x=1,y=2", "@1+2", "..a", "a..", "x" * 128]
)
def test_layer_names(name: str) -> None:
    assert names.is_layer(name)


@pytest.mark.parametrize(
    "name",
    BAD_LAYERS,
)
def test_layer_names_that_are_refused(name: str) -> None:
    assert not names.is_layer(name)


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "a", "", "b.npy", "c d"])).map("/".join))
def test_no_layer_name_leaves_its_folder(name: str) -> None:
    if names.is_layer(name):
        path = PurePosixPath(name)
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert str(path) == name
        assert name.isascii() and name.isprintable()


def test_job_ids() -> None:
    assert names.split_job_id("weights.2") == ("weights", 2)
    assert names.split_job_id("weights") == ("weights", None)


@pytest.mark.parametrize(
    "text", ["weights.0", "weights.01", "weights.1.2", "weights.", ".1", "w/1", "weights.1234567890", "w.1\n"]
)
def test_no_job_ids(text: str) -> None:
    with pytest.raises(UsageError):
        names.split_job_id(text)


def test_digests() -> None:
    assert names.is_digest("0123456789abcdef" * 2)
    assert not any(names.is_digest(text) for text in ["", "0" * 31, "0" * 33, "A" * 32, "0" * 32 + "\n"])
