"""The logs as the controller of a topic sees them: which are drained, who has them open, and moving their cursors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import trio

from layout.segments import Segment
from metadata.complaints import complain
from metadata.cursor_requests import CursorRequests, PendingMove
from metadata.errors import RecordDamaged
from metadata.lanes import Lane
from metadata.log_figures import NOTHING, LogFigures, Traffic
from metadata.log_places import LogPlace
from metadata.log_states import LogStanding
from metadata.records import layout_of
from metadata.registrations import Registrations
from metadata.segment_holders import SegmentHolders, opens_as
from metadata.segment_logs import SegmentLogs
from metadata.store import TopicStore
from metadata.subscriptions import Registration
from protocol.errors import InvalidName
from protocol.names import TopicName
from segments.cursor_entries import cursor_of, unpack
from segments.cursor_moves import CursorMoves
from segments.cursors import Cursor
from segments.figures import traffic_of
from segments.hosting import Hosting
from segments.starting import begins_at

log = logging.getLogger(__name__)

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
        self._holders = SegmentHolders(store)

    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        """Which of these sealed segments hold nothing more for the subscription."""
        stored = await self._store.get(topic)
        if stored is None:
            return frozenset()
        registration = await self._registrations.find(topic, subscription)
        if registration is None:
            return frozenset()
        places = [place_of(topic, segment) for segment in segments]
        standings = await self._logs.standings(self._lane(), stored.version.incarnation, places, [subscription])
        drained = set()
        for segment, standing in zip(segments, standings, strict=True):
            state, cursor = standing.state, cursor_of(standing.cursors.get(subscription), registration.id)
            asked = None if state is None else state.requests.get(subscription)
            if asked is not None and asked.identity == registration.id:
                continue  # where its cursor will be, its owner says then
            begins = begins_at(segment, registration) or 0 if cursor is None else cursor.mark + 1
            # Where the storage is gone, so is what could have been consumed.
            if state is None or max(state.first, begins) >= state.next:
                drained.add(segment.segment_id)
        return frozenset(drained)

    async def backlog(self, topic: TopicName, subscription: str, segment: Segment, registration: Registration) -> int:
        """Entries of a segment that the subscription has not acknowledged."""
        owned = self._hosting.get(place_of(topic, segment).name)
        known = None if owned is None else owned.subscriptions.get(subscription)
        if known is not None and known.identity == registration.id:
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
        cursor = cursor_of(standing.cursors.get(subscription), registration.id)
        if cursor is not None:
            return cursor.unacked_between(first, end)
        return unread(segment, registration, first, end)

    async def figures(
        self, topic: TopicName, incarnation: str, segments: Sequence[Segment], subscriptions: Mapping[str, Registration]
    ) -> Mapping[int, LogFigures]:
        """What there is to know about segments, from one look at the store; of those that are here, as it is now."""
        places = [place_of(topic, segment) for segment in segments]
        standings = await self._logs.standings(self._lane(), incarnation, places, list(subscriptions))
        figures = {}
        for segment, place, standing in zip(segments, places, standings, strict=True):
            figures[segment.segment_id] = await self._figures_of(place, standing, subscriptions, segment)
        return figures

    async def classic_figures(self, topics: Sequence[TopicName], incarnation: str) -> Sequence[LogFigures]:
        """The same about a classic topic or partitions of one; their subscriptions are those that have been there."""
        places = [LogPlace.of_classic(topic) for topic in topics]
        standings = await self._logs.standings(self._lane(), incarnation, places, None)
        return [await self._figures_of(place, standing) for place, standing in zip(places, standings, strict=True)]

    async def classic_traffic(self, topic: TopicName) -> Traffic:
        """Who is at a classic topic or partition, and what goes through; nothing where there is none."""
        state = await self._logs.state(LogPlace.of_classic(topic))
        if state is None:
            return NOTHING
        [figures] = await self.classic_figures([topic], state.incarnation)
        return figures.traffic

    async def _figures_of(
        self,
        place: LogPlace,
        standing: LogStanding,
        registered: Mapping[str, Registration] | None = None,
        segment: Segment | None = None,
    ) -> LogFigures:
        """Of a segment for the subscriptions that are registered, of a classic log for all that have been there."""
        state = standing.state
        if state is None:
            return LogFigures()
        first, end = state.first, state.next
        cursors = {
            name: found for name, it in standing.cursors.items() if (found := _read(place, name, it)) is not None
        }
        ids = {name: identity for name, (identity, _) in cursors.items()}
        backlogs = {}
        if registered is not None and segment is not None:
            ids = {name: it.id for name, it in registered.items()}
            backlogs = {name: unread(segment, it, first, end) for name, it in registered.items()}
        for name, (identity, cursor) in cursors.items():
            if ids.get(name) == identity:
                backlogs[name] = cursor.unacked_between(first, end)
        owned = self._hosting.get(place.name)
        if owned is None:
            is_told = state.session and await self._hosting.is_alive(state.session)
            return LogFigures(state.size, end - first, backlogs, standing.traffic if is_told else NOTHING)
        backlogs |= {name: it.backlog for name, it in owned.subscriptions.items() if ids.get(name) == it.identity}
        return LogFigures(owned.size, owned.next - owned.first, backlogs, traffic_of(owned, trio.current_time()))

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        """Which of these consumers still have these segments open, as the owners of the logs say."""
        stored = await self._store.get(topic)
        if stored is None:
            return frozenset()
        segments = layout_of(stored).segments
        places = {i: place_of(topic, segments[i]) for i in {claim[1] for claim in claims} if i in segments}
        opened: dict[int, list[str]] = {}
        elsewhere: list[int] = []
        for segment_id, place in places.items():
            owned = self._hosting.get(place.name)
            if owned is None:
                elsewhere.append(segment_id)
            elif (known := owned.subscriptions.get(subscription)) is not None:
                opened[segment_id] = [consumer.name for consumer in known.consumers]
        told = await self._holders.holders(self._lane(), [places[i] for i in elsewhere], subscription)
        for segment_id, holder in zip(elsewhere, told, strict=True):
            # What a node has told that is not there any more is nobody's.
            if holder is not None and await self._hosting.is_elsewhere(holder.session):
                opened[segment_id] = [holder.consumer]
        return frozenset(
            (consumer, segment_id)
            for consumer, segment_id in claims
            if any(opens_as(consumer, segment_id, name) for name in opened.get(segment_id, ()))
        )

    async def request_move(
        self, topic: TopicName, incarnation: str, subscription: str, segment: Segment, to_ms: int | None
    ) -> PendingMove | None:
        """Ask for the cursor on a segment to be moved to the first message of a time or later, or to the end."""
        registration = await self._registrations.find(topic, subscription)
        if registration is None:
            return None
        place = place_of(topic, segment)
        return await self._requests.ask(place, incarnation, subscription, to_ms, registration.id)

    async def moved(self, moves: Sequence[PendingMove]) -> None:
        """Return when the owners of the logs have moved these cursors."""
        await self._moves.carried_out(moves)


def place_of(topic: TopicName, segment: Segment) -> LogPlace:
    if segment.legacy_topic_name:
        try:
            return LogPlace.of_classic(TopicName.parse(segment.legacy_topic_name))
        except InvalidName as error:
            raise RecordDamaged(f"The record of {topic} has a segment of no topic ({error}): restore it.") from None
    return LogPlace.of_segment(topic, segment.descriptor)


def _read(place: LogPlace, subscription: str, stored: bytes) -> tuple[str, Cursor] | None:
    """None for a cursor that is damaged: there is nothing to know of that subscription, and all of the others."""
    try:
        return unpack(stored)
    except RecordDamaged as error:
        complain(log, "subscription %s of %s: %s", subscription, place.name, error)
        return None


def unread(segment: Segment, registration: Registration, first: int, end: int) -> int:
    """What a segment at which a subscription never was holds for it; nothing while it is not known where it begins."""
    begins = begins_at(segment, registration)
    return 0 if begins is None else max(0, end - max(begins, first))
