"""The conversation with one client, without its socket: commands in, replies to the outbox, watches to the hub.
Which command is legal when stands in one table; a missing row ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from importlib.metadata import version
from sys import intern
from typing import Any, Generic

from protocol import replies
from protocol.errors import ProtocolError
from protocol.framing import DEFAULT_MAX_MESSAGE_SIZE, Frame, UnknownCommand, encode
from protocol.names import (
    MAX_LOCAL_NAME_BYTES,
    NON_PERSISTENT,
    PERSISTENT,
    SEGMENT,
    TOPIC,
    NamespaceName,
    TopicName,
)
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.counters import Counters
from sessions.errors import (
    BadConsumerName,
    LongFilter,
    NeverScalable,
    TooManyFilters,
    TooManyWatches,
    Violation,
    WatchOnPartition,
)
from sessions.hubs import C, ClassicConversation, DataConnection, Hubs, N, W
from sessions.outbox import Outbox

PING = encode(replies.ping())
PONG = encode(replies.pong())
# Of what clients say they are, as statistics show it.
_LONGEST_VERSION = 100
# Bytes of all filters of one watch, keys and values together.
MAX_FILTER_BYTES = 64 * 1024

# Only what works. Flag 5: metadata of a topic can be asked for without creating it, because we never do. Flag 7: a
# watch of classic topics that is opened again is answered as a new one is, so a client can check itself by it.
FEATURES = replies.Features(
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
    supports_topic_watcher_reconcile=True,
    supports_scalable_topics=True,
)


@dataclass(frozen=True, slots=True)
class Terms:
    """What this node tells and allows every client."""

    advertised_url: str
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    max_watches: int = 10_000
    max_filters: int = 64
    max_filter_size: int = 1024
    max_watch_bytes: int = 256 * 1024 * 1024  # of one connection
    server_version: str = field(default_factory=lambda: f"Vela {version('vela')}")


class State(Enum):
    # There is one object for each, and hashing names in Python shows where thousands come back at once.
    __hash__ = object.__hash__

    START = auto()
    CONNECTED = auto()
    CLOSED = auto()


class Event(Enum):
    __hash__ = object.__hash__

    CONNECT = auto()
    KEEP_ALIVE = auto()
    REQUEST = auto()
    FROM_SERVER = auto()


NEXT_STATE: Mapping[tuple[State, Event], State] = {
    (State.START, Event.KEEP_ALIVE): State.START,
    (State.START, Event.CONNECT): State.CONNECTED,
    (State.CONNECTED, Event.KEEP_ALIVE): State.CONNECTED,
    (State.CONNECTED, Event.REQUEST): State.CONNECTED,
}

_VIOLATIONS: Mapping[Event, tuple[str, str]] = {
    Event.CONNECT: ("second_connect", "came on a connection that is connected already"),
    Event.REQUEST: ("before_connect", "came before CONNECT"),
    Event.FROM_SERVER: ("direction", "is for servers to send, not for clients"),
}

_EVENTS: Mapping[int, Event] = {
    BaseCommand.CONNECT: Event.CONNECT,
    BaseCommand.PING: Event.KEEP_ALIVE,
    BaseCommand.PONG: Event.KEEP_ALIVE,
    **dict.fromkeys(replies.SERVER_TO_CLIENT, Event.FROM_SERVER),
}


class Dialogue(Generic[W, N, C]):
    """One client's conversation. Never awaits: whatever takes time answers later, through the outbox."""

    __slots__ = (
        "_address",
        "_classic",
        "_client_version",
        "_consumers",
        "_counters",
        "_data",
        "_hubs",
        "_namespaces",
        "_outbox",
        "_terms",
        "_topics",
        "opens",
        "peer_version",
        "state",
    )

    def __init__(
        self, outbox: Outbox, hubs: Hubs[W, N, C], terms: Terms, counters: Counters, address: str = ""
    ) -> None:
        self._address = address
        self._client_version = ""
        self._outbox = outbox
        self._hubs = hubs
        self._terms = terms
        self._counters = counters
        # Most connections hold no watch for most of their life, and a dict is as large as all the rest here.
        self._topics: dict[int, W] | None = None
        self._namespaces: dict[int, N] | None = None
        self._consumers: dict[int, C] | None = None
        self._classic: ClassicConversation | None = None
        self._data: DataConnection | None = None
        self.state = State.START
        self.peer_version = 0
        self.opens = 0  # watches asked for so far, whatever became of them

    def receive(self, frame: Frame | UnknownCommand) -> None:
        """Act on one frame; raise Violation if the connection must end."""
        if isinstance(frame, UnknownCommand):
            self._counters.unknown_commands += 1
            return
        if self.state is State.CLOSED:
            return
        command = frame.command
        number = command.type
        if self._data is not None and number in DATA_COMMANDS:
            # Which is there once such a command was welcome: the way of all messages.
            self._data.receive(command, frame.body)
            return
        event = _EVENTS.get(number, Event.REQUEST)
        following = NEXT_STATE.get((self.state, event))
        if following is None:
            kind, reason = _VIOLATIONS[event]
            raise Violation(kind, f"{BaseCommand.Type.Name(number)} {reason}.")
        if number in DATA_COMMANDS:
            self._pass_on(command, frame.body)
        else:
            _HANDLERS.get(number, Dialogue._refuse_unsupported)(self, command)
        self.state = following

    @property
    def congested(self) -> bool:
        """Whether the next commands should wait for what came before them."""
        return self._data is not None and self._data.congested

    async def wait_relaxed(self) -> None:
        if self._data is not None:
            await self._data.wait_relaxed()

    def end(self) -> None:
        """The connection is gone: so are its watches."""
        self.state = State.CLOSED
        topics, self._topics = self._topics, None
        namespaces, self._namespaces = self._namespaces, None
        consumers, self._consumers = self._consumers, None
        classic, self._classic = self._classic, None
        data, self._data = self._data, None
        with ExitStack() as steps:
            if data is not None:
                steps.callback(data.end)
            if topics is not None:
                steps.callback(self._hubs.topics.drop_all, topics)
            if namespaces is not None:
                steps.callback(self._hubs.namespaces.drop_all, namespaces)
            if consumers is not None:
                steps.callback(self._hubs.consumers.drop_all, consumers)
            if classic is not None:
                steps.callback(classic.end)

    def _connect(self, command: BaseCommand) -> None:
        self.peer_version = command.connect.protocol_version
        # One object for all clients that call themselves the same.
        self._client_version = intern(command.connect.client_version[:_LONGEST_VERSION])
        terms = self._terms
        self._reply(replies.connected(terms.server_version, self.peer_version, terms.max_message_size, FEATURES))

    def _ping(self, command: BaseCommand) -> None:
        self._outbox.reply(PONG)

    def _pong(self, command: BaseCommand) -> None:
        """A sign of life, which the connection has noted already."""

    def _lookup(self, command: BaseCommand) -> None:
        request = command.lookupTopic
        try:
            topic = TopicName.parse(request.topic)
        except ProtocolError as error:
            self._refuse(command, error)
            return
        if topic.domain in (SEGMENT, PERSISTENT) and self._hubs.data is not None:
            self._pass_on(command, b"")
            return
        url = self._terms.advertised_url
        if url.startswith("pulsar+ssl:"):
            self._reply(replies.lookup_connect(request.request_id, None, url))
        else:
            self._reply(replies.lookup_connect(request.request_id, url))

    def _ask_classic(self, command: BaseCommand) -> None:
        self.opens += 1
        if self._classic is None:
            self._classic = self._hubs.classic.converse(self._outbox, self._address)
        if command.type == BaseCommand.WATCH_TOPIC_LIST:
            try:
                self._check_room(self._classic.holds(command.watchTopicList.watcher_id))
            except ProtocolError as error:
                self._refuse(command, error)
                return
        self._classic.receive(command)

    def _open_watch(self, command: BaseCommand) -> None:
        self.opens += 1
        request = command.scalableTopicLookup
        registry = self._topics
        if registry is None:
            registry = self._topics = {}
        try:
            topic = _watchable(request.topic)
            self._check_room(request.session_id in registry)
        except ProtocolError as error:
            # The client takes the error for the end of whatever it watched under this id.
            self._hubs.topics.close(registry, request.session_id)
            self._refuse(command, error)
            return
        self._hubs.topics.open(
            self._outbox,
            registry,
            request.session_id,
            topic.canonical,
            # The name of a segment only ever leads to a topic that is there.
            topic.domain if request.create_if_missing and topic.domain in (TOPIC, PERSISTENT) else None,
        )

    def _close_watch(self, command: BaseCommand) -> None:
        if self._topics is not None:
            self._hubs.topics.close(self._topics, command.scalableTopicClose.session_id)

    def _open_namespace_watch(self, command: BaseCommand) -> None:
        self.opens += 1
        request = command.watchScalableTopics
        registry = self._namespaces
        if registry is None:
            registry = self._namespaces = {}
        current_hash = request.current_hash if request.HasField("current_hash") else None
        try:
            namespace = _namespace(request.namespace)
            if request.property_filters:
                self._check_filters(request.property_filters)
            self._check_room(request.watch_id in registry)
        except TooManyWatches as error:
            self._hubs.namespaces.close(registry, request.watch_id)
            if current_hash is not None:
                # A client that comes back takes an error for the end and listens no more; a lost connection it retries.
                raise Violation("too_many_watches", str(error)) from error
            self._refuse(command, error)
        except ProtocolError as error:
            self._hubs.namespaces.close(registry, request.watch_id)
            self._refuse(command, error)
        else:
            filters = {pair.key: pair.value for pair in request.property_filters} if request.property_filters else {}
            self._hubs.namespaces.open(self._outbox, registry, request.watch_id, namespace, filters, current_hash)

    def _check_filters(self, filters: Sequence[api.KeyValue]) -> None:
        most, longest = self._terms.max_filters, self._terms.max_filter_size
        if len(filters) > most:
            raise TooManyFilters(f"A watch has at most {most} filters, not {len(filters)}.")
        sizes = [len(pair.key.encode()) + len(pair.value.encode()) for pair in filters]
        if max(sizes) > longest:
            raise LongFilter(f"A filter has at most {longest} bytes, as a property has, not {max(sizes)}: shorten it.")
        if sum(sizes) > MAX_FILTER_BYTES:
            raise LongFilter(f"The filters of a watch have at most {MAX_FILTER_BYTES} bytes, not {sum(sizes)}.")

    def _close_namespace_watch(self, command: BaseCommand) -> None:
        if self._namespaces is not None:
            self._hubs.namespaces.close(self._namespaces, command.watchScalableTopicsClose.watch_id)

    def _subscribe_consumer(self, command: BaseCommand) -> None:
        self.opens += 1
        request = command.scalableTopicSubscribe
        registry = self._consumers
        if registry is None:
            registry = self._consumers = {}
        try:
            topic = _watchable(request.topic)
            _check_name("subscription", request.subscription)
            _check_name("consumer", request.consumer_name)
            self._check_room(request.consumer_id in registry)
        except ProtocolError as error:
            # As with watches: the client takes it for the end of whatever it had under this id.
            self._hubs.consumers.drop(registry, request.consumer_id)
            self._refuse(command, error)
            return
        self._hubs.consumers.subscribe(self._outbox, registry, request, topic.canonical, self._address)

    def _unsubscribe_consumer(self, command: BaseCommand) -> None:
        request = command.scalableTopicUnsubscribe
        registry = self._consumers if self._consumers is not None else {}
        self._hubs.consumers.unsubscribe(self._outbox, registry, request.request_id, request.consumer_id)

    def _pass_on(self, command: BaseCommand, body: bytes) -> None:
        """To the data plane, where there is one."""
        if self._hubs.data is None:
            self._refuse_unsupported(command)
            return
        if self._data is None:
            self._data = self._hubs.data.connect(self._outbox, self._address, self._client_version)
        self._data.receive(command, body)

    def _check_room(self, replacing: bool) -> None:
        held = len(self._topics or ()) + len(self._namespaces or ()) + len(self._consumers or ())
        held += 0 if self._classic is None else self._classic.held
        if held >= self._terms.max_watches and not replacing:
            raise TooManyWatches(f"This connection holds {held} watches, which is the limit: close one first.")
        holdings = self._outbox.holdings
        if holdings is not None and holdings.held > self._terms.max_watch_bytes and not replacing:
            raise TooManyWatches(
                f"The watches of this connection take {holdings.held} bytes, which is the limit: close one first."
            )

    def _refuse_unsupported(self, command: BaseCommand) -> None:
        name = BaseCommand.Type.Name(command.type)
        reply = replies.refusal(command, api.NotAllowedError, f"This server does not support {name}.")
        if reply is not None:
            self._reply(reply)

    def _refuse(self, command: BaseCommand, error: ProtocolError) -> None:
        reply = replies.refusal(command, error.server_error, str(error))
        assert reply is not None, "only for requests that have a reply"
        self._reply(reply)

    def _reply(self, command: BaseCommand) -> None:
        self._outbox.reply(encode(command))


