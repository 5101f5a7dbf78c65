"""When to say what on the control channel, and what to do about a refusal. No I/O; the clock is what callers say it is.

The channel is a strict loop: while an answer is awaited nothing can be said.
"""

from __future__ import annotations

import msgspec

from muster.agent.core.actions import Action, Quit, Redial, Say, Tell
from muster.agent.core.reports import ReportBatch
from muster.coordinator.protocol.control import Held, Hello, Leave, MachineAccount, News, Rejected, Sync, Welcome
from muster.coordinator.protocol.fitting import fitted_hello, fitted_sync
from muster.jobs.common.errors import FencedError, RefusedError
from muster.jobs.contract.plan import Environment

GAP_SECONDS = 0.05  # between two questions: news is gathered meanwhile
POLL_SECONDS = (
    0.2  # how long an answer may be held while some slots are busy: what they finish cannot be told meanwhile
)
POLL_LIMIT_SECONDS = 1.0
ACCOUNT_SECONDS = 0.25  # between two accounts of where the time goes, at least
REJECTED_PAUSES = {"protocol": 60.0, "stopping": 1.0, "bad-message": 10.0}
HELLO_PAUSE_SECONDS = 1.0
FINAL = {"fenced", "name-taken", "not-allowed"}


class ControlSession:
    """The state of the conversation. `session` is None without one; `asked` is None while nothing is awaited. `who`:
    what each hello says of this agent and its machine; while it runs only kinds that turn out to be unfit, and packages
    that are installed, change it."""

    def __init__(self, who: Hello) -> None:
        self.who = who
        self.up = False
        self.why_down = "not connected yet"
        self.lasting = False  # whether it is down until a person does something about it
        self.session: int | None = None
        self.heartbeat = 5.0
        self.lease = 60.0
        self.ever = False  # whether there ever was a session
        self.asked: Say | None = None
        self.note = ""  # the one line that was last told
        self.narrowed: dict[str, str] = {}  # job → why fewer shards run than are lent for it, as was last told
        self.hungry = False  # what was last told
        self.lent = who.cpus  # what was last told
        self._said_at = float("-inf")
        self._hello_at = float("-inf")  # no hello before
        self._counted_at = float("-inf")  # when what is here was last counted out
        self._accounted_at = float("-inf")  # when it was last told where the time goes
        self._poll = POLL_SECONDS
        self._next_poll_at = float("-inf")

    # --- the channel ---

    def opened(self) -> None:
        self.up, self.session, self.asked = True, None, None

    def closed(self, why: str) -> None:
        self.up, self.session, self.asked, self.why_down = False, None, None, why

    @property
    def free(self) -> bool:
        return self.up and self.asked is None

    # --- saying ---

    def hello_due(self, now: float) -> bool:
        return self.free and not self.session and now >= self._hello_at

    def hello(self, letter: ReportBatch, held: list[Held], now: float) -> Say:
        message = msgspec.structs.replace(self.who, held=held, failures=letter.failures, losses=letter.losses)
        self._hello_at = now + HELLO_PAUSE_SECONDS
        return self._say(Say(fitted_hello(message), 0.0), now)

    def may_sync(self, starving: bool, now: float) -> bool:
        """Whether anything can be said now; `starving`: nothing more is to be gathered meanwhile."""
        return self.free and bool(self.session) and (starving or now >= self._said_at + GAP_SECONDS)

    def sync_due(self, pressing: bool, polling: bool, now: float) -> bool:
        """News goes at once, a poll when the last has ended, a heartbeat in any case."""
        return pressing or now >= self._said_at + self.heartbeat or (polling and now >= self._next_poll_at)

    def gap_left(self, now: float) -> float:
        """Seconds until news may be said."""
        return max(0.001, self._said_at + GAP_SECONDS - now)

    def wait(self, idle: bool, polling: bool) -> float:
        """How long the coordinator may hold its answer."""
        if not polling:
            return 0.0
        return self.heartbeat if idle else min(self._poll, self.heartbeat)

    def counts_due(self, now: float) -> bool:
        """Whether what is here should be counted out to the coordinator: once a heartbeat."""
        return now >= self._counted_at + self.heartbeat

    def account_due(self, pressing: bool, now: float) -> bool:
        """Whether to tell where the time goes: once a heartbeat, and soon where a job begins here or nothing is left
        to do."""
        return now >= self._accounted_at + (min(ACCOUNT_SECONDS, self.heartbeat) if pressing else self.heartbeat)

    def sync(
        self,
        letter: ReportBatch,
        room: int,
        hungry: bool,
        lent: int,
        wait: float,
        counts: dict[str, int] | None,
        account: MachineAccount | None,
        places: dict[str, int] | None,
        now: float,
    ) -> Say:
        said = {"session": self.session, "room": room, "wait": wait, "hungry": hungry, "note": self.note, "lent": lent}
        told = {"counts": counts, "narrowed": self.narrowed, "account": account, "places": places}
        message = Sync(**said, **letter.fields(), **told)  # type: ignore[arg-type]
        self._accounted_at = now if account is not None else self._accounted_at
        self.hungry, self.lent = hungry, lent
        self._counted_at = now if counts is not None else self._counted_at
        return self._say(Say(fitted_sync(message), wait), now)

    def leave(self, now: float) -> Say:
        assert self.session is not None, "who leaves was welcomed"
        return self._say(Say(Leave(self.session), 0.0), now)

    def _say(self, say: Say, now: float) -> Say:
        self.asked, self._said_at = say, now
        return say

    # --- hearing ---

    def welcomed(self, welcome: Welcome) -> None:
        self.asked = None
        self.ever = True
        self.lent = self.who.cpus  # as the hello said
        self.session, self.lease, self.heartbeat = welcome.session, welcome.lease, welcome.heartbeat
        self._poll, self._next_poll_at = POLL_SECONDS, float("-inf")

    def heard(self, news: News, now: float) -> None:
        """An empty answer before its time is no reason to ask again before that."""
        empty = not (news.layers or news.grants or news.drops or news.committed or news.gone or news.drain)
        waited = self.asked.wait if self.asked else 0.0
        self._poll = min(POLL_LIMIT_SECONDS, 2 * self._poll) if empty else POLL_SECONDS
        self._next_poll_at = self._said_at + max(waited, POLL_SECONDS) if empty else now
        self.asked = None

    def hope(self, now: float) -> None:
        """Something changed here that may bring work: ask soon, and do not let the answer be held for long."""
        self._poll, self._next_poll_at = POLL_SECONDS, now

    def rejected(self, answer: Rejected, now: float) -> list[Action]:
        self.asked = None
        self.session = None
        if answer.code in FINAL:
            error = FencedError if answer.code == "fenced" else RefusedError
            return [Quit(error(answer.message, answer.hint or None))]
        if answer.code == "no-session":
            return []
        hint = f" ({answer.hint})" if answer.hint else ""
        pause = REJECTED_PAUSES.get(answer.code, 10.0)
        self.closed(answer.message)
        return [Tell(f"refused: {answer.message}{hint}; trying again"), Redial(pause)]

    def unfit_for(self, kind: str, why: str) -> None:
        """From its next hello on, which is due, this agent has no such kind."""
        kernels = {name: version for name, version in self.who.kernels.items() if name != kind}
        self.who = msgspec.structs.replace(self.who, kernels=kernels, unfit={**self.who.unfit, kind: why})
        self.lost_track()

    def learnt(self, packages: list[str], envs: dict[str, Environment]) -> None:
        """From its next hello on, which is due, this agent has these packages."""
        self.who = msgspec.structs.replace(self.who, packages=packages, envs=envs)
        self.lost_track()

    def lost_track(self) -> None:
        """The coordinator spoke of something unknown here: a new hello makes it start over."""
        self.session = None
