"""What can be concluded from the entries of a change log."""

import pytest

from metadata.change_log import Position, entries_after, lost_entry
from metadata.link import Reply

KNOWN = Position(b"5-1", b"ours")


def entry(number: str, op: str = "theirs") -> Reply:
    return [number.encode(), [b"topic", b"t/n/a", b"op", op.encode()]]


@pytest.mark.parametrize(
    ("log", "lost"),
    [
        pytest.param([entry("5-0"), entry("5-1", "ours")], False, id="it is the last"),
        pytest.param([entry("5-1", "ours"), entry("7-0")], False, id="others came after it"),
        pytest.param([entry("5-2"), entry("7-0")], False, id="trimmed past it"),
        pytest.param([entry("5-0")], True, id="ends before it"),
        pytest.param([entry("4-9"), entry("10-0")], True, id="went on without it"),
        pytest.param([entry("4-9"), entry("5-1")], True, id="another has its number"),
        pytest.param([], True, id="nothing left"),
    ],
)
def test_an_entry_is_lost_where_the_log_has_what_was_before_it_and_not_itself(log: list[Reply], lost: bool) -> None:
    until = [e for e in log if e[0] in (b"4-9", b"5-0", b"5-1")][-1:]
    assert lost_entry(KNOWN, until, log[-1:]) is lost


def test_entry_numbers_are_compared_as_numbers() -> None:
    assert not lost_entry(Position(b"9-2", b"ours"), [], [entry("10-0")])
    assert lost_entry(Position(b"10-0", b"ours"), [], [entry("9-9")])


def test_what_follows_a_position_is_new_and_a_log_without_it_says_nothing() -> None:
    assert entries_after(None, [entry("5-1")]) == [entry("5-1")]
    assert entries_after(KNOWN, [entry("5-1", "ours"), entry("7-0")]) == [entry("7-0")]
    assert entries_after(KNOWN, [entry("5-1")]) is None
    assert entries_after(KNOWN, []) is None
