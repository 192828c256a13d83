"""Rows in their order, each held until the value it announces was read, or cannot come any more, or takes too long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from metadata.traces.events import TraceEvent


class _Held(msgspec.Struct, gc=False):
    event: TraceEvent
    until: float
    path: str | None  # None: waits for nothing


class Holding:
    def __init__(self) -> None:
        self._rows: deque[_Held] = deque()
        self._waiting: dict[str, list[_Held]] = {}  # by path, in their order

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, event: TraceEvent) -> None:
        """A row that waits for nothing but those before it."""
        self._rows.append(_Held(event, 0.0, None))

    def add_waiting(self, event: TraceEvent, path: str, until: float) -> None:
        """A row whose value may be read until then."""
        held = _Held(event, until, path)
        self._rows.append(held)
        waiting = self._waiting.get(path)
        if waiting is None:
            self._waiting[path] = [held]
        else:
            waiting.append(held)

    def supply(self, path: str, incarnation: str, version: int, value: bytes | None) -> None:
        """This was read: the value of one row. Those before it have none any more; later ones will be read again."""
        waiting = self._waiting.get(path)
        if waiting is None:
            return
        passed = 0
        for held in waiting:
            event = held.event
            if event.incarnation != incarnation or event.version is None or event.version > version:
                break
            passed += 1
            if event.version == version:
                held.event = replace(event, value=value)
                break
        self._let_go(path, waiting, passed)

    def give_up(self, path: str) -> None:
        """The topic is gone, and its values with it."""
        waiting = self._waiting.get(path)
        if waiting is not None:
            self._let_go(path, waiting, len(waiting))

    def released(self, now: float) -> Iterator[TraceEvent]:
        """The rows that need not be held longer."""
        rows = self._rows
        while rows:
            held = rows[0]
            if held.path is not None:
                if held.until > now:
                    return
                # The first of all rows is the first of its topic.
                self._let_go(held.path, self._waiting[held.path], 1)
            rows.popleft()
            yield held.event

    def _let_go(self, path: str, waiting: list[_Held], count: int) -> None:
        for held in waiting[:count]:
            held.path = None
        del waiting[:count]
        if not waiting:
            del self._waiting[path]
