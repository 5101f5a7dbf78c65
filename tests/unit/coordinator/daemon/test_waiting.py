"""What daemon tasks wait by: no cancel is lost, and all end."""

from __future__ import annotations

import asyncio

import pytest

from muster.coordinator.daemon import waiting


async def _for_ever(event: asyncio.Event) -> None:
    while True:
        await waiting.wait_until(event, 60.0)


def test_a_cancel_in_the_turn_in_which_the_event_is_set_is_not_lost() -> None:
    async def scene() -> bool:
        event = asyncio.Event()
        task = asyncio.create_task(_for_ever(event))
        for _ in range(3):
            await asyncio.sleep(0)  # until it waits
        event.set()
        await asyncio.sleep(0)  # what waits for the event is woken, but not who waits for that
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5.0)
        return task in done and task.cancelled()

    assert asyncio.run(asyncio.wait_for(scene(), 30.0))


def test_waiting_ends_with_the_event_or_the_time() -> None:
    async def scene() -> None:
        event = asyncio.Event()
        await waiting.wait_until(event, 0.0)
        event.set()
        await waiting.wait_until(event, None)

    asyncio.run(asyncio.wait_for(scene(), 30.0))


def test_a_task_that_catches_cancels_is_cancelled_until_it_is_gone() -> None:
    async def stubborn(caught: list[int]) -> None:
        while len(caught) < 3:
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                caught.append(1)

    async def scene() -> tuple[bool, int]:
        caught: list[int] = []
        task = asyncio.create_task(stubborn(caught))
        await asyncio.sleep(0)
        return await waiting.end([task]), len(caught)

    assert asyncio.run(scene()) == (True, 3)


def test_a_task_that_never_ends_is_named_and_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "END_SECONDS", 0.0)

    async def scene() -> bool:
        task = asyncio.create_task(asyncio.sleep(60.0), name="the stubborn one")
        return await waiting.end([task])

    caplog.set_level("ERROR", waiting.log.name)
    assert not asyncio.run(scene())
    assert "the stubborn one" in caplog.text