_HANDLERS: Mapping[int, Callable[[Dialogue[Any, Any, Any], BaseCommand], None]] = {
    BaseCommand.CONNECT: Dialogue._connect,
    BaseCommand.PING: Dialogue._ping,
    BaseCommand.PONG: Dialogue._pong,
    BaseCommand.LOOKUP: Dialogue._lookup,
    BaseCommand.PARTITIONED_METADATA: Dialogue._ask_classic,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: Dialogue._ask_classic,
    BaseCommand.WATCH_TOPIC_LIST: Dialogue._ask_classic,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: Dialogue._ask_classic,
    BaseCommand.SCALABLE_TOPIC_LOOKUP: Dialogue._open_watch,
    BaseCommand.SCALABLE_TOPIC_CLOSE: Dialogue._close_watch,
    BaseCommand.WATCH_SCALABLE_TOPICS: Dialogue._open_namespace_watch,
    BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE: Dialogue._close_namespace_watch,
    BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: Dialogue._subscribe_consumer,
    BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE: Dialogue._unsubscribe_consumer,
}


# What producers and consumers say.
DATA_COMMANDS = frozenset(
    {
        BaseCommand.PRODUCER,
        BaseCommand.SEND,
        BaseCommand.CLOSE_PRODUCER,
        BaseCommand.SUBSCRIBE,
        BaseCommand.FLOW,
        BaseCommand.ACK,
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        BaseCommand.CLOSE_CONSUMER,
        BaseCommand.UNSUBSCRIBE,
        BaseCommand.SEEK,
        BaseCommand.GET_LAST_MESSAGE_ID,
        BaseCommand.CONSUMER_STATS,
        BaseCommand.GET_SCHEMA,
        BaseCommand.GET_OR_CREATE_SCHEMA,
    }
)


def _check_name(what: str, name: str) -> None:
    """Names of subscriptions and consumers are anything that can be shown and stored."""
    # By characters first: a name may be as long as a command, and each further check would cost with it.
    if len(name) <= MAX_LOCAL_NAME_BYTES and not name.strip():
        raise BadConsumerName(f"The {what} has no name: give it one.")
    if len(name) > MAX_LOCAL_NAME_BYTES or len(name.encode()) > MAX_LOCAL_NAME_BYTES:
        raise BadConsumerName(f"The name of the {what} is longer than {MAX_LOCAL_NAME_BYTES} bytes: shorten it.")


# Thousands that come back at once name few namespaces; names that are refused are not kept.
_namespace = lru_cache(maxsize=1_024)(NamespaceName.parse)


def _watchable(text: str) -> TopicName:
    """The topic to watch under this name, or a permanent verdict on it."""
    topic = TopicName.parse(text)
    if topic.domain == NON_PERSISTENT:
        raise NeverScalable("A non-persistent:// topic is never scalable: watch a topic:// name.")
    if topic.partition is not None:
        raise WatchOnPartition(f"{topic} is a single partition: watch the topic that it belongs to.")
    return topic
