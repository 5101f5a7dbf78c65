"""An agent whose coordinator says anything: an error or work within its spool, in bounded time and memory; no crash."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.core.actions import Action, Delete, Discard, Pull, PullCode, Push, Quit, Run, Say
from muster.agent.core.events import (
    BatchEnded,
    Event,
    Heard,
    LinkDown,
    LinkUp,
    NotPulled,
    Pulled,
    PullUp,
    PushAnswered,
    PushUp,
    SlotUp,
    Ticked,
)
from muster.agent.core.state_machine import AgentCore
from muster.agent.links.base import Channel, greet
from muster.agent.spool.paths import Spool
from muster.coordinator.protocol import control as talk
from muster.coordinator.protocol import transfer, values
from muster.coordinator.protocol.checks import AnswerChecks
from muster.coordinator.protocol.frames import frame
from muster.jobs.common.errors import MusterError, ProtocolError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import (
    BF16,
    CUT,
    ArraySource,
    ItemsSource,
    Layer,
    MadeSource,
    ModelFile,
    Output,
    Stamp,
    Work,
)
from muster.jobs.workbench.batch import Outcome
from tests.support import hostile
from tests.unit.agent.core.test_state_machine import who

SPOOL = Spool(Path("/spool"))
FARM, A, B, C, D = "f" * 32, "0123456789abcdef" * 2, "0" * 32, "c" * 32, "d" * 32
SOURCE = ArraySource("/data/x.npy", 128, "<f4", (100, 25), Stamp(1, 2, 3, 4), BF16)
OUTPUTS = (Output("centers", "rows", "<f4", (4,)),)
MODEL = ModelFile("net.npz", "d" * 32, 10)
WORK = Work("map", 1, {"a": 1}, C, "work.py:f", "python3", 1, None, None, MODEL, ("torch",))
ARRAY = talk.LayerInfo("j.1", Layer("a/x", A, SOURCE, 100, 10, 10, 1000, 16, OUTPUTS), WORK)
MADE = talk.LayerInfo("j.1", Layer("y", B, MadeSource(), 0, 1, 0, 0, 8, None), WORK)
CUTS = b"".join(CUT.pack(*cut) for cut in [(0, 0, 0), (3, 90, 900), (4, 120, 1000)])
ITEMS = talk.LayerInfo(
    "j.1", Layer("items", D, ItemsSource("/data", ("a",), "e" * 32, CUTS), 4, 3, 2, 900, 0, None), WORK
)
WELCOME = talk.Welcome(
    FARM, 1, 7, 60.0, 5.0, [talk.Drop(A, 1, 1, [(0, 1)])], [talk.Committed(A, [(0, 2)])], ["1" * 32]
)  # fmt: skip
NEWS = talk.News(
    [ARRAY, MADE, ITEMS],
    [
        talk.Grant("j.1", A, 1, 1, [(0, 6), (7, 9)]),
        talk.Grant("j.1", B, 1, 2, [(0, 2)], {0: b"x", 1: b"y"}),
    ],
    [talk.Drop(A, 1, 1, [(5, 6)])],
    [talk.Committed(A, [(4, 5)])],
    ["1" * 32],
)
TO_AGENT: list[values.Message] = [
    WELCOME,
    NEWS,
    NEWS,
    talk.Rejected("no-session", "what", "why"),
    talk.Bye("so long"),
]
TO_PUSHER: list[values.Message] = [
    transfer.Settled([(0, 3)]),
    transfer.Refused("committed", [(0, 1)], "no"),
    talk.Rejected("stopping", "x"),
]
OTHER: list[values.Message] = [
    talk.Greeting(1, "0.1.0", FARM),
    transfer.Refused("gone", [(0, 1)], "no"),
    talk.Rejected("x", "y", "z"),
]
# Shown to people, escaped, and compared; or told to whoever runs the code, which is the coordinator's in any case.
SHOWN = {"version", "reason", "message", "hint", "params", "env", "path", "dtype", "needs", "folder", "columns"}
SHOWN_WAYS = {("model", "name")}  # elsewhere a name is more than that

hear, hear_push = (
    values.Decoder(talk.ToAgent),
    values.Decoder(transfer.Settled | transfer.Refused | talk.Rejected),
)


class World:
    """A desk, and around it what obeys: all goes well that it orders."""

    def __init__(self, ready: bool = True) -> None:
        self.core = AgentCore(msgspec.structs.replace(who(cpus=2), in_place=False))
        self.now = 1000.0
        self.asked: Say | None = None
        self.pushing: Push | None = None
        self.answer_checks = AnswerChecks()
        self.refused = 0
        pool: list[Event] = [SlotUp(0), SlotUp(1)] if ready else []
        for event in (*pool, PushUp(), PullUp(), LinkUp(FARM)):
            self.tell(event)

    def tell(self, event: Event) -> None:
        todo: list[Event] = [event]
        while todo and not self.core.ended:
            for command in self.core.handle(todo.pop(0), self.now):
                todo += self.obey(command)
        self.core.state.check()

    def obey(self, command: Action) -> list[Event]:
        match command:
            case Say():
                values.Decoder(talk.FromAgent)(values.encode(command.message))  # what is said can be heard
                self.asked = command
            case Run():
                inside(SPOOL.part(command.part), SPOOL.part_tmp(command.part))
                numbers = tuple(number for number, _, _ in command.items)
                return [BatchEnded(command.ticket, Outcome(numbers, 1, 10, 10, 0.1, 1, ()))]
            case Pull():
                digest = bytes.fromhex(command.name) if command.model else b"d" * 16
                inside(SPOOL.half(command.name), SPOOL.input(command.name, digest))
                values.Decoder(transfer.Fetch)(
                    values.encode(transfer.Fetch(command.session, command.layer, command.number))
                )
                return [Pulled(command.name, digest, command.nbytes, 0.1)]
            case PullCode():
                inside(SPOOL.code(command.name))
                values.Decoder(transfer.FetchCode)(values.encode(transfer.FetchCode(command.session, command.name)))
                return [Pulled(command.name, b"", 10, 0.1)]
            case Push():
                self.pushing = command
            case Delete(name):
                inside(SPOOL.part(name))
            case Discard(name, digest):
                inside(SPOOL.half(name) if digest is None else SPOOL.input(name, digest))
            case Quit(error):
                assert error is None or error.hint
        return []

    def hear(self, raw: bytes) -> None:
        """As the control thread does."""
        self.now += 1.0
        if self.asked is None:
            self.tell(Ticked())
        if self.asked is None:
            return
        try:
            answer = hear(raw)
            self.answer_checks.check(self.asked.message, answer)
        except ProtocolError as error:
            assert "\n" not in error.message and len(error.message) < 2000
            self.refused += 1
            self.again(error.message)
            return
        self.asked = None
        self.tell(Heard(answer))  # type: ignore[arg-type]

    def again(self, why: str) -> None:
        self.asked, self.answer_checks = None, AnswerChecks()
        self.tell(LinkDown(why))
        self.tell(LinkUp(FARM))

    def answer_push(self, raw: bytes) -> None:
        if self.pushing is None:
            return
        pushing, self.pushing = self.pushing, None
        sent = RangeSet([pair for _, numbers in pushing.pieces for pair in numbers.pairs()])
        try:
            self.tell(PushAnswered(hear_push(raw), sent, 10, 0.1))  # type: ignore[arg-type]
        except ProtocolError:
            self.tell(PushUp())


def inside(*paths: Path) -> None:
    for path in paths:
        assert SPOOL.path in path.parents and ".." not in path.parts and "\0" not in str(path), path


def pack(plain: Any) -> bytes:
    return msgspec.msgpack.encode(plain)


control = hostile.spoilt(TO_AGENT) | hostile.messages(talk.ToAgent, layer=[A, B], farm=[FARM], attempt=[1, 2])
pushed = hostile.spoilt(TO_PUSHER) | hostile.messages(transfer.Settled | transfer.Refused | talk.Rejected)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(control, pushed), min_size=1, max_size=8))
def test_no_answer_leads_out_of_the_spool_or_to_a_crash(said: list[tuple[Any, Any]]) -> None:
    world = World()
    world.hear(pack(WELCOME))
    world.hear(pack(NEWS))
    for one, other in said:
        world.hear(pack(one))
        world.answer_push(pack(other))


def test_the_good_answers_are_obeyed() -> None:
    """Else the test above would test nothing."""
    world = World()
    for message in (WELCOME, NEWS):
        world.hear(pack(message))
    assert world.refused == 0
    assert world.core.state.finished_parts.count(FARM) == 10


@pytest.mark.parametrize("text", hostile.ESCAPES)
@pytest.mark.parametrize("kind", [type(one) for one in [WELCOME, NEWS, talk.Rejected("", ""), talk.Bye("")]])
def test_a_name_that_leads_elsewhere_is_refused_in_every_field(kind: type[values.Message], text: str) -> None:
    """Each text of each message is one that is shown, or must be refused; a new field has to be put among either."""
    sample = next(one for one in TO_AGENT if type(one) is kind)
    for way in hostile.texts_of(kind):
        plain = msgspec.to_builtins(sample, builtin_types=(bytes,))
        for found in places(plain, way[1:]):
            hostile.put(plain, found, text)
        world = World()
        if kind is not talk.Welcome:
            world.hear(pack(WELCOME))
        world.tell(Ticked())
        world.hear(pack(plain))
        shown = set(way) & SHOWN or way[-2:] in SHOWN_WAYS or way == ("Rejected", "code")
        assert world.refused or shown, f"{'.'.join(way)} may be {text!r}"


def places(plain: Any, way: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Where that way leads in a message; "*" is everywhere."""
    wanted = [step for step in way if step != "*"]
    found = [at for at in hostile.ways_in(plain) if [step for step in at if isinstance(step, str)] == wanted]
    longest = max(map(len, found), default=0)
    assert found, f"the sample has nothing at {way}"
    return [at for at in found if len(at) == longest]


