"""What a consumer asks while its segment moves: asked again where that has gone to, as long as a request may take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
import trio

from protocol import replies
from protocol.client import EXCLUSIVE, RequestTimedOut, ServerRefused, TopicConsumer, open_consumer, open_pool
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.consumer_scripts import accept_consumer, close_consumer, take_consumer
from tests.protocol.client.producer_scripts import LEDGER, SEGMENT, end_politely, lookup_here
from tests.protocol.client.scripted_server import Peer, scripted_server
from tests.protocol.client.test_segment_consumer import LIMIT, consuming

Ask: TypeAlias = Callable[[TopicConsumer], Awaitable[object]]
Answer: TypeAlias = Callable[[BaseCommand], BaseCommand]


def _last_message(command: BaseCommand) -> BaseCommand:
    answer = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    answer.getLastMessageIdResponse.request_id = command.getLastMessageId.request_id
    answer.getLastMessageIdResponse.last_message_id.ledgerId = LEDGER
    answer.getLastMessageIdResponse.last_message_id.entryId = 12
    return answer


def _unsubscribed(command: BaseCommand) -> BaseCommand:
    return replies.success(command.unsubscribe.request_id)


both_questions = pytest.mark.parametrize(
    ("ask", "asked", "answer"),
    [
        (TopicConsumer.last_message_ids, BaseCommand.GET_LAST_MESSAGE_ID, _last_message),
        (TopicConsumer.unsubscribe, BaseCommand.UNSUBSCRIBE, _unsubscribed),
    ],
    ids=["last message", "unsubscribe"],
)


def _refused(command: BaseCommand, code: api.ServerError.ValueType) -> BaseCommand:
    refusal = replies.refusal(command, code, "not now")
    assert refusal is not None
    return refusal


@both_questions
async def test_what_is_refused_during_a_hand_over_is_asked_again_where_the_segment_has_gone_to(
    ask: Ask, asked: BaseCommand.Type.ValueType, answer: Answer
) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.send(_refused(await peer.expect(asked), api.ServiceNotReady))
        await peer.send(_refused(await peer.expect(asked), api.MetadataError))
        # Closed while it is asked: whoever does not know the consumer any more says so.
        command = await peer.expect(asked)
        await peer.send(close_consumer(request))
        await peer.send(_refused(command, api.ConsumerNotFound))
        await accept_consumer(peer)
        # The connection goes without an answer.
        await peer.expect(asked)

    async def found(peer: Peer) -> None:
        await peer.greet()
        await accept_consumer(peer)
        await peer.send(answer(await peer.expect(asked)))
        await end_politely(peer)

    async with consuming(script, found) as consumer:
        await ask(consumer)


@both_questions
async def test_who_is_not_known_any_more_without_having_been_closed_subscribes_again_and_asks_again(
    ask: Ask, asked: BaseCommand.Type.ValueType, answer: Answer
) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        first = await accept_consumer(peer)
        await peer.send(_refused(await peer.expect(asked), api.ConsumerNotFound))
        closed = (await peer.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer
        assert closed.consumer_id == first.consumer_id
        await accept_consumer(peer)
        await peer.send(answer(await peer.expect(asked)))
        await end_politely(peer)

    async with consuming(script) as consumer:
        await ask(consumer)


@both_questions
async def test_what_is_refused_for_good_is_raised_at_once(
    ask: Ask, asked: BaseCommand.Type.ValueType, answer: Answer
) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_consumer(peer)
        await peer.send(_refused(await peer.expect(asked), api.NotAllowedError))
        await end_politely(peer)

    async with consuming(script) as consumer:
        with pytest.raises(ServerRefused, match="not now"):
            await ask(consumer)


@both_questions
async def test_what_stays_refused_is_raised_when_the_time_is_over_with_the_last_refusal(
    ask: Ask, asked: BaseCommand.Type.ValueType, answer: Answer
) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_consumer(peer)
        while (command := await peer.receive()) is not None:
            if command.type == asked:
                await peer.send(_refused(command, api.ServiceNotReady))
            elif command.type == BaseCommand.CLOSE_CONSUMER:
                await peer.send(replies.success(command.close_consumer.request_id))

    with trio.fail_after(LIMIT):
        async with (
            scripted_server(script) as server,
            open_pool(server.url, timeout=1.0) as pool,
            open_consumer(pool, SEGMENT, "s", kind=EXCLUSIVE) as consumer,
        ):
            with pytest.raises(RequestTimedOut, match="not now"):
                await ask(consumer)


async def test_to_unsubscribe_what_was_deleted_meanwhile_is_done() -> None:
    """The answer was lost, or somebody else was faster."""

    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.send(_refused(await peer.expect(BaseCommand.UNSUBSCRIBE), api.ServiceNotReady))
        await peer.send(close_consumer(request))
        again = await take_consumer(peer, SEGMENT)
        await peer.send(replies.error(again.request_id, api.TopicNotFound, "It was deleted."))
        await lookup_here(peer, SEGMENT)
        await end_politely(peer)

    async with consuming(script) as consumer:
        await consumer.unsubscribe()
