"""A simulated agent for tests: speaks the real protocol through real `coordinator connect` helpers and computes with a
real Workbench. It can lose replies, die and come back with the same spool; it is driven step by step or by `work`."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from muster import VERSION
from muster.coordinator.farm_root import paths
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol import control, transfer, values
from muster.coordinator.protocol.control import Committed, Drop, Hello, LayerInfo, News
from muster.coordinator.protocol.control import Held as HeldShards
from muster.coordinator.protocol.frames import FrameReader, frame
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import MadeSource
from muster.jobs.kinds.registry import kernels
from muster.jobs.parts.part_file import Index, encode_index, read_index, tail_of
from muster.jobs.results.bundle import Bundle, HeldPart
from muster.jobs.user_code.code_pack import unpack
from muster.jobs.user_code.environments import installed
from muster.jobs.workbench.batch import Batch, Item
from muster.jobs.workbench.fingerprint import fingerprint as own_fingerprint
from muster.jobs.workbench.workbench import Workbench

ANSWER_SECONDS = 40.0
READ_BYTES = 1 << 16
Key = tuple[str, str, int, int]  # job, layer's digest, boot, attempt


class Cut(Exception):
    """The channel ended, with a Bye or without one."""


class Helper:
    """One `coordinator connect` process and the frames to and from it."""

    def __init__(self, root: Root, role: str, types: object, env: Mapping[str, str], args: Sequence[str] = ()) -> None:
        command = [*paths.command("connect", root.path), "--role", role, *args]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env), start_new_session=True, cwd="/"
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._reader = FrameReader()
        self._frames: list[bytes] = []
        self._decode = values.Decoder(types)
        try:
            self.greeting = values.Decoder(control.Greeting)(self._frame())
        except BaseException:
            self.close(kill=True)
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, message: values.Message) -> Any:
        """The answer to `message`. Cut if the helper says Bye or nothing more."""
        self.send(frame(values.encode(message)))
        return self.receive()

    def send(self, raw: bytes | memoryview) -> None:
        view = memoryview(raw)
        try:
            while view:
                view = view[os.write(self._in, view) :]
        except OSError:
            self.receive()  # what it said before it went
            raise

    def receive(self) -> Any:
        answer = self._decode(self._frame())
        if isinstance(answer, control.Bye):
            raise Cut(answer.reason)
        return answer

    def await_answer(self) -> None:
        """Until there is something to read, or its end."""
        ready, _, _ = select.select([self._out], [], [], ANSWER_SECONDS)
        assert ready, f"no answer within {ANSWER_SECONDS} s"

    def _frame(self) -> bytes:
        while not self._frames:
            self.await_answer()
            raw = os.read(self._out, READ_BYTES)
            if not raw:
                raise Cut("the helper ended without a word")
            self._frames += self._reader.feed(raw)
        return self._frames.pop(0)

    def close(self, kill: bool = False) -> int:
        """End it, by closing its stdin or by SIGKILL; its exit code."""
        if kill:
            self.process.kill()
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        code = self.process.wait(ANSWER_SECONDS)
        self.process.stdout.close()
        return code


@dataclass
class Part:
    """A part on disk and those of its shards that are wanted still."""

    job: str
    path: Path
    index: Index
    numbers: RangeSet

    @property
    def key(self) -> Key:
        first = self.index.entries[0]
        return self.job, self.index.layer, first.boot, first.attempt


class SimulatedAgent:
    """`granted`: shards not run yet. `parts`: finished and not acknowledged. `acknowledged`: told to be durable, for
    good. `computed`: every shard it ever ran, in order. `fails` has shards that fail: (layer's name, number)."""

    def __init__(
        self, root: Root, spool: Path, name: str, *, env: Mapping[str, str], cpus: int = 2, pinned: str = "",
        kinds: Mapping[str, int] | None = None, fingerprint: str = "",
    ) -> None:  # fmt: skip
        self.root, self.spool, self.name, self.cpus = root, spool, name, cpus
        self.farm = root.farm
        self.kinds = dict(kinds or kernels() | {"chain": 1, "rounds": 1})
        self.fingerprint = fingerprint or own_fingerprint()
        self.process = uuid.uuid4().hex
        self.session = 0
        self.drained = False
        self.granted: dict[Key, RangeSet] = {}
        self.payloads: dict[tuple[str, int], bytes] = {}
        self.told: set[tuple[int, int, bytes]] = set()  # boot, number and payload of every shard it was granted
        self.sheets: dict[tuple[str, int], str] = {}
        self.layers: dict[str, control.LayerInfo] = {}
        self.acknowledged: defaultdict[str, RangeSet] = defaultdict(RangeSet)
        self.computed: list[tuple[str, int]] = []
        self.fails: set[tuple[str, int]] = set()
        self.refusals: list[str] = []
        self.paused = threading.Event()  # while it is set, nothing is computed
        self._env = dict(env)
        self._args = ["--as", pinned] if pinned else []
        self._control: Helper | None = None
        self._push: Helper | None = None
        self._finished: list[control.Finished] = []
        self._failures: list[control.Failure] = []
        self._losses: list[control.Loss] = []
        self._bench = Workbench()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None  # what ended the thread of `go`
        self._batches = 0
        for folder in ("done", "tmp", "code", "scratch"):
            (spool / folder).mkdir(parents=True, exist_ok=True)
        if not (spool / "uuid").exists():
            (spool / "uuid").write_text(uuid.uuid4().hex)
        self.uuid = (spool / "uuid").read_text()
        self.parts = [self._known(path) for path in sorted((spool / "done").iterdir())]

    def _known(self, path: Path) -> Part:
        index = read_index(path)
        return Part(path.name.rpartition("-")[0], path, index, RangeSet.of(e.number for e in index.entries))

    # --- the links ---------------------------------------------------------------------------------------

    @property
    def control(self) -> Helper:
        if self._control is None:
            self._control = Helper(self.root, "control", control.ToAgent, self._env, self._args)
        return self._control

    @property
    def push_link(self) -> Helper:
        if self._push is None:
            files = ["--files", str(self.spool / "tmp")]
            self._push = Helper(self.root, "push", transfer.ToPusher, self._env, [*self._args, *files])
        return self._push

    def hang_up(self, kill: bool = False) -> None:
        """Both channels end; what the daemon will think of it is its affair."""
        for helper in (self._control, self._push):
            if helper is not None:
                helper.close(kill)
        self._control = self._push = None
        self.session = 0

    def die(self) -> None:
        """Like a kill -9 of the whole agent: its helpers end, its spool stays. May be called again."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(ANSWER_SECONDS)
        self.hang_up(kill=True)
        self._bench.close()

    # --- control -----------------------------------------------------------------------------------------

    def join(self) -> Any:
        """Say hello with all that is held; the answer, a Welcome or a Rejected."""
        answer = self.control.ask(self.hello())
        if isinstance(answer, control.Welcome):
            self.session = answer.session
            self._finished.clear()
            self._take(answer.drops, answer.committed, answer.gone)
        return answer

    def hello(self) -> Hello:
        return Hello(
            protocol=values.PROTOCOL, version=VERSION,
            name=self.name, spool=self.uuid, process=self.process, host="here",
            pid=os.getpid(), cpus=self.cpus, memory=1 << 33, disk=1 << 40, kernels=self.kinds,
            fingerprint=self.fingerprint, python="3", in_place=True, held=self.held(), failures=list(self._failures),
            packages=installed(), sets_variables=True,
        )  # fmt: skip

    def held(self) -> list[HeldShards]:
        running = {key: numbers for key, numbers in self.granted.items() if numbers}
        finished: dict[Key, RangeSet] = {}
        for part in self.parts:
            finished.setdefault(part.key, RangeSet()).update(part.numbers)
        return [
            HeldShards(*key, running.get(key, RangeSet()).pairs(), finished.get(key, RangeSet()).pairs())
            for key in sorted(running.keys() | finished.keys())
        ]

    def sync(self, hungry: bool = True, wait: float = 0.0, **more: Any) -> Any:
        """Tell what is new, take in what is; the answer, News or a Rejected."""
        news = {"finished": self._finished, "failures": self._failures, "losses": self._losses, **more}
        told = control.Sync(self.session, 1 << 40, wait, hungry, **news)
        answer = self.control.ask(told)
        if isinstance(answer, control.News):
            self._finished, self._failures, self._losses = [], [], []
            self._heard(answer)
        return answer

    def _heard(self, news: News) -> None:
        self.layers.update({info.layer.digest: info for info in news.layers})
        self.drained = self.drained or news.drain
        self._take(news.drops, news.committed, news.gone)
        for grant in news.grants:
            assert grant.layer in self.layers, "a grant of a layer never told of"
            self.granted[grant.job, grant.layer, grant.boot, grant.attempt] = RangeSet(grant.numbers)
            self.payloads.update({(grant.layer, number): raw for number, raw in grant.payloads.items()})
            self.told.update((grant.boot, number, raw) for number, raw in grant.payloads.items())
            for sheet, numbers in grant.sheets.items():
                self.sheets.update({(grant.layer, number): sheet for number in RangeSet(numbers)})

    def _take(self, drops: list[Drop], committed: list[Committed], gone: list[str]) -> None:
        for drop in drops:
            for key in [key for key in self.granted if key[1:] == (drop.layer, drop.boot, drop.attempt)]:
                self.granted[key].remove(RangeSet(drop.numbers))
        for told in committed:
            self._settle(told.layer, RangeSet(told.numbers))
        for layer in gone:
            self._forget(layer)

    def _settle(self, layer: str, numbers: RangeSet) -> None:
        """Committed, by whomever: nothing of it is kept here."""
        self.acknowledged[layer].update(numbers)
        for part in [part for part in self.parts if part.index.layer == layer]:
            part.numbers.remove(numbers)
            if not part.numbers:
                part.path.unlink()
                self.parts.remove(part)

    def _forget(self, layer: str) -> None:
        for part in [part for part in self.parts if part.index.layer == layer]:
            part.path.unlink()
            self.parts.remove(part)
        for key in [key for key in self.granted if key[1] == layer]:
            del self.granted[key]
        self._finished = [one for one in self._finished if one.layer != layer]
        self._failures = [one for one in self._failures if one.layer != layer]

    def leave(self) -> None:
        """Say goodbye; the helper ends."""
        with contextlib.suppress(Cut):
            self.control.ask(control.Leave(self.session))
        self.hang_up()

    def give_back(self) -> Any:
        """Hand back all that was not started, as a drain does."""
        returned = [
            control.Returned(layer, boot, attempt, numbers.pairs())
            for (_, layer, boot, attempt), numbers in self.granted.items()
            if numbers
        ]
        self.granted.clear()
        return self.sync(hungry=False, returned=returned)

    # --- work --------------------------------------------------------------------------------------------

    def compute(self, limit: int | None = None) -> int:
        """Run granted shards, at most `limit`, a part per grant; how many were run."""
        done = 0
        for key, numbers in list(self.granted.items()):
            chosen = numbers.take(len(numbers) if limit is None else limit - done)
            if not numbers:
                del self.granted[key]
            if chosen:
                self._run(key, chosen)
                done += len(chosen)
        return done

    def _run(self, key: Key, numbers: RangeSet) -> None:
        job, digest, boot, attempt = key
        name = self.layers[digest].layer.name
        bad = RangeSet.of(number for number in numbers if (name, number) in self.fails)
        self._failures += [
            control.Failure(job, digest, n, boot, attempt, "exception", "it is poison", "the evidence", 0.1, 1)
            for n in bad
        ]
        good = numbers - bad
        if good:
            self._compute_part(key, good)

    def _compute_part(self, key: Key, numbers: RangeSet) -> None:
        job, digest, boot, attempt = key
        info = self.layers[digest]
        self._batches += 1
        done = self.spool / "done" / f"{job}-{time.monotonic_ns()}"
        made = isinstance(info.layer.source, MadeSource)
        place = self.root.job(job)
        sheets = {n: str(place.sheet(one)) for n in numbers if (one := self.sheets.pop((digest, n), ""))}
        items = tuple(
            Item(n, boot, attempt, None if made else info.layer.window(n), self.payloads.pop((digest, n), b""),
                 sheets.get(n))
            for n in numbers
        )  # fmt: skip
        outcome = self._bench.run(
            Batch(
                farm=self.farm, agent=self.name, job=job, layer=info.layer, work=info.work, items=items,
                tmp=str(self.spool / "tmp" / done.name), done=str(done), mark=str(self.spool / "mark"),
                scratch=str(self.spool / "scratch"), code=self._code(info), python=None,
                model=str(self.root.model(info.work.model.digest)) if info.work.model else None,
            )
        )  # fmt: skip
        lost = RangeSet.of(sorted(mishap.number for mishap in outcome.mishaps if mishap.lost))
        if lost:  # a sheet went while it was read: nobody wants that round any more
            self._losses.append(control.Loss(job, digest, boot, attempt, lost.pairs(), True, "its sheet is gone"))
            numbers = numbers - lost
        assert list(outcome.numbers) == list(numbers), outcome
        if not numbers:
            return
        self.computed += [(digest, number) for number in numbers]
        index = read_index(done)
        told = index.fingerprint.replace(own_fingerprint(), self.fingerprint, 1)
        self.parts.append(Part(job, done, msgspec.structs.replace(index, fingerprint=told), numbers.copy()))
        self._finished.append(
            control.Finished(
                job, digest, boot, attempt, numbers.pairs(), outcome.rows, outcome.seconds, 0.0, outcome.in_bytes,
                outcome.nbytes, outcome.peak,
            )
        )  # fmt: skip

    def _code(self, info: LayerInfo) -> str | None:
        digest = info.work.code
        if digest is None:
            return None
        target = self.spool / "code" / digest
        if not target.exists():
            unpack(self.root.pack(digest).read_bytes(), target, digest)
        return str(target)

    # --- push --------------------------------------------------------------------------------------------

    def bundle_of(self, part: Part) -> Bundle:
        return Bundle([HeldPart(part.path, part.index, part.numbers)])

    def offer_of(self, bundle: Bundle) -> transfer.Offer:
        index = bundle.index
        raw, pairs = encode_index(index), bundle.numbers.pairs()
        return transfer.Offer(self.session, index.layer, pairs, list(index.outputs), raw, bundle.nbytes)

    def push(self, part: Part, lose_reply: bool = False) -> Any:
        """Offer a part, send its body, take in the answer. With `lose_reply` the channel dies before it is read."""
        bundle = self.bundle_of(part)
        known = self.layers.get(part.index.layer)
        if known is not None and known.layer.delivery.in_rounds and not lose_reply:
            return self._hand_over(part, bundle)
        answer = self.push_link.ask(self.offer_of(bundle))
        if isinstance(answer, transfer.Accepted):
            bundle.write_body(self.push_link.send)
            if lose_reply:
                self.push_link.await_answer()
                self.push_link.close(kill=True)
                self._push = None
                return None
            answer = self.push_link.receive()
        self._answered(part, answer)
        return answer

    def _hand_over(self, part: Part, bundle: Bundle) -> Any:
        """Of a round, as agents by folder do: header and file, and the one answer."""
        offer, file = self.offer_of(bundle), self.spool / "tmp" / "handed"
        with file.open("wb") as out:
            bundle.write_body(out.write)
            out.write(tail_of(offer.index))
        answer = self.push_link.ask(msgspec.structs.replace(offer, eager=True, file=file.name))
        file.unlink(missing_ok=True)
        self._answered(part, answer)
        return answer

    def _answered(self, part: Part, answer: Any) -> None:
        if isinstance(answer, transfer.Settled):
            self._settle(part.index.layer, RangeSet(answer.numbers))
        elif isinstance(answer, transfer.Refused):
            self.refusals.append(answer.code)
            if answer.code == "committed":
                self._settle(part.index.layer, RangeSet(answer.numbers))
            elif answer.code == "gone":
                self._forget(part.index.layer)

    # --- going on by itself ------------------------------------------------------------------------------

    def step(self, wait: float = 0.0) -> None:
        """Sync, run, push all there is."""
        if not self.session:
            answer = self.join()
            assert isinstance(answer, control.Welcome), answer
        if isinstance(self.sync(hungry=not self.drained, wait=wait), control.Rejected):
            self.session = 0
            return
        if not self.paused.is_set():
            self.compute()
        for part in list(self.parts):
            if any(one is part for one in self.parts):  # an answer to another may have settled it
                self.push(part)

    def work(self, enough: Callable[[], object]) -> None:
        """Step after step until `enough` says so, through whatever happens to daemon and links."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not enough():
            assert time.monotonic() < deadline, f"{self.name}: not enough within {ANSWER_SECONDS} s"
            try:
                self.step(wait=0.05)
            except Cut:
                self.hang_up()
                time.sleep(0.02)

    def go(self) -> SimulatedAgent:
        """Work in a thread until it dies."""
        self._thread = threading.Thread(target=self._work_on, name=self.name, daemon=True)
        self._thread.start()
        return self

    def _work_on(self) -> None:
        while not self._stop.is_set():
            try:
                self.step(wait=0.05)
            except Cut:
                self.hang_up()
                self._stop.wait(0.05)
            except BaseException as error:
                self.error = error
                raise
