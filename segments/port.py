"""The logs as the controller of a topic sees them: which are drained, who has them open, and moving their cursors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import trio

from layout import records
from layout.segments import Segment
from metadata.cursor_requests import CursorRequests, PendingMove
from metadata.lanes import Lane
from metadata.log_figures import NOTHING, LogFigures, Traffic
from metadata.log_places import LogPlace
from metadata.log_states import LogStanding
from metadata.registrations import Registrations
from metadata.segment_logs import SegmentLogs
from metadata.store import TopicStore
from metadata.subscriptions import Settings
from protocol.backoff import Backoff
from protocol.names import TopicName
from segments.cursor_moves import CursorMoves
from segments.cursors import Cursor
from segments.errors import NoLog
from segments.figures import traffic_of
from segments.hosting import Hosting

# How long those who deleted a subscription wait until other nodes have forgotten it.
_HEARING: Final = 2.0
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.2
# A consumer and a segment that it has open.
Claim = tuple[str, int]


class LogsOfTopics:
    """Facts come from the store, so that they do not depend on who owns a log; cursors are moved by its owner."""

    def __init__(
        self,
        store: TopicStore,
        logs: SegmentLogs,
        registrations: Registrations,
        hosting: Hosting,
        moves: CursorMoves,
        lane: Callable[[], Lane],
    ) -> None:
        self._store = store
        self._logs = logs
        self._registrations = registrations
        self._hosting = hosting
        self._requests = CursorRequests(store)
        self._moves = moves
        self._lane = lane

    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        """Which of these sealed segments hold nothing more for the subscription."""
        stored = await self._store.get(topic)
        if stored is None:
            return frozenset()
        places = [place_of(topic, segment) for segment in segments]
        standings = await self._logs.standings(self._lane(), stored.version.incarnation, places, [subscription])
        drained = set()
        for segment, standing in zip(segments, standings, strict=True):
            state, cursor = standing.state, standing.cursors.get(subscription)
            if state is not None and subscription in state.requests:
                continue  # where its cursor will be, its owner says then
            # Where the storage is gone, so is what could have been consumed.
            if state is None or max(state.first - 1, _mark(cursor)) >= state.next - 1:
                drained.add(segment.segment_id)
        return frozenset(drained)

    async def backlog(self, topic: TopicName, subscription: str, segment: Segment, settings: Settings) -> int:
        """Entries of a segment that the subscription has not acknowledged."""
        owned = self._hosting.get(place_of(topic, segment).name)
        if owned is not None and (known := owned.subscriptions.get(subscription)) is not None:
            return known.backlog
        stored = await self._store.get(topic)
        if stored is None:
            return 0
        [standing] = await self._logs.standings(
            self._lane(), stored.version.incarnation, [place_of(topic, segment)], [subscription]
        )
        if standing.state is None:
            return 0
        first, end = standing.state.first, standing.state.next
        cursor = standing.cursors.get(subscription)
        if cursor is not None:
            return Cursor.decode(cursor).unacked_between(first, end)
        return end - first if is_unread(segment, settings) else 0

    async def forget(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> None:
        """A subscription was deleted: one of the same name that comes later must not go on where it was.

        Other nodes that own segments hear of it by themselves, for which there is a moment. All else is seen to here:
        what nobody owns, and the logs of legacy segments, whose owners do not know whose they are.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        places: Sequence[LogPlace] = [place_of(topic, segment) for segment in segments]
        with trio.move_on_after(_HEARING):
            while (stored := await self._store.get(topic)) is not None:
                places = await self._forget_at(places, stored.version.incarnation, subscription)
                if not places:
                    return
                await trio.sleep(backoff.next())

    async def _forget_at(self, places: Sequence[LogPlace], incarnation: str, subscription: str) -> list[LogPlace]:
        """Forget a subscription at those of these logs that are not left to other nodes; those that are."""
        standings = await self._logs.standings(self._lane(), incarnation, places, [subscription])
        left = []
        for place, standing in zip(places, standings, strict=True):
            if standing.state is None or subscription not in standing.cursors:
                continue
            if place.segment_id is not None and await self._hosting.is_elsewhere(standing.state.session):
                left.append(place)
                continue
            try:
                owned = await self._hosting.open(place.name, by_force=True)
            except NoLog:
                continue
            await owned.remove(subscription)
        return left

    async def figures(
        self, topic: TopicName, incarnation: str, segments: Sequence[Segment], subscriptions: Mapping[str, Settings]
    ) -> Mapping[int, LogFigures]:
        """What there is to know about segments, from one look at the store; of those that are here, as it is now."""
        places = [place_of(topic, segment) for segment in segments]
        standings = await self._logs.standings(self._lane(), incarnation, places, list(subscriptions))
        figures = {}
        for segment, place, standing in zip(segments, places, standings, strict=True):
            unread = {name for name, settings in subscriptions.items() if is_unread(segment, settings)}
            figures[segment.segment_id] = await self._figures_of(place, standing, subscriptions, unread)
        return figures

    async def classic_figures(self, topics: Sequence[TopicName], incarnation: str) -> Sequence[LogFigures]:
        """The same about a classic topic or partitions of one; their subscriptions are those that have been there."""
        places = [LogPlace.of_classic(topic) for topic in topics]
        standings = await self._logs.standings(self._lane(), incarnation, places, None)
        return [
            await self._figures_of(place, standing, standing.cursors)
            for place, standing in zip(places, standings, strict=True)
        ]

    async def classic_traffic(self, topic: TopicName) -> Traffic:
        """Who is at a classic topic or partition, and what goes through; nothing where there is none."""
        state = await self._logs.state(LogPlace.of_classic(topic))
        if state is None:
            return NOTHING
        [figures] = await self.classic_figures([topic], state.incarnation)
        return figures.traffic

    async def _figures_of(
        self, place: LogPlace, standing: LogStanding, subscriptions: Collection[str], unread: Collection[str] = ()
    ) -> LogFigures:
        """`unread` has those for which the log holds all its messages if they were never at it."""
        state = standing.state
        if state is None:
            return LogFigures()
        entries = state.next - state.first
        backlogs = dict.fromkeys(subscriptions, 0) | dict.fromkeys(unread, entries)
        for name, cursor in standing.cursors.items():
            backlogs[name] = Cursor.decode(cursor).unacked_between(state.first, state.next)
        owned = self._hosting.get(place.name)
        if owned is None:
            is_told = state.session and await self._hosting.is_alive(state.session)
            return LogFigures(state.size, entries, backlogs, standing.traffic if is_told else NOTHING)
        backlogs |= {name: it.backlog for name, it in owned.subscriptions.items() if name in backlogs}
        return LogFigures(owned.size, owned.next - owned.first, backlogs, traffic_of(owned, trio.current_time()))

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        """Which of these consumers still have these segments open, as far as this node can see."""
        logs = self._hosting.logs
        # The log of a legacy segment is a classic topic's, which does not know whose segment it is.
        legacy = await self._legacy_ids(topic) if any(owned.place.segment_id is None for owned in logs) else {}
        found = set()
        for owned in logs:
            segment_id = legacy.get(owned.name)
            if owned.place.segment_id is not None:
                segment_id = owned.place.segment_id if owned.topic == topic else None
            known = owned.subscriptions.get(subscription)
            if segment_id is None or known is None:
                continue
            names = {consumer.name for consumer in known.consumers}
            found |= {claim for claim in claims if claim[1] == segment_id and _is_open(claim[0], segment_id, names)}
        return frozenset(found)

    async def request_move(
        self, topic: TopicName, incarnation: str, subscription: str, segment: Segment, to_ms: int | None
    ) -> PendingMove | None:
        """Ask for the cursor on a segment to be moved to the first message of a time or later, or to the end."""
        return await self._requests.ask(place_of(topic, segment), incarnation, subscription, to_ms)

    async def moved(self, moves: Sequence[PendingMove]) -> None:
        """Return when the owners of the logs have moved these cursors."""
        await self._moves.carried_out(moves)

    async def _legacy_ids(self, topic: TopicName) -> dict[str, int]:
        stored = await self._store.get(topic)
        if stored is None:
            return {}
        segments = records.decode_layout(stored.value).segments.values()
        return {name: segment.segment_id for segment in segments if (name := segment.legacy_topic_name)}


def place_of(topic: TopicName, segment: Segment) -> LogPlace:
    if segment.legacy_topic_name:
        return LogPlace.of_classic(TopicName.parse(segment.legacy_topic_name))
    return LogPlace.of_segment(topic, segment.descriptor)


def is_unread(segment: Segment, settings: Settings) -> bool:
    """Whether a segment at which a subscription never was holds all its messages for it."""
    made_at = settings.created_at_epoch
    return settings.from_start or (made_at is not None and segment.created_at_epoch > made_at)


def _mark(cursor: bytes | None) -> int:
    """Up to where everything is acknowledged."""
    return -1 if cursor is None else Cursor.decode(cursor).mark


def _is_open(consumer: str, segment_id: int, names: Collection[str]) -> bool:
    """Clients name what they have open at a segment after the consumer, some with the segment behind it."""
    return consumer in names or f"{consumer}-seg-{segment_id}" in names
