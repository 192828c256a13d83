"""The watchers of a task on their connections: opened, dropped as the pattern says, brought back, and compared at last.

Updates are taken in where the connection reads them. A task for each watcher would cost more than all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from math import inf
from random import Random
from typing import Final, TypeVar

import trio

from protocol.backoff import Backoff
from protocol.client import ClientConnection, ServerRefused, connect
from protocol.client.mailboxes import Mailbox
from protocol.errors import ProtocolError
from protocol.names import NamespaceName
from protocol.wire import pulsar_api_pb2 as api
from spark.errors import JobError
from spark.replay.clock import StoreClock
from spark.replay.expecting import Expected, NamespaceState
from spark.replay.observing import Observations
from spark.replay.plans import ReplayPlan
from spark.replay.reconnects import drops
from spark.replay.views import NamespaceView, TopicView, View, frame_size

T = TypeVar("T")

# Connections that are opened at the same time: a server takes them one after the other anyway.
_OPENED_AT_ONCE: Final = 32
# Watchers that are compared before others may run.
_COMPARED_AT_ONCE: Final = 20
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25


class Watching:
    """All watchers of one task."""

    def __init__(self, plan: ReplayPlan, task: int, clock: StoreClock, observations: Observations) -> None:
        self.plan = plan
        self.clock = clock
        self.views: list[View] = []
        self.lines = [_Line(self, number) for number in range(task, plan.connections, plan.tasks)]
        del self.lines[plan.connections_of(task) :]
        self.seen = observations.pushes
        self.is_open = False  # all had their first state once
        self.started = False
        self.pushes = 0
        self.reachable_at = trio.current_time()
        self._task = task

    def assign(self, namespaces: Mapping[NamespaceName, NamespaceState]) -> None:
        """Give each watcher what it watches, and a connection."""
        for number, line in zip(self.plan.watchers_of(self._task), cycle(self.lines), strict=False):
            view = self._view(number, namespaces)
            line.views.append(view)
            self.views.append(view)

    async def open(self, nursery: trio.Nursery, expected: Expected) -> None:
        """Connect, and return when all watchers show what the store holds; a JobError says why they do not."""
        limit = trio.CapacityLimiter(_OPENED_AT_ONCE)
        async with trio.open_nursery() as opening:
            for line in self.lines:
                opening.start_soon(self._open, nursery, line, limit)
        within = self.plan.first_state_s
        behind = await self.settle(expected, within)
        if behind:
            raise JobError(
                f"{len(behind)} of {len(self.views)} watchers do not show what is in the store after {within:g} s: "
                f"see that {self.plan.target} serves this store, or use fewer watchers."
            )
        self.is_open = True

    def start(self, start_us: int) -> None:
        """From now on pushes count, and connections drop as the pattern says."""
        self.started = True
        at = trio.current_time() + (start_us - self.clock.now_us()) / 1e6
        for line in self.lines:
            line.begin_drops(at)

    def calm(self) -> None:
        """No connection drops any more, except for faults."""
        for line in self.lines:
            line.end_drops()

    async def settle(self, expected: Expected, within: float) -> list[View]:
        """Wait until every watcher is connected and shows what the store holds; those that do not are handed back."""
        give_up_at = trio.current_time() + within
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        await self._follow_recreated(expected)
        behind = self.views
        while True:
            before, behind = behind, []
            for count, view in enumerate(before, start=1):
                if not expected.is_shown_by(view):
                    behind.append(view)
                if count % _COMPARED_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            connected = all(line.is_up for line in self.lines)
            if (connected and not behind) or trio.current_time() > give_up_at:
                return behind
            await trio.sleep(backoff.next())

    def rows(self, expected: Expected) -> list[dict[str, object]]:
        return [view.row(expected.missing_from(view)) for view in self.views]

    def absence_rows(self, now_us: int) -> list[dict[str, object]]:
        """One row for each time that a watcher had no watch; who has none now is taken to be away until now."""
        for view in self.views:
            view.end_absence(now_us)
        return [
            {"namespace": view.namespace, "topic": view.topic, "watcher": view.number, "left_us": left, "back_us": back}
            for view in self.views
            for left, back in view.absences
        ]

    def check_reachable(self, error: ProtocolError) -> None:
        """A connection was not made. One of many may be, but if none is there for long, the target is gone."""
        now = trio.current_time()
        if any(line.is_up for line in self.lines):
            self.reachable_at = now
        elif now - self.reachable_at > self.plan.patience_s:
            raise JobError(f"The target has been away for more than {self.plan.patience_s:g} s: {error}")

    def _view(self, number: int, namespaces: Mapping[NamespaceName, NamespaceState]) -> View:
        turn, which = divmod(number, len(self.plan.namespaces))
        namespace = self.plan.namespaces[which]
        in_store = self.plan.namespace_in_store(namespace)
        topics = namespaces[in_store].topics
        if topics and self.plan.watches_topic(number):
            return TopicView(number, namespace, in_store, topics[turn % len(topics)])
        # Where nothing is there at the start, there is no topic that would be worth watching all along.
        return NamespaceView(number, namespace, in_store)

    async def _open(self, nursery: trio.Nursery, line: _Line, limit: trio.CapacityLimiter) -> None:
        async with limit:
            await nursery.start(line.run)

    async def _follow_recreated(self, expected: Expected) -> None:
        """A watch ends when its topic is deleted. Where that was created again, it is watched anew, as clients do."""
        for line in self.lines:
            for view in line.views:
                if isinstance(view, TopicView) and view.gone and expected.was_recreated(view):
                    await line.reopen(view)


class _Line:
    """One connection with its watchers, and whatever connection comes in its place."""

    def __init__(self, around: Watching, number: int) -> None:
        self.views: list[View] = []
        self.is_up = False
        self._around = around
        self._drops: Iterator[tuple[float, float]] = drops(
            around.plan.reconnect, Random(f"{around.plan.seed}/{number}")
        )
        self._started_at = 0.0
        self._drop_at = inf
        self._downtime = 0.0
        self._stay: trio.CancelScope | None = None
        self._connection: ClientConnection | None = None
        self._ended = trio.Event()
        self._reason: ProtocolError | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        around = self._around
        backoff = Backoff()
        while True:
            try:
                await self._connected(backoff, task_status)
                await trio.sleep(self._downtime)
                # It was away because it was told to be.
                around.reachable_at = trio.current_time()
                self._roll()
            except ProtocolError as error:
                if not around.is_open:
                    raise JobError(f"The target cannot be watched: {error}") from error
                around.check_reachable(error)
                await trio.sleep(backoff.next())

    def begin_drops(self, at: float) -> None:
        self._started_at = at
        self._roll()
        self._set_deadline()

    def end_drops(self) -> None:
        self._drops = iter(())
        self._drop_at = inf
        self._set_deadline()

    async def reopen(self, view: TopicView) -> None:
        view.gone = False
        if self._connection is not None and self.is_up:
            try:
                view.note_reopened()
                await self._open(self._connection, view)
            except ProtocolError:
                pass  # the connection is lost, and the next one opens it

    def lost(self, reason: ProtocolError) -> None:
        """The connection ended, or is of no more use."""
        if self._reason is None:
            self._reason = reason
            self._ended.set()

    async def _connected(self, backoff: Backoff, task_status: trio.TaskStatus[None]) -> None:
        """From connecting to the next drop; ProtocolError if it is not the pattern that ends it."""
        plan = self._around.plan
        self._ended = trio.Event()
        self._reason = None
        async with connect(plan.target, timeout=plan.patience_s) as connection:
            self._connection = connection
            try:
                for view in self.views:
                    if isinstance(view, TopicView) and view.gone:
                        continue
                    if view.is_known:
                        view.note_reconnected(self._around.clock.now_us())
                    await self._open(connection, view)
                self.is_up = True
                backoff.reset()
                if not self._around.is_open:
                    task_status.started()
                with trio.CancelScope(deadline=self._drop_at) as self._stay:
                    await self._ended.wait()
            finally:
                if self.is_up:
                    self._around.reachable_at = trio.current_time()
                self.is_up = False
                now_us = self._around.clock.now_us()
                for view in self.views:
                    view.note_left(now_us)
                self._connection = self._stay = None
            if self._reason is not None:
                raise self._reason

    async def _open(self, connection: ClientConnection, view: View) -> None:
        if isinstance(view, NamespaceView):
            await connection.open_namespace_watch(
                str(view.in_store),
                current_hash=view.hash if view.is_known else None,
                watch_id=view.number,
                into=_NamespaceUpdates(self, view, self._around),
            )
        elif isinstance(view, TopicView):
            await connection.open_watch(
                view.name, view.number, create_if_missing=False, into=_TopicUpdates(self, view, self._around)
            )

    def _roll(self) -> None:
        """The next drop that is not over already."""
        passed = trio.current_time() - self._started_at
        following = next(((at, downtime) for at, downtime in self._drops if at > passed), None)
        if following is None:
            self._drop_at = inf
        else:
            self._drop_at, self._downtime = self._started_at + following[0], following[1]

    def _set_deadline(self) -> None:
        if self._stay is not None:
            self._stay.deadline = self._drop_at


class _Updates(Mailbox[T]):
    """Takes updates in as they arrive; nothing ever waits here."""

    __slots__ = ("_around", "_line")

    def __init__(self, line: _Line, around: Watching) -> None:
        super().__init__()
        self._line = line
        self._around = around

    def end(self, reason: Exception | None = None) -> None:
        if isinstance(reason, ProtocolError):
            self._line.lost(reason)


class _NamespaceUpdates(_Updates[api.CommandWatchScalableTopicsUpdate]):
    __slots__ = ("_view",)

    def __init__(self, line: _Line, view: NamespaceView, around: Watching) -> None:
        super().__init__(line, around)
        self._view = view

    def _keep(self, value: api.CommandWatchScalableTopicsUpdate) -> None:
        if value.HasField("error"):
            self._line.lost(ServerRefused(value.error, value.message))
            return
        around, view = self._around, self._view
        arrival_us = around.clock.now_us()
        told = view.take(value)
        if told is not None and around.started:
            added, removed, after_reconnect = told
            size = frame_size(value)
            view.pushes += 1
            view.bytes += size
            around.pushes += 1
            around.seen.append((view, None, arrival_us, size, added, removed, after_reconnect))


class _TopicUpdates(_Updates[api.CommandScalableTopicUpdate]):
    __slots__ = ("_view",)

    def __init__(self, line: _Line, view: TopicView, around: Watching) -> None:
        super().__init__(line, around)
        self._view = view

    def _keep(self, value: api.CommandScalableTopicUpdate) -> None:
        around, view = self._around, self._view
        if value.HasField("error"):
            if value.error == api.TopicNotFound:
                view.end()
            else:
                self._line.lost(ServerRefused(value.error, value.message))
            return
        arrival_us = around.clock.now_us()
        told = view.take(value, arrival_us)
        if told is not None and around.started:
            epoch, after_reconnect = told
            size = frame_size(value)
            view.pushes += 1
            view.bytes += size
            around.pushes += 1
            around.seen.append((view, epoch, arrival_us, size, (), (), after_reconnect))
