"""The watches on one connection: told apart by the number that the server knows them by, one table for each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

import trio

from protocol.client import requests
from protocol.client.errors import UpdatesNotTaken
from protocol.client.mailboxes import InOrder, Latest, Mailbox
from protocol.client.writing import Chunk
from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

Update = TypeVar("Update", bound=api.CommandScalableTopicUpdate | api.CommandWatchScalableTopicsUpdate)
# Hands a command over to be written.
Tell = Callable[[BaseCommand], Chunk]

# Far more than the frames that one read of the socket can hold, so that only who stops taking gets there.
MAX_WAITING_UPDATES = 16_384


class ConnectionWatch(ABC, Generic[Update]):
    """What the watches of both kinds share."""

    __slots__ = ("_table", "_tell", "_updates", "number", "received")

    def __init__(self, number: int, table: WatchTable[Update], tell: Tell, updates: Mailbox[Update]) -> None:
        self.number = number
        self.received = 0  # all updates that arrived, also those that were replaced before anybody took them
        self._table = table
        self._tell = tell
        self._updates = updates

    async def next(self) -> Update:
        """The next update that was not taken yet, as the server sent it.

        One with `error` set is the last: after it EndOfChannel is raised.
        """
        return await self._updates.take()

    async def close(self) -> None:
        """End the watch on both sides; nothing happens if it has ended already."""
        if (told := self.abandon()) is not None:
            await told.wait()

    def abandon(self) -> Chunk | None:
        """The same without waiting until the server is told; None if it need not be."""
        if not self._table.forget(self):
            return None
        self._updates.clear()
        self.end(trio.ClosedResourceError("this watch was closed"))
        try:
            return self._tell(self._close_command())
        except ProtocolError:
            return None  # the server ends the watches of a connection together with it

    def update(self, update: Update) -> None:
        """For the connection: an update arrived."""
        self.received += 1
        self._updates.put(update)
        if update.HasField("error"):
            self.end()

    def end(self, reason: Exception | None = None) -> None:
        """For the connection: nothing more will come."""
        self._updates.end(reason)

    @abstractmethod
    def _close_command(self) -> BaseCommand:
        """What tells the server that nobody listens any more."""


class Watch(ConnectionWatch[api.CommandScalableTopicUpdate]):
    """A watch on one topic, made by `ClientConnection.open_watch`; who takes slowly is given the newest update only."""

    __slots__ = ()

    def __init__(
        self,
        number: int,
        table: WatchTable[api.CommandScalableTopicUpdate],
        tell: Tell,
        into: Mailbox[api.CommandScalableTopicUpdate] | None = None,
    ) -> None:
        super().__init__(number, table, tell, Latest() if into is None else into)

    @property
    def session_id(self) -> int:
        return self.number

    def _close_command(self) -> BaseCommand:
        return requests.close_topic_watch(self.number)


class RawNamespaceWatch(ConnectionWatch[api.CommandWatchScalableTopicsUpdate]):
    """A watch on a namespace, made by `ClientConnection.open_namespace_watch`: every update, in order.

    Changes build on one another, so none may be dropped. If too many wait, the connection is closed with
    UpdatesNotTaken.
    """

    __slots__ = ("namespace",)

    def __init__(
        self,
        number: int,
        table: WatchTable[api.CommandWatchScalableTopicsUpdate],
        tell: Tell,
        namespace: str,
        into: Mailbox[api.CommandWatchScalableTopicsUpdate] | None = None,
    ) -> None:
        super().__init__(number, table, tell, InOrder() if into is None else into)
        self.namespace = namespace

    @property
    def watch_id(self) -> int:
        return self.number

    async def next_all(self) -> list[api.CommandWatchScalableTopicsUpdate]:
        """All updates that were not taken yet, at least one: who takes them one by one may be slower than they come."""
        return await self._updates.take_all()

    def update(self, update: api.CommandWatchScalableTopicsUpdate) -> None:
        if len(self._updates) >= MAX_WAITING_UPDATES:
            raise UpdatesNotTaken(
                f"{MAX_WAITING_UPDATES} updates of {self.namespace} wait and nobody takes them:"
                " the connection is given up, take them as they come."
            )
        super().update(update)

    def _close_command(self) -> BaseCommand:
        return requests.close_namespace_watch(self.number)


class WatchTable(Generic[Update]):
    """The open watches of one kind on one connection."""

    __slots__ = ("_numbers", "_watches")

    def __init__(self) -> None:
        self._watches: dict[int, ConnectionWatch[Update]] = {}
        self._numbers = count(1)

    def choose(self, wanted: int | None) -> int:
        """The number for a new watch. One that is in use passes to it, as it does on the server."""
        if wanted is None:
            return next(number for number in self._numbers if number not in self._watches)
        if wanted in self._watches:
            self._watches.pop(wanted).end(trio.ClosedResourceError("another watch took the number of this one"))
        return wanted

    def add(self, watch: ConnectionWatch[Update]) -> None:
        self._watches[watch.number] = watch

    def update(self, number: int, update: Update) -> None:
        """Pass an update on; one for a watch that is not there came too late and does no harm."""
        if (watch := self._watches.get(number)) is not None:
            watch.update(update)
            if update.HasField("error"):
                self.forget(watch)

    def forget(self, watch: ConnectionWatch[Update]) -> bool:
        """True if the watch was still open."""
        known = self._watches.get(watch.number) is watch
        if known:
            del self._watches[watch.number]
        return known

    def end(self, reason: Exception) -> None:
        for watch in self._watches.values():
            watch.end(reason)
