"""The queue of a peer that does not keep up: order, replacement, and what has begun."""

from hypothesis import given
from hypothesis import strategies as st

from sessions.backlog import REPLY_OVERHEAD, SOURCE_COST, Backlog


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


class Source:
    """Gives what is there when it is asked, and remembers how often that was."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts
        self.asked = 0

    def __call__(self) -> tuple[bytes, ...]:
        self.asked += 1
        return self.parts


def test_a_source_is_asked_when_all_before_it_is_out_and_only_then() -> None:
    backlog = Backlog()
    source = Source(b"<old>")
    backlog.add_reply(b"[a]")
    backlog.add_source(1, source)
    backlog.add_reply(b"[b]")
    backlog.advance(len(b"".join(backlog.head())))
    assert source.asked == 0
    source.parts = (b"<ne", b"w>")
    assert send_all(backlog, step=1) == b"<new>[b]"
    assert source.asked == 1


def test_a_source_that_was_added_again_is_asked_once_in_its_first_place() -> None:
    backlog = Backlog()
    source, other = Source(b"<1>"), Source(b"<2>")
    for _ in range(3):
        backlog.add_source(1, source)
        backlog.add_source(2, other)
    assert backlog.size == 2 * SOURCE_COST
    assert send_all(backlog) == b"<1><2>"
    assert (source.asked, other.asked, backlog.size) == (1, 1, 0)


def test_a_source_that_was_asked_may_be_added_again_and_waits_for_its_own_rest() -> None:
    backlog = Backlog()
    backlog.add_source(1, Source(b"<first>"))
    backlog.head()
    backlog.advance(3)
    backlog.add_source(1, Source(b"<second>"))
    assert send_all(backlog) == b"rst><second>"


def test_sources_with_nothing_to_say_leave_an_empty_backlog() -> None:
    backlog = Backlog()
    for key in range(3):
        backlog.add_source(key, Source())
    assert backlog
    assert backlog.head() == ()
    assert not backlog
    assert backlog.size == 0


def test_a_source_with_nothing_to_say_gives_way_to_what_follows() -> None:
    backlog = Backlog()
    backlog.add_source(1, Source())
    backlog.add_reply(b"[a]")
    backlog.add_source(2, Source())
    assert send_all(backlog) == b"[a]"


def test_a_dropped_source_is_never_asked() -> None:
    backlog = Backlog()
    source = Source(b"<1>")
    backlog.add_source(1, source)
    backlog.add_reply(b"[a]")
    backlog.drop(1)
    assert send_all(backlog) == b"[a]"
    assert source.asked == 0


def test_what_a_source_said_survives_its_drop() -> None:
    backlog = Backlog()
    backlog.add_source(1, Source(b"<1>"))
    backlog.head()
    backlog.advance(1)
    backlog.drop(1)
    assert send_all(backlog) == b"1>"


OPERATIONS = st.one_of(
    st.tuples(st.just("source"), st.integers(4, 6), st.integers(0, 9)),
    st.tuples(st.just("drop"), st.integers(4, 6), st.just(0)),
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
            case "source":
                backlog.add_source(watch, Source(*([b"s" * length] if length else [])))
            case "drop":
                backlog.drop(watch)
            case "reply":
                backlog.add_reply(b"r" * length)
            case _ if backlog and (parts := backlog.head()):
                whole = sum(map(len, parts))
                assert backlog.advance(min(length, whole)) == (length >= whole)
    while any(map(callable, backlog._frames.values())):
        # What a source will say is not known before it is asked.
        backlog.advance(sum(map(len, backlog.head())))
    owed = backlog.size
    assert len(send_all(backlog, step=3)) == owed
    assert backlog.size == 0
    assert backlog.reply_cost == 0
