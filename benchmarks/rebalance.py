"""What a rebalance moves, whom it tells, and how many of them a crowd causes: many consumers of a topic with as many
segments as it may have join, then one more joins, then one leaves. Against the fewest segments that have to move, and
the consumers that have another assignment afterwards.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.readers import Readers, readers, subscribe_message, unsubscribe_message
from benchmarks.server import RunningServer, running_server, topic_url
from layout.assignment import fewest_moves, moved
from layout.layouts import Layout
from protocol.wire.pulsar_api_pb2 import BaseCommand, ScalableConsumerAssignment

SUBSCRIPTION = "rebalance"
REBALANCES_TARGET = 20
# Several times the pause between two rounds of a leader: what did not come by then does not come.
SILENCE = 0.5
SETTLE_LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Scale:
    """In the crowd most have a single segment; when one joins the few, all of them have to give up many."""

    segments: int
    crowd: int
    few: int
    connections: int
    join_seconds: float


FULL = Scale(segments=1024, crowd=1000, few=10, connections=10, join_seconds=1.0)
QUICK = Scale(segments=64, crowd=50, few=5, connections=5, join_seconds=0.3)


@dataclass(frozen=True, slots=True)
class _Counted:
    """What the server counts."""

    pushes: int
    rebalances: int
    reassigned: int

    @classmethod
    def by(cls, server: RunningServer) -> _Counted:
        names = ("vela_assignment_pushes_total", "vela_rebalances_total", "vela_consumers_reassigned_total")
        return cls(*(int(server.metric(name)) for name in names))

    def __sub__(self, other: _Counted) -> _Counted:
        return _Counted(
            self.pushes - other.pushes, self.rebalances - other.rebalances, self.reassigned - other.reassigned
        )


@dataclass(frozen=True, slots=True)
class _Crowd:
    """Seconds from the first request to the last answer, and to the last assignment before all was quiet."""

    answered: float
    settled: float
    counted: _Counted


@dataclass(frozen=True, slots=True)
class _Step:
    """What one consumer has caused that came or went."""

    what: str
    moved: int
    fewest: int
    changed: int  # others that have another assignment now
    frames: int  # that told somebody of another assignment
    counted: _Counted


class _Group:
    """The consumers of one topic and what each was told last."""

    def __init__(self, server: RunningServer, clients: Readers, topic: str, scale: Scale, ids: Iterator[int]) -> None:
        self._server = server
        self._clients = clients
        self._topic = topic_url(topic)
        self._connections = scale.connections
        # The same as the server makes.
        self._segments = Layout.create(scale.segments, now_ms=0).active
        self._members: set[int] = set()
        self._told: dict[str, tuple[int, ...]] = {}
        self._ids = ids
        self._frames = 0  # that told somebody of another assignment
        self._answered_at = self._told_at = 0.0
        server.create_topic(topic, scale.segments)

    def crowd(self, count: int, over: float = 0.0) -> _Crowd:
        """So many join, all at once or spread over so many seconds."""
        before = _Counted.by(self._server)
        started_at = self._join(count, over)
        self._settle()
        return _Crowd(self._answered_at - started_at, self._told_at - started_at, _Counted.by(self._server) - before)

    def one_joins(self) -> _Step:
        return self._step(f"one joins {len(self._members):,}", lambda: self._join(1))

    def one_leaves(self) -> _Step:
        return self._step(f"one leaves {len(self._members):,}", lambda: self._leave(min(self._members)))

    def _step(self, what: str, act: Callable[[], object]) -> _Step:
        before, frames, held = _Counted.by(self._server), self._frames, dict(self._told)
        act()
        self._settle()
        # Who came had nothing, and who went moves nothing: its segments have to go to somebody.
        had = {name: held.get(name, ()) for name in self._told}
        return _Step(
            what,
            moved=len(moved(had, self._told)),
            fewest=fewest_moves(self._segments, had),
            changed=sum(self._told[name] != held[name] for name in self._told.keys() & held.keys()),
            frames=self._frames - frames,
            counted=_Counted.by(self._server) - before,
        )

    def _join(self, count: int, over: float = 0.0) -> float:
        """When the first request was sent."""
        ids = list(itertools.islice(self._ids, count))
        self._members.update(ids)
        messages = [(i % self._connections, subscribe_message(i, self._topic, SUBSCRIPTION, _name(i))) for i in ids]
        return self._clients.send(messages, over)

    def _leave(self, consumer_id: int) -> None:
        self._members.remove(consumer_id)
        del self._told[_name(consumer_id)]
        self._clients.send([(consumer_id % self._connections, unsubscribe_message(consumer_id))])

    def _settle(self) -> None:
        """Return when everybody has an assignment, these are even and whole, and nothing more comes."""
        deadline = time.monotonic() + SETTLE_LIMIT
        while True:
            heard = self._clients.listen(SILENCE)
            for one in heard:
                self._take(BaseCommand.FromString(one.frame[8:]), one.at)
            if not heard and self._is_even():
                return
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"assignments were not even after {SETTLE_LIMIT:g} s")

    def _is_even(self) -> bool:
        given = [segment for segments in self._told.values() for segment in segments]
        return (
            len(self._told) == len(self._members)
            and sorted(given) == sorted(segment.segment_id for segment in self._segments)
            and not fewest_moves(self._segments, self._told)
        )

    def _take(self, command: BaseCommand, at: float) -> None:
        match command.type:
            case BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE:
                response = command.scalableTopicSubscribeResponse
                if response.HasField("error"):
                    raise MeasurementFailed(f"a registration was refused: {response.message}")
                self._answered_at = at
                self._tell(response.request_id, response.assignment, at)
            case BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
                self._frames += 1
                update = command.scalableTopicAssignmentUpdate
                self._tell(update.consumer_id, update.assignment, at)
            case BaseCommand.SUCCESS:
                pass
            case _:
                raise MeasurementFailed(f"a consumer's connection was told {command}")

    def _tell(self, consumer_id: int, assignment: ScalableConsumerAssignment, at: float) -> None:
        if consumer_id in self._members:
            self._told_at = at
            self._told[_name(consumer_id)] = tuple(segment.segment_id for segment in assignment.segments)


def _name(consumer_id: int) -> str:
    return f"consumer-{consumer_id:05}"


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    with running_server() as server, readers() as clients:
        clients.connect(server.pulsar_address, scale.connections)
        clients.greet(range(scale.connections))
        ids = itertools.count(1)
        many = _Group(server, clients, "rebalance-crowd", scale, ids)
        at_once = many.crowd(scale.crowd)
        steps = [many.one_joins(), many.one_leaves()]
        few = _Group(server, clients, "rebalance-few", scale, ids)
        few.crowd(scale.few)
        steps += [few.one_joins(), few.one_leaves()]
        spread = _Group(server, clients, "rebalance-spread", scale, ids).crowd(scale.crowd, scale.join_seconds)
    return _figures(scale, at_once, spread, steps)


def _figures(scale: Scale, at_once: _Crowd, spread: _Crowd, steps: Sequence[_Step]) -> list[Figure]:
    frames, pushes = sum(step.frames for step in steps), sum(step.counted.pushes for step in steps)
    setting = f"a topic with {scale.segments:,} segments"
    return [
        Figure(
            name="segments moved when one joins or leaves",
            measured=Quantity(sum(step.moved for step in steps), "segments"),
            floor=Quantity(sum(step.fewest for step in steps), "segments"),
            target=1.0,
            target_is_ratio=True,
            notes=(
                f"{setting}; moved (fewest possible): {_each(steps, lambda step: (step.moved, step.fewest))}",
                "floor: the fewest that have to change hands for all to have the same number; what a consumer leaves "
                "behind has to go to somebody, and counts in neither",
            ),
        ),
        Figure(
            name="pushes when one joins or leaves",
            measured=Quantity(max(frames, pushes), "frames"),
            floor=Quantity(sum(step.changed for step in steps), "frames"),
            target=1.0,
            target_is_ratio=True,
            notes=(
                f"the larger of {frames:,} frames that came and {pushes:,} that the server counted",
                f"floor: one for each consumer that has another assignment afterwards, the one that joined excepted: "
                f"it has an answer; frames (consumers): {_each(steps, lambda step: (step.frames, step.changed))}",
                f"rebalances: {', '.join(f'{step.what} {step.counted.rebalances}' for step in steps)}",
            ),
        ),
        Figure(
            name="rebalances while a crowd joins",
            measured=Quantity(max(at_once.counted.rebalances, spread.counted.rebalances), "rebalances"),
            floor=None,
            target=REBALANCES_TARGET,
            notes=(
                f"{scale.crowd:,} consumers of {setting} register over {scale.connections} connections; the larger "
                "number of two crowds",
                f"all at once: {_crowd_text(at_once)}",
                f"spread over {scale.join_seconds:g} s: {_crowd_text(spread)}",
            ),
        ),
        Figure(
            name="a crowd joins",
            measured=Quantity(at_once.settled, "s"),
            floor=None,
            target=None,
            notes=(
                "the crowd that comes at once, from the first request to the last assignment; the last answer came "
                f"after {at_once.answered:.2f} s; of the other crowd after {spread.answered:.2f} s, its last "
                f"assignment after {spread.settled:.2f} s",
            ),
        ),
    ]


def _crowd_text(crowd: _Crowd) -> str:
    counted = crowd.counted
    return (
        f"rebalances: {counted.rebalances}, assignments written: {counted.reassigned:,}, of these pushed to consumers "
        f"that had their answer already: {counted.pushes:,}"
    )


def _each(steps: Iterable[_Step], numbers: Callable[[_Step], tuple[int, int]]) -> str:
    return ", ".join(f"{step.what} {numbers(step)[0]:,} ({numbers(step)[1]:,})" for step in steps)
