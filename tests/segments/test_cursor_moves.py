"""Cursors are moved by the owners of their logs, whoever asks: nothing is taken from them, and no request is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from controller import seeking
from controller.leader import TopicLeader
from gateway.node import Node
from layout import records
from layout.segments import Segment
from metadata.cursor_requests import CursorRequest, CursorRequests, PendingMove
from metadata.errors import CursorNotMoved, LogMissing
from metadata.log_places import LogPlace
from metadata.registrations import RegistrationLimits, Registrations
from metadata.segment_logs import SegmentLogs
from metadata.subscriptions import SubscriptionType
from protocol.client.pool import open_pool
from protocol.client.producing import open_producer
from protocol.names import TopicName
from segments.cursor_entries import unpack
from segments.cursor_moves import CursorMoves
from segments.port import place_of
from tests.segments.test_messages import send_numbers
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC = TopicName.scalable("public", "default", "orders")
COUNT = 10


class Scene(NamedTuple):
    """A log with messages at one node, and another node that leads the topic."""

    owner: Node
    leading: Node
    segment: Segment
    place: LogPlace
    incarnation: str

    async def ask(self, to_ms: int | None) -> PendingMove:
        pending = await self.leading.data.port.request_move(TOPIC, self.incarnation, "s", self.segment, to_ms)
        assert pending is not None
        return pending

    async def mark(self) -> int:
        """Up to where the subscription has consumed, as it is stored."""
        logs = SegmentLogs(self.leading.store)
        state = await logs.state(self.place)
        assert state is not None
        return unpack((await logs.cursors(self.place, state))["s"])[1].mark


@asynccontextmanager
async def owned_elsewhere(valkey: ValkeyProcess) -> AsyncIterator[Scene]:
    async with (
        running_node(valkey.url, rebalance_interval=3600.0) as a,
        running_node(valkey.url, rebalance_interval=3600.0) as b,
    ):
        await eventually(lambda: all(len(node.peers.nodes) == 2 for node in (a, b)), within=20)
        await transitions_of(a).create(TOPIC, 1)
        stored = await a.store.get(TOPIC)
        assert stored is not None
        [segment] = records.decode_layout(stored.value).segments.values()
        place = place_of(TOPIC, segment)
        registrations = Registrations(a.store, RegistrationLimits())
        await registrations.create_subscription(TOPIC, "s", SubscriptionType.STREAM, 0, from_start=True)
        async with open_pool(a.pulsar_url) as pool, open_producer(pool, str(TOPIC)) as producer:
            await send_numbers(producer, range(COUNT))
        owner, leading = (a, b) if a.data.hosting.logs else (b, a)
        yield Scene(owner, leading, segment, place, stored.version.incarnation)


async def test_seek_and_skip_leave_the_log_with_its_owner(valkey: ValkeyProcess) -> None:
    async with (
        owned_elsewhere(valkey) as scene,
        open_pool(scene.leading.pulsar_url) as pool,
        open_producer(pool, str(TOPIC)) as producer,
    ):
        await send_numbers(producer, range(1))
        [owned] = scene.owner.data.hosting.logs
        claim = owned.claim
        access = seeking.Access(
            Registrations(scene.leading.store, RegistrationLimits()), scene.leading.data.port, scene.leading.feed.lane
        )

        async def skip(leader: TopicLeader) -> None:
            await seeking.skip_all(access, leader, "s")

        async def seek(leader: TopicLeader) -> None:
            await seeking.seek(access, leader, "s", 0)

        await scene.leading.leaders.as_leader(TOPIC, skip)
        assert await scene.mark() == COUNT
        await scene.leading.leaders.as_leader(TOPIC, seek)
        assert await scene.mark() == -1
        assert scene.owner.data.hosting.logs == [owned]
        assert owned.claim == claim
        assert len(owned.sending.producers.all) == 1, "it was not disturbed"
        assert scene.leading.data.hosting.logs == []


async def test_request_is_carried_out_by_whoever_owns_the_log_next_before_anybody_consumes(
    valkey: ValkeyProcess,
) -> None:
    async with owned_elsewhere(valkey) as scene:
        [owned] = scene.owner.data.hosting.logs
        await scene.owner.data.hosting.let_go(owned)
        # Asked for by somebody who is gone before it is done.
        await scene.ask(None)
        opened = await scene.leading.data.hosting.open(scene.place.name, by_force=True)
        assert opened.subscriptions["s"].cursor.mark == COUNT - 1
        state = await SegmentLogs(scene.leading.store).state(scene.place)
        assert state is not None
        assert state.requests == {}


async def test_log_that_nobody_has_is_opened_for_it(valkey: ValkeyProcess) -> None:
    async with owned_elsewhere(valkey) as scene:
        [owned] = scene.owner.data.hosting.logs
        logs = SegmentLogs(scene.leading.store)
        await owned.let_go()
        state = await logs.state(scene.place)
        assert state is not None
        # Its owner died: the session that has it is nobody's.
        await logs.claim(scene.place, state, "0123456789abcdef")
        await scene.leading.data.port.moved([await scene.ask(None)])
        assert await scene.mark() == COUNT - 1


async def test_owner_that_takes_too_long_is_told_of_and_the_request_stands(valkey: ValkeyProcess) -> None:
    async with owned_elsewhere(valkey) as scene:
        [owned] = scene.owner.data.hosting.logs
        logs = SegmentLogs(scene.leading.store)
        await owned.let_go()
        state = await logs.state(scene.place)
        assert state is not None
        # A node that lives, but does not act.
        claimed = await logs.claim(scene.place, state, scene.owner.session.record.session)
        assert claimed is not None
        pending = await scene.ask(None)
        hasty = CursorMoves(logs, scene.leading.data.hosting, patience=0.05)
        with pytest.raises(CursorNotMoved, match="try again"):
            await hasty.carried_out([pending])
        await logs.release(claimed.claim)
        await scene.leading.data.port.moved([pending])
        assert await scene.mark() == COUNT - 1


async def test_later_request_takes_the_place_of_one_that_was_not_carried_out(valkey: ValkeyProcess) -> None:
    async with owned_elsewhere(valkey) as scene:
        [owned] = scene.owner.data.hosting.logs
        await scene.owner.data.hosting.let_go(owned)
        earlier, later = await scene.ask(None), await scene.ask(0)
        await scene.leading.data.port.moved([earlier, later])
        assert await scene.mark() == -1


async def test_request_that_was_read_twice_is_carried_out_once(valkey: ValkeyProcess) -> None:
    async with owned_elsewhere(valkey) as scene:
        [owned] = scene.owner.data.hosting.logs
        request = CursorRequest("op", 0)
        await owned.carry_out({"s": request})
        await owned.move("s", 4)
        await owned.carry_out({"s": request})
        assert owned.subscriptions["s"].cursor.mark == 3


async def test_log_that_is_lost_while_its_owner_carries_out_a_request_costs_nothing_else(valkey: ValkeyProcess) -> None:
    async with owned_elsewhere(valkey) as scene:
        [owned] = scene.owner.data.hosting.logs
        async with owned._moving:
            await scene.ask(None)
            scene.owner.data.hosting.look_soon(owned)
            await eventually(lambda: owned._moving.statistics().tasks_waiting > 0)
            owned.lose(LogMissing("Another node has it."))
        opened = await scene.owner.data.hosting.open(scene.place.name, by_force=True, surely=True)
        assert opened is not owned
        assert opened.subscriptions["s"].cursor.mark == COUNT - 1


async def test_request_for_a_subscription_that_is_deleted_leaves_nothing_behind(valkey: ValkeyProcess) -> None:
    async with owned_elsewhere(valkey) as scene:
        [owned] = scene.owner.data.hosting.logs
        registrations = Registrations(scene.leading.store)
        registration = await registrations.find(TOPIC, "s")
        assert registration is not None
        await registrations.delete_subscription(TOPIC, "s")
        # The owner has heard of it, and settled it, before the request stands.
        await eventually(lambda: scene.owner.data.hosting._checking == {} and not owned.subscriptions)
        requests = CursorRequests(scene.leading.store)
        pending = await requests.ask(scene.place, scene.incarnation, "s", 0, registration.id)
        assert pending is not None
        await scene.leading.data.port.moved([pending])
        await eventually(lambda: not owned.subscriptions)
        logs = SegmentLogs(scene.leading.store)

        async def is_forgotten() -> bool:
            state = await logs.state(scene.place)
            assert state is not None
            return await logs.cursors(scene.place, state) == {}

        await eventually(is_forgotten)


async def test_sealed_segment_is_not_drained_while_its_cursor_is_to_be_moved(valkey: ValkeyProcess) -> None:
    async with owned_elsewhere(valkey) as scene:
        [owned] = scene.owner.data.hosting.logs
        registration = await Registrations(scene.leading.store).find(TOPIC, "s")
        assert registration is not None
        await owned.move("s", owned.next, registration.id)
        port = scene.leading.data.port
        assert await port.drained(TOPIC, "s", [scene.segment]) == {0}
        await scene.owner.data.hosting.let_go(owned)
        pending = await scene.ask(0)
        assert await port.drained(TOPIC, "s", [scene.segment]) == frozenset()
        await port.moved([pending])
        assert await port.drained(TOPIC, "s", [scene.segment]) == frozenset()


async def test_nothing_is_asked_of_a_log_that_is_gone(valkey: ValkeyProcess) -> None:
    async with owned_elsewhere(valkey) as scene:
        requests = CursorRequests(scene.leading.store)
        assert await requests.ask(scene.place, "another", "s", 0) is None
        missing = LogPlace.of_segment(TOPIC, "0000-ffff-7")
        assert await requests.ask(missing, scene.incarnation, "s", 0) is None
