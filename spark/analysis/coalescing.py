"""What the watchers of one namespace are told under several windows: the gateway's own rule, as a fold. No Spark.

The first change after quiet is told at once, later ones when the window since the last telling has passed. A telling
is the difference between what was told before and what is true then, by incarnation: a topic that came and went in
between is not mentioned, one that was made anew stands in both lists, and where nothing differs nothing is sent and
no window begins.

Left out is what depends on the machine: the time to read changes back, some milliseconds, which gathers more of them
when they come faster than that. So for windows of a few milliseconds the result is the most that could be sent.

The fold keeps the topics of one namespace and what is waiting to be told, and nothing else: its memory is bounded by
the topics alive at a time, and one namespace is the work of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from spark.analysis.frames import diff_bytes

_SECOND: Final = 1_000_000
_NEVER: Final = 1 << 62

Change = tuple[int, str, str | None, int]
"""When, which topic, its incarnation from then on or None, and the bytes of its name in a list (`entry_bytes`)."""


@dataclass(frozen=True, slots=True)
class Telling:
    """One diff."""

    at_us: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    bytes: int


@dataclass(slots=True)
class Totals:
    """What one watcher would have been sent under one window."""

    diffs: int = 0
    names: int = 0  # in them; one that was made anew counts once
    added: int = 0
    removed: int = 0
    bytes: int = 0
    waited_us: int = 0  # by all names together, from the last change of each until it was told


@dataclass(slots=True)
class Window:
    """The state of the fold for one window. `per_second` is filled only where `by_second` asks for it."""

    length_us: int
    by_second: bool = False
    keep: bool = False
    totals: Totals = field(default_factory=Totals)
    per_second: dict[int, tuple[int, int]] = field(default_factory=dict)  # diffs and bytes
    tellings: list[Telling] = field(default_factory=list)
    told_at: int = -_NEVER
    due: int = _NEVER
    # Where the truth differs from what was told: what that was, the bytes of the name, and since when.
    pending: dict[str, tuple[str | None, int, int]] = field(default_factory=dict)

    def change(self, at: int, name: str, before: str | None, now: str | None, size: int) -> None:
        told = self.pending.get(name)
        if told is None:
            if not self.pending:
                self.due = max(at, self.told_at + self.length_us)
            self.pending[name] = (before, size, at)
        elif told[0] == now:
            # Back at what everybody believes.
            del self.pending[name]
            if not self.pending:
                self.due = _NEVER
        else:
            self.pending[name] = (told[0], size, at)

    def tell(self, true: dict[str, str]) -> None:
        """The window is over, and something is pending."""
        at = self.due
        removed, added = [], []
        removed_bytes, added_bytes = [], []
        waited = 0
        for name, (before, size, since) in self.pending.items():
            waited += at - since
            if before is not None:
                removed.append(name)
                removed_bytes.append(size)
            if name in true:
                added.append(name)
                added_bytes.append(size)
        size = diff_bytes(removed_bytes, added_bytes)
        totals = self.totals
        totals.diffs += 1
        totals.names += len(self.pending)
        totals.added += len(added)
        totals.removed += len(removed)
        totals.bytes += size
        totals.waited_us += waited
        if self.by_second:
            diffs, sent = self.per_second.get(at // _SECOND, (0, 0))
            self.per_second[at // _SECOND] = (diffs + 1, sent + size)
        if self.keep:
            self.tellings.append(Telling(at, tuple(removed), tuple(added), size))
        self.pending = {}
        self.told_at = at
        self.due = _NEVER


class Coalescing:
    """The fold over one namespace: seeds first, then changes in the order of time."""

    def __init__(self, windows_ms: Sequence[int], by_second_ms: int | None = None, *, keep: bool = False) -> None:
        self.windows = [Window(ms * 1_000, by_second=ms == by_second_ms, keep=keep) for ms in windows_ms]
        self._true: dict[str, str] = {}

    def seed(self, name: str, incarnation: str) -> None:
        """A topic that was there when the watchers came: it is in their snapshot."""
        self._true[name] = incarnation

    def change(self, change: Change) -> None:
        at, name, now, size = change
        before = self._true.get(name)
        if before == now:
            return
        for window in self.windows:
            # What happens in the very moment of a telling is told in it.
            if window.due < at:
                window.tell(self._true)
            window.change(at, name, before, now, size)
        if now is None:
            del self._true[name]
        else:
            self._true[name] = now

    def end(self) -> None:
        """No more changes: what is pending is told when it is due."""
        for window in self.windows:
            if window.due < _NEVER:
                window.tell(self._true)
