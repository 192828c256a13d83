"""Messages whose values say where they belong, and what must hold of those that came out again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Sent(NamedTuple):
    key: str | None
    value: Any


class Received(NamedTuple):
    key: str | None
    value: Any
    topic: str = ""
    redeliveries: int = 0


def keyed(count: int, keys: int = 7, prefix: str = "key") -> list[Sent]:
    """`count` messages whose keys take turns; the values of a key are numbered."""
    return [Sent(f"{prefix}-{n % keys}", f"{prefix}-{n % keys}:{n // keys}") for n in range(count)]


def unkeyed(count: int, prefix: str = "plain") -> list[Sent]:
    return [Sent(None, f"{prefix}:{n}") for n in range(count)]


def values(messages: Iterable[Sent | Received]) -> list[Any]:
    return [message.value for message in messages]


def by_key(messages: Iterable[Sent | Received]) -> dict[str | None, list[Any]]:
    """The values of each key, in the order in which they stand."""
    found: dict[str | None, list[Any]] = defaultdict(list)
    for message in messages:
        found[message.key].append(message.value)
    return dict(found)


def assert_each_once(received: Sequence[Received], sent: Sequence[Sent]) -> None:
    """All of them, none twice, in any order."""
    missing = set(values(sent)) - set(values(received))
    assert not missing, f"{len(missing)} of {len(sent)} never came: {sorted(missing)[:10]}"
    assert sorted(values(received)) == sorted(values(sent))


def assert_order_of_keys(received: Sequence[Received], sent: Sequence[Sent]) -> None:
    """All of them, none twice, and those of one key in the order in which they were sent."""
    assert_each_once(received, sent)
    assert by_key(received) == by_key(sent)
