"""Consumers that join while something else happens: what their clients are told is what is so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from protocol.client import requests
from protocol.turns import SlowTurns
from segments.connection import DataDialogue, DataPlane
from segments.consumers import Consumer
from segments.dispatch.receivers import Kind
from segments.errors import NotHere
from segments.frames import MessageFrames
from segments.open_log import OpenLog
from segments.starting import Start
from segments.subscription import LogSubscription
from tests.segments.peers import ListeningPeer
from tests.segments.test_open_log import LIMIT, Desk, desk
from tests.segments.wire_consumer import CONSUMER_ID, subscribe
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually


class Here:
    """Hosts one log, at which subscriptions begin at the start."""

    def __init__(self, log: OpenLog) -> None:
        self._log = log

    async def open(self, topic: str, *, surely: bool = False) -> OpenLog:
        await trio.lowlevel.checkpoint()
        return self._log

    async def of(self, log: OpenLog, request: object) -> Start:
        await trio.lowlevel.checkpoint()
        return Start(lambda: 0)

    def check_soon(self, log: OpenLog) -> None:
        """It has no topic that could have deleted something."""

    async def take(self, log: OpenLog, name: str, kind: Kind, consumer: Consumer, subscribe: Any, **_: Any) -> object:
        """A seat, which is free."""
        return await subscribe()


@pytest.mark.parametrize("again", [False, True])
async def test_consumer_that_is_closed_while_it_is_let_in_holds_no_place(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Or subscribed again under its id: in the very tick in which it would be told that it is there."""
    async with desk(valkey.url) as d, trio.open_nursery() as nursery:
        peer = ListeningPeer()
        here = Here(d.log)
        plane = SimpleNamespace(hosting=here, starting=here, seats=here, nursery=nursery, turns=SlowTurns())
        dialogue = DataDialogue(cast(DataPlane, plane), peer, "", "")
        let_in = d.log.subscribe

        async def subscribe_and_close(*args: Any, **options: Any) -> LogSubscription:
            found = await let_in(*args, **options)
            monkeypatch.undo()
            dialogue.receive(subscribe() if again else requests.close_consumer(2, CONSUMER_ID), b"")
            return found

        monkeypatch.setattr(d.log, "subscribe", subscribe_and_close)
        dialogue.receive(subscribe(), b"")
        await eventually(lambda: peer.heard and not dialogue._talk._opening, LIMIT)
        assert [it.success.request_id for it in peer.heard] == [1 if again else 2]
        # CLOSE_CONSUMER is answered at once; the one that was being let in goes when its task gets to run.
        await eventually(lambda: len(d.log.subscriptions["s"].consumers) == int(again), LIMIT)


async def shared(d: Desk, number: int, joined: list[int]) -> None:
    consumer = Consumer(ListeningPeer(), number, f"c{number}", MessageFrames(number, d.log.ledger, -1))
    await d.log.subscribe("s", Kind.SHARED, consumer, start=lambda: 0, durable=True)
    joined.append(number)


async def test_nobody_is_told_of_a_subscription_before_it_is_stored(valkey: ValkeyProcess) -> None:
    async with desk(valkey.url) as d, trio.open_nursery() as nursery:
        joined: list[int] = []
        valkey.pause()
        try:
            for number in range(3):
                nursery.start_soon(shared, d, number, joined)
                await trio.testing.wait_all_tasks_blocked()
            assert joined == []
        finally:
            valkey.resume()
        await eventually(lambda: sorted(joined) == [0, 1, 2], LIMIT)


async def test_nobody_joins_a_subscription_that_was_deleted_before_it_was_stored(valkey: ValkeyProcess) -> None:
    async with desk(valkey.url) as d, trio.open_nursery() as nursery:
        valkey.pause()
        try:

            async def refused() -> None:
                with pytest.raises(NotHere, match="again"):
                    await shared(d, 1, [])

            nursery.start_soon(refused)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(d.log.remove, "s")
            await trio.testing.wait_all_tasks_blocked()
        finally:
            valkey.resume()
    assert not d.log.subscriptions