WRONG_CUTS = [
    [(0, 0, 0), (3, 90, 900)],
    [(0, 0, 0), (3, 90, 900), (5, 120, 1000)],
    [(0, 0, 0), (4, 90, 900), (4, 120, 1000)],
    [(0, 0, 0), (3, 90, 80), (4, 120, 1000)],
    [(0, 0, 0), (3, 90, 900), (4, 80, 1000)],
    [(0, 0, 0), (3, 90, 901), (4, 120, 1000)],
    [(1, 0, 0), (3, 90, 900), (4, 120, 1000)],
]


def cut_otherwise(*cuts: tuple[int, int, int]) -> talk.LayerInfo:
    source = ItemsSource("/data", (), "e" * 32, b"".join(CUT.pack(*cut) for cut in cuts))
    return msgspec.structs.replace(ITEMS, layer=msgspec.structs.replace(ITEMS.layer, source=source))


def stored_otherwise() -> talk.LayerInfo:
    source = msgspec.structs.replace(SOURCE, stored="<f8")
    return msgspec.structs.replace(ARRAY, layer=msgspec.structs.replace(ARRAY.layer, source=source))


@pytest.mark.parametrize(
    "news",
    [
        talk.News([ARRAY], [talk.Grant("j.1", A, 1, 1, [(0, 11)])]),
        talk.News([ARRAY], [talk.Grant("j.1", A, 1, 1, [(3, 2)])]),
        talk.News([ARRAY], [talk.Grant("j.1", A, 1, 1, [(0, 3), (2, 4)])]),
        talk.News([MADE], [talk.Grant("j.1", B, 1, 1, [(0, 1 << 53)], {0: b""})]),
        talk.News([msgspec.structs.replace(ARRAY, work=msgspec.structs.replace(WORK, entry="../x.py:f"))]),
        talk.News([msgspec.structs.replace(ARRAY, work=msgspec.structs.replace(WORK, timeout=float("nan")))]),
        talk.News([msgspec.structs.replace(ARRAY, work=msgspec.structs.replace(WORK, cpus=0))]),
        talk.News([msgspec.structs.replace(ARRAY, layer=msgspec.structs.replace(ARRAY.layer, shard_rows=0))]),
        *(talk.News([cut_otherwise(*cuts)]) for cuts in WRONG_CUTS),
        talk.News([stored_otherwise()]),
        talk.Welcome(FARM, 1, 7, 60.0, 5.0),
    ],
)
def test_what_cannot_be_is_no_answer(news: values.Message) -> None:
    with pytest.raises(ProtocolError):
        AnswerChecks().check(talk.Sync(1, 1), hear(values.encode(news)))


