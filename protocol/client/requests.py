"""The commands a client sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from protocol.replies import PROTOCOL_VERSION
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

if TYPE_CHECKING:
    from typing import TypeAlias

    # Exist in the generated stub only.
    AccessMode: TypeAlias = api.ProducerAccessMode.ValueType
    AckType: TypeAlias = api.CommandAck.AckType.ValueType
    ConsumerType: TypeAlias = api.ScalableConsumerType.ValueType


def connect(client_version: str, proxy_to_broker_url: str | None = None) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = client_version
    command.connect.auth_method_name = "none"
    command.connect.protocol_version = PROTOCOL_VERSION
    command.connect.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    command.connect.feature_flags.supports_scalable_topics = True
    if proxy_to_broker_url is not None:
        command.connect.proxy_to_broker_url = proxy_to_broker_url
    return command


def lookup(request_id: int, topic: str, authoritative: bool) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.request_id = request_id
    command.lookupTopic.topic = topic
    command.lookupTopic.authoritative = authoritative
    return command


def partitioned_metadata(request_id: int, topic: str, create_if_missing: bool) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.request_id = request_id
    command.partitionMetadata.topic = topic
    command.partitionMetadata.metadata_auto_creation_enabled = create_if_missing
    return command


def open_topic_watch(session_id: int, topic: str, create_if_missing: bool) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP)
    command.scalableTopicLookup.session_id = session_id
    command.scalableTopicLookup.topic = topic
    command.scalableTopicLookup.create_if_missing = create_if_missing
    return command


def close_topic_watch(session_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_CLOSE)
    command.scalableTopicClose.session_id = session_id
    return command


def open_namespace_watch(
    watch_id: int, namespace: str, properties: Mapping[str, str], current_hash: str | None
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS)
    command.watchScalableTopics.watch_id = watch_id
    command.watchScalableTopics.namespace = namespace
    for key, value in properties.items():
        command.watchScalableTopics.property_filters.add(key=key, value=value)
    if current_hash is not None:
        command.watchScalableTopics.current_hash = current_hash
    return command


def close_namespace_watch(watch_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE)
    command.watchScalableTopicsClose.watch_id = watch_id
    return command


def producer(
    request_id: int,
    topic: str,
    producer_id: int,
    *,
    name: str | None,
    is_own_name: bool,
    epoch: int,
    access_mode: AccessMode,
    topic_epoch: int | None,
    properties: Mapping[str, str],
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    request = command.producer
    request.topic = topic
    request.producer_id = producer_id
    request.request_id = request_id
    if name is not None:
        request.producer_name = name
    request.user_provided_producer_name = is_own_name
    request.epoch = epoch
    request.producer_access_mode = access_mode
    if topic_epoch is not None:
        request.topic_epoch = topic_epoch
    for key, value in properties.items():
        request.metadata.add(key=key, value=value)
    return command


def close_producer(request_id: int, producer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.request_id = request_id
    command.close_producer.producer_id = producer_id
    return command


def close_consumer(request_id: int, consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.request_id = request_id
    command.close_consumer.consumer_id = consumer_id
    return command


def unsubscribe(request_id: int, consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.request_id = request_id
    command.unsubscribe.consumer_id = consumer_id
    return command


def flow(consumer_id: int, permits: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.FLOW)
    command.flow.consumer_id = consumer_id
    command.flow.messagePermits = permits
    return command


def ack(
    consumer_id: int, ack_type: AckType, message_ids: Iterable[api.MessageIdData], request_id: int | None = None
) -> BaseCommand:
    """With a request id the server confirms it."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = ack_type
    command.ack.message_id.extend(message_ids)
    if request_id is not None:
        command.ack.request_id = request_id
    return command


def redeliver(consumer_id: int, message_ids: Iterable[api.MessageIdData], consumer_epoch: int | None) -> BaseCommand:
    """Without message ids everything that the consumer has not acknowledged."""
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = consumer_id
    command.redeliverUnacknowledgedMessages.message_ids.extend(message_ids)
    if consumer_epoch is not None:
        command.redeliverUnacknowledgedMessages.consumer_epoch = consumer_epoch
    return command


def seek(request_id: int, consumer_id: int, to: api.MessageIdData | int) -> BaseCommand:
    """To a message, or to the first one of a time in milliseconds or later."""
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.request_id = request_id
    command.seek.consumer_id = consumer_id
    if isinstance(to, int):
        command.seek.message_publish_time = to
    else:
        command.seek.message_id.CopyFrom(to)
    return command


def last_message_id(request_id: int, consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.request_id = request_id
    command.getLastMessageId.consumer_id = consumer_id
    return command


def register_consumer(
    request_id: int, topic: str, subscription: str, name: str, consumer_id: int, kind: ConsumerType
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    request = command.scalableTopicSubscribe
    request.request_id = request_id
    request.topic = topic
    request.subscription = subscription
    request.consumer_name = name
    request.consumer_id = consumer_id
    request.consumer_type = kind
    return command


def unregister_consumer(request_id: int, consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE)
    command.scalableTopicUnsubscribe.request_id = request_id
    command.scalableTopicUnsubscribe.consumer_id = consumer_id
    return command
