"""Many patterns over many topics: compared a slice at a time, and only with what has changed."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from metadata import keys
from protocol.framing import Frame, FrameDecoder
from protocol.names import NamespaceName
from protocol.wire import pulsar_api_pb2 as api
from sessions import topic_lists
from sessions.counters import CloseReason, Counters
from sessions.outbox import Outbox, OutboxLimits
from sessions.patterns import TopicPattern
from sessions.topic_lists import ListSurroundings, ListWatch, TopicLists

NAMESPACE = NamespaceName("public", "default")
PATH = keys.namespace_path(NAMESPACE)


class Matches:
    """Counts comparisons, and the most of them that one turn of the loop has seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = self.most_in_a_turn = self._this_turn = 0
        fits = TopicPattern.fits

        def counted(pattern: TopicPattern, subject: bytes) -> bool:
            self.made += 1
            self._this_turn += 1
            return fits(pattern, subject)

        monkeypatch.setattr(TopicPattern, "fits", counted)

    async def look(self) -> None:
        """Somebody else's task, which gets its turn in every round of the loop."""
        while True:
            await trio.lowlevel.checkpoint()
            self.most_in_a_turn = max(self.most_in_a_turn, self._this_turn)
            self._this_turn = 0


class Lists:
    """The watches of one connection, over a store that the test plays."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.logs: dict[int, dict[str, str]] = {}
        store: Any = self  # as much of one as is asked
        lane: Any = None
        around = ListSurroundings(
            nursery, store, lambda: lane, lambda bucket: True, lambda: True, window=0.0, frame_limit=1 << 20
        )
        self.lists = TopicLists(around)
        self.registry: dict[int, ListWatch] = {}
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.setblocking(False)
        self.outbox = Outbox(ours, nursery, OutboxLimits(), Counters(), set())
        self._decoder = FrameDecoder()

    async def list_log_buckets(
        self, lane: object, buckets: Sequence[int], namespace: NamespaceName
    ) -> dict[int, Mapping[str, str]]:
        await trio.lowlevel.checkpoint()
        return {bucket: dict(self.logs.get(bucket, {})) for bucket in buckets}

    def watch(self, watcher_id: int, pattern: str) -> None:
        request = api.CommandWatchTopicList(
            request_id=watcher_id, namespace=str(NAMESPACE), watcher_id=watcher_id, topics_pattern=pattern
        )
        self.lists.open(self.outbox, self.registry, request, NAMESPACE, TopicPattern(NAMESPACE, pattern))

    async def told(self, count: int) -> list[api.BaseCommand]:
        """So many commands, as they come."""
        taken: list[api.BaseCommand] = []
        while len(taken) < count:
            await trio.lowlevel.wait_readable(self.sock)
            frames = self._decoder.receive(self.sock.recv(1 << 20))
            taken += [frame.command for frame in frames if isinstance(frame, Frame)]
        return taken


@asynccontextmanager
async def listing() -> AsyncIterator[Lists]:
    async with trio.open_nursery() as nursery:
        lists = Lists(nursery)
        yield lists
        lists.outbox.close(CloseReason.SHUTDOWN)
        lists.sock.close()
        nursery.cancel_scope.cancel()


async def test_patterns_are_compared_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = Matches(monkeypatch)
    async with listing() as lists, trio.open_nursery() as nursery:
        nursery.start_soon(matches.look)
        names = [f"topic-{number}" for number in range(3 * topic_lists._MATCHES_PER_TURN)]
        lists.logs = {5: dict.fromkeys(names, "1"), 6: {"six": "1"}}
        for number in range(50):
            lists.watch(number, f"public/default/topic-{number}")
        answers = await lists.told(50)
        assert [list(answer.watchTopicListSuccess.topic) for answer in answers] == [
            [f"persistent://public/default/topic-{number}"] for number in range(50)
        ]
        assert matches.made == 50 * (len(names) + 1)
        assert matches.most_in_a_turn <= 2 * topic_lists._MATCHES_PER_TURN
        nursery.cancel_scope.cancel()


async def test_after_a_change_only_what_has_changed_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = Matches(monkeypatch)
    async with listing() as lists:
        lists.logs = {5: {f"topic-{number}": "1" for number in range(100)}}
        for number in range(20):
            lists.watch(number, f"public/default/(topic-{number}|new)")
        await lists.told(20)
        before = matches.made
        lists.logs[5]["new"] = "2"
        lists.lists.classic(5, f"{PATH}/new")
        updates = await lists.told(20)
        assert {tuple(update.watchTopicUpdate.new_topics) for update in updates} == {
            ("persistent://public/default/new",)
        }
        assert matches.made == before + 20
