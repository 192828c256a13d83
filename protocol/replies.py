"""The commands a server answers with, and the table that says how each request is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

if TYPE_CHECKING:
    from typing import TypeAlias

    # Exists in the generated stub only.
    CommandType: TypeAlias = BaseCommand.Type.ValueType

PROTOCOL_VERSION = 21
# What errors carry that concern the connection and not one request: -1 in the unsigned field.
CONNECTION_REQUEST_ID = 2**64 - 1

_FIELD_NAMES = {number: field.name for number, field in BaseCommand.DESCRIPTOR.fields_by_number.items()}


@dataclass(frozen=True, slots=True)
class Features:
    """What CONNECTED says this server can do. The names are those of the flags on the wire."""

    supports_topic_watchers: bool = False
    supports_get_partitioned_metadata_without_auto_creation: bool = False
    supports_repl_dedup_by_lid_and_eid: bool = False
    supports_topic_watcher_reconcile: bool = False
    supports_scalable_topics: bool = False
    supports_tc_metadata_discovery: bool = False


def connected(
    server_version: str, client_protocol_version: int, max_message_size: int, features: Features
) -> BaseCommand:
    reply = BaseCommand(type=BaseCommand.CONNECTED)
    reply.connected.server_version = server_version
    reply.connected.protocol_version = min(PROTOCOL_VERSION, client_protocol_version)
    reply.connected.max_message_size = max_message_size
    for flag in fields(features):
        # A false flag is written too: clients tell "no" from "never heard of it".
        setattr(reply.connected.feature_flags, flag.name, getattr(features, flag.name))
    return reply


def ping() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PING)
    # Without this the empty message is left out, and the peer closes the connection.
    command.ping.SetInParent()
    return command


def pong() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PONG)
    command.pong.SetInParent()
    return command


def success(request_id: int) -> BaseCommand:
    reply = BaseCommand(type=BaseCommand.SUCCESS)
    reply.success.request_id = request_id
    return reply


def error(request_id: int, server_error: int, message: str) -> BaseCommand:
    reply = BaseCommand(type=BaseCommand.ERROR)
    reply.error.request_id = request_id
    _explain(reply.error, "error", server_error, "message", message)
    return reply


def lookup_connect(request_id: int, url: str | None, url_tls: str | None = None) -> BaseCommand:
    """Tell the client which address serves the topic it asked for; at least one URL must be given."""
    reply = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = reply.lookupTopicResponse
    response.request_id = request_id
    response.response = api.CommandLookupTopicResponse.Connect
    response.authoritative = True
    response.proxy_through_service_url = False
    if url is not None:
        response.brokerServiceUrl = url
    if url_tls is not None:
        response.brokerServiceUrlTls = url_tls
    return reply


def partitioned_metadata(request_id: int, partitions: int = 0) -> BaseCommand:
    """Tell the client how many partitions a topic has; none means that it is not partitioned."""
    reply = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = reply.partitionMetadataResponse
    response.request_id = request_id
    response.partitions = partitions
    response.response = api.CommandPartitionedTopicMetadataResponse.Success
    return reply


def topics_of_namespace(
    request_id: int, topics: Sequence[str], topics_hash: str, *, filtered: bool, changed: bool
) -> BaseCommand:
    """The topics of a namespace, or none of them where the client has them already: then they are not `changed`."""
    reply = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    response = reply.getTopicsOfNamespaceResponse
    response.request_id = request_id
    response.topics.extend(topics)
    response.topics_hash = topics_hash
    response.filtered = filtered
    response.changed = changed
    return reply


def got_schema(request_id: int, schema: api.Schema, version: bytes) -> BaseCommand:
    """The schema that a client asked for. There is none: that is a refusal, TopicNotFound."""
    reply = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
    reply.getSchemaResponse.request_id = request_id
    reply.getSchemaResponse.schema.CopyFrom(schema)
    reply.getSchemaResponse.schema_version = version
    return reply


def schema_registered(request_id: int, version: bytes) -> BaseCommand:
    """The version under which a topic has the schema; empty for plain bytes, and written all the same."""
    reply = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    reply.getOrCreateSchemaResponse.request_id = request_id
    reply.getOrCreateSchemaResponse.schema_version = version
    return reply


def subscribed(request_id: int, assignment: api.ScalableConsumerAssignment) -> BaseCommand:
    """A consumer is registered with the controller of its topic."""
    reply = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    reply.scalableTopicSubscribeResponse.request_id = request_id
    reply.scalableTopicSubscribeResponse.assignment.CopyFrom(assignment)
    return reply


def subscribe_refused(request_id: int, server_error: int, message: str) -> BaseCommand:
    reply = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    reply.scalableTopicSubscribeResponse.request_id = request_id
    _explain(reply.scalableTopicSubscribeResponse, "error", server_error, "message", message)
    return reply


def assignment_update(consumer_id: int, assignment: api.ScalableConsumerAssignment) -> BaseCommand:
    """A registered consumer has other segments now; all of them, not the difference."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
    command.scalableTopicAssignmentUpdate.consumer_id = consumer_id
    command.scalableTopicAssignmentUpdate.assignment.CopyFrom(assignment)
    return command


