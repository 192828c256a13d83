"""How long a watch waits between its connections: in Trio's own time, without any socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
import trio
import trio.testing

from protocol.backoff import FIRST_DELAY
from protocol.client.connection import ClientConnection
from protocol.client.errors import ConnectionLost
from protocol.client.reconnecting import Reconnection

Attempt = Literal["refused", "silent"]
REFUSED: Attempt = "refused"  # nobody answers
SILENT: Attempt = "silent"  # the watch is opened, hears nothing because its hash is right, and is lost in the end


async def pauses_after(*attempts: Attempt) -> list[float]:
    """How long a watch that was told its first set waits after each of these attempts."""
    reconnection = Reconnection(None)
    reconnection.succeeded = True
    began: list[float] = []
    lost: list[float] = []

    @asynccontextmanager
    async def connected() -> AsyncIterator[ClientConnection]:
        began.append(trio.current_time())
        if len(began) <= len(attempts) and attempts[len(began) - 1] == REFUSED:
            lost.append(trio.current_time())
            raise ConnectionLost("Nobody answers.")
        yield None  # type: ignore[misc]  # nothing is asked of it here

    async def session(_: ClientConnection) -> None:
        reconnection.opened()
        if len(began) <= len(attempts):
            await trio.sleep(600)  # all is quiet
            lost.append(trio.current_time())
            raise ConnectionLost("The server has gone.")

    assert await reconnection.run(connected, session) is None
    return [begin - end for begin, end in zip(began[1:], lost, strict=True)]


async def test_every_one_of_many_silent_reconnects_is_as_prompt_as_the_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert max(await pauses_after(*[SILENT] * 12)) <= FIRST_DELAY


async def test_failures_between_silent_reconnects_are_forgotten_by_each_of_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pauses = await pauses_after(*([REFUSED] * 5 + [SILENT]) * 4)
    after_silence = pauses[5::6]
    assert max(after_silence) <= FIRST_DELAY
    # Each outage begins with what the silence before it left of the backoff: one pause was made after that.
    for start in range(6, len(pauses), 6):
        outage = pauses[start : start + 5]
        assert all(FIRST_DELAY * 2**n <= pause <= FIRST_DELAY * 2 ** (n + 1) for n, pause in enumerate(outage))


@pytest.mark.parametrize("attempts", [3, 8])
async def test_attempts_without_a_watch_wait_longer_and_longer(
    attempts: int, autojump_clock: trio.testing.MockClock
) -> None:
    pauses = await pauses_after(*[REFUSED] * attempts)
    assert all(FIRST_DELAY * 2**n / 2 <= pause <= FIRST_DELAY * 2**n for n, pause in enumerate(pauses))
