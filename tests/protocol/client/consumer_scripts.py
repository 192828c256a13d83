"""What a scripted server does for consumers: SUBSCRIBE, FLOW, MESSAGE and ACK, each as the test says."""

from __future__ import annotations

from collections.abc import Sequence

from protocol import replies
from protocol.client.outgoing import Envelope, Message, send_frame
from protocol.framing import Frame, FrameDecoder, encode_payload, parse_payload
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.producer_scripts import LEDGER, lookup_here
from tests.protocol.client.scripted_server import Peer


async def take_consumer(peer: Peer, topic: str | None = None) -> api.CommandSubscribe:
    """LOOKUP and SUBSCRIBE of one topic, which is left to be answered."""
    name = await lookup_here(peer, topic)
    request = (await peer.expect(BaseCommand.SUBSCRIBE)).subscribe
    assert request.topic == name
    return request


async def accept_consumer(peer: Peer, topic: str | None = None, *, permits: int | None = None) -> api.CommandSubscribe:
    """The same, answered, and the first permits taken."""
    request = await take_consumer(peer, topic)
    await peer.send(replies.success(request.request_id))
    flow = (await peer.expect(BaseCommand.FLOW)).flow
    assert flow.consumer_id == request.consumer_id
    assert permits is None or flow.messagePermits == permits
    return request


def message_frame(
    request: api.CommandSubscribe,
    index: int,
    *messages: Message,
    is_batch: bool = False,
    redeliveries: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
) -> bytes:
    """A MESSAGE with what a producer would have sent."""
    envelope = Envelope(1, "maker", index + max(0, len(messages) - 1), 1_000 + index)
    (sent,) = FrameDecoder().receive(send_frame(envelope, messages or [Message(b"%d" % index)], is_batch=is_batch))
    assert isinstance(sent, Frame)
    payload = parse_payload(sent.body)
    command = message_command(request, index)
    command.message.redelivery_count = redeliveries
    command.message.ack_set.extend(ack_set)
    if consumer_epoch is not None:
        command.message.consumer_epoch = consumer_epoch
    return encode_payload(command, payload.metadata, payload.payload)


def message_command(request: api.CommandSubscribe, index: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.MESSAGE)
    command.message.consumer_id = request.consumer_id
    command.message.message_id.ledgerId = LEDGER
    command.message.message_id.entryId = index
    return command


def close_consumer(request: api.CommandSubscribe) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = request.consumer_id
    command.close_consumer.request_id = replies.CONNECTION_REQUEST_ID
    return command


def ack_response(ack: api.CommandAck, error: api.ServerError.ValueType | None = None) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACK_RESPONSE)
    command.ackResponse.consumer_id = ack.consumer_id
    command.ackResponse.request_id = ack.request_id
    if error is not None:
        command.ackResponse.error = error
        command.ackResponse.message = "because"
    return command


async def confirm_ack(peer: Peer) -> api.CommandAck:
    ack = (await peer.expect(BaseCommand.ACK)).ack
    await peer.send(ack_response(ack))
    return ack


def acked(ack: api.CommandAck) -> list[int]:
    return [data.entryId for data in ack.message_id]