@dataclass(frozen=True, slots=True)
class _Refusal:
    """How one type of request is refused.

    `echo` maps fields of the reply to the fields of the request they repeat, `constants` to fixed values.
    """

    reply: CommandType
    echo: Mapping[str, str] = field(default_factory=lambda: {"request_id": "request_id"})
    constants: Mapping[str, int] = field(default_factory=dict)
    error: str = "error"
    message: str = "message"
    # A request without this field expects no answer.
    only_with: str | None = None


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_ERROR = _Refusal(BaseCommand.ERROR)
_CONNECTION_ERROR = _Refusal(BaseCommand.ERROR, echo={}, constants={"request_id": CONNECTION_REQUEST_ID})
_TXN_ID = _same("request_id", "txnid_least_bits", "txnid_most_bits")

_REFUSALS: Mapping[CommandType, _Refusal] = MappingProxyType(
    {
        BaseCommand.CONNECT: _CONNECTION_ERROR,
        BaseCommand.AUTH_RESPONSE: _CONNECTION_ERROR,
        BaseCommand.LOOKUP: _Refusal(
            BaseCommand.LOOKUP_RESPONSE, constants={"response": api.CommandLookupTopicResponse.Failed}
        ),
        BaseCommand.PARTITIONED_METADATA: _Refusal(
            BaseCommand.PARTITIONED_METADATA_RESPONSE,
            constants={"response": api.CommandPartitionedTopicMetadataResponse.Failed},
        ),
        BaseCommand.PRODUCER: _ERROR,
        BaseCommand.SEND: _Refusal(BaseCommand.SEND_ERROR, echo=_same("producer_id", "sequence_id")),
        BaseCommand.CLOSE_PRODUCER: _ERROR,
        BaseCommand.SUBSCRIBE: _ERROR,
        BaseCommand.ACK: _Refusal(
            BaseCommand.ACK_RESPONSE, echo=_TXN_ID | _same("consumer_id"), only_with="request_id"
        ),
        BaseCommand.UNSUBSCRIBE: _ERROR,
        BaseCommand.SEEK: _ERROR,
        BaseCommand.GET_LAST_MESSAGE_ID: _ERROR,
        BaseCommand.CONSUMER_STATS: _Refusal(
            BaseCommand.CONSUMER_STATS_RESPONSE, error="error_code", message="error_message"
        ),
        BaseCommand.CLOSE_CONSUMER: _ERROR,
        BaseCommand.GET_SCHEMA: _Refusal(BaseCommand.GET_SCHEMA_RESPONSE, error="error_code", message="error_message"),
        BaseCommand.GET_OR_CREATE_SCHEMA: _Refusal(
            BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, error="error_code", message="error_message"
        ),
        BaseCommand.GET_TOPICS_OF_NAMESPACE: _ERROR,
        BaseCommand.WATCH_TOPIC_LIST: _ERROR,
        BaseCommand.WATCH_TOPIC_LIST_CLOSE: _ERROR,
        BaseCommand.SCALABLE_TOPIC_LOOKUP: _Refusal(BaseCommand.SCALABLE_TOPIC_UPDATE, echo=_same("session_id")),
        BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: _Refusal(BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE),
        BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE: _ERROR,
        BaseCommand.WATCH_SCALABLE_TOPICS: _Refusal(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE, echo=_same("watch_id")),
        BaseCommand.WATCH_TC_ASSIGNMENTS: _Refusal(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE, echo=_same("watch_id")),
        BaseCommand.TC_CLIENT_CONNECT_REQUEST: _Refusal(BaseCommand.TC_CLIENT_CONNECT_RESPONSE),
        # Clients find the waiting call by coordinator and request, so a transaction that never came to be
        # is named after the coordinator that refused it.
        BaseCommand.NEW_TXN: _Refusal(
            BaseCommand.NEW_TXN_RESPONSE, echo={"request_id": "request_id", "txnid_most_bits": "tc_id"}
        ),
        BaseCommand.ADD_PARTITION_TO_TXN: _Refusal(BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE, echo=_TXN_ID),
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN: _Refusal(BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, echo=_TXN_ID),
        BaseCommand.END_TXN: _Refusal(BaseCommand.END_TXN_RESPONSE, echo=_TXN_ID),
        BaseCommand.END_TXN_ON_PARTITION: _Refusal(BaseCommand.END_TXN_ON_PARTITION_RESPONSE, echo=_TXN_ID),
        BaseCommand.END_TXN_ON_SUBSCRIPTION: _Refusal(BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE, echo=_TXN_ID),
    }
)

