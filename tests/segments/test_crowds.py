"""Thousands of consumers of one subscription: what one of them does is not paid for by looking at all others."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, cast

import pytest
import trio
import trio.testing

from protocol import replies
from protocol.framing import encode
from protocol.long_commands import LONG_COMMAND
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.connection import DataDialogue, DataPlane
from segments.consumer_dialogue import WORK_PER_TURN
from segments.consumers import Consumer
from segments.conversation import Conversation
from segments.cursors import Cursor
from segments.dispatch.dispatcher import Dispatcher
from segments.dispatch.receivers import Kind
from segments.open_log import WOKEN_PER_TURN
from segments.subscription import LogSubscription
from tests.segments.peers import ListeningPeer
from tests.segments.test_sending import SEGMENT, TOPIC, connected, message, producer
from tests.segments.test_subscription import SlowLog, consumer
from tests.segments.test_wire_bounds import produce
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, acknowledgement, node_with_messages, subscribe
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

CROWD: Final = 150


def count_questions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a dispatcher was asked what is wanted."""
    asked: list[int] = []
    wanted = Dispatcher.wanted

    def counted(self: Any, end: int, now_ms: int) -> Any:
        asked.append(end)
        return wanted(self, end, now_ms)

    monkeypatch.setattr(Dispatcher, "wanted", counted)
    return asked


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED, Kind.FAILOVER])
async def test_what_a_crowd_says_in_one_turn_is_answered_once(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SlowLog([], is_cached=True)
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription("s", kind, Cursor(), log, nursery=nursery, durable=False, max_unacked=1_000)
        crowd = [consumer(number)[0] for number in range(CROWD)]
        for each in crowd:
            subscription.join(each)
        asked = count_questions(monkeypatch)
        for each in crowd:
            subscription.flow(each, 10)
        assert not asked
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked) == 1
        subscription.leave(*crowd[: CROWD // 4])
        for each in crowd[CROWD // 4 : CROWD // 4 + 10]:
            subscription.leave(each)
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked) == 2


async def test_messages_reach_a_crowd() -> None:
    log = SlowLog(["key"] * 2 * CROWD, is_cached=True)
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription(
            "s", Kind.SHARED, Cursor(), log, nursery=nursery, durable=False, max_unacked=1_000
        )
        crowd = [consumer(number) for number in range(CROWD)]
        for each, _ in crowd:
            subscription.join(each)
            subscription.flow(each, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert [len(peer.messages) for _, peer in crowd] == [2] * CROWD
        subscription.leave(*[each for each, _ in crowd[1:]])
        subscription.flow(crowd[0][0], 1_000)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(crowd[0][1].messages) == list(range(2 * CROWD)), "all of it comes to the one who is left"


async def test_of_a_failover_crowd_only_those_hear_something_for_whom_something_has_changed() -> None:
    log = SlowLog([], is_cached=True)
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription(
            "s", Kind.FAILOVER, Cursor(), log, nursery=nursery, durable=False, max_unacked=1_000
        )
        crowd = [consumer(number) for number in range(10)]
        for each, _ in crowd:
            subscription.join(each)
            subscription.joined(each)
        for each, _ in crowd[:8]:
            subscription.leave(each)

    def told(peer: ListeningPeer) -> list[bool]:
        return [
            it.active_consumer_change.is_active for it in peer.heard if it.type == BaseCommand.ACTIVE_CONSUMER_CHANGE
        ]

    assert [told(peer) for _, peer in crowd] == [[True], *[[False, True]] * 8, [False]]


async def test_one_of_higher_priority_takes_over_and_the_one_before_hears_of_it() -> None:
    log = SlowLog([], is_cached=True)
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription(
            "s", Kind.FAILOVER, Cursor(), log, nursery=nursery, durable=False, max_unacked=1_000
        )
        (first, heard), (higher, also_heard) = consumer(1), consumer(2)
        first.priority = 1
        for each in (first, higher):
            subscription.join(each)
            subscription.joined(each)
        assert [it.active_consumer_change.is_active for it in heard.heard] == [True, False]
        assert [it.active_consumer_change.is_active for it in also_heard.heard] == [True]
        subscription.send_away()
        subscription.join(first)
        subscription.joined(first)
        assert [it.type for it in heard.heard[2:]] == [BaseCommand.CLOSE_CONSUMER, BaseCommand.ACTIVE_CONSUMER_CHANGE]


async def test_consumers_of_a_lost_connection_leave_in_steps_and_in_parties(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segments.consumer_dialogue._LEAVING", 4)
    parties: list[int] = []
    leave = LogSubscription.leave

    def noted(self: LogSubscription, *consumers: Consumer) -> None:
        parties.append(len(consumers))
        leave(self, *consumers)

    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        client = WireConsumer(await connected(node))
        for number in range(10):
            assert (
                await client.ask(subscribe("s", api.CommandSubscribe.Shared, consumer_id=number))
            ).type == BaseCommand.SUCCESS
        [log] = node.data.hosting.logs
        monkeypatch.setattr(LogSubscription, "leave", noted)
        client.client.close()
        await eventually(lambda: not log.consumers)
    assert parties == [4, 4, 2]


async def test_producers_of_a_lost_connection_hand_the_log_to_nobody_who_goes_as_well(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        client, other = WireConsumer(await connected(node)), await connected(node)
        for number in range(5):

            def waiting(request: Any, number: int = number) -> None:
                request.producer_access_mode = 2  # WaitForExclusive
                request.producer_id = request.request_id = number

            answer = await client.ask(produce(waiting))
            assert answer.producer_success.producer_ready == (number == 0)
        [log] = node.data.hosting.logs
        assert log.sending.producers.topic_epoch == 0
        client.client.close()
        await eventually(lambda: not log.sending.producers.all)
        assert log.sending.producers.topic_epoch == 0, "nobody else has had it"
        await producer(other, topic=SEGMENT)


async def test_connection_gives_way_after_some_milliseconds_of_ids() -> None:
    dialogue = DataDialogue(cast(DataPlane, None), ListeningPeer(), "", "")
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = 1
    for number in range(WORK_PER_TURN // 2):
        command.redeliverUnacknowledgedMessages.message_ids.add(ledgerId=1, entryId=number)
    acks = BaseCommand(type=BaseCommand.ACK)
    acks.ack.consumer_id, acks.ack.ack_type = 1, api.CommandAck.Individual
    acks.ack.message_id.extend(command.redeliverUnacknowledgedMessages.message_ids)
    for _ in range(2):
        dialogue.receive(command, b"")
        assert not dialogue.congested
        dialogue.receive(acks, b"")
        assert dialogue.congested
        with trio.testing.assert_checkpoints():
            await dialogue.wait_relaxed()
        assert not dialogue.congested


async def test_long_acknowledgement_settles_all_and_is_answered_once(valkey: ValkeyProcess) -> None:
    count = 3_500
    async with node_with_messages(valkey.url, count) as node:
        consumer_ = WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared)
        await consumer_.subscribe(permits=1)
        [first] = await consumer_.messages(1)
        command = acknowledgement(first, request_id=7)
        for number in range(1, count):
            command.ack.message_id.add(ledgerId=first.message_id.ledgerId, entryId=number)
        assert command.ByteSize() > LONG_COMMAND
        answer = await consumer_.ask(command)
        assert (answer.ackResponse.request_id, answer.ackResponse.HasField("error")) == (7, False)
        [log] = node.data.hosting.logs
        assert log.subscriptions["s"].cursor.mark == count - 1
        stats = BaseCommand(type=BaseCommand.CONSUMER_STATS)
        stats.consumerStats.consumer_id, stats.consumerStats.request_id = CONSUMER_ID, 8
        assert (await consumer_.ask(stats)).consumerStatsResponse.request_id == 8, "nothing else was answered"


async def test_words_of_batches_count_as_work(valkey: ValkeyProcess) -> None:
    async with node_with_messages(valkey.url, 1) as node:
        peer = ListeningPeer()
        dialogue = node.data.plane.connect(peer, "", "")
        dialogue.receive(subscribe(), b"")
        await eventually(lambda: peer.heard)
        [log] = node.data.hosting.logs
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = CONSUMER_ID, api.CommandAck.Individual
        for _ in range(20):
            command.ack.message_id.add(ledgerId=log.ledger, entryId=0).ack_set.extend([-1] * 1_500)
        dialogue.receive(command, b"")
        assert dialogue.congested


async def test_of_many_requests_that_go_on_together_one_does_in_a_turn_of_the_loop() -> None:
    peer = ListeningPeer()
    talk = Conversation(cast(Any, None), peer, "", "")
    answered = trio.Event()
    turn = 0
    passed: list[int] = []

    async def go_on() -> None:
        await answered.wait()
        await talk.take_turn()
        passed.append(turn)

    async with trio.open_nursery() as nursery:
        for _ in range(CROWD):
            nursery.start_soon(go_on)
        await trio.testing.wait_all_tasks_blocked()
        answered.set()
        while len(passed) < CROWD:
            turn += 1
            await trio.lowlevel.checkpoint()
    # Within a turn, tasks run in any order: before and after the one that counts.
    assert max(Counter(passed).values()) <= 2


async def test_what_is_stored_is_handed_to_a_few_subscriptions_in_a_turn_and_reaches_all(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    turn = 0
    wake = LogSubscription.wake

    def noted(subscription: LogSubscription) -> None:
        woken.append(turn)
        wake(subscription)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await trio.lowlevel.checkpoint()

    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        reading, sending = await connected(node), await connected(node)
        for number in range(CROWD):
            command = subscribe(f"s{number}", api.CommandSubscribe.Exclusive)
            command.subscribe.consumer_id = command.subscribe.request_id = number
            await reading.send(encode(command))
            assert (await reading.receive()).type == BaseCommand.SUCCESS
            flow = BaseCommand(type=BaseCommand.FLOW)
            flow.flow.consumer_id, flow.flow.messagePermits = number, 10
            await reading.send(encode(flow))
        await reading.send(encode(replies.ping()))
        assert (await reading.receive()).type == BaseCommand.PONG
        await producer(sending)
        monkeypatch.setattr(LogSubscription, "wake", noted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            for number in range(2):
                await sending.send(message(number))
            got = Counter([(await reading.receive()).message.consumer_id for _ in range(2 * CROWD)])
            nursery.cancel_scope.cancel()
        assert got == dict.fromkeys(range(CROWD), 2)
        # What is woken at once, and a step of the task for the rest; in a turn, the counting may come in between.
        assert max(Counter(woken).values()) <= 4 * WOKEN_PER_TURN < CROWD
        reading.close()
        sending.close()
