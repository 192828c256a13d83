"""What `vela produce` sends, and what it says about it."""

import json
import time

import pytest

from gateway.cli import produce as produce_command
from gateway.cli.messages import BadInput, Lines, describe_stored, message_of, stored_as_object
from protocol.client import Message, MessageId
from protocol.wire import pulsar_api_pb2 as api
from tests.gateway.scripted import scripted
from tests.gateway.vela_command import Outcome, assert_one_sentence, closed_port, vela
from tests.protocol.client.producer_scripts import accept_producer, next_sent, send_error, watch_layout
from tests.protocol.client.producer_server import ProducerServer
from tests.protocol.client.scripted_server import Peer

WHOLE = (0, 0x0000, 0xFFFF)
LOG = "0000-ffff-0"


def produce(server: ProducerServer, *arguments: str) -> Outcome:
    with scripted(server.run) as url:
        return vela("produce", "t", *arguments, "--service-url", url)


def test_messages_are_stored_in_order_and_their_places_printed() -> None:
    server = ProducerServer(WHOLE)
    outcome = produce(server, "one", "zwö", "--key", "k")
    assert (outcome.code, outcome.err) == (0, "")
    assert server.stored == {LOG: [b"one", "zwö".encode()]}
    assert outcome.out.splitlines() == [f"7:0  {LOG}  [k]", f"7:1  {LOG}  [k]"]


def test_json_says_where_each_message_is() -> None:
    outcome = produce(ProducerServer(WHOLE), "a:1", "plain", "--separator", ":", "--json")
    first, second = [json.loads(line) for line in outcome.out.splitlines()]
    assert first == {
        "messageId": "7:0",
        "segment": f"segment://public/default/t/{LOG}",
        "ledgerId": 7,
        "entryId": 0,
        "key": "a",
    }
    assert second["key"] is None


def test_a_count_begins_again_with_the_first_message() -> None:
    server = ProducerServer(WHOLE)
    assert produce(server, "a", "b", "--count", "5").code == 0
    assert server.stored == {LOG: [b"a", b"b", b"a", b"b", b"a"]}


def test_a_rate_is_not_exceeded() -> None:
    server, begun = ProducerServer(WHOLE), time.monotonic()
    assert produce(server, "a", "--count", "3", "--rate", "20").code == 0
    assert len(server.stored[LOG]) == 3
    assert time.monotonic() - begun >= 2 / 20


def test_lines_of_standard_input_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [b"k1=v1\nk2=", b"v2\r\n\n", b"last"]
    monkeypatch.setattr(produce_command, "_read_stdin", lambda: pieces.pop(0) if pieces else b"")
    server = ProducerServer(WHOLE)
    outcome = produce(server, "--stdin", "--separator", "=", "--key", "other")
    assert server.stored == {LOG: [b"v1", b"v2", b"", b"last"]}
    assert [line.rpartition("  ")[2] for line in outcome.out.splitlines()] == ["[k1]", "[k2]", "[other]", "[other]"]


def test_plain_topics_can_be_produced_to() -> None:
    server = ProducerServer(partitions=2)
    with scripted(server.run) as url:
        outcome = vela("produce", "persistent://public/default/p", "a", "b", "--service-url", url)
    assert outcome.code == 0
    assert server.stored.keys() == {"p-partition-0", "p-partition-1"}


def test_a_refused_message_is_one_sentence() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await watch_layout(peer, [WHOLE])
        await accept_producer(peer)
        await peer.send(send_error(await next_sent(peer), api.NotAllowedError, "Too much."))
        await peer.until_gone()

    with scripted(script) as url:
        outcome = vela("produce", "t", "x", "--service-url", url)
    assert_one_sentence(outcome)
    assert "Too much. (NotAllowedError)" in outcome.err


def test_nobody_listening_is_one_sentence_with_what_to_do() -> None:
    url = f"pulsar://127.0.0.1:{closed_port()}"
    outcome = vela("produce", "t", "x", "--service-url", url)
    assert_one_sentence(outcome)
    assert outcome.err == f"vela: no Vela answers at {url}: start one with `make serve` or pass --service-url\n"


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadInput, match=r"\\xff"):
        message_of(b"\xff:v", b":", None, {})


def test_a_value_may_hold_the_separator_and_any_bytes() -> None:
    assert message_of(b"k:a:\xff", b":", None, {}) == Message(b"a:\xff", "k")
    assert message_of(b"none", b":", "key", {"a": "1"}) == Message(b"none", "key", {"a": "1"})


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_come_out_whole_however_they_were_cut(size: int) -> None:
    text, lines, out = b"one\ntwo\r\n\nfour", Lines(), []
    for start in range(0, len(text), size):
        out += list(lines.add(text[start : start + size]))
    assert [*out, *lines.finish()] == [b"one", b"two", b"", b"four"]


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.messages.MAX_LINE", 10)
    lines = Lines()
    with pytest.raises(BadInput, match="longer than 10 bytes"):
        list(lines.add(b"x" * 11))


def test_names_move_no_cursor() -> None:
    message_id = MessageId("persistent://t/n/x\x1b[2J", 1, 2, 3)
    assert describe_stored(Message(b"", "k\n"), message_id) == "1:2:3  x\\x1b[2J  [k\\n]"
    assert stored_as_object(Message(b""), message_id)["batchIndex"] == 3
