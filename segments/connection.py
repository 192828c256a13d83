"""What one client says to the data plane: its producers and consumers, from their requests to their end.

Never awaits: what takes time runs in a task of its own and answers through the peer. What follows an answer comes after
it by the protocol itself; messages of a producer and acknowledgements are acted on in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from protocol import replies
from protocol.names import TopicName
from protocol.schemas import Schema
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.bounds import check_schema
from segments.consumer_dialogue import WORK_PER_TURN, ConsumerDialogue
from segments.conversation import REFUSALS, Conversation, Surroundings
from segments.errors import NoLog
from segments.hosting import place_of
from segments.ports import Peer
from segments.producer_dialogue import ProducerDialogue
from segments.schemas import name_of


@dataclass(frozen=True, slots=True)
class DataPlane(Surroundings):
    """The logs, as connections use them."""

    def connect(self, peer: Peer, address: str, client_version: str) -> DataDialogue:
        return DataDialogue(self, peer, address, client_version)


class DataDialogue:
    """The producers and consumers of one connection."""

    def __init__(self, plane: Surroundings, peer: Peer, address: str, client_version: str) -> None:
        self._talk = Conversation(plane, peer, address, client_version)
        self._producers = ProducerDialogue(self._talk)
        self._consumers = ConsumerDialogue(self._talk)

    @property
    def congested(self) -> bool:
        """Whether its next commands should wait: for others, because the last ones took long, or for the store."""
        return self._consumers.work >= WORK_PER_TURN or self._producers.congested

    async def wait_relaxed(self) -> None:
        if self._consumers.work >= WORK_PER_TURN:
            self._consumers.work = 0
            await trio.lowlevel.checkpoint()
        await self._producers.wait_relaxed()

    def receive(self, command: BaseCommand, body: bytes) -> None:
        number = command.type
        try:
            if (producing := _OF_PRODUCERS.get(number)) is not None:
                producing(self._producers, command, body)
            elif (consuming := _OF_CONSUMERS.get(number)) is not None:
                consuming(self._consumers, command, body)
            else:
                _OTHERS[number](self, command, body)
        except REFUSALS as error:
            self._talk.refuse(command, error)

    def end(self) -> None:
        """The connection is gone."""
        self._talk.end()
        self._producers.end()
        self._consumers.end()

    def lookup(self, command: BaseCommand, body: bytes) -> None:
        request = command.lookupTopic
        place_of(request.topic)

        async def answer() -> None:
            url = await self._talk.around.hosting.url_of(request.topic)
            if url.startswith("pulsar+ssl:"):
                self._talk.reply(replies.lookup_connect(request.request_id, None, url))
            else:
                self._talk.reply(replies.lookup_connect(request.request_id, url))

        self._talk.start(command, answer)

    def get_schema(self, command: BaseCommand, body: bytes) -> None:
        request = command.getSchema
        topic = TopicName.parse(request.topic)

        async def get() -> None:
            version = request.schema_version if request.HasField("schema_version") else None
            found = await self._talk.around.schemas.get(topic, version)
            if found is None:
                raise NoLog(f"{topic} has no such schema: ask for one that it has.")
            schema, number = found
            self._talk.reply(replies.got_schema(request.request_id, schema.to_wire(name_of(topic)), number))

        self._talk.start(command, get)

    def get_or_create_schema(self, command: BaseCommand, body: bytes) -> None:
        request = command.getOrCreateSchema
        check_schema(request.schema)
        topic = TopicName.parse(request.topic)

        async def get_or_create() -> None:
            version = await self._talk.around.schemas.get_or_create(topic, Schema.from_wire(request.schema))
            self._talk.reply(replies.schema_registered(request.request_id, version))

        self._talk.start(command, get_or_create)


_OF_PRODUCERS: Final[Mapping[int, Callable[[ProducerDialogue, BaseCommand, bytes], None]]] = {
    BaseCommand.PRODUCER: ProducerDialogue.producer,
    BaseCommand.SEND: ProducerDialogue.send,
    BaseCommand.CLOSE_PRODUCER: ProducerDialogue.close_producer,
}
_OF_CONSUMERS: Final[Mapping[int, Callable[[ConsumerDialogue, BaseCommand, bytes], None]]] = {
    BaseCommand.SUBSCRIBE: ConsumerDialogue.subscribe,
    BaseCommand.FLOW: ConsumerDialogue.flow,
    BaseCommand.ACK: ConsumerDialogue.ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: ConsumerDialogue.redeliver,
    BaseCommand.CLOSE_CONSUMER: ConsumerDialogue.close_consumer,
    BaseCommand.UNSUBSCRIBE: ConsumerDialogue.unsubscribe,
    BaseCommand.SEEK: ConsumerDialogue.seek,
    BaseCommand.GET_LAST_MESSAGE_ID: ConsumerDialogue.last_message_id,
    BaseCommand.CONSUMER_STATS: ConsumerDialogue.consumer_stats,
}
_OTHERS: Final[Mapping[int, Callable[[DataDialogue, BaseCommand, bytes], None]]] = {
    BaseCommand.LOOKUP: DataDialogue.lookup,
    BaseCommand.GET_SCHEMA: DataDialogue.get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: DataDialogue.get_or_create_schema,
}
COMMANDS: Final = frozenset({*_OF_PRODUCERS, *_OF_CONSUMERS, *_OTHERS})
