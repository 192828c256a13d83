"""Faults that servers are given on purpose, to see that the checker of histories finds them.

Each changes the server that it is called in, before that begins.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from metadata.segment_logs import SegmentLogs
from segments.appending import Appender, Sent
from segments.dispatch.key_owners import SplitByServer
from segments.open_log import OpenLog

# How often what is broken does not work.
OFTEN: Final = 0.2


def forget_acknowledgements() -> None:
    """Confirm some acknowledgements without writing them."""
    save = SegmentLogs.save

    async def broken(logs: SegmentLogs, *args: Any, drained: bool = False, **others: Any) -> None:
        if drained or random.random() >= OFTEN:
            await save(logs, *args, drained=drained, **others)

    SegmentLogs.save = broken  # type: ignore[method-assign,assignment]


def lose_messages() -> None:
    """Store another message in the place of some."""
    _spoil_pairs(lambda before, _: (before, before))


def exchange_messages() -> None:
    """Store some messages in the place of those before them."""
    _spoil_pairs(lambda before, sent: (sent, before))


def _spoil_pairs(spoiled: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> None:
    """Let some messages that are stored one after the other, and are equally long, not be what was sent."""
    take = Appender._take

    def broken(appender: Appender) -> list[Sent]:
        taken = take(appender)
        for index in range(1, len(taken)):
            before, sent = taken[index - 1], taken[index]
            both_new = before.is_new and sent.is_new
            if both_new and len(sent.body) == len(before.body) and random.random() < OFTEN:
                bodies = spoiled(before.body, sent.body)
                taken[index - 1], taken[index] = before._replace(body=bodies[0]), sent._replace(body=bodies[1])
        return taken

    Appender._take = broken  # type: ignore[method-assign,assignment]


def share_keys() -> None:
    """Let the keys of a Key_Shared subscription go round its consumers."""

    def broken(owners: SplitByServer[Any], slot: int) -> Any:
        return random.choice(list(owners._seats.values())) if owners._seats else None

    SplitByServer.owner = broken  # type: ignore[method-assign,assignment]


def ignore_seeks() -> None:
    """Say that a subscription was moved, and leave it where it is."""

    async def broken(*_: Any, **__: Any) -> None:
        pass

    OpenLog.seek = broken  # type: ignore[method-assign]


FAULTS: Final[Mapping[str, Callable[[], None]]] = {
    "acknowledgements": forget_acknowledgements,
    "messages": lose_messages,
    "order": exchange_messages,
    "keys": share_keys,
    "seeks": ignore_seeks,
}
