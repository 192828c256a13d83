"""What `vela consume` prints, and that it acknowledges what it has printed."""

import json

import pytest
import trio

from gateway.cli.messages import as_object, describe
from protocol import replies
from protocol.client import Message, MessageId, ReceivedMessage
from protocol.wire import pulsar_api_pb2 as api
from tests.gateway.scripted import scripted
from tests.gateway.vela_command import Outcome, assert_one_sentence, closed_port, vela
from tests.protocol.client.consumer_scripts import accept_consumer, ack_response, message_frame
from tests.protocol.client.consumer_server import ConsumerServer, segment_topic
from tests.protocol.client.producer_scripts import SEGMENT, watch_layout
from tests.protocol.client.scripted_server import Peer


class QueueServer:
    """A topic of one segment with these messages; what is acknowledged is remembered."""

    def __init__(self, *messages: Message, damaged: bool = False) -> None:
        self.messages = messages
        self.damaged = damaged
        self.acked: list[int] = []
        self.request = api.CommandSubscribe()

    async def run(self, peer: Peer) -> None:
        await peer.greet()
        await watch_layout(peer, [(0, 0, 0xFFFF)])
        self.request = await accept_consumer(peer, SEGMENT)
        for index, message in enumerate(self.messages):
            frame = bytearray(message_frame(self.request, index, message))
            frame[-1] ^= self.damaged
            await peer.send_bytes(bytes(frame))
        while (command := await peer.receive()) is not None:
            if command.type == api.BaseCommand.ACK:
                self.acked += [data.entryId for data in command.ack.message_id]
                await peer.send(ack_response(command.ack))
            elif command.type == api.BaseCommand.CLOSE_CONSUMER:
                await peer.send(replies.success(command.close_consumer.request_id))


def consume(server: QueueServer, *arguments: str) -> Outcome:
    with scripted(server.run) as url:
        return vela("consume", "t", "-s", "mine", *arguments, "--service-url", url)


def test_messages_are_printed_and_acknowledged_until_there_are_enough() -> None:
    server = QueueServer(Message(b"one", "k"), Message("zwö".encode()), Message(b"three"))
    outcome = consume(server, "--count", "2", "--from", "earliest")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == ["7:0  0000-ffff-0  [k]  one", "7:1  0000-ffff-0  zwö"]
    assert sorted(server.acked) == [0, 1]
    assert (server.request.subscription, server.request.subType) == ("mine", api.CommandSubscribe.Shared)
    assert server.request.initialPosition == api.CommandSubscribe.Earliest


def test_without_acknowledgement_nothing_is_acknowledged() -> None:
    server = QueueServer(Message(b"one"))
    assert consume(server, "--count", "1", "--no-ack").code == 0
    assert server.acked == []


def test_json_is_one_object_per_message_and_line() -> None:
    server = QueueServer(Message(b"one", "k", {"a": "1"}, event_time_ms=0), Message(b"\xff\x00"))
    first, second = [json.loads(line) for line in consume(server, "--count", "2", "--json").out.splitlines()]
    assert first == {
        "messageId": "7:0",
        "segment": SEGMENT,
        "ledgerId": 7,
        "entryId": 0,
        "key": "k",
        "value": "one",
        "properties": {"a": "1"},
        "publishTime": "1970-01-01T00:00:01.000Z",
        "eventTime": "1970-01-01T00:00:00.000Z",
        "producerName": "maker",
        "sequenceId": 0,
        "redeliveryCount": 0,
    }
    assert second["valueBase64"] == "/wA="
    assert "value" not in second


def test_silence_ends_it_when_asked_to() -> None:
    server = QueueServer(Message(b"one"))
    outcome = consume(server, "--timeout", "200ms")
    assert (outcome.code, outcome.err) == (0, "")
    assert len(outcome.out.splitlines()) == 1


def test_too_few_messages_are_a_failure() -> None:
    outcome = consume(QueueServer(Message(b"one")), "--timeout", "200ms", "--count", "3")
    assert outcome.code == 1
    assert outcome.err == "vela: only 1 of 3 messages came: nothing more within 0.2 s.\n"


def test_a_message_that_cannot_be_read_is_one_sentence_and_not_acknowledged() -> None:
    server = QueueServer(Message(b"x"), damaged=True)
    outcome = consume(server, "--count", "1")
    assert_one_sentence(outcome)
    assert "Message 7:0 of " in outcome.err
    assert server.acked == []


def test_a_stream_gets_the_segments_that_are_assigned() -> None:
    server = ConsumerServer(1)

    async def script(peer: Peer) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run, peer)
            await server.deliver(1, 0, 1)

    with scripted(script) as url:
        outcome = vela("consume", "t", "-s", "s", "--stream", "--name", "me", "-n", "2", "--service-url", url)
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 2
    assert server.names == ["me"]
    assert {topic for topic, _, _ in server.acks} == {segment_topic(1)}


def test_nobody_listening_is_one_sentence_with_what_to_do() -> None:
    url = f"pulsar://127.0.0.1:{closed_port()}"
    outcome = vela("consume", "t", "-s", "s", "--service-url", url)
    assert_one_sentence(outcome)
    assert outcome.err == f"vela: no Vela answers at {url}: start one with `make serve` or pass --service-url\n"


@pytest.mark.parametrize("name", ["", " "])
def test_a_blank_subscription_is_one_sentence(name: str) -> None:
    assert_one_sentence(vela("consume", "t", "-s", name))


def test_people_see_no_control_characters_and_how_often_a_message_came() -> None:
    message = ReceivedMessage(MessageId("persistent://t/n/x", 1, 2), b"a\x1b[2J", "k\n", redelivery_count=2)
    assert describe(message) == "1:2  x  [k\\n]  a\\x1b[2J  (delivered again, 2)"
    assert describe(ReceivedMessage(MessageId("x", 1, 2), b"\xff\n")) == "1:2  x  \\xff\\n"
    assert describe(ReceivedMessage(MessageId("x", 1, 2), b"", is_null=True)) == "1:2  x  (null)"


def test_times_that_no_calendar_has_are_shown_as_they_are() -> None:
    message = ReceivedMessage(MessageId("x", 1, 2), b"", publish_time_ms=2**63, is_null=True)
    shown = as_object(message)
    assert (shown["publishTime"], shown["value"]) == (2**63, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "either a topic or --namespace"),
        (["t", "--namespace", "public/default"], "either a topic or --namespace"),
        (["t", "--filter", "team=blue"], "goes with --namespace"),
        (["--namespace", "public/default", "--filter", "team"], "no KEY=VALUE"),
        (["--namespace", "public/default", "--filter", "a=1", "--filter", "a=2"], "given twice"),
    ],
)
def test_a_topic_and_a_namespace_exclude_one_another(arguments: list[str], complaint: str) -> None:
    outcome = vela("consume", *arguments, "-s", "mine")
    assert outcome.code == 2
    assert complaint in " ".join(outcome.err.split())


def test_what_is_no_namespace_is_one_sentence() -> None:
    assert_one_sentence(vela("consume", "--namespace", "default", "-s", "mine"))


def test_messages_of_a_namespace_are_shown_with_their_topics() -> None:
    message = ReceivedMessage(MessageId("segment://public/default/orders/0000-ffff-0", 1, 2), b"one", "k")
    assert describe(message, names_topic=True) == "topic://public/default/orders  1:2  0000-ffff-0  [k]  one"
    assert as_object(message, names_topic=True)["topic"] == "topic://public/default/orders"
    assert "topic" not in as_object(message)
