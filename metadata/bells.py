"""The keyspace notifications of one server: subscribed to, tried out, and turned on where they are off.

Whether they work is decided by observation. The setting says little: it is not replicated, and rules may hide channels.
"""

from __future__ import annotations

import logging
from typing import Final

from metadata.link import Link, LinkLost, Reply
from metadata.urls import Endpoint

log = logging.getLogger(__name__)

# K: channels named by key; t: stream commands, of which XADD is ours.
_FLAGS: Final = "Kt"


class Bells:
    """`rung` counts the notifications of trials; whoever takes in notifications adds to it."""

    def __init__(self, endpoint: Endpoint, pattern: str, probe_interval: float) -> None:
        self.rung = 0
        self._endpoint = endpoint
        self._pattern = pattern
        self._slower = f"changes are found by looking every {probe_interval:g} s"
        self._complaints: set[str] = set()  # said once each

    async def subscribe(self, link: Link) -> bool:
        receipt = await link.call("PSUBSCRIBE", self._pattern)
        if isinstance(receipt, Exception):
            self.complain(
                f"does not let us subscribe ({receipt}): {self._slower}",
                f"grant the user +psubscribe and &{self._pattern} there",
            )
            return False
        return True

    async def ring(self, link: Link, key: bytes) -> bool:
        """Write a key that the pattern covers, and see whether its bell arrives before the answer to what follows."""
        before = self.rung
        replies = await link.execute(
            [("XADD", key, "MAXLEN", 1, "*", "bell", 1), ("UNLINK", key), ("PING",)],
        )
        if isinstance(replies[0], Exception):
            # Full or read-only just now: no verdict on notifications, and the tails are compared anyway.
            return True
        return self.rung > before

    async def repair(self, link: Link) -> None:
        reply = await link.call("CONFIG", "GET", "notify-keyspace-events")
        if not isinstance(reply, Exception):
            current = _config_value(reply)
            wanted = current + "".join(flag for flag in _FLAGS if flag not in current)
            reply = await link.call("CONFIG", "SET", "notify-keyspace-events", wanted)
        if isinstance(reply, Exception):
            self.complain(
                f"sends no keyspace notifications and does not let us turn them on ({reply}): {self._slower}",
                f"set notify-keyspace-events {_FLAGS} there",
            )
        else:
            log.info("turned keyspace notifications on at %s (%s)", self._endpoint, _FLAGS)

    def complain(self, what: str, remedy: str) -> None:
        if what not in self._complaints:
            self._complaints.add(what)
            log.warning("%s %s; %s", self._endpoint, what, remedy)


async def check_role(link: Link, bells: Bells) -> None:
    """A primary that was demoted behind an address that now leads elsewhere stays connected and looks fine."""
    role = await link.call("ROLE")
    if isinstance(role, Exception):
        bells.complain(
            f"does not tell its role ({role}): it would not be noticed if it became a replica",
            "grant the user +role there",
        )
    elif role[0] != b"master":
        raise LinkLost(f"{link.endpoint} is a replica now")


def _config_value(reply: Reply) -> str:
    value = next(iter(reply.values())) if isinstance(reply, dict) else reply[1]
    return str(value.decode())
