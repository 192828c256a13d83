"""Builders of what a server says to producers and consumers."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

# The request id of what nobody asked for.
_UNASKED = 2**64 - 1


def producer_success(
    request_id: int,
    name: str,
    last_sequence: int,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    ready: bool = True,
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    told = command.producer_success
    told.request_id = request_id
    told.producer_name = name
    told.last_sequence_id = last_sequence
    # Clients of older versions fail on a version that is not set.
    told.schema_version = schema_version
    if topic_epoch is not None:
        told.topic_epoch = topic_epoch
    told.producer_ready = ready
    return command


def send_error(producer_id: int, sequence: int, server_error: int, message: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    told = command.send_error
    told.producer_id = producer_id
    told.sequence_id = sequence
    told.error = server_error  # type: ignore[assignment]  # the stub wants its own kind of int
    told.message = message
    return command


def close_producer(producer_id: int, url: str | None = None) -> BaseCommand:
    """Come back, to this URL if there is one."""
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = _UNASKED
    if url is not None:
        command.close_producer.assignedBrokerServiceUrl = url
    return command


def close_consumer(consumer_id: int, url: str | None = None) -> BaseCommand:
    """Come back, to this URL if there is one."""
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = _UNASKED
    if url is not None:
        command.close_consumer.assignedBrokerServiceUrl = url
    return command


def reached_end_of_topic(consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC)
    command.reachedEndOfTopic.consumer_id = consumer_id
    return command


def active_consumer_change(consumer_id: int, is_active: bool) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = is_active
    return command


def ack_response(consumer_id: int, request_id: int, server_error: int | None = None, message: str = "") -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACK_RESPONSE)
    told = command.ackResponse
    told.consumer_id = consumer_id
    told.request_id = request_id
    if server_error is not None:
        told.error = server_error  # type: ignore[assignment]  # as above
        told.message = message
    return command


def last_message_id(
    request_id: int, ledger: int, index: int, batch_index: int, partition: int, mark: int | None = None
) -> BaseCommand:
    """Where a log ends: -1 as the index of one that is empty, and as the batch index of what is no batch."""
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    told = command.getLastMessageIdResponse
    told.request_id = request_id
    _position(told.last_message_id, ledger, index, partition)
    told.last_message_id.batch_index = batch_index
    if mark is not None:
        _position(told.consumer_mark_delete_position, ledger, mark, partition)
    return command


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    name: str
    address: str
    connected_since: str
    type: str
    permits: int
    unacked: int
    backlog: int


def consumer_stats(request_id: int, figures: ConsumerFigures) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    told = command.consumerStatsResponse
    told.request_id = request_id
    told.consumerName = figures.name
    told.address = figures.address
    told.connectedSince = figures.connected_since
    told.type = figures.type
    told.availablePermits = max(0, figures.permits)
    told.unackedMessages = figures.unacked
    told.msgBacklog = figures.backlog
    return command


def _position(told: api.MessageIdData, ledger: int, index: int, partition: int) -> None:
    told.ledgerId = ledger
    told.entryId = index % 2**64
    told.partition = partition
    told.batch_index = -1
