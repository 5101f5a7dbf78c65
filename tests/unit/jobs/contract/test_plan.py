"""How a layer's results are delivered, as plans have it."""

from typing import get_args, get_type_hints

import msgspec
import pytest

from muster.jobs.contract.plan import ArraySource, Delivery, Layer, MadeSource, Source, Stamp


def layer(source: Source) -> Layer:
    return Layer("a", "a" * 32, source, 0, 1, 0, 0, 0, None)


@pytest.mark.parametrize("delivery", Delivery)
def test_a_plan_has_the_value_of_its_delivery(delivery: Delivery) -> None:
    raw = msgspec.msgpack.encode({"type": "made", "rounds": delivery.value})
    source = msgspec.msgpack.decode(raw, type=MadeSource)
    assert layer(source).delivery is delivery
    assert msgspec.msgpack.encode(source) == raw


def test_a_plan_can_have_every_delivery_and_no_other() -> None:
    assert get_args(get_type_hints(MadeSource)["rounds"]) == tuple(one.value for one in Delivery)


def test_what_is_read_from_a_file_is_stored() -> None:
    array = ArraySource("x.npy", 0, "<f4", (1,), Stamp(0, 0, 0, 0))
    assert layer(array).delivery is Delivery.STORED
    assert not Delivery.STORED.in_rounds
