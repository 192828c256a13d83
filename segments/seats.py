"""Who may have a segment: the consumer that the stored assignment names, and nobody beside it.

The owner of a log enforces it, whichever node leads the topic. A consumer that comes while another one still has the
segment is held if it is assigned the segment, and refused otherwise; one that is not assigned it any more is closed
when it has had the time of a hand-over. ADR 0018 has the rule.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import trio

from metadata import keys
from metadata.complaints import note_waiting
from metadata.errors import StoreError
from metadata.segment_holders import STRANGER, Question, SegmentHolders, Standing
from metadata.tasks import Tasks
from protocol.backoff import Backoff
from segments.consumers import Consumer
from segments.dispatch.errors import ConsumerBusy
from segments.dispatch.receivers import Kind
from segments.open_log import OpenLog
from segments.subscription import LogSubscription

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

Subscribe = Callable[[], Awaitable[LogSubscription]]


@dataclass(eq=False, slots=True)
class _Waiting:
    """A consumer that is held until it can have the segment."""

    consumer: Consumer
    woken: trio.Event = field(default_factory=trio.Event)
    standing: Standing = STRANGER

    def wake(self) -> None:
        self.woken.set()


@dataclass(eq=False, slots=True)
class _Seat:
    """The one place of an Exclusive subscription at a log, as long as somebody has it or waits for it."""

    log: OpenLog
    subscription: str
    holder: Consumer | None = None
    at: LogSubscription | None = None  # where the holder is
    standing: Standing = STRANGER  # of the holder, when it was last looked at
    was_assigned: bool = False  # the holder, at any time since it came
    unassigned_since: float = float("inf")
    is_told: bool = False  # to the store, whoever has it
    waiting: list[_Waiting] = field(default_factory=list)

    @property
    def is_taken(self) -> bool:
        return self.holder is not None and self.at is not None and self.log.is_open and self.at.has(self.holder)

    @property
    def question(self) -> Question:
        names = [self.holder.name] if self.holder is not None else []
        return Question(self.log.place, self.subscription, [*names, *(it.consumer.name for it in self.waiting)])

    def look(self, standing: Standing, now: float) -> None:
        """The holder stands like this."""
        self.standing = standing
        self.was_assigned = self.was_assigned or standing.is_assigned
        self.unassigned_since = float("inf") if standing.is_assigned else min(self.unassigned_since, now)

    def due(self, span: float, followed_since: float) -> float:
        """When the holder has to go, if nothing changes.

        One that was never assigned the segment is no party to a hand-over: it goes if somebody waits who is.
        """
        if not self.was_assigned and not any(it.standing.is_assigned for it in self.waiting):
            return float("inf")
        # Who could not be told is not late.
        return max(self.unassigned_since, followed_since) + span


class Seats:
    """A listener of the change feed: assignments are written by the leaders of topics, wherever they are."""

    def __init__(
        self,
        holders: SegmentHolders,
        nursery: Tasks,
        *,
        handover: float,
        followed_since: Callable[[int], float] = lambda bucket: float("-inf"),
    ) -> None:
        """`followed_since` says since when changes of a bucket have been heard without a break."""
        self._holders = holders
        self._nursery = nursery
        self._handover = handover
        self._followed_since = followed_since
        self._seats: dict[str, dict[tuple[OpenLog, str], _Seat]] = {}  # by the path of the topic
        self._looking: dict[str, trio.Event] = {}  # topics that are looked at, and whether something was heard since
        self._telling: dict[OpenLog, dict[str, str]] = {}  # what has still to be told of a log, by subscription

    async def take(
        self, log_: OpenLog, name: str, kind: Kind, consumer: Consumer, subscribe: Subscribe, *, durable: bool
    ) -> LogSubscription:
        """Let a consumer in by `subscribe`, when it may. Raises ConsumerBusy where it may not."""
        # A classic log is sealed by its migration, and by nothing else.
        is_segment = log_.place.segment_id is not None or log_.sealed
        if not is_segment or kind is not Kind.EXCLUSIVE or not durable:
            return await subscribe()
        standing = await self._standing(log_, name, consumer)
        while True:
            seat = self._seat(log_, name)
            try:
                self._check(seat, standing, consumer)
                subscription = await subscribe()
            except _Superseded:
                raise
            except ConsumerBusy:
                if not standing.is_assigned:
                    raise
                standing = await self._hold(seat, consumer, standing)
                if not standing.is_assigned:
                    raise
            else:
                # Others may have come and gone meanwhile.
                self._seated(self._seat(log_, name), subscription, consumer, standing)
                return subscription
            finally:
                self._drop_unused(seat)

    async def _standing(self, log_: OpenLog, name: str, consumer: Consumer) -> Standing:
        question = Question(log_.place, name, [consumer.name])
        [[standing]] = await self._holders.standings(log_.place.topic_path, [question])
        return standing

    def _check(self, seat: _Seat, standing: Standing, consumer: Consumer) -> None:
        """Refuse who may not have the segment, and make room for the later of two connections of a consumer."""
        if standing.registered is not None and not standing.is_assigned:
            raise ConsumerBusy(f"{seat.log.name} is not assigned to {standing.registered}: open what is.")
        if not standing.is_assigned:
            if seat.waiting:
                raise ConsumerBusy(f"{seat.log.name} is assigned to another consumer of {seat.subscription}.")
            return
        known = seat.log.subscriptions.get(seat.subscription)
        if known is not None and known.kind is Kind.EXCLUSIVE and known.consumers:
            self._note_holder(seat, known)
        holder, at = seat.holder, seat.at
        if seat.is_taken and holder is not None and at is not None and seat.standing.registered == standing.registered:
            if holder.since > consumer.since:
                raise _Superseded(f"{standing.registered} has come by a later connection, and has {seat.log.name}.")
            # A connection that nobody hears of any more does not know that it is gone.
            log.info("%s of %s comes back to %s", standing.registered, seat.subscription, seat.log.name)
            at.unseat(holder)

    def _note_holder(self, seat: _Seat, known: LogSubscription) -> None:
        """Of one that came before the log was that of a segment, nobody has taken notice."""
        if seat.holder is not known.consumers[0]:
            self._sit(seat, known, known.consumers[0])
            seat.look(STRANGER, trio.current_time())

    async def _hold(self, seat: _Seat, consumer: Consumer, standing: Standing) -> Standing:
        """Return when it is worth another try, with how the consumer stands then."""
        waiting = _Waiting(consumer, standing=standing)
        seat.waiting.append(waiting)
        try:
            self._look_soon(seat.log.place.topic_path)
            await waiting.woken.wait()
            try:
                # Nobody else is let in meanwhile.
                return await self._standing(seat.log, seat.subscription, consumer)
            except StoreError as error:
                note_waiting(log, error, "the assignments of %s cannot be read now", seat.log.name)
                return waiting.standing
        finally:
            seat.waiting.remove(waiting)

    def _seated(self, seat: _Seat, subscription: LogSubscription, consumer: Consumer, standing: Standing) -> None:
        self._sit(seat, subscription, consumer)
        seat.look(standing, trio.current_time())
        if standing.registered is not None:
            seat.is_told = True
            self._tell(seat)
            # What was decided since it was asked about was not heard for it.
            self._look_soon(seat.log.place.topic_path)

    def _sit(self, seat: _Seat, subscription: LogSubscription, consumer: Consumer) -> None:
        seat.holder, seat.at = consumer, subscription
        seat.was_assigned, seat.unassigned_since = False, float("inf")
        subscription.when_left = lambda: self._left(seat)

    def _left(self, seat: _Seat) -> None:
        """Somebody has gone from a log, or the log from this node."""
        if seat.is_taken:
            return
        seat.holder = seat.at = None
        if seat.is_told:
            self._tell(seat)
        for waiting in seat.waiting:
            waiting.wake()
        self._drop_unused(seat)

    def _seat(self, log_: OpenLog, name: str) -> _Seat:
        seats = self._seats.setdefault(log_.place.topic_path, {})
        return seats.setdefault((log_, name), _Seat(log_, name))

    def _drop_unused(self, seat: _Seat) -> None:
        path = seat.log.place.topic_path
        seats = self._seats.get(path)
        key = (seat.log, seat.subscription)
        if seats is None or seats.get(key) is not seat or seat.waiting or seat.is_taken:
            return
        del seats[key]
        if not seats:
            del self._seats[path]

    # What the change feed calls.

    def changed(self, bucket: int, path: str) -> None:
        """Not by layouts, which assignments follow."""

    def registered(self, bucket: int, path: str) -> None:
        if path in self._seats:
            self._look_soon(path)

    def orphaned(self, bucket: int, path: str) -> None:
        """Nor by leaders."""

    def classic(self, bucket: int, path: str) -> None:
        """Nor by classic topics."""

    def gap(self, buckets: Collection[int]) -> None:
        for path in self._seats:
            if keys.bucket_of(path) in buckets:
                self._look_soon(path)

    # Looking.

    def _look_soon(self, path: str) -> None:
        heard = self._looking.get(path)
        if heard is not None:
            heard.set()
        else:
            self._looking[path] = trio.Event()
            self._nursery.start_soon(self._look, path)

    async def _look(self, path: str) -> None:
        """Compare who has the segments of a topic with who is assigned them, for as long as somebody has to go."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while path in self._seats:
                heard = self._looking[path] = trio.Event()
                try:
                    due = await self._compare(path)
                except StoreError as error:
                    note_waiting(log, error, "the assignments of %s cannot be read now", path)
                    await trio.sleep(backoff.next())
                    continue
                backoff.reset()
                if heard.is_set():
                    continue
                if due == float("inf"):
                    return
                with trio.move_on_at(due):
                    await heard.wait()
        except Exception:
            log.exception("who has the segments of %s could not be compared with who is assigned them", path)
        finally:
            del self._looking[path]

    async def _compare(self, path: str) -> float:
        """Look at all seats of a topic once; when the next of their holders has to go."""
        seats = [seat for seat in self._seats[path].values() if seat.holder is not None or seat.waiting]
        if not seats:
            return float("inf")
        asked = [(seat, seat.holder, list(seat.waiting)) for seat in seats]
        answers = await self._holders.standings(path, [seat.question for seat, _, _ in asked])
        now = trio.current_time()
        followed_since = self._followed_since(keys.bucket_of(path))
        following = float("inf")
        for (seat, holder, waiting), standings in zip(asked, answers, strict=True):
            for it, standing in zip(waiting, standings[len(standings) - len(waiting) :], strict=True):
                it.standing = standing
                if not standing.is_assigned:
                    it.wake()  # to be refused
            if holder is None or seat.holder is not holder or not seat.is_taken or seat.at is None:
                continue
            seat.look(standings[0], now)
            for it in waiting:
                if it.standing.registered == seat.standing.registered:
                    it.wake()  # the same consumer, by two connections
            due = seat.due(self._handover, followed_since)
            if due <= now:
                log.info("%s of %s has to let go of %s", holder.name, seat.subscription, seat.log.name)
                seat.at.unseat(holder)
            else:
                following = min(following, due)
        return following

    # Telling.

    def _tell(self, seat: _Seat) -> None:
        """Let leaders of topics know elsewhere who has a segment."""
        is_running = seat.log in self._telling
        self._telling.setdefault(seat.log, {})[seat.subscription] = "" if seat.holder is None else seat.holder.name
        if not is_running:
            self._nursery.start_soon(self._tell_all, seat.log)

    async def _tell_all(self, log_: OpenLog) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        left = self._telling[log_]
        try:
            # What the last owner has told counts for nothing any more.
            while left and log_.is_open:
                claim = log_.sending.settled_claim
                subscription, consumer = next(iter(left.items()))
                try:
                    if claim is not None and await self._holders.tell(claim, subscription, consumer):
                        if left.get(subscription) == consumer:
                            del left[subscription]
                        backoff.reset()
                        continue
                except StoreError as error:
                    log.debug("who has %s is not told now: %s", log_.name, error)
                await trio.sleep(backoff.next())
        except Exception:
            log.exception("who has %s could not be told", log_.name)
        finally:
            del self._telling[log_]


class _Superseded(ConsumerBusy):
    """Not to be waited out: whoever has the segment is the same consumer, and came later."""
