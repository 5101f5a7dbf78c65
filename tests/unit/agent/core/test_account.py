"""Where a machine's core-seconds go: each core that is lent is in one state at any time, and none is counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.core.account import JOBS_KEPT, JOBS_TOLD, Account, Cores
from muster.coordinator.protocol.control import IDLE_STATES

states = st.sampled_from(IDLE_STATES)
cores = st.builds(
    Cores,
    there=st.just(4),
    lent=st.integers(0, 4),
    held_back=st.integers(0, 4),
    used=st.dictionaries(st.sampled_from(["a.1", "b.1"]), st.integers(1, 3)),
    otherwise=states,
)


@given(st.lists(st.tuples(cores, st.floats(0, 100)), max_size=30))
def test_the_states_add_up_to_what_was_lent_and_jobs_to_what_was_busy(spans: list[tuple[Cores, float]]) -> None:
    account, now, lent, paused = Account(), 1000.0, 0.0, 0.0
    account.advance(Cores(4, 0, 0, {}, "no_work"), now)
    for what, seconds in spans:
        now += seconds
        account.advance(what, now)
        lent, paused = lent + what.lent * seconds, paused + (4 - what.lent) * seconds
    assert account.lent == pytest.approx(lent)
    told = account.told()
    assert told.busy == pytest.approx(sum(job.busy for job in told.jobs))
    assert told.paused == pytest.approx(paused)
    assert told.seconds == pytest.approx(now - 1000.0)


def test_only_jobs_that_changed_are_told_until_the_word_is_lost() -> None:
    account = Account()
    account.job("a.1").in_bytes = 5
    assert account.pressing
    assert [job.in_bytes for job in account.told().jobs] == [5]
    assert not account.pressing and account.told().jobs == []
    account.say_again()
    assert [job.in_bytes for job in account.told().jobs] == [5]


def test_any_number_of_jobs_is_told_by_and_by_and_few_are_kept() -> None:
    account = Account()
    for number in range(JOBS_TOLD + 10):
        account.job(f"a.{number}").busy = 1.0
    assert len(account.told().jobs) == JOBS_TOLD
    assert len(account.told().jobs) == 10
    for number in range(1000):
        account.job(f"b.{number}")
    assert len(account.jobs) <= JOBS_KEPT


def test_what_a_worker_used_before_it_was_seen_is_no_jobs() -> None:
    account = Account()
    account.used_processor(0, "a.1", 3.0)
    account.used_processor(0, "a.1", 4.5)
    account.used_processor(0, "a.1", 0.0)  # not weighed
    account.used_processor(0, "a.1", 5.0)
    account.used_processor(0, "a.1", 1.0)  # another worker
    account.used_processor(0, "a.1", 1.5)
    assert account.job("a.1").processor == pytest.approx(2.5)
