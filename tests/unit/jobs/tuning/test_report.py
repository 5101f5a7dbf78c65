"""What is drawn of searches."""

from __future__ import annotations

import math

import pytest

from muster.jobs.contract.pictures import Curves
from muster.jobs.tuning.params import TuneParams
from muster.jobs.tuning.report import pictures
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.trials import Segment


@pytest.mark.parametrize(("metric", "best"), [("accuracy", [0.2, 0.7, 0.8]), ("loss", [0.2, 0.1])])
def test_the_best_so_far_is_drawn_over_time_whichever_trial_it_was(metric: str, best: list[float]) -> None:
    search = Search(TuneParams({"lr": {"uniform": [0, 1]}}, metric, trials=3, stop={"iterations": 9}))
    for segment in (
        Segment(0, 0, 9, [{metric: 0.2}, {metric: 0.1}, {metric: 0.8}], [1.0, 1.0, 4.0], at=7.0),
        Segment(1, 0, 9, [{metric: 0.7}], [2.0], at=2.5),
        Segment(2, 0, 9, [{metric: math.nan}], [1.0], "diverged", at=8.0),
    ):
        assert search.commit(segment)
    drawn = pictures({"job.1": search})[0]
    assert isinstance(drawn, Curves) and (drawn.x, drawn.y) == ("seconds of the search", metric)
    times = {0.2: 2.0, 0.1: 3.0, 0.8: 7.0, 0.7: 2.5}
    assert drawn.curves == [("job.1", [*((times[value], value) for value in best), (8.0, best[-1])])]
