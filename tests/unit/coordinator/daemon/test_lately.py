"""What a machine did during the last minute: from totals, whichever of them came."""

from __future__ import annotations

import pytest

from muster.coordinator.daemon.figures.lately import Lately
from muster.coordinator.protocol.control import MachineAccount


def account(seconds: float) -> MachineAccount:
    """Of four cores, of which three are busy, and use two."""
    return MachineAccount(
        seconds=seconds, busy=3 * seconds, no_work=seconds, processor=2 * seconds, in_bytes=int(1000 * seconds),
        out_bytes=int(10 * seconds),
    )  # fmt: skip


def test_rates_are_of_the_last_minute() -> None:
    lately = Lately("p")
    assert lately.rates() is None and lately.last is None
    for second in range(300):
        lately.add(account(float(second)) if second != 200 else account(199.0), float(second))
    rates = lately.rates()
    assert rates is not None and len(lately.told) < 20
    assert (rates.busy, rates.processor, rates.output) == pytest.approx((0.75, 2.0, 10.0))
    assert rates.input == pytest.approx(1000.0)
    assert 55 <= lately.told[-1][0] - lately.told[0][0] <= 66


def test_a_machine_that_was_busy_before_is_idle_a_minute_later() -> None:
    lately = Lately("p")
    for second in range(0, 40, 5):
        lately.add(account(float(second)), float(second))
    busy = account(35.0)
    for second in range(40, 120, 5):
        idle = MachineAccount(
            seconds=float(second), busy=busy.busy, no_work=busy.no_work + 4 * (second - 35), processor=busy.processor,
            in_bytes=busy.in_bytes, out_bytes=busy.out_bytes,
        )  # fmt: skip
        lately.add(idle, float(second))
    rates = lately.rates()
    assert rates is not None and (rates.busy, rates.processor, rates.input) == (0.0, 0.0, 0.0)
