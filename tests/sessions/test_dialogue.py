"""The conversation with one client, without a socket: every state against every command, names, watches."""

from collections.abc import Callable, Iterable
from itertools import product

import pytest

from protocol import replies
from protocol.framing import Frame, FrameDecoder, UnknownCommand, encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.counters import CloseReason, Counters
from sessions.dialogue import NEXT_STATE, Dialogue, Event, State, Terms
from sessions.errors import Violation
from sessions.hubs import Hubs
from sessions.outbox import Outbox
from tests.sessions.stub_hub import StubClassic, StubConsumers, StubHub, StubNamespaces, StubWatch

URL = "pulsar://gateway.example:6650"
ALL_TYPES = sorted(BaseCommand.Type.values())
ANSWERED = {
    BaseCommand.PING,
    BaseCommand.PONG,
    BaseCommand.CONNECT,
    BaseCommand.LOOKUP,
    BaseCommand.PARTITIONED_METADATA,
    BaseCommand.GET_TOPICS_OF_NAMESPACE,
    BaseCommand.WATCH_TOPIC_LIST,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE,
    BaseCommand.SCALABLE_TOPIC_LOOKUP,
    BaseCommand.SCALABLE_TOPIC_CLOSE,
    BaseCommand.WATCH_SCALABLE_TOPICS,
    BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE,
    BaseCommand.SCALABLE_TOPIC_SUBSCRIBE,
    BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE,
}


