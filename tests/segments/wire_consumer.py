"""A consumer that says on the wire what a test wants it to say, and nothing by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from gateway.node import Node
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.gateway.served import Client
from tests.segments.test_sending import SEGMENT, TOPIC, connected, message, producer, receipts
from tests.support.nodes import running_node, transitions_of

CONSUMER_ID: Final = 5


@dataclass(frozen=True, slots=True)
class WireConsumer:
    client: Client
    subscription: str = "s"
    kind: api.CommandSubscribe.SubType.ValueType = api.CommandSubscribe.Exclusive
    topic: str = SEGMENT
    name: str = ""

    async def subscribe(self, *, permits: int = 0, epoch: int | None = None) -> BaseCommand:
        """The answer."""
        await self.ask_for(epoch=epoch)
        answer = await self.client.receive()
        if permits:
            await self.flow(permits)
        return answer

    async def ask_for(self, *, epoch: int | None = None) -> None:
        """Subscribe without waiting for the answer."""
        command = subscribe(self.subscription, self.kind, topic=self.topic, epoch=epoch)
        if self.name:
            command.subscribe.consumer_name = self.name
        await self.client.send(encode(command))

    async def flow(self, permits: int) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = CONSUMER_ID
        command.flow.messagePermits = permits
        await self.client.send(encode(command))

    async def messages(self, count: int) -> list[api.CommandMessage]:
        found = []
        for _ in range(count):
            reply = await self.client.receive()
            assert reply.type == BaseCommand.MESSAGE, reply
            found.append(reply.message)
        return found

    async def ack(
        self, told: api.CommandMessage, *, cumulative: bool = False, request_id: int | None = None
    ) -> api.CommandAckResponse | None:
        """The answer, if one is asked for."""
        await self.client.send(encode(acknowledgement(told, cumulative=cumulative, request_id=request_id)))
        if request_id is None:
            return None
        answer = await self.client.receive()
        assert answer.type == BaseCommand.ACK_RESPONSE, answer
        return answer.ackResponse

    async def ask(self, command: BaseCommand) -> BaseCommand:
        await self.client.send(encode(command))
        return await self.client.receive()


def acknowledgement(
    told: api.CommandMessage, *, cumulative: bool = False, request_id: int | None = None
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = CONSUMER_ID
    command.ack.ack_type = api.CommandAck.Cumulative if cumulative else api.CommandAck.Individual
    command.ack.message_id.add(ledgerId=told.message_id.ledgerId, entryId=told.message_id.entryId)
    if request_id is not None:
        command.ack.request_id = request_id
    return command


def subscribe(
    subscription: str = "s",
    kind: api.CommandSubscribe.SubType.ValueType = api.CommandSubscribe.Exclusive,
    *,
    topic: str = SEGMENT,
    consumer_id: int = CONSUMER_ID,
    epoch: int | None = None,
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic = topic
    request.subscription = subscription
    request.subType = kind
    request.consumer_id = consumer_id
    request.request_id = 1
    request.initialPosition = api.CommandSubscribe.Earliest
    if epoch is not None:
        request.consumer_epoch = epoch
    return command


@asynccontextmanager
async def node_with_messages(store_url: str, count: int = 10) -> AsyncIterator[Node]:
    """A node with one segment that holds so many messages."""
    async with running_node(store_url) as node:
        await transitions_of(node).create(TOPIC, 1)
        await stored(node, count)
        yield node


async def stored(node: Node, count: int) -> None:
    """Send so many messages to the segment."""
    client = await connected(node)
    await producer(client)
    await client.send(b"".join(message(number) for number in range(count)))
    await receipts(client, count)
    client.close()
