"""Unread writes against the plain rule: who asks finds a write if a read of it began after the writer's answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.unread_writes import UnreadWrites

_KEYS = "ab"
# What happens at a moment: a write of a key, a read of a key that began at an earlier moment, or one that begins now.
_steps = st.lists(
    st.tuples(st.sampled_from(["write", "begin", "end"]), st.sampled_from(_KEYS)),
    max_size=40,
)


@given(_steps)
def test_nobody_is_let_in_before_what_was_written_is_read_nor_later_than_needed(steps: list[tuple[str, str]]) -> None:
    unread: UnreadWrites[str] = UnreadWrites()
    written: dict[str, list[int]] = {key: [] for key in _KEYS}
    best_read = dict.fromkeys(_KEYS, 0)
    under_way: dict[str, int] = {}
    for moment, (what, key) in enumerate(steps, start=1):
        if what == "write":
            written[key].append(moment)
            unread.add(key, moment)
        elif what == "begin":
            under_way.setdefault(key, moment)
        elif key in under_way:
            began = under_way.pop(key)
            best_read[key] = began
            unread.read(key, began)
        settled = unread.settled_until()
        for asked in range(1, moment + 2):
            missing = any(best_read[k] < w < asked for k in _KEYS for w in written[k])
            if missing:
                assert asked > settled, "somebody would be let in without it"
        if all(not [w for w in written[k] if w > best_read[k]] for k in _KEYS):
            assert settled == float("inf"), "somebody would wait for nothing"
            assert not unread


def test_a_doubt_holds_everybody_back_until_a_later_read() -> None:
    unread: UnreadWrites[str] = UnreadWrites()
    unread.doubt("a", 5)
    unread.read("a", 4)
    assert unread.settled_until() == 0
    unread.add("a", 7)
    unread.read("a", 6)
    assert unread.settled_until() == 6
    unread.read("a", 8)
    assert not unread


def test_what_is_forgotten_is_waited_for_by_nobody() -> None:
    unread: UnreadWrites[str] = UnreadWrites()
    unread.add("a", 1)
    unread.forget("a")
    unread.forget("b")
    assert unread.settled_until() == float("inf")