class RecordingOutbox(Outbox):
    """Keeps what would have been sent."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self.closed = False
        self.holdings = None
        self._sent = b""

    def push(self, parts: tuple[bytes, ...], watch: int) -> None:
        self._sent += b"".join(parts)

    def reply(self, frame: bytes) -> None:
        self._sent += frame

    def drop(self, watch: int) -> None:
        pass

    def close(self, reason: CloseReason) -> None:
        self.closed = True

    def take(self) -> list[BaseCommand]:
        sent, self._sent = self._sent, b""
        return [frame.command for frame in FrameDecoder().receive(sent) if isinstance(frame, Frame)]


class Talk:
    """A dialogue with everything around it."""

    def __init__(
        self, *, max_watches: int = 100, max_filters: int = 100, url: str = URL, connected: bool = True
    ) -> None:
        self.outbox = RecordingOutbox()
        self.hub = StubHub()
        self.counters = Counters()
        terms = Terms(url, max_message_size=1_000_000, max_watches=max_watches, max_filters=max_filters)
        self.namespaces = StubNamespaces()
        self.consumers = StubConsumers()
        self.classic = StubClassic()
        hubs = Hubs(self.hub, self.namespaces, self.consumers, self.classic)
        self.dialogue: Dialogue[StubWatch, None, str] = Dialogue(self.outbox, hubs, terms, self.counters)
        if connected:
            self.say(connect())

    def say(self, command: BaseCommand) -> list[BaseCommand]:
        # Through bytes, as a client's command would come.
        for frame in FrameDecoder().receive(encode(command)):
            self.dialogue.receive(frame)
        return self.outbox.take()

    def ask(self, command: BaseCommand) -> BaseCommand:
        (answer,) = self.say(command)
        return answer


def command_of(number: int) -> BaseCommand:
    """A command of this type with every required field set."""
    command = BaseCommand(type=BaseCommand.Type.ValueType(number))
    body = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[number].name)
    body.SetInParent()
    fill(body)
    return command


def fill(message: object) -> None:
    for column in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]  # any generated message
        if not column.is_required:
            continue
        if column.message_type is not None:
            fill(getattr(message, column.name))
        elif column.enum_type is not None:
            setattr(message, column.name, column.enum_type.values[0].number)
        elif column.cpp_type == column.CPPTYPE_STRING:
            value: object = b"x" if column.type == column.TYPE_BYTES else "x"
            setattr(message, column.name, value)
        else:
            setattr(message, column.name, 7)


def connect(version: int = 21) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = version
    return command


def watch(session_id: int, topic: str, create: bool | None = None) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP)
    command.scalableTopicLookup.session_id = session_id
    command.scalableTopicLookup.topic = topic
    if create is not None:
        command.scalableTopicLookup.create_if_missing = create
    return command


def unwatch(session_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_CLOSE)
    command.scalableTopicClose.session_id = session_id
    return command


def watch_namespace(
    watch_id: int, namespace: str = "t/n", filters: Iterable[tuple[str, str]] = (), current_hash: str | None = None
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS)
    request = command.watchScalableTopics
    request.watch_id = watch_id
    request.namespace = namespace
    for key, value in filters:
        request.property_filters.add(key=key, value=value)
    if current_hash is not None:
        request.current_hash = current_hash
    return command


def unwatch_namespace(watch_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE)
    command.watchScalableTopicsClose.watch_id = watch_id
    return command


def lookup(topic: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic = topic
    command.lookupTopic.request_id = 5
    return command


def watch_list(watcher_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id = 8, watcher_id
    request.namespace, request.topics_pattern = "t/n", ".*"
    return command


def partitions(topic: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic = topic
    command.partitionMetadata.request_id = 6
    return command


@pytest.mark.parametrize(("theirs", "agreed"), [(0, 0), (1, 1), (19, 19), (21, 21), (99, 21)])
def test_connect_is_answered_with_the_lower_protocol_version(theirs: int, agreed: int) -> None:
    answer = Talk(connected=False).ask(connect(theirs))
    assert answer.type == BaseCommand.CONNECTED
    assert answer.connected.protocol_version == agreed


def test_connected_tells_version_size_and_only_the_features_that_work() -> None:
    told = Talk(connected=False).ask(connect()).connected
    assert told.server_version.startswith("Vela 0.")
    assert told.max_message_size == 1_000_000
    flags = {column.name for column, value in told.feature_flags.ListFields() if value}
    assert flags == {
        "supports_scalable_topics",
        "supports_get_partitioned_metadata_without_auto_creation",
        "supports_topic_watchers",
        "supports_topic_watcher_reconcile",
    }
    assert told.feature_flags.HasField("supports_tc_metadata_discovery")


def test_ping_is_answered_before_and_after_connect() -> None:
    talk = Talk(connected=False)
    assert talk.ask(replies.ping()) == replies.pong()
    assert talk.dialogue.state is State.START
    talk.say(connect())
    assert talk.ask(replies.ping()) == replies.pong()
    assert talk.say(replies.pong()) == []


def test_second_connect_is_a_violation() -> None:
    with pytest.raises(Violation, match="CONNECT") as caught:
        Talk().say(connect())
    assert caught.value.kind == "second_connect"


@pytest.mark.parametrize("number", ALL_TYPES)
def test_before_connect_only_connect_and_keep_alive_are_legal(number: int) -> None:
    talk = Talk(connected=False)
    if number in {BaseCommand.CONNECT, BaseCommand.PING, BaseCommand.PONG}:
        talk.say(command_of(number))
        return
    with pytest.raises(Violation) as caught:
        talk.say(command_of(number))
    assert caught.value.kind in {"before_connect", "direction"}
    assert talk.outbox.take() == []


@pytest.mark.parametrize("number", sorted(replies.SERVER_TO_CLIENT))
def test_command_that_only_servers_send_is_a_violation(number: int) -> None:
    with pytest.raises(Violation) as caught:
        Talk().say(command_of(number))
    assert caught.value.kind == "direction"


@pytest.mark.parametrize("number", [n for n in ALL_TYPES if n not in replies.SERVER_TO_CLIENT | ANSWERED])
def test_unsupported_command_is_refused_in_its_own_way_and_the_connection_stays(number: int) -> None:
    talk = Talk()
    command = command_of(number)
    expected = replies.refusal(
        command,
        api.NotAllowedError,
        f"This server does not support {BaseCommand.Type.Name(BaseCommand.Type.ValueType(number))}.",
    )
    assert talk.say(command) == ([] if expected is None else [expected])
    assert talk.ask(replies.ping()) == replies.pong()


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_table_allows_exactly_the_legal_steps(state: State, event: Event) -> None:
    legal = {
        (State.START, Event.CONNECT): State.CONNECTED,
        (State.START, Event.KEEP_ALIVE): State.START,
        (State.CONNECTED, Event.KEEP_ALIVE): State.CONNECTED,
        (State.CONNECTED, Event.REQUEST): State.CONNECTED,
    }
    assert NEXT_STATE.get((state, event)) == legal.get((state, event))


@pytest.mark.parametrize("connected", [False, True])
def test_unknown_command_is_ignored_and_counted(connected: bool) -> None:
    talk = Talk(connected=connected)
    talk.outbox.take()
    talk.dialogue.receive(UnknownCommand(4711))
    assert talk.counters.unknown_commands == 1
    assert talk.outbox.take() == []


GOOD_NAMES = ["topic://t/n/a", "topic://t/n/a/b", "persistent://t/n/a", "segment://t/n/a/0000-ffff-0", "a"]
BAD_NAMES = ["", "topic://", "topic://t/n", "topic://t/n/", "kafka://t/n/a", "a/b", "topic://t//a", "topic://ü/n/a"]


@pytest.mark.parametrize("topic", GOOD_NAMES)
def test_lookup_leads_to_this_node(topic: str) -> None:
    answer = Talk().ask(lookup(topic)).lookupTopicResponse
    assert answer.response == api.CommandLookupTopicResponse.Connect
    assert (answer.request_id, answer.brokerServiceUrl, answer.authoritative) == (5, URL, True)
    assert not answer.HasField("brokerServiceUrlTls")


def test_lookup_gives_a_tls_address_as_such() -> None:
    answer = Talk(url="pulsar+ssl://gw:6651").ask(lookup("topic://t/n/a")).lookupTopicResponse
    assert answer.brokerServiceUrlTls == "pulsar+ssl://gw:6651"
    assert not answer.HasField("brokerServiceUrl")


def test_questions_about_classic_topics_go_to_one_conversation_that_ends_with_the_connection() -> None:
    talk = Talk()
    assert talk.classic.conversations == []
    answer = talk.ask(partitions("persistent://t/n/a")).partitionMetadataResponse
    assert (answer.request_id, answer.partitions) == (6, 0)
    numbers = [
        BaseCommand.GET_TOPICS_OF_NAMESPACE,
        BaseCommand.WATCH_TOPIC_LIST,
        BaseCommand.WATCH_TOPIC_LIST_CLOSE,
    ]
    for number in numbers:
        talk.say(command_of(number))
    [conversation] = talk.classic.conversations
    assert [command.type for command in conversation.received] == [BaseCommand.PARTITIONED_METADATA, *numbers]
    assert not conversation.ended
    talk.dialogue.end()
    assert conversation.ended


def test_watches_of_topic_lists_count_with_all_others() -> None:
    talk = Talk(max_watches=2)
    for watcher_id in (1, 2, 2):
        talk.say(watch_list(watcher_id))
    assert len(talk.classic.conversations[0].received) == 3
    refused = talk.ask(watch_list(3)).error
    assert (refused.request_id, refused.error) == (8, api.TooManyRequests)
    assert talk.ask(watch(1, "topic://t/n/a")).scalableTopicUpdate.error == api.TooManyRequests


@pytest.mark.parametrize("topic", BAD_NAMES)
def test_bad_name_in_a_lookup_is_an_error_in_its_own_response(topic: str) -> None:
    talk = Talk()
    answer = talk.ask(lookup(topic)).lookupTopicResponse
    assert answer.response == api.CommandLookupTopicResponse.Failed
    assert (answer.request_id, answer.error, bool(answer.message)) == (5, api.InvalidTopicName, True)


@pytest.mark.parametrize(
    ("topic", "resolved", "create_as"),
    [
        ("topic://t/n/a", "topic://t/n/a", "topic"),
        ("topic://t/n/a b/c", "topic://t/n/a b/c", "topic"),
        ("persistent://t/n/a", "topic://t/n/a", "persistent"),
        ("persistent://t/n/a b", "topic://t/n/a b", "persistent"),
        ("segment://t/n/a/0000-ffff-0", "topic://t/n/a", None),
        ("a", "topic://public/default/a", "persistent"),
    ],
)
def test_watch_is_opened_under_its_resolved_name(topic: str, resolved: str, create_as: str | None) -> None:
    talk = Talk()
    answer = talk.ask(watch(3, topic)).scalableTopicUpdate
    assert (answer.session_id, answer.resolved_topic_name, answer.HasField("dag")) == (3, resolved, True)
    assert talk.hub.opened == [(3, resolved, create_as)]


def test_client_may_ask_not_to_create() -> None:
    talk = Talk()
    talk.say(watch(2**64 - 1, "topic://t/n/a", create=False))
    assert talk.hub.opened == [(2**64 - 1, "topic://t/n/a", None)]


REFUSED = [
    *((name, api.InvalidTopicName) for name in BAD_NAMES),
    ("non-persistent://t/n/a", api.NotAllowedError),
    ("topic://t/n/a-partition-3", api.TopicNotFound),
    ("persistent://t/n/a-partition-0", api.TopicNotFound),
]


@pytest.mark.parametrize(("topic", "error"), REFUSED)
def test_name_that_cannot_be_watched_is_an_error_and_the_connection_stays(topic: str, error: int) -> None:
    talk = Talk()
    answer = talk.ask(watch(9, topic)).scalableTopicUpdate
    assert (answer.session_id, answer.error, bool(answer.message)) == (9, error, True)
    assert not answer.HasField("dag")
    assert talk.hub.opened == []
    assert talk.ask(watch(9, "topic://t/n/a")).scalableTopicUpdate.HasField("dag")


def test_error_for_a_reused_id_ends_the_watch_that_had_it() -> None:
    talk = Talk()
    talk.say(watch(1, "topic://t/n/a"))
    assert talk.ask(watch(1, "kafka://x")).scalableTopicUpdate.error == api.InvalidTopicName
    assert talk.hub.closed == [1]
    assert not talk.hub.watches


def test_watches_are_limited_in_number_but_may_be_replaced() -> None:
    talk = Talk(max_watches=2)
    for session_id in (1, 2, 2, 1):
        assert talk.ask(watch(session_id, "topic://t/n/a")).scalableTopicUpdate.HasField("dag")
    refused = talk.ask(watch(3, "topic://t/n/a")).scalableTopicUpdate
    assert (refused.session_id, refused.error) == (3, api.TooManyRequests)
    talk.say(unwatch(1))
    assert talk.ask(watch(3, "topic://t/n/a")).scalableTopicUpdate.HasField("dag")


@pytest.mark.parametrize("before", [lambda talk: None, lambda talk: talk.say(watch(1, "topic://t/n/a"))])
def test_closing_a_watch_is_silent_and_idempotent(before: Callable[[Talk], object]) -> None:
    talk = Talk()
    before(talk)
    for _ in range(2):
        assert talk.say(unwatch(1)) == []
    assert talk.say(unwatch(77)) == []
    assert not talk.hub.watches


def test_end_of_the_connection_drops_its_watches_and_all_that_follows() -> None:
    talk = Talk()
    for session_id in range(5):
        talk.say(watch(session_id, "topic://t/n/a"))
    talk.dialogue.end()
    talk.dialogue.end()
    assert not talk.hub.watches
    assert talk.say(watch(9, "topic://t/n/a")) == []
    assert not talk.hub.watches


@pytest.mark.parametrize("current_hash", [None, "", "00000000"])
def test_namespace_watch_is_opened_with_its_hash_or_none(current_hash: str | None) -> None:
    talk = Talk()
    assert talk.say(watch_namespace(2**64 - 1, "t/n", [("a", "1"), ("b", "")], current_hash)) == []
    assert talk.namespaces.opened == [(2**64 - 1, "t/n", {"a": "1", "b": ""}, current_hash)]


def test_of_a_repeated_filter_the_last_counts() -> None:
    talk = Talk()
    talk.say(watch_namespace(1, filters=[("a", "1"), ("b", "2"), ("a", "3"), ("", ""), ("a", "4")]))
    assert talk.namespaces.opened == [(1, "t/n", {"a": "4", "b": "2", "": ""}, None)]


@pytest.mark.parametrize(
    "namespace", ["", "t", "/", "t/", "/n", "t/n/", "t/n/a", "ü/n", "t/n n", "topic://t/n", "t//n"]
)
@pytest.mark.parametrize("current_hash", [None, "00000000"])
def test_invalid_namespace_is_an_error_and_the_connection_stays(namespace: str, current_hash: str | None) -> None:
    talk = Talk()
    answer = talk.ask(watch_namespace(9, namespace, current_hash=current_hash)).watchScalableTopicsUpdate
    assert (answer.watch_id, answer.error, bool(answer.message)) == (9, api.InvalidTopicName, True)
    assert answer.WhichOneof("event") is None
    assert talk.namespaces.opened == []
    assert talk.say(watch_namespace(9)) == []
    assert len(talk.namespaces.opened) == 1


def test_error_for_a_reused_id_ends_the_namespace_watch_that_had_it() -> None:
    talk = Talk(max_filters=1)
    talk.say(watch_namespace(1))
    assert talk.ask(watch_namespace(1, "bad")).watchScalableTopicsUpdate.error == api.InvalidTopicName
    talk.say(watch_namespace(1))
    refused = talk.ask(watch_namespace(1, filters=[("a", "1"), ("b", "2")])).watchScalableTopicsUpdate
    assert refused.error == api.NotAllowedError
    assert talk.namespaces.closed == [1, 1]


def test_filters_are_limited_in_number_as_they_came() -> None:
    talk = Talk(max_filters=2)
    assert talk.say(watch_namespace(1, filters=[("a", "1"), ("b", "2")])) == []
    # Repeated ones count, too: they cost as much to read.
    refused = talk.ask(watch_namespace(2, filters=[("a", "1"), ("a", "2"), ("a", "3")])).watchScalableTopicsUpdate
    assert (refused.watch_id, refused.error) == (2, api.NotAllowedError)
    assert "2" in refused.message
    assert "3" in refused.message
    assert len(talk.namespaces.opened) == 1
    assert talk.ask(replies.ping()) == replies.pong()


def test_filters_are_limited_in_bytes_each_and_together() -> None:
    talk = Talk()
    fits = [("k" * 24, "é" * 500)]
    assert talk.say(watch_namespace(1, filters=fits)) == []
    for filters in (
        [("k" * 25, "é" * 500)],
        [("a", "1"), ("k" * 1_025, "")],
        [(f"{number:03}", "x" * 700) for number in range(100)],
    ):
        refused = talk.ask(watch_namespace(1, filters=filters)).watchScalableTopicsUpdate
        assert (refused.watch_id, refused.error) == (1, api.NotAllowedError)
        assert "at most" in refused.message
        assert len(refused.message) < 200
    assert len(talk.namespaces.opened) == 1
    assert talk.namespaces.closed == [1]  # what the id had before


@pytest.mark.parametrize(
    "what", ["x" * 200_000, "/" * 200_000, "topic://" + "/" * 200_000, " " * 200_000, "topic://t/n/" + "a/" * 100_000]
)
def test_a_name_as_long_as_a_command_is_refused_by_its_length_alone(what: str) -> None:
    talk = Talk()
    lookup = BaseCommand(type=BaseCommand.LOOKUP)
    lookup.lookupTopic.topic, lookup.lookupTopic.request_id = what, 3
    answer = talk.ask(lookup).lookupTopicResponse
    assert (answer.request_id, answer.error) == (3, api.InvalidTopicName)
    update = talk.ask(watch(4, what)).scalableTopicUpdate
    assert (update.session_id, update.error) == (4, api.InvalidTopicName)
    told = talk.ask(watch_namespace(5, what)).watchScalableTopicsUpdate
    assert (told.watch_id, told.error) == (5, api.InvalidTopicName)
    for message in (answer.message, update.message, told.message):
        assert "4096 characters" in message
        assert len(message) < 300
    for subscription, name in ((what, "one"), ("bills", what)):
        command = subscribe(6, name=name)
        command.scalableTopicSubscribe.subscription = subscription
        refused = talk.ask(command).scalableTopicSubscribeResponse
        assert (refused.request_id, refused.error) == (9, api.NotAllowedError)
        assert "1024 bytes" in refused.message
    assert talk.hub.opened == []
    assert talk.consumers.subscribed == []


def test_one_namespace_watch_too_many_is_refused_at_its_first_open() -> None:
    talk = Talk(max_watches=2)
    for watch_id in (1, 2, 2, 1):
        assert talk.say(watch_namespace(watch_id)) == []
    refused = talk.ask(watch_namespace(3)).watchScalableTopicsUpdate
    assert (refused.watch_id, refused.error, bool(refused.message)) == (3, api.TooManyRequests, True)
    talk.say(unwatch_namespace(1))
    assert talk.say(watch_namespace(3)) == []
    assert talk.namespaces.opened[-1][0] == 3


@pytest.mark.parametrize("current_hash", ["", "00000000"])
def test_one_namespace_watch_too_many_ends_the_connection_when_it_comes_back(current_hash: str) -> None:
    talk = Talk(max_watches=1)
    talk.say(watch_namespace(1, current_hash=current_hash))
    assert talk.say(watch_namespace(1, current_hash=current_hash)) == []
    with pytest.raises(Violation, match="limit") as caught:
        talk.say(watch_namespace(2, current_hash=current_hash))
    assert caught.value.kind == "too_many_watches"
    assert talk.outbox.take() == []


def test_both_kinds_of_watches_count_towards_one_limit_and_have_ids_of_their_own() -> None:
    talk = Talk(max_watches=2)
    talk.say(watch(1, "topic://t/n/a"))
    talk.say(watch_namespace(1))
    assert talk.ask(watch(2, "topic://t/n/a")).scalableTopicUpdate.error == api.TooManyRequests
    assert talk.ask(watch_namespace(2)).watchScalableTopicsUpdate.error == api.TooManyRequests
    talk.say(unwatch_namespace(1))
    assert len(talk.hub.watches) == 1
    assert talk.ask(watch(2, "topic://t/n/a")).scalableTopicUpdate.HasField("dag")
    talk.say(unwatch(1))
    talk.say(unwatch(2))
    assert talk.say(watch_namespace(2)) == []


def test_closing_a_namespace_watch_is_silent_and_idempotent() -> None:
    talk = Talk()
    assert talk.say(unwatch_namespace(1)) == []
    talk.say(watch_namespace(1))
    for watch_id in (1, 1, 77):
        assert talk.say(unwatch_namespace(watch_id)) == []
    assert talk.namespaces.closed == [1]


def test_end_of_the_connection_drops_its_namespace_watches() -> None:
    talk = Talk()
    for watch_id in range(3):
        talk.say(watch_namespace(watch_id))
    talk.dialogue.end()
    talk.dialogue.end()
    assert talk.namespaces.closed == [0, 1, 2]
    assert talk.say(watch_namespace(9)) == []
    assert len(talk.namespaces.opened) == 3


def subscribe(consumer_id: int, topic: str = "topic://public/default/orders", name: str = "one") -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    request = command.scalableTopicSubscribe
    request.request_id, request.topic, request.subscription = 9, topic, "bills"
    request.consumer_name, request.consumer_id, request.consumer_type = name, consumer_id, api.STREAM
    return command


def test_consumer_is_registered_under_the_canonical_name_of_its_topic() -> None:
    talk = Talk()
    assert talk.say(subscribe(1, "persistent://public/default/orders")) == []
    assert talk.consumers.subscribed == [("topic://public/default/orders", "bills", "one")]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (subscribe(1, "topic://public"), api.InvalidTopicName),
        (subscribe(1, "non-persistent://public/default/orders"), api.NotAllowedError),
        (subscribe(1, name=" "), api.NotAllowedError),
        (subscribe(1, name="x" * 1025), api.NotAllowedError),
    ],
)
def test_registration_that_can_never_be_is_refused_and_the_connection_stays(command: BaseCommand, error: int) -> None:
    talk = Talk()
    [reply] = talk.say(command)
    assert reply.scalableTopicSubscribeResponse.request_id == 9
    assert reply.scalableTopicSubscribeResponse.error == error
    assert reply.scalableTopicSubscribeResponse.message
    assert talk.consumers.subscribed == []
    assert talk.ask(replies.ping()) == replies.pong()


def test_consumers_count_towards_the_limit_of_watches() -> None:
    talk = Talk(max_watches=2)
    for consumer_id in (1, 2, 2):
        assert talk.say(subscribe(consumer_id)) == []
    [reply] = talk.say(subscribe(3))
    assert reply.scalableTopicSubscribeResponse.error == api.TooManyRequests


def test_consumers_leave_one_by_one_or_with_their_connection() -> None:
    talk = Talk()
    talk.say(subscribe(1))
    talk.say(subscribe(2))
    leave = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE)
    leave.scalableTopicUnsubscribe.request_id, leave.scalableTopicUnsubscribe.consumer_id = 10, 1
    talk.say(leave)
    assert talk.consumers.left == [1]
    talk.dialogue.end()
    assert talk.consumers.dropped == ["one"]
