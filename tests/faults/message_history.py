"""What happened to messages in a run, as values, and the proof that it is what may happen.

The history is one list in the order in which one process saw it: what a consumer was given because of something that
stands in the list comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from math import inf
from pathlib import Path
from typing import Final

import msgspec

# Where several consumers share messages, one of them may have been sent a message again just before another's
# acknowledgement of it was confirmed. So long it may take until it is seen: the longest rest of a paused node, and what
# lies in buffers on a very busy machine.
ON_THE_WAY: Final = 30.0


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What a message says: who sent it under which key, as how many-eth of all that it sent."""

    producer: str
    key: str
    number: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.key}/{self.number}"

    def encode(self) -> bytes:
        return str(self).encode()

    @classmethod
    def decode(cls, value: bytes) -> Message:
        producer, key, number = value.decode().split("/")
        return cls(producer, key, int(number))


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a message stands: its id on the wire."""

    ledger: int
    index: int
    batch_index: int = -1

    def __str__(self) -> str:
        return f"{self.ledger}:{self.index}" + (f":{self.batch_index}" if self.batch_index >= 0 else "")


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    at: float  # seconds since the beginning


class Sent(Event, frozen=True, tag="sent"):
    """A producer accepted a message."""

    message: Message


class Receipt(Event, frozen=True, tag="receipt"):
    """The server said that a message is stored: at a place, or somewhere where it has been for long."""

    message: Message
    place: Place | None


class Failed(Event, frozen=True, tag="failed"):
    """A producer gave a message up: it is stored or not."""

    message: Message
    reason: str


class Delivered(Event, frozen=True, tag="delivered"):
    subscription: str
    consumer: str
    message: Message
    place: Place
    # When the consumer asked for its place at the segment's owner, and None if that is not known any more. Between two
    # such moments it has one stay there.
    asked_at: float | None = None


class AckSent(Event, frozen=True, tag="ack"):
    subscription: str
    consumer: str
    place: Place
    asked_at: float | None = None  # as above, of the stay in which it was sent


class AckConfirmed(Event, frozen=True, tag="confirmed"):
    subscription: str
    consumer: str
    place: Place


class Sought(Event, frozen=True, tag="sought"):
    """The server said that a subscription was moved: to its beginning, or to a place in one log.

    Whoever moves it takes nothing from the moment of asking until this.
    """

    subscription: str
    consumer: str
    place: Place | None


class WentBack(Event, frozen=True, tag="went-back"):
    """The store is as it was at an earlier moment, and forgot whatever it confirmed since."""

    to: float


class Anew(Event, frozen=True, tag="anew"):
    """All nodes were killed and are back: nothing is on its way any more that they said before."""


class Fault(Event, frozen=True, tag="fault"):
    """Something was done to the servers, the store or the topic."""

    what: str


AnyEvent = Sent | Receipt | Failed | Delivered | AckSent | AckConfirmed | Sought | WentBack | Anew | Fault


class Subscription(msgspec.Struct, frozen=True):
    name: str
    ordered: bool  # one consumer at a time has a segment, and no segment before all before it
    # Several are at a log, and one of them at a time is active. Who was may still take what it had in hand when another
    # one became so, and is given again what it has not acknowledged when its turn comes again.
    takes_turns: bool = False
    keyed: bool = False  # several share a log, and one of them at a time has a key: in order within each log


class History(msgspec.Struct, frozen=True):
    subscriptions: tuple[Subscription, ...]
    events: tuple[AnyEvent, ...]

    def save(self, path: Path) -> None:
        """For people who look for the reason: a line for each event."""
        lines = [msgspec.json.encode(self.subscriptions), *(msgspec.json.encode(event) for event in self.events)]
        path.write_bytes(b"\n".join(lines) + b"\n")

    @classmethod
    def load(cls, path: Path) -> History:
        first, *rest = path.read_bytes().splitlines()
        return cls(
            msgspec.json.decode(first, type=tuple[Subscription, ...]),
            tuple(msgspec.json.decode(line, type=AnyEvent) for line in rest),
        )


def violations(history: History) -> list[str]:
    """What must not have happened, each in a sentence; none if all is well.

    The history has to be complete: taken when nothing more was to come.
    """
    return [
        *_forged(history),
        *_shared_places(history),
        *_doubled(history),
        *(text for subscription in history.subscriptions for text in _lost(history, subscription)),
        *(text for subscription in history.subscriptions for text in _come_back(history, subscription)),
        *_repeated(history),
        *(
            text
            for subscription in history.subscriptions
            if subscription.keyed
            for text in _shared_keys(history, subscription)
        ),
        *(
            text
            for subscription in history.subscriptions
            if subscription.ordered or subscription.keyed
            for text in _out_of_order(history, subscription)
        ),
    ]


def is_before(place: Place, target: Place | None) -> bool:
    """Whether a subscription that is moved to the target leaves this place alone: it is behind it, or elsewhere."""
    return target is not None and (place.ledger != target.ledger or place.index < target.index)


class Due:
    """What one subscription has still to be given, while a history goes on."""

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription
        self._stored: dict[Message, Receipt] = {}
        self._came: dict[Message, Place] = {}
        self._missing: set[Message] = set()  # kept up to date: it is asked for many times a second
        self._floors: dict[int, int] = {}  # by log: what is below was skipped
        self._is_doubtful = False  # whether what is confirmed may be what the store has forgotten

    @property
    def missing(self) -> Set[Message]:
        return self._missing

    @property
    def came(self) -> int:
        return len(self._came)

    def note(self, event: AnyEvent) -> None:
        match event:
            case Receipt() if not self._is_doubtful:
                self._stored[event.message] = event
                if not self._is_settled(event.message, event):
                    self._missing.add(event.message)
            case Delivered() if event.subscription == self._subscription:
                self._came[event.message] = event.place
                self._missing.discard(event.message)
            case Sought() if event.subscription == self._subscription:
                self._came = {it: place for it, place in self._came.items() if is_before(place, event.place)}
                if event.place is None:
                    self._floors.clear()
                else:
                    # The message at the place itself comes or not, as its batch does.
                    self._floors[event.place.ledger] = event.place.index + 1
                self._look_again()
            case WentBack():
                self._is_doubtful = True
                self._stored = {it: receipt for it, receipt in self._stored.items() if receipt.at <= event.to}
                self._look_again()
            case Anew():
                self._is_doubtful = False

    def _look_again(self) -> None:
        self._missing = {it for it, receipt in self._stored.items() if not self._is_settled(it, receipt)}

    def _is_settled(self, message: Message, receipt: Receipt) -> bool:
        place = receipt.place
        return message in self._came or (place is not None and place.index < self._floors.get(place.ledger, 0))


def forgetting(history: History) -> Callable[[Event], bool]:
    """Tells of an event whether the store may have forgotten it: between what it went back to and a new beginning."""
    spans: list[tuple[float, float]] = []
    for event in history.events:
        match event:
            case WentBack():
                spans.append((event.to, inf))
            case Anew():
                spans = [(begin, min(end, event.at)) for begin, end in spans]
    return lambda event: any(begin < event.at <= end for begin, end in spans)


def placed(history: History) -> Iterator[tuple[Message, Place]]:
    """Which message stood where, by all that the store has not forgotten since."""
    is_forgotten = forgetting(history)
    for event in history.events:
        if isinstance(event, Receipt | Delivered) and event.place is not None and not is_forgotten(event):
            yield event.message, event.place


def receipts(history: History) -> dict[Message, Receipt]:
    """The acknowledged messages, in the order in which they were acknowledged."""
    return {event.message: event for event in history.events if isinstance(event, Receipt)}


def deliveries(history: History, subscription: str) -> Iterator[Delivered]:
    for event in history.events:
        if isinstance(event, Delivered) and event.subscription == subscription:
            yield event


def _forged(history: History) -> Iterator[str]:
    """Messages that came before, or without, having been sent; receipts for what was not sent."""
    sent: set[Message] = set()
    for event in history.events:
        match event:
            case Sent():
                sent.add(event.message)
            case Receipt() if event.message not in sent:
                yield f"{event.message} has a receipt and was never sent"
            case Delivered() if event.message not in sent:
                yield f"{event.message} was delivered to {event.subscription} and was never sent"


def _shared_places(history: History) -> Iterator[str]:
    """One id stands for one message, for good."""
    holders: dict[Place, Message] = {}
    for message, place in placed(history):
        holder = holders.setdefault(place, message)
        if holder != message:
            yield f"{place} is the place of {holder} and of {message}"


def _doubled(history: History) -> Iterator[str]:
    """Within one log the server tells a message that is sent again from a new one.

    A message whose segment was sealed before its receipt came may stand in the next one as well: only its producer
    could know.
    """
    places: dict[tuple[Message, int], Place] = {}
    for message, place in placed(history):
        first = places.setdefault((message, place.ledger), place)
        if first != place:
            yield f"{message} stands in one log twice, at {first} and at {place}"


def _lost(history: History, subscription: Subscription) -> Iterator[str]:
    """Every acknowledged message comes to every subscription, from the place that its receipt names."""
    came: dict[Message, set[Place]] = {}
    for delivery in deliveries(history, subscription.name):
        came.setdefault(delivery.message, set()).add(delivery.place)
    due = Due(subscription.name)
    for event in history.events:
        due.note(event)
    is_forgotten = forgetting(history)
    for message, receipt in receipts(history).items():
        if is_forgotten(receipt):
            continue
        if message not in came:
            yield f"{message} was stored at {receipt.place} and never came to {subscription.name}"
        elif message in due.missing:
            yield f"{message} at {receipt.place} never came to {subscription.name} again after it was moved before that"
        elif receipt.place is not None and receipt.place not in came[message]:
            others = ", ".join(sorted(map(str, came[message])))
            yield f"{message} was stored at {receipt.place}, and came to {subscription.name} from {others} only"


def _come_back(history: History, subscription: Subscription) -> Iterator[str]:
    """What was acknowledged, and confirmed to be, does not come again.

    To nobody at all who asked for messages after the confirmation; nor to those who had asked before, but for what was
    on its way to one of several consumers of a log.
    """
    confirmed: dict[Place, AckConfirmed] = {}
    slack = 0.0 if subscription.ordered and not subscription.takes_turns else ON_THE_WAY
    is_forgotten = forgetting(history)
    for event in history.events:
        match event:
            case AckConfirmed() if event.subscription == subscription.name:
                if not is_forgotten(event):
                    confirmed.setdefault(event.place, event)
            case Sought() if event.subscription == subscription.name:
                confirmed = {place: ack for place, ack in confirmed.items() if is_before(place, event.place)}
            case Delivered() if event.subscription == subscription.name and event.place in confirmed:
                before = confirmed[event.place]
                has_asked_since = event.asked_at is not None and event.asked_at > before.at
                if has_asked_since or event.at > before.at + slack or slack == 0:
                    yield (
                        f"{event.message} at {event.place} came back to {event.consumer} of {subscription.name}, "
                        f"{event.at - before.at:.3f} s after its acknowledgement by {before.consumer} was confirmed"
                    )


def _repeated(history: History) -> Iterator[str]:
    """Nothing is sent twice during one stay of a consumer: none of them asks for anything again.

    Where they take turns a stay has several, and they do not know of each.
    """
    in_turns = {subscription.name for subscription in history.subscriptions if subscription.takes_turns}
    came: set[tuple[str, str, float, Place]] = set()
    for event in history.events:
        if isinstance(event, Sought):
            came = {delivery for delivery in came if delivery[0] != event.subscription}
        elif isinstance(event, Delivered) and event.asked_at is not None and event.subscription not in in_turns:
            delivery = (event.subscription, event.consumer, event.asked_at, event.place)
            if delivery in came:
                where = f"{event.consumer} of {event.subscription}"
                yield f"{event.message} at {event.place} came to {where} twice in a row"
            came.add(delivery)


def _shared_keys(history: History, subscription: Subscription) -> Iterator[str]:
    """While a consumer has messages of a key that it has not acknowledged, no other one is given later ones.

    Of consumers that stayed where they were between a delivery and its acknowledgement: whoever lost its place, or its
    owner, may still have in hand what others were given meanwhile. And of messages that nobody had acknowledged in
    another stay before: such an acknowledgement may reach the owner, or a later one, at any time, and then counts.
    """
    acks = {
        (event.consumer, event.place, event.asked_at): number
        for number, event in enumerate(history.events)
        if isinstance(event, AckSent) and event.subscription == subscription.name
    }
    held: dict[tuple[str, int], list[tuple[Delivered, int]]] = {}  # by key and log, with the number of the ack
    acked_in: dict[Place, set[tuple[str, float | None]]] = {}  # the stays
    for number, event in enumerate(history.events):
        if isinstance(event, AckSent) and event.subscription == subscription.name:
            acked_in.setdefault(event.place, set()).add((event.consumer, event.asked_at))
        if not isinstance(event, Delivered) or event.subscription != subscription.name:
            continue
        line = event.message.key, event.place.ledger
        others = held[line] = [it for it in held.get(line, []) if it[1] > number]
        for other, _ in others:
            if acked_in.get(other.place, set()) - {(other.consumer, other.asked_at)}:
                continue
            if other.consumer != event.consumer and other.place.index < event.place.index:
                yield (
                    f"{event.message} at {event.place} came to {event.consumer} of {subscription.name} while "
                    f"{other.consumer} had {other.message} at {other.place} of the same key"
                )
        acked = acks.get((event.consumer, event.place, event.asked_at))
        if event.asked_at is not None and acked is not None:
            others.append((event, acked))


def _out_of_order(history: History, subscription: Subscription) -> Iterator[str]:
    """The messages that a producer sent under one key come for the first time in the order of sending.

    Of those that have a receipt: a message that was given up may have been stored much later, or never.
    """
    acknowledged = receipts(history)
    seen: set[Message] = set()
    newest: dict[tuple[str, str, int], Delivered] = {}
    for event in deliveries(history, subscription.name):
        message = event.message
        if message in seen or message not in acknowledged:
            continue
        seen.add(message)
        # Who shares the logs of a topic has a child without waiting for its parents.
        line = message.producer, message.key, event.place.ledger if subscription.keyed else 0
        before = newest.get(line)
        if before is not None and before.message.number > message.number:
            yield (
                f"{message} at {event.place} came to {event.consumer} of {subscription.name} after {before.message} "
                f"at {before.place}, which {before.consumer} got {event.at - before.at:.3f} s earlier"
            )
        else:
            newest[line] = event