REFUSABLE = frozenset(_REFUSALS)
NEVER_ANSWERED: frozenset[CommandType] = frozenset(
    {
        BaseCommand.PING,  # PONG is an answer, but PING cannot fail
        BaseCommand.PONG,
        BaseCommand.FLOW,
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        BaseCommand.SCALABLE_TOPIC_CLOSE,
        BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE,
        BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE,
    }
)
# A client that sends one of these is not a client.
SERVER_TO_CLIENT: frozenset[CommandType] = frozenset(
    {
        BaseCommand.CONNECTED,
        BaseCommand.SEND_RECEIPT,
        BaseCommand.SEND_ERROR,
        BaseCommand.MESSAGE,
        BaseCommand.SUCCESS,
        BaseCommand.ERROR,
        BaseCommand.PRODUCER_SUCCESS,
        BaseCommand.PARTITIONED_METADATA_RESPONSE,
        BaseCommand.LOOKUP_RESPONSE,
        BaseCommand.CONSUMER_STATS_RESPONSE,
        BaseCommand.REACHED_END_OF_TOPIC,
        BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
        BaseCommand.ACTIVE_CONSUMER_CHANGE,
        BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        BaseCommand.GET_SCHEMA_RESPONSE,
        BaseCommand.AUTH_CHALLENGE,
        BaseCommand.ACK_RESPONSE,
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
        BaseCommand.NEW_TXN_RESPONSE,
        BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE,
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        BaseCommand.END_TXN_RESPONSE,
        BaseCommand.END_TXN_ON_PARTITION_RESPONSE,
        BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE,
        BaseCommand.TC_CLIENT_CONNECT_RESPONSE,
        BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
        BaseCommand.WATCH_TOPIC_UPDATE,
        BaseCommand.TOPIC_MIGRATED,
        BaseCommand.SCALABLE_TOPIC_UPDATE,
        BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
        BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE,
        BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE,
        BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE,
    }
)


def refusal(command: BaseCommand, server_error: int, message: str) -> BaseCommand | None:
    """The error for a request in the form its client waits for; None where nobody waits for one."""
    row = _REFUSALS.get(command.type)
    if row is None:
        return None
    request: Message = getattr(command, _FIELD_NAMES[command.type])
    if row.only_with is not None and not request.HasField(row.only_with):
        return None
    reply = BaseCommand(type=row.reply)
    answer: Message = getattr(reply, _FIELD_NAMES[row.reply])
    for target, source in row.echo.items():
        if request.HasField(source):
            setattr(answer, target, getattr(request, source))
    for target, value in row.constants.items():
        setattr(answer, target, value)
    _explain(answer, row.error, server_error, row.message, message)
    return reply


def _explain(answer: Message, error_field: str, server_error: int, message_field: str, message: str) -> None:
    setattr(answer, error_field, server_error)
    setattr(answer, message_field, message)
