"""The same farm with its agents over ssh: they join through a real sshd, each behind a proxy of its own, and links are
struck as well: reset, stalled past the lease, delayed, or left half-open. Processes of sshd's sessions are killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.campaign.strikes import AGENTS, LEASE_SECONDS, Strikes
from tests.support import sshd
from tests.support.farm import until
from tests.support.proxy import Proxy
from tests.support.sshd import HOST, Sshd

DELAY_SECONDS = 0.2  # each way, for each piece
DELAYED_SECONDS = 2.0
PENALTIES = "PerSourcePenalties no"  # sshd shuts out for minutes an address whose sessions crash; here we crash them


class StrikesOverSsh(Strikes):
    """The farm, its sshd, and a proxy before it for each agent."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        options = [PENALTIES] if sshd.knows(PENALTIES) else []
        self._sshd = Sshd(folder / "sshd", options, env=self.farm.marked)
        self._proxies: dict[str, Proxy] = {}

    def begin(self) -> None:
        self._sshd.start()
        self._proxies = {name: Proxy(self._sshd.port) for name in AGENTS}
        super().begin()

    def join(self, name: str) -> None:
        through = (f"Port {self._proxies[name].port}", f"HostKeyAlias {self._sshd.name}")
        config = self._sshd.ssh_config(*through, name=f"ssh_config-{name}")
        self.farm.join(name, "--cpus", "1", "--ssh-config", str(config), where=f"{HOST}:{self.farm.root.path}")

    def close(self) -> None:
        try:
            super().close()
        finally:
            for proxy in self._proxies.values():
                proxy.close()
            self._sshd.stop()

    def ways(self) -> dict[str, Callable[[], bool]]:
        return {
            **super().ways(),
            "sshd session": self._kill_session,
            "link reset": lambda: self._proxy().reset() > 0,
            "link stalled past the lease": self._stall,
            "link delayed": self._delay,
            "link half-open": lambda: self._proxy().freeze() > 0,
        }

    def _proxy(self) -> Proxy:
        return self._proxies[self.random.choice(AGENTS)]

    def _kill_session(self) -> bool:
        """One of sshd's own, not what runs below it."""
        found = []
        for process in self._sshd.sessions():
            with suppress(psutil.NoSuchProcess):
                found += [process] if process.name().startswith("sshd") else []
        if not found:
            return False
        with suppress(psutil.NoSuchProcess):
            self.random.choice(found).kill()
        return True

    def _stall(self) -> bool:
        """Nothing passes for so long that its shards are given to others; then all of it does."""
        proxy = self._proxy()
        proxy.swallow()
        time.sleep(LEASE_SECONDS + 1.0)
        proxy.mend()
        return True

    def _delay(self) -> bool:
        proxy = self._proxy()
        proxy.delay = DELAY_SECONDS
        time.sleep(DELAYED_SECONDS)
        proxy.delay = 0.0
        return True

    def leave(self) -> None:
        """By then nothing of ours is left on a link that is open at the server's end alone. What sshd itself has of it
        stays until its own keepalive, or the proxy, tells it."""
        super().leave()
        for proxy in self._proxies.values():
            proxy.close()
        until(lambda: not self._sshd.sessions(), "sshd's sessions to end")
