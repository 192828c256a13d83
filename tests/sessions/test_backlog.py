"""The queue of a peer that does not keep up: order, replacement, and what has begun."""

from hypothesis import given
from hypothesis import strategies as st

from sessions.backlog import REPLY_OVERHEAD, Backlog


def send_all(backlog: Backlog, step: int = 1 << 20) -> bytes:
    sent = b""
    while backlog:
        piece = b"".join(backlog.head())[:step]
        backlog.advance(len(piece))
        sent += piece
    return sent


def test_frames_leave_in_the_order_they_were_queued() -> None:
    backlog = Backlog()
    backlog.add_reply(b"[a]")
    backlog.add_state(1, (b"<1", b">"))
    backlog.add_reply(b"[b]")
    assert send_all(backlog) == b"[a]<1>[b]"


def test_newer_state_takes_the_place_of_the_older() -> None:
    backlog = Backlog()
    assert not backlog.add_state(1, (b"<old>",))
    backlog.add_state(2, (b"<other>",))
    assert backlog.add_state(1, (b"<new>",))
    assert send_all(backlog) == b"<new><other>"


def test_begun_frame_goes_first_and_is_not_replaced() -> None:
    backlog = Backlog()
    backlog.begin((b"<ol", b"d>"), 4)
    backlog.add_reply(b"[a]")
    assert not backlog.add_state(1, (b"<new>",))
    assert send_all(backlog) == b">[a]<new>"


def test_state_begun_by_the_writer_is_not_replaced() -> None:
    backlog = Backlog()
    backlog.add_state(1, (b"<ol", b"d>"))
    backlog.advance(1)
    assert not backlog.add_state(1, (b"<new>",))
    assert send_all(backlog) == b"old><new>"


def test_dropped_state_is_not_sent() -> None:
    backlog = Backlog()
    backlog.add_state(1, (b"<1>",))
    backlog.add_state(2, (b"<2>",))
    backlog.drop(1)
    backlog.drop(1)
    backlog.drop(3)
    assert send_all(backlog) == b"<2>"


def test_begun_state_survives_its_drop() -> None:
    backlog = Backlog()
    backlog.add_state(1, (b"<1>",))
    backlog.advance(1)
    backlog.drop(1)
    assert send_all(backlog) == b"1>"


def test_only_replies_count_towards_their_cost() -> None:
    backlog = Backlog()
    backlog.add_state(1, (b"<1>",))
    backlog.add_reply(b"[a]")
    assert (backlog.size, backlog.reply_cost) == (6, 3 + REPLY_OVERHEAD)
    send_all(backlog)
    assert (backlog.size, backlog.reply_cost) == (0, 0)


OPERATIONS = st.one_of(
    st.tuples(st.just("state"), st.integers(0, 3), st.integers(1, 9)),
    st.tuples(st.just("drop"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("reply"), st.just(0), st.integers(1, 9)),
    st.tuples(st.just("send"), st.just(0), st.integers(0, 12)),
)


@given(st.lists(OPERATIONS, max_size=60))
def test_size_is_what_remains_to_be_sent(operations: list[tuple[str, int, int]]) -> None:
    backlog = Backlog()
    for operation, watch, length in operations:
        match operation:
            case "state":
                backlog.add_state(watch, (b"h", b"t" * length))
            case "drop":
                backlog.drop(watch)
            case "reply":
                backlog.add_reply(b"r" * length)
            case _ if backlog:
                whole = sum(map(len, backlog.head()))
                assert backlog.advance(min(length, whole)) == (length >= whole)
    owed = backlog.size
    assert len(send_all(backlog, step=3)) == owed
    assert backlog.reply_cost == 0
