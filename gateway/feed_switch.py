"""Passes what the change feed says to all who want to hear it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from metadata.feed import FeedListener
from sessions.readback import ReadBack


class FeedSwitch:
    """Changes of records go to everybody, those of registrations only to who deals with consumers."""

    def __init__(self, readback: ReadBack) -> None:
        self._readback = readback
        self._others: list[FeedListener] = []
        self._of_classic: list[Callable[[int, str], None]] = []

    def add(self, listener: FeedListener) -> None:
        self._others.append(listener)

    def add_of_classic(self, hear: Callable[[int, str], None]) -> None:
        """Somebody who learns the rest from the read-back."""
        self._of_classic.append(hear)

    def changed(self, bucket: int, path: str) -> None:
        self._readback.changed(bucket, path)
        for listener in self._others:
            listener.changed(bucket, path)

    def registered(self, bucket: int, path: str) -> None:
        for listener in self._others:
            listener.registered(bucket, path)

    def orphaned(self, bucket: int, path: str) -> None:
        for listener in self._others:
            listener.orphaned(bucket, path)

    def classic(self, bucket: int, path: str) -> None:
        for hear in self._of_classic:
            hear(bucket, path)
        for listener in self._others:
            listener.classic(bucket, path)

    def gap(self, buckets: Collection[int]) -> None:
        self._readback.gap(buckets)
        for listener in self._others:
            listener.gap(buckets)
