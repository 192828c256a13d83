import pytest

from tests.support.resp import Reply, RespSplitter, answers_to, classify

MESSAGES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":17\r\n",
    b",1.5\r\n",
    b"#t\r\n",
    b"_\r\n",
    b"(123456789012345678901234567890\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"!5\r\nERR x\r\n",
    b"*2\r\n*1\r\n:1\r\n%1\r\n+a\r\n~2\r\n:1\r\n:2\r\n",
    b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
]
STREAM = b"".join(MESSAGES)


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_messages_come_out_as_they_went_in_however_they_are_cut(size: int) -> None:
    splitter = RespSplitter()
    found = [message for at in range(0, len(STREAM), size) for message in splitter.receive(STREAM[at : at + size])]
    assert found == MESSAGES


def test_unfinished_message_waits_for_its_rest() -> None:
    splitter = RespSplitter()
    assert splitter.receive(b"+OK\r\n*2\r\n:1\r\n") == [b"+OK\r\n"]
    assert splitter.receive(b":2\r\n") == [b"*2\r\n:1\r\n:2\r\n"]


def test_what_is_not_resp_is_an_error() -> None:
    with pytest.raises(ValueError, match="not RESP"):
        RespSplitter().receive(b"?5\r\n")


def test_bells_are_told_from_other_pushes_and_from_answers() -> None:
    bell = b">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$16\r\n__keyspace@0__:k\r\n$4\r\nxadd\r\n"
    receipt = b">3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:1\r\n"
    published = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
    assert classify(bell) is Reply.BELL
    assert classify(receipt) is Reply.PUSH
    assert classify(published) is Reply.PUSH
    assert classify(b"*1\r\n+OK\r\n") is Reply.ANSWER


def test_only_subscribing_gets_no_answer() -> None:
    assert answers_to(b"*3\r\n$10\r\nPSUBSCRIBE\r\n$1\r\na\r\n$1\r\nb\r\n") == 0
    assert answers_to(b"*2\r\n$3\r\nget\r\n$1\r\na\r\n") == 1
