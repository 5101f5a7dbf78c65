"""A job's ledger: what machines say of their time adds up to the same sums, whatever of it was lost or said twice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.api.figures import TROUBLES_KEPT, MachineFigures
from muster.coordinator.daemon.figures.ledger import Heard, JobLedger
from muster.coordinator.farm_root import figures_file
from muster.coordinator.figures import histogram
from muster.coordinator.figures.bins import Row
from muster.coordinator.protocol.control import Failure, JobAccount, MachineAccount
from muster.coordinator.protocol.transfer import BundleFigures

JOB = "weights.1"
CPUS = 4
FATES = ["heard", "lost", "twice"]  # of an account


def ledger_at(now: float = 0.0) -> JobLedger:
    ledger = JobLedger(figures_file.new_job(JOB, "cluster", "0", now, "running"))
    ledger.began(now)
    return ledger


def account(seconds: float, busy: float, **own: Any) -> MachineAccount:
    """So many seconds, of all cores; those not busy had no work."""
    no_work = max(0.0, CPUS * seconds - busy)
    return MachineAccount(seconds=seconds, busy=busy, no_work=no_work, jobs=[JobAccount(JOB, busy=busy, **own)])


def hear(ledger: JobLedger, at: float, told: MachineAccount, process: str = "p", works: bool = True) -> MachineFigures:
    heard = Heard(process, CPUS, at, told)
    heard.more(told, at)
    ledger.account("lab1", heard, works)
    return ledger.machines["lab1"]


def restarted(ledger: JobLedger, now: float) -> JobLedger:
    """As another life of the daemon reads it back."""
    job, machines = ledger.all_values(now)
    raw, each = figures_file.encoded(job), [figures_file.encoded(one) for one in machines]
    again = JobLedger(
        msgspec.msgpack.decode(raw, type=type(job)),
        [msgspec.msgpack.decode(one, type=MachineFigures) for one in each],
    )
    again.served_again(now)
    return again


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1), st.sampled_from(FATES)), min_size=1))
def test_lost_and_doubled_accounts_give_the_sums_of_all(steps: list[tuple[float, float, str]]) -> None:
    ledger, now, busy, out = ledger_at(), 0.0, 0.0, 0
    for seconds, share, fate in [*steps, (1.0, 0.0, "heard")]:
        now, busy, out = now + seconds, busy + seconds * share * CPUS, out + 1000
        told = account(now, busy, out_bytes=out)
        if fate != "lost":
            hear(ledger, now, told)
        if fate == "twice":
            hear(ledger, now, told)
    machine = ledger.machines["lab1"]
    assert machine.busy == pytest.approx(busy, abs=1e-6)
    assert machine.lent == pytest.approx(CPUS * now)
    assert machine.no_work == pytest.approx(CPUS * now - busy, abs=1e-6)
    assert machine.out_bytes == out
    assert machine.present == pytest.approx(now)


@given(st.lists(st.tuples(st.floats(0.5, 5), st.sampled_from(["on", "agent", "daemon"])), min_size=1, max_size=12))
def test_both_ends_may_be_started_again(steps: list[tuple[float, str]]) -> None:
    ledger, now, began, life, busy = ledger_at(), 0.0, 0.0, 0, 0.0
    for seconds, what in steps:
        if what == "agent":
            began, life = now, life + 1
        elif what == "daemon":
            ledger = restarted(ledger, now)
        now, busy = now + seconds, busy + seconds * CPUS
        hear(ledger, now, account(now - began, (now - began) * CPUS), f"p{life}")
    assert ledger.machines["lab1"].busy == pytest.approx(busy)
    assert ledger.machines["lab1"].lent == pytest.approx(busy)


def test_who_lies_gets_no_more_than_its_cores() -> None:
    ledger = ledger_at()
    machine = hear(ledger, 10.0, MachineAccount(seconds=10, busy=1e9, jobs=[JobAccount(JOB, busy=1e9)]))
    assert machine.busy <= CPUS * 20


def test_only_the_time_in_which_the_job_ran_is_offered() -> None:
    ledger = ledger_at()
    hear(ledger, 10.0, account(10, 0))
    ledger.turned("paused", "", 15.0)
    machine = hear(ledger, 20.0, account(20, 0))
    assert machine.lent == pytest.approx(15 * CPUS)
    ledger.turned("running", "", 30.0)
    machine = hear(ledger, 40.0, account(40, 0))
    assert machine.lent == pytest.approx((15 + 5) * CPUS) or machine.lent == pytest.approx((15 + 10) * CPUS)
    ledger.turned("complete", "", 45.0)
    hear(ledger, 50.0, account(50, 0))
    ledger.all_values(50.0)
    assert ledger.record.running == pytest.approx(30) and ledger.record.held == pytest.approx(15)


def test_waiting_for_other_jobs_is_neither_running_nor_held() -> None:
    ledger = JobLedger(figures_file.new_job(JOB, "cluster", "0", 0.0, "waiting"))
    ledger.turned("running", "", 10.0)
    ledger.turned("paused", "", 15.0)
    ledger.turned("cancelled", "", 17.0)
    assert (ledger.record.waiting, ledger.record.running, ledger.record.held) == (10.0, 5.0, 2.0)


def test_what_a_machine_did_before_a_job_began_is_not_the_jobs() -> None:
    """It was busy for hours with another one."""
    ledger = ledger_at(1000.0)
    heard = Heard("p", CPUS, 0.0, MachineAccount())
    heard.more(MachineAccount(seconds=999.0, busy=CPUS * 999.0), 999.0)
    heard.added_up()
    assert not heard.is_new
    heard.more(MachineAccount(seconds=1005.0, busy=CPUS * 999.0 + 4.0, no_work=CPUS * 6.0 - 4.0), 1005.0)
    ledger.account("lab1", heard, works=True)
    machine = ledger.machines["lab1"]
    assert machine.lent == pytest.approx(CPUS * 5.0) and machine.elsewhere == pytest.approx(4.0 * 5 / 6)
    assert machine.no_work == pytest.approx(CPUS * 5.0 - 4.0 * 5 / 6)


def test_a_machine_that_may_run_nothing_of_the_job_offers_nothing() -> None:
    assert hear(ledger_at(), 10.0, account(10, 0), works=False).lent == 0


def test_the_time_without_a_coordinator_is_apart() -> None:
    ledger = ledger_at()
    ledger.all_values(10.0)
    again = restarted(ledger, 10.0)
    job, _ = again.all_values(10.0)
    job.at = 10.0
    later = JobLedger(job)
    later.served_again(25.0)
    assert (later.record.running, later.record.away, later.record.restarts) == (10.0, 15.0, 2)


def test_bundles_add_up_to_quantiles_and_the_slowest_ten() -> None:
    ledger = ledger_at()
    for number in range(30):
        told = BundleFigures(8, 80, 800, 2.0, 1 << 20, {0: 2}, {320: 2}, [(number, float(number)), (number, 0.5)])
        ledger.committed("lab1", "fc", 2, told, 5.0 + number)
    record, machine = ledger.record, ledger.machines["lab1"]
    assert (record.measured, record.spread, record.first_commit, record.last_commit) == (60, {0: 60}, 5.0, 34.0)
    assert [one.number for one in record.slowest] == list(range(29, 19, -1))
    assert (machine.rows, machine.read_bytes, machine.shard_peak) == (240, 2400, 1 << 20)
    (told_of,) = ledger.all_values(40.0)[1]
    assert sum(list(Row(told_of.bins).values["committed"])) == 60


def test_what_a_bundle_waited_for_is_kept_through_a_restart() -> None:
    ledger = ledger_at()
    ledger.waited("lab1", [10.0, 12.0, 14.0], [2, 2, 3], 14.0)
    again = restarted(ledger, 20.0)
    again.waited("lab1", [], [2], 21.0)
    assert again.machines["lab1"].later == {2: 3, 3: 1}
    assert sum(again.record.waits.values()) == 3
    assert histogram.quantile(again.record.waits, 0.9) == pytest.approx(4.0, rel=0.03)


def test_failures_that_differ_in_their_numbers_are_one_group_and_a_million_kinds_are_few() -> None:
    ledger = ledger_at()
    alike = [failure(f"row {number} has NaN", number) for number in range(1000)]
    for number in range(1_000_000):
        ledger.failed("lab1", "fc", alike[number % 1000], number / 1000)
    assert [(one.line, one.count, one.number) for one in ledger.record.troubles] == [("row # has NaN", 1_000_000, 0)]
    for number in range(1000):
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        ledger.failed("lab2", "fc", failure(f"no {word}", number), 1000.0)
    assert len(ledger.record.troubles) == TROUBLES_KEPT + 1 == 101
    assert sum(one.count for one in ledger.record.troubles) == 1_001_000
    assert len(figures_file.encoded(ledger.record)) < 300_000


def failure(message: str, number: int) -> Failure:
    return Failure(JOB, "a" * 32, number, 1, 1, "exception", message, "trace", 1.0, 0)


def test_a_long_job_on_many_machines_keeps_less_than_four_megabytes() -> None:
    ledger, said = ledger_at(), JobAccount(JOB, busy=1e5, in_bytes=1 << 40, out_bytes=1 << 40, peak=1 << 33)
    for name in range(1000):
        for hour in range(1, 6):
            now = hour * 1e4
            told = MachineAccount(seconds=now, busy=now, no_work=now, input=now, memory_now=1 << 33, jobs=[said])
            heard = Heard("p" * 32, CPUS, now, told)
            heard.more(told, now)
            ledger.account(f"lab{name:04}", heard, works=True)
        ledger.committed(f"lab{name:04}", "fc", 1000, BundleFigures(seconds=1.0, spread={name % 640 - 320: 1000}), 5e4)
        ledger.failed(f"lab{name:04}", "fc", failure(f"e{name}", name), 5e4)
    record, machines = ledger.all_values(5e4)
    assert len(figures_file.encoded(record)) + sum(len(figures_file.encoded(one)) for one in machines) < 4 << 20
