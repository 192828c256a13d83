"""The write side of a connection over real sockets: direct sends, what is left over, slow peers, ends."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from sessions.counters import CloseReason, Counters
from sessions.outbox import Outbox, OutboxLimits
from tests.support.waiting import eventually

FRAME = 200_000  # more than a pair with small buffers takes at once


@dataclass
class Line:
    """Both ends of a connection with a send buffer of a few kilobytes."""

    ours: socket.socket
    peer: socket.socket
    counters: Counters

    def outbox(
        self, nursery: trio.Nursery, limits: OutboxLimits | None = None, slow: set[Outbox] | None = None
    ) -> Outbox:
        return Outbox(self.ours, nursery, limits or OutboxLimits(), self.counters, set() if slow is None else slow)

    def fill(self) -> int:
        """Send until the socket takes no more; how much that was."""
        filled = 0
        while True:
            try:
                filled += self.ours.send(b"." * 100_000)
            except BlockingIOError:
                return filled

    def take(self, limit: int = 1 << 20) -> bytes:
        """What has arrived by now, at most `limit` bytes."""
        taken = b""
        while len(taken) < limit:
            try:
                piece = self.peer.recv(limit - len(taken))
            except BlockingIOError:
                break
            if not piece:
                break
            taken += piece
        return taken

    async def read(self, length: int) -> bytes:
        taken = b""
        with trio.fail_after(30):
            while len(taken) < length:
                await trio.lowlevel.wait_readable(self.peer)
                taken += self.take(length - len(taken))
        return taken


@contextmanager
def open_line(counters: Counters) -> Iterator[Line]:
    ours, peer = socket.socketpair()
    for sock in (ours, peer):
        sock.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with ours, peer:
        yield Line(ours, peer, counters)


@pytest.fixture
def line() -> Iterator[Line]:
    with open_line(Counters()) as opened:
        yield opened


def state(letter: str, length: int = 8) -> tuple[bytes, bytes]:
    return b"<", letter.encode() * (length - 2) + b">"


async def test_push_to_a_free_socket_is_there_before_any_other_task_runs(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.push((b"head", b"tail"), 1)
    outbox.reply(b"reply")
    assert line.take() == b"headtailreply"
    assert outbox.queued_bytes == 0
    assert (line.counters.pushes_direct, line.counters.pushes_queued) == (1, 0)


async def test_large_frame_arrives_whole(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    assert 0 < outbox.queued_bytes < FRAME
    assert line.counters.outbox_bytes == outbox.queued_bytes
    assert await line.read(FRAME) == b"".join(state("a", FRAME))
    await outbox.wait_sent()
    assert (outbox.queued_bytes, line.counters.outbox_bytes) == (0, 0)


async def test_large_reply_arrives_whole(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.reply(b"r" * FRAME)
    outbox.reply(b"next")
    assert await line.read(FRAME + 4) == b"r" * FRAME + b"next"


async def test_more_parts_than_the_kernel_takes_in_one_call_arrive_whole(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    parts = tuple(b"%04d" % number for number in range(3000))
    outbox.send(parts)
    outbox.reply(b"next")
    assert await line.read(4 * 3000 + 4) == b"".join(parts) + b"next"
    assert not outbox.closed


async def test_frame_waits_for_the_rest_of_the_begun_one_even_if_the_socket_has_room(
    line: Line, nursery: trio.Nursery
) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    begun = line.take()  # makes room, and the writer had no chance to run yet
    outbox.push(state("b"), 2)
    outbox.reply(b"[reply]")
    rest = await line.read(FRAME + 8 + 7 - len(begun))
    assert begun + rest == b"".join(state("a", FRAME)) + b"".join(state("b")) + b"[reply]"


async def test_slow_peer_keeps_only_the_newest_state_of_each_watch(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    for letter in "bcd":
        outbox.push(state(letter), 1)
        outbox.push(state(letter.upper()), 2)
    assert (line.counters.pushes_queued, line.counters.pushes_replaced) == (3, 4)
    received = await line.read(FRAME + 16)
    assert received[FRAME:] == b"".join(state("d") + state("D"))
    assert line.take() == b""


async def test_state_that_the_socket_refused_whole_is_still_replaceable(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    filler = line.fill()
    outbox.push(state("a"), 1)
    outbox.push(state("b"), 1)
    assert (await line.read(filler + 8))[filler:] == b"".join(state("b"))


async def test_replies_are_never_dropped(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    expected = b""
    for number in range(300):
        outbox.reply(b"%04d" % number)
        outbox.push(state("b"), 2)
        expected += b"%04d" % number
    received = (await line.read(FRAME + 1200 + 8))[FRAME:]
    assert received.replace(b"".join(state("b")), b"") == expected


async def test_closed_watch_gets_no_queued_state(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    outbox.push(state("b"), 2)
    outbox.push(state("c"), 3)
    outbox.drop(2)
    assert line.counters.outbox_bytes == outbox.queued_bytes
    assert (await line.read(FRAME + 8))[FRAME:] == b"".join(state("c"))
    assert line.take() == b""


async def test_direct_sends_resume_after_the_backlog_is_gone(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    for letter in "ab":
        outbox.push(state(letter, FRAME), 1)
        await line.read(FRAME)
        await outbox.wait_sent()
        outbox.push(state(letter), 1)
        assert line.take() == b"".join(state(letter))


class Counting:
    """A source whose peer is behind by so many numbers; every asking tells all of them."""

    def __init__(self) -> None:
        self.behind = 1
        self.asked = 0

    def __call__(self) -> tuple[bytes, ...]:
        self.asked += 1
        told, self.behind = self.behind, 0
        return (b"<%d" % told, b">") if told else ()


async def test_an_offered_frame_is_sent_at_once_or_not_at_all(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    assert outbox.offer(b"[a]")
    assert line.take() == b"[a]"
    # What the socket takes a part of is told: the rest follows.
    whole = b"x" * FRAME
    assert outbox.offer(whole)
    assert not outbox.offer(b"[b]"), "behind the rest of another one"
    assert await line.read(FRAME) == whole
    await outbox.wait_sent()
    assert line.counters.pushes_direct == 1
    assert line.counters.pushes_queued == 1
    line.fill()
    assert not outbox.offer(b"[c]"), "a full socket takes nothing"
    assert outbox.queued_bytes == 0


async def test_a_frame_offered_to_a_peer_that_is_gone_closes(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    line.peer.close()
    assert not outbox.offer(b"[a]")
    assert line.counters.closes[CloseReason.RESET] == 1
    assert not outbox.offer(b"[a]")


async def test_a_source_of_a_free_socket_is_asked_and_sent_at_once(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    source = Counting()
    assert outbox.send_from(1, source) is False
    assert line.take() == b"<1>"
    assert outbox.send_from(1, source) is False  # has nothing to say
    assert (source.asked, outbox.queued_bytes, line.counters.pushes_direct) == (2, 0, 1)


async def test_a_source_of_a_blocked_socket_is_asked_once_when_its_turn_comes(
    line: Line, nursery: trio.Nursery
) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    source = Counting()
    for behind in range(1, 6):
        source.behind = behind
        assert outbox.send_from(2, source) is True
    outbox.reply(b"[b]")
    assert source.asked == 0
    assert (await line.read(FRAME + 6))[FRAME:] == b"<5>[b]"
    await outbox.wait_sent()
    assert source.asked == 1


async def test_queued_sources_leave_no_trace_in_the_count_of_queued_bytes(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    for key in range(2, 12):
        outbox.send_from(key, Counting())
        outbox.send_from(key, Counting())
        assert line.counters.outbox_bytes == outbox.queued_bytes
    outbox.drop(3)
    assert line.counters.outbox_bytes == outbox.queued_bytes
    await line.read(FRAME + 3 * 9)
    await outbox.wait_sent()
    assert (outbox.queued_bytes, line.counters.outbox_bytes) == (0, 0)


async def test_a_connection_that_ends_with_queued_sources_leaves_no_trace_in_the_count(
    line: Line, nursery: trio.Nursery
) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    for key in range(2, 12):
        outbox.send_from(key, Counting())
    outbox.close(CloseReason.PEER)
    assert line.counters.outbox_bytes == 0


async def test_what_a_source_gives_in_thousands_of_parts_arrives_whole_and_in_order(
    line: Line, nursery: trio.Nursery
) -> None:
    outbox = line.outbox(nursery)
    parts = tuple(b"%06d" % number for number in range(20_000))
    assert outbox.send_from(1, lambda: parts) is False
    outbox.reply(b"[next]")
    assert await line.read(120_006) == b"".join(parts) + b"[next]"
    await outbox.wait_sent()
    assert line.counters.outbox_bytes == 0


async def test_many_parts_that_the_socket_takes_at_once_are_sent_to_the_last(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    parts = tuple(b"%d" % (number % 10) for number in range(1_500))
    outbox.send_from(1, lambda: parts)
    assert await line.read(1_500) == b"".join(parts)


async def test_a_source_that_the_socket_refused_whole_is_not_asked_again(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    filler = line.fill()
    source = Counting()
    assert outbox.send_from(1, source) is False
    source.behind = 7
    assert outbox.send_from(1, source) is True
    assert (await line.read(filler + 6))[filler:] == b"<1><7>"


async def test_a_dropped_source_is_never_asked(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    source = Counting()
    outbox.send_from(2, source)
    outbox.drop(2)
    await line.read(FRAME)
    await outbox.wait_sent()
    assert source.asked == 0
    assert line.take() == b""


async def test_sources_with_nothing_to_say_do_not_stall_the_connection(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery, OutboxLimits(stall_limit=1.0))
    outbox.push(state("a", FRAME), 1)
    for key in range(2, 200):
        outbox.send_from(key, lambda: ())
    await line.read(FRAME)
    await outbox.wait_sent()
    await trio.sleep(1.5)
    assert not outbox.closed
    outbox.reply(b"reply")
    assert line.take() == b"reply"


async def test_a_source_that_fails_ends_its_connection_only(
    line: Line, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    outbox.send_from(2, lambda: (bytes(1 // 0),))
    await line.read(FRAME)
    await eventually(lambda: outbox.closed)
    assert line.counters.closes[CloseReason.ERROR] == 1
    assert "ZeroDivisionError" in caplog.text


async def test_a_source_of_a_closed_connection_or_a_gone_peer_is_not_queued(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    line.peer.close()
    assert outbox.send_from(1, Counting()) is False
    assert outbox.closed
    source = Counting()
    assert outbox.send_from(1, source) is False
    assert source.asked == 0
    assert line.counters.closes[CloseReason.RESET] == 1


async def test_dropping_all_that_was_queued_does_not_stall_the_connection(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery, OutboxLimits(stall_limit=0.05))
    line.fill()
    outbox.push(state("a"), 1)
    outbox.drop(1)
    with trio.fail_after(30):
        await outbox.wait_sent()
    assert not outbox.closed
    assert line.counters.stalls == 0


async def test_peer_that_takes_nothing_is_cut(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery, OutboxLimits(stall_limit=0.05))
    outbox.push(state("a", FRAME), 1)
    await eventually(lambda: outbox.closed)
    assert line.counters.stalls == 1
    assert line.counters.closes[CloseReason.STALLED] == 1
    assert line.counters.outbox_bytes == 0


async def test_peer_that_takes_a_little_now_and_then_is_not_cut(line: Line, nursery: trio.Nursery) -> None:
    limit = 1.5  # seconds in which this process must get to run once
    outbox = line.outbox(nursery, OutboxLimits(stall_limit=limit))
    outbox.push(state("a", 40_000), 1)
    started = trio.current_time()
    taken = b""
    while trio.current_time() < started + 1.5 * limit:
        taken += line.take(1_000)
        await trio.sleep(limit / 60)
    assert not outbox.closed
    taken += await line.read(40_000 - len(taken))
    assert taken == b"".join(state("a", 40_000))


async def test_too_many_waiting_replies_congest_the_connection_until_they_are_read(
    line: Line, nursery: trio.Nursery
) -> None:
    outbox = line.outbox(nursery, OutboxLimits(reply_backlog=10_000))
    outbox.push(state("a", FRAME), 1)
    outbox.push(state("b", FRAME), 2)
    assert not outbox.congested  # states are bounded by themselves
    replies = 0
    while not outbox.congested:
        outbox.reply(b"pong")
        replies += 1
    assert replies < 100
    nursery.start_soon(line.read, 2 * FRAME + 4 * replies)
    with trio.fail_after(30):
        await outbox.wait_drained()
    assert not outbox.congested


async def test_closing_wakes_who_waits_for_the_backlog(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery, OutboxLimits(reply_backlog=0))
    outbox.reply(b"r" * FRAME)
    outbox.reply(b"more")
    assert outbox.congested
    with trio.fail_after(30):
        async with trio.open_nursery() as waiting:
            waiting.start_soon(outbox.wait_drained)
            waiting.start_soon(outbox.wait_sent)
            await trio.testing.wait_all_tasks_blocked()
            outbox.close(CloseReason.PEER)


async def test_close_wakes_the_parked_writer_and_frees_the_socket(line: Line) -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as writers:  # leaves only when no writer is left
            outbox = line.outbox(writers)
            outbox.push(state("a", FRAME), 1)
            await trio.testing.wait_all_tasks_blocked()
            outbox.close(CloseReason.PEER)
    assert line.ours.fileno() == -1
    assert line.counters.outbox_bytes == 0


async def test_writer_that_had_not_started_yet_ends_when_the_connection_is_closed(line: Line) -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as writers:
            outbox = line.outbox(writers)
            outbox.push(state("a", FRAME), 1)
            outbox.close(CloseReason.PEER)
    assert line.counters.closes[CloseReason.PEER] == 1
    assert sum(line.counters.closes.values()) == 1


async def test_first_reason_of_a_close_counts(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.close(CloseReason.DEAD)
    outbox.close(CloseReason.PEER)
    outbox.push(state("a"), 1)
    outbox.reply(b"late")
    outbox.drop(1)
    assert line.counters.closes[CloseReason.DEAD] == 1
    assert sum(line.counters.closes.values()) == 1
    assert line.take() == b""


async def test_push_to_a_peer_that_is_gone_closes(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    line.peer.close()
    outbox.push(state("a"), 1)
    assert outbox.closed
    assert line.counters.closes[CloseReason.RESET] == 1


async def test_reply_to_a_peer_that_is_gone_closes(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    line.peer.close()
    outbox.reply(b"reply")
    assert outbox.closed


async def test_peer_that_goes_while_it_is_owed_bytes_closes(line: Line, nursery: trio.Nursery) -> None:
    outbox = line.outbox(nursery)
    outbox.push(state("a", FRAME), 1)
    line.peer.close()
    await eventually(lambda: outbox.closed)
    assert line.counters.closes[CloseReason.RESET] == 1
    assert line.counters.outbox_bytes == 0


async def test_cancelled_writer_closes_its_connection(line: Line) -> None:
    async with trio.open_nursery() as writers:
        outbox = line.outbox(writers)
        outbox.push(state("a", FRAME), 1)
        await trio.testing.wait_all_tasks_blocked()
        writers.cancel_scope.cancel()
    assert outbox.closed
    assert line.counters.closes[CloseReason.SHUTDOWN] == 1


async def test_fault_in_the_writer_ends_its_connection_only(
    line: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with trio.open_nursery() as writers:
        outbox = line.outbox(writers)
        outbox.push(state("a", FRAME), 1)
        monkeypatch.setattr(Outbox, "_send_turn", lambda *_: 1 / 0)
        line.take()
        await eventually(lambda: outbox.closed)
    assert line.counters.errors == 1
    assert line.counters.closes[CloseReason.ERROR] == 1
    assert "ZeroDivisionError" in caplog.text


async def test_over_the_bound_of_all_connections_those_go_that_have_most_queued(nursery: trio.Nursery) -> None:
    limits, counters, slow = OutboxLimits(total_bytes=5 * FRAME), Counters(), set[Outbox]()
    with ExitStack() as stack:
        lines = [stack.enter_context(open_line(counters)) for _ in range(4)]
        deaf, deafer, late, free = (line.outbox(nursery, limits, slow) for line in lines)
        for frame in range(2):
            deaf.reply(b"." * FRAME)
            deafer.reply(b"." * (FRAME + 1000 * frame))
        late.reply(b"." * FRAME)
        assert counters.closes[CloseReason.OVERLOAD] == 0
        late.reply(b"." * FRAME)
        assert [outbox.closed for outbox in (deaf, deafer, late)] == [False, True, False]
        assert counters.closes[CloseReason.OVERLOAD] == 1
        assert counters.outbox_bytes == deaf.queued_bytes + late.queued_bytes
        assert slow == {deaf, late}
        free.reply(b"at once")
        assert lines[3].take() == b"at once"
        for outbox in (deaf, late, free):
            outbox.close(CloseReason.SHUTDOWN)


async def test_who_reads_is_not_cut_for_what_it_was_just_given(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    limits, counters, slow = OutboxLimits(total_bytes=5 * FRAME), Counters(), set[Outbox]()
    with ExitStack() as stack:
        lines = [stack.enter_context(open_line(counters)) for _ in range(3)]
        deaf, small, reading = (line.outbox(nursery, limits, slow) for line in lines)
        small.reply(b"." * (FRAME // 4))
        deaf.reply(b"." * FRAME)
        reading.reply(b"." * FRAME)
        await lines[2].read(FRAME)
        await trio.sleep(5)
        for _ in range(4):
            reading.reply(b"." * FRAME)
        assert [outbox.closed for outbox in (deaf, small, reading)] == [True, False, False]
        for outbox in (small, reading):
            outbox.close(CloseReason.SHUTDOWN)


async def test_connection_that_has_caught_up_counts_no_more(line: Line, nursery: trio.Nursery) -> None:
    slow = set[Outbox]()
    outbox = line.outbox(nursery, slow=slow)
    outbox.reply(b"." * FRAME)
    assert slow == {outbox}
    await line.read(FRAME)
    await outbox.wait_sent()
    assert not slow
    outbox.reply(b"." * FRAME)
    outbox.close(CloseReason.PEER)
    assert not slow
