"""What a client may name, list and describe when it opens a producer or a consumer, checked before anything is done
with it: what is refused here has been neither hashed nor stored nor remembered.

The bounds are far above what clients do. Lists of message ids have none: whoever sends a long one is served in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.names import MAX_LOCAL_NAME_BYTES
from protocol.schemas import InvalidSchema
from protocol.wire import pulsar_api_pb2 as api
from segments.errors import NotAllowed

LONGEST_NAME: Final = MAX_LOCAL_NAME_BYTES  # of a subscription, a consumer or a producer, in bytes of UTF-8
# Of one producer or consumer, and of one subscription. Pulsar's brokers take 1 KB from a consumer.
MOST_PROPERTIES: Final = 1_000
PROPERTIES_BYTES: Final = 64 * 1024
# Of a schema. What they weigh counts with its definition.
MOST_SCHEMA_PROPERTIES: Final = 1_000
# Of one consumer: a share of the ring that has more holes than this is nobody's intention.
MOST_RANGES: Final = 4_096


def check_subscribe(request: api.CommandSubscribe) -> None:
    if not request.subscription.strip():
        raise NotAllowed("The subscription has no name: give it one.")
    _check_name("subscription", request.subscription)
    _check_name("consumer", request.consumer_name)
    _check_properties("consumer", request.metadata)
    _check_properties("subscription", request.subscription_properties)
    if len(request.keySharedMeta.hashRanges) > MOST_RANGES:
        raise NotAllowed(f"A consumer asks for {MOST_RANGES} ranges of hashes at most: put adjacent ones together.")
    check_schema(request.schema)


def check_producer(request: api.CommandProducer) -> None:
    _check_name("producer", request.producer_name)
    _check_name("initial subscription", request.initial_subscription_name)
    _check_properties("producer", request.metadata)
    check_schema(request.schema)


def check_schema(sent: api.Schema) -> None:
    """Of how many parts it is; how much it weighs is judged where it is stored."""
    if len(sent.properties) > MOST_SCHEMA_PROPERTIES:
        raise InvalidSchema(f"A schema has {MOST_SCHEMA_PROPERTIES} properties at most: leave some out.")


def _check_name(what: str, name: str) -> None:
    # Characters first: encoding millions of them is work.
    if len(name) > LONGEST_NAME or len(name.encode()) > LONGEST_NAME:
        raise NotAllowed(f"The name of the {what} is longer than {LONGEST_NAME} bytes: shorten it.")


def _check_properties(what: str, pairs: Sequence[api.KeyValue]) -> None:
    if len(pairs) > MOST_PROPERTIES or sum([pair.ByteSize() for pair in pairs]) > PROPERTIES_BYTES:
        raise NotAllowed(
            f"The properties of a {what} are {MOST_PROPERTIES} and {PROPERTIES_BYTES} bytes in all at most:"
            " leave some out."
        )
