"""What a scripted server does for producers: lookups, layouts, PRODUCER and SEND, each as the test says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from protocol import replies
from protocol.framing import Frame, parse_payload
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.scripted_server import TOPIC, Peer

LEDGER = 7
SEGMENT = "segment://public/default/t/0000-ffff-0"


@dataclass(frozen=True)
class Sent:
    """A SEND as it arrived."""

    producer_id: int
    sequence_id: int
    metadata: api.MessageMetadata
    value: bytes


async def lookup_here(peer: Peer, topic: str | None = None) -> str:
    request = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
    assert topic is None or request.topic == topic
    await peer.send(replies.lookup_connect(request.request_id, peer.server.url))
    return request.topic


async def take_producer(peer: Peer, topic: str | None = None) -> api.CommandProducer:
    """LOOKUP and PRODUCER of one topic, which is left to be answered."""
    name = await lookup_here(peer, topic)
    request = (await peer.expect(BaseCommand.PRODUCER)).producer
    assert request.topic == name
    return request


async def accept_producer(peer: Peer, topic: str | None = None, *, last_sequence_id: int = -1) -> api.CommandProducer:
    request = await take_producer(peer, topic)
    await peer.send(producer_success(request, last_sequence_id=last_sequence_id))
    return request


async def next_sent(peer: Peer) -> Sent:
    frame = await peer.receive_frame()
    assert frame is not None, "the client left instead of sending"
    return sent(frame)


def sent(frame: Frame) -> Sent:
    assert frame.command.type == BaseCommand.SEND, BaseCommand.Type.Name(frame.command.type)
    payload = parse_payload(frame.body)
    assert payload.checksum is not None
    payload.verify()
    metadata = api.MessageMetadata.FromString(payload.metadata)
    assert metadata.sequence_id == frame.command.send.sequence_id
    return Sent(frame.command.send.producer_id, frame.command.send.sequence_id, metadata, payload.payload)


def producer_success(request: api.CommandProducer, *, last_sequence_id: int = -1, is_ready: bool = True) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    answer = command.producer_success
    answer.request_id = request.request_id
    answer.producer_name = request.producer_name or "given"
    answer.last_sequence_id = last_sequence_id
    answer.schema_version = b""
    answer.producer_ready = is_ready
    return command


def receipt(message: Sent, index: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    command.send_receipt.producer_id = message.producer_id
    command.send_receipt.sequence_id = message.sequence_id
    command.send_receipt.message_id.ledgerId = LEDGER
    command.send_receipt.message_id.entryId = index
    return command


def send_error(message: Sent, error: api.ServerError.ValueType, text: str = "because") -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    command.send_error.producer_id = message.producer_id
    command.send_error.sequence_id = message.sequence_id
    command.send_error.error = error
    command.send_error.message = text
    return command


def close_producer(request: api.CommandProducer) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = request.producer_id
    command.close_producer.request_id = replies.CONNECTION_REQUEST_ID
    return command


async def watch_layout(peer: Peer, segments: Iterable[Sequence[int]], epoch: int = 0) -> int:
    """LOOKUP and watch of the topic, answered with these segments; the number of the session."""
    await lookup_here(peer, TOPIC)
    request = (await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)).scalableTopicLookup
    await peer.send(layout_of(segments, epoch, request.session_id))
    return request.session_id


def layout_of(segments: Iterable[Sequence[int]], epoch: int, session_id: int) -> BaseCommand:
    """Segments as (id, first hash, last hash), those that are sealed with a fourth value."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
    update = command.scalableTopicUpdate
    update.session_id = session_id
    update.resolved_topic_name = TOPIC
    update.dag.epoch = epoch
    for segment_id, start, end, *sealed in segments:
        update.dag.segments.add(
            segment_id=segment_id,
            hash_start=start,
            hash_end=end,
            state=api.SEALED if sealed else api.ACTIVE,
            created_at_epoch=epoch,
            created_at_ms=0,
        )
    return command


async def end_politely(peer: Peer) -> list[BaseCommand]:
    """Confirm every CLOSE until the client is gone; what else it said is returned."""
    others: list[BaseCommand] = []
    with suppress(trio.BrokenResourceError):
        await _confirm_closes(peer, others)
    return others


async def _confirm_closes(peer: Peer, others: list[BaseCommand]) -> None:
    while (command := await peer.receive()) is not None:
        match command.type:
            case BaseCommand.CLOSE_PRODUCER:
                await peer.send(replies.success(command.close_producer.request_id))
            case BaseCommand.CLOSE_CONSUMER:
                await peer.send(replies.success(command.close_consumer.request_id))
            case BaseCommand.SCALABLE_TOPIC_CLOSE:
                pass
            case _:
                others.append(command)
