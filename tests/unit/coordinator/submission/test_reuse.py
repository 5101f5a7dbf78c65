"""What becomes of a job file that is submitted from an earlier job."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.submission.reuse import Wish, changed

FROM = Wish(old="digits.1")


@pytest.mark.parametrize(
    ("document", "wish", "params"),
    [
        ({"kind": "tune", "params": {"trials": 9}}, FROM, {"extends": "digits.1", "trials": 9}),
        ({"kind": "tune"}, FROM, {"extends": "digits.1"}),
        ({"kind": "tune", "params": {"extends": "other.2"}}, FROM, {"extends": "other.2"}),
        ({"kind": "tune", "params": {"extends": None}}, FROM, {"extends": None}),
        ({"kind": "tune"}, Wish(sets=("extends=null",), old="digits.1"), {"extends": None}),
        ({"kind": "cluster", "params": {"n_clusters": 3}}, FROM, {"n_clusters": 3}),
        ({"kind": "no such kind", "params": {"n": 3}}, FROM, {"n": 3}),
        ({"params": {"n": 3}}, FROM, {"n": 3}),
    ],
)
def test_a_search_goes_on_from_the_earlier_one_unless_its_file_names_another_or_none(
    document: dict[str, Any], wish: Wish, params: dict[str, Any]
) -> None:
    assert changed(document, wish)["params"] == params