def test_a_huge_grant_costs_no_more_than_a_small_one() -> None:
    layer = msgspec.structs.replace(
        ARRAY.layer, rows=1 << 22, count=1 << 22, shard_rows=1, in_bytes=100, source=replace_rows(SOURCE, 1 << 22)
    )
    world = World(ready=False)
    world.hear(pack(WELCOME))
    tracemalloc.start()
    try:
        info = msgspec.structs.replace(ARRAY, layer=layer)
        world.hear(pack(talk.News([info], [talk.Grant("j.1", A, 1, 1, [(0, 1 << 22)])])))
        assert world.refused == 0
        world.hear(pack(talk.News(drops=[talk.Drop(A, 1, 1, [(0, 1 << 22)])])))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def replace_rows(source: ArraySource, rows: int) -> ArraySource:
    return msgspec.structs.replace(source, shape=(rows, *source.shape[1:]))


# --- bytes ---


class Stream(Channel):
    """Bytes that somebody sent, and then their end."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def send(self, data: bytes | memoryview, seconds: float = 0.0) -> None:
        return

    def receive_some(self, limit: int, seconds: float) -> bytes:
        piece = self.raw[self.at : self.at + min(limit, 4096)]
        self.at += len(piece)
        return piece

    def abort(self) -> None:
        return

    def close(self) -> None:
        return

    def last_words(self) -> str:
        return ""


FRAMES = [
    frame(values.encode(one))
    for one in [*TO_AGENT, *TO_PUSHER, *OTHER, transfer.Sending(5), transfer.Sent(True), transfer.Accepted(1)]
]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames, cut, put together and with bytes changed; or noise."""
    raw = bytearray(b"".join(draw(st.lists(st.sampled_from(FRAMES) | st.binary(max_size=40), max_size=4))))
    for _ in range(draw(st.integers(0, 4)) if raw else 0):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))])


@pytest.mark.parametrize("types", [talk.ToAgent, transfer.ToPusher, transfer.ToPuller], ids=["control", "push", "pull"])
@given(raw=streams())
def test_any_bytes_are_messages_or_an_error(types: object, raw: bytes) -> None:
    channel, decode = Stream(raw), values.Decoder(types)
    try:
        greet(channel, 1.0)
        while channel.at < len(raw):
            channel.hear(decode, 1.0)
    except MusterError as error:
        assert error.hint and "\n" not in error.message


@given(st.binary(max_size=200))
def test_no_end_of_a_pull_is_believed_before_its_bytes(raw: bytes) -> None:
    """Nothing is read beyond what was announced."""
    channel = Stream(raw)
    try:
        b"".join(channel.pieces(100, 1.0))
    except MusterError:
        assert len(raw) < 100
    assert channel.at <= 100


def test_a_refused_pull_of_any_code_is_an_event() -> None:
    world = World()
    world.hear(pack(WELCOME))
    for code in ("cut", "full", "changed", "gone", "no-session", "refused"):
        world.tell(NotPulled("x" * 32, code, "no"))
