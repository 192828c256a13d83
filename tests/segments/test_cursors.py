"""The cursor against a plain set of acknowledged entries."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.errors import RecordDamaged
from segments.cursors import (
    CHUNKS_ENCODED,
    LARGEST_BATCH,
    PARTIAL_WORDS_ENCODED,
    PARTIAL_WORDS_KEPT,
    PARTIALS_ENCODED,
    WORDS_ACCEPTED,
    Cursor,
)

# How long a case takes says something about the machine only.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Around the borders of chunks, where mistakes live.
positions = st.one_of(st.integers(0, 40), st.integers(1_000, 1_060), st.integers(2_030, 2_090), st.integers(0, 5_000))
acks = st.lists(st.tuples(st.sampled_from(("one", "one", "run", "cumulative")), positions), max_size=25)


def apply(cursor: Cursor, acked: set[int], how: str, index: int) -> None:
    if how == "cumulative":
        assert cursor.ack_cumulative(index) == bool(set(range(index + 1)) - acked)
        acked.update(range(index + 1))
        return
    for position in range(index, index + (1 if how == "one" else 1_500)):
        assert cursor.ack(position) == (position not in acked)
        acked.add(position)


def lowest_missing(acked: set[int], index: int) -> int:
    while index in acked:
        index += 1
    return index


@untimed
@given(acks, positions, positions)
def test_cursor_agrees_with_a_plain_set(steps: list[tuple[str, int]], first: int, end: int) -> None:
    cursor, acked = Cursor(), set[int]()
    for how, index in steps:
        apply(cursor, acked, how, index)
        assert cursor.mark == lowest_missing(acked, 0) - 1
        assert cursor.top == max(acked, default=-1)
        assert cursor.is_acked(first) == (first in acked)
        assert cursor.next_unacked(first) == lowest_missing(acked, first)
        assert cursor.unacked_between(first, end) == len(set(range(first, end)) - acked)
        assert cursor.unacked_between(0, end) == len(set(range(end)) - acked)


@untimed
@given(acks)
def test_encoding_says_everything(steps: list[tuple[str, int]]) -> None:
    cursor, acked = Cursor(), set[int]()
    for how, index in steps:
        apply(cursor, acked, how, index)
    cursor.ack_batch(9_000, (5, 0, -1))
    twin = Cursor.decode(cursor.encode())
    assert twin.encode() == cursor.encode()
    assert (twin.mark, twin.top, twin.ack_set_of(9_000)) == (cursor.mark, cursor.top, (5, 0, -1))
    assert twin.unacked_between(0, 10_000) == cursor.unacked_between(0, 10_000)
    # A bit at or below the mark that came along would show as soon as the mark moves.
    assert [twin.is_acked(index) for index in range(7_000)] == [index in acked for index in range(7_000)]
    apply(twin, acked, "run", 3)
    assert twin.mark == lowest_missing(acked, 0) - 1


@untimed
@given(st.lists(positions, max_size=50), st.randoms())
def test_acks_in_any_order_reach_the_same_cursor(indexes: list[int], random: st.randoms) -> None:  # type: ignore[valid-type]  # hypothesis gives a Random
    one, other = Cursor(), Cursor()
    for index in indexes:
        one.ack(index)
    random.shuffle(indexes)  # type: ignore[attr-defined]  # as above
    for index in indexes:
        other.ack(index)
    assert one.encode() == other.encode()


@untimed
@given(st.permutations([0b1110, 0b1101, 0b1011, 0b0111]), st.integers(0, 3))
def test_batch_is_done_when_all_its_messages_are(order: list[int], again: int) -> None:
    cursor = Cursor()
    for step, word in enumerate(order):
        assert not cursor.is_acked(7)
        assert cursor.ack_batch(7, (word,), 4)
        assert not cursor.ack_batch(7, (order[min(again, step)],), 4)
    assert cursor.is_acked(7)
    assert cursor.ack_set_of(7) == ()


def test_words_that_are_missing_are_done() -> None:
    cursor = Cursor()
    assert cursor.ack_batch(0, (-1,), 130)
    assert cursor.ack_set_of(0) == (-1,)
    assert cursor.ack_batch(0, (), 130)
    assert cursor.mark == 0


def test_bits_beyond_the_batch_are_nobodys() -> None:
    cursor = Cursor()
    assert not cursor.ack_batch(0, (-1, -1), 3)
    assert cursor.ack_batch(0, (-8, -1), 3)
    assert cursor.mark == 0


def test_whole_ack_settles_a_batch_begun() -> None:
    cursor = Cursor()
    cursor.ack_batch(4, (1,), 2)
    assert cursor.ack(4)
    assert cursor.ack_set_of(4) == ()
    assert cursor.is_acked(4)


def test_cumulative_ack_inside_a_batch_leaves_the_rest_of_it() -> None:
    cursor = Cursor()
    cursor.ack_batch(2, (1,), 2)
    assert cursor.ack_cumulative(5, (0b1100,), 4)
    assert (cursor.mark, cursor.ack_set_of(5), cursor.ack_set_of(2)) == (4, (0b1100,), ())
    assert not cursor.ack_cumulative(5, (0b1110,), 4)
    assert not cursor.ack_cumulative(3)
    assert cursor.ack_cumulative(5)
    assert cursor.mark == 5


def test_moving_starts_anew() -> None:
    cursor = Cursor()
    for index in (3, 5, 2_000):
        cursor.ack(index)
    cursor.ack_batch(7, (1,), 2)
    cursor.move_to(4)
    assert cursor.encode() == Cursor(3).encode()
    assert not cursor.is_acked(5)


def test_encoding_stays_small_and_keeps_the_lowest() -> None:
    cursor = Cursor()
    for index in range(1, 2 * CHUNKS_ENCODED * 1_024, 512):
        cursor.ack(index)
    for index in range(0, 2 * PARTIALS_ENCODED * 4, 4):
        cursor.ack_batch(index, (1,), 2)
    data = cursor.encode()
    assert len(data) < 200_000
    twin = Cursor.decode(data)
    assert twin.is_acked(1 + 512 * CHUNKS_ENCODED)
    assert not twin.is_acked(cursor.top)
    assert twin.ack_set_of(4) == (1,)
    assert twin.ack_set_of(4 * PARTIALS_ENCODED) == ()


def test_long_runs_cost_little() -> None:
    cursor = Cursor()
    for index in range(1, 300_000):
        cursor.ack(index)
    assert len(cursor.encode()) < 500
    cursor.ack(0)
    assert cursor.encode() == Cursor(299_999).encode()


def test_mark_that_moves_step_by_step_leaves_no_chunk_behind() -> None:
    cursor = Cursor()
    for index in (1, 2_030, *range(1_500)):
        cursor.ack(index)
    expected = Cursor(1_499)
    expected.ack(2_030)
    assert cursor.encode() == expected.encode()


def test_client_that_finishes_no_batch_is_bounded() -> None:
    cursor = Cursor()
    for index in range(PARTIAL_WORDS_KEPT):
        assert cursor.ack_batch(index, (1,))
    assert not cursor.ack_batch(PARTIAL_WORDS_KEPT, (1,))
    assert not cursor.ack_batch(0, (1,) * (WORDS_ACCEPTED + 1))
    assert cursor.ack_batch(0, ())
    assert cursor.ack_batch(PARTIAL_WORDS_KEPT, (1,)), "there is room for another"


def kept(cursor: Cursor, words: int) -> int:
    """How many batches of so many words are remembered in part, of those that nobody has begun."""
    return sum(cursor.ack_batch(index, (-2,) + (-1,) * (words - 1), words * 64) for index in range(1_000, 1_600))


@pytest.mark.parametrize("words", [100, WORDS_ACCEPTED - 1])
def test_room_for_parts_of_batches_is_counted_in_words_and_comes_back(words: int) -> None:
    cursor, fitting = Cursor(), PARTIAL_WORDS_KEPT // words
    assert kept(cursor, words) == fitting
    assert len(cursor.encode()) < PARTIAL_WORDS_ENCODED * 8 + PARTIALS_ENCODED * 20
    twin = Cursor.decode(cursor.encode())
    assert kept(twin, words) == fitting - PARTIAL_WORDS_ENCODED // words, "what was stored takes its room"
    for index in range(1_000, 1_600):
        cursor.ack(index)
    cursor.move_to(0)
    assert kept(cursor, words) == fitting
    cursor.ack_cumulative(1_600)
    cursor.move_to(0)
    assert kept(cursor, words) == fitting


def test_size_of_a_batch_that_nobody_could_send_is_not_believed() -> None:
    """Nor is a number made of as many bits as it has messages."""
    cursor = Cursor()
    assert cursor.ack_batch(0, (-2,), 2**31 - 1)
    assert cursor.remaining(0).bit_length() == 64
    assert not cursor.ack_batch(1, (-1,) * (WORDS_ACCEPTED + 1), LARGEST_BATCH + 1)
    assert cursor.ack_batch(1, (), 2**31 - 1)


@untimed
@given(st.binary(max_size=60), st.integers(0, 200))
def test_damaged_bytes_are_refused(noise: bytes, cut: int) -> None:
    cursor = Cursor()
    for index in (1, 2, 5_000):
        cursor.ack(index)
    cursor.ack_batch(9, (1,), 2)
    whole = cursor.encode()
    for data in (whole[: cut % len(whole)], whole + b"\0", noise):
        with pytest.raises(RecordDamaged, match="reset"):
            Cursor.decode(data)
