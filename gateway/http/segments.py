"""Single segments over HTTP, with Pulsar's paths.

Here segments come from creations, splits and merges, whole or not at all, and their cursors with the subscriptions of
the topic. So most of these confirm what is so, or refuse what would break a layout; subscriptions that are named and
missing are created.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from litestar import Controller, delete, get, post, put

from controller import seeking
from controller.leader import TopicLeader
from controller.transitions import wall_clock_ms
from gateway.http.documentation import STRINGS, SWITCH, TIMESTAMP, described, leader_refusals, query, refusals
from gateway.http.parameters import AnyRequest, checked_subscription, json_list, moment, switch
from gateway.http.path_names import OF_SEGMENT, OF_SUBSCRIPTION, SEGMENT, SegmentInPath, SubscriptionInPath
from gateway.http.ports import AdminPorts, Ports
from gateway.http.refusals import SegmentInLayout, UnknownSegment
from gateway.http.topics import stored_topic, topic_state
from layout import records
from layout.errors import SegmentNotFound
from layout.segments import Segment
from metadata.errors import RecordDamaged
from metadata.records import StoredTopic
from metadata.subscriptions import Subscription, TopicState
from protocol.names import SegmentName

SUBSCRIPTION: Final = f"{SEGMENT}/subscription/{{subscription:str}}"

_names_body: msgspec.json.Decoder[list[str] | None] = msgspec.json.Decoder(list[str] | None)


class SegmentRoutes(Controller):
    path = "/admin/v2/segments"
    tags = ("segments",)
    dependencies = OF_SEGMENT | OF_SUBSCRIPTION

    @put(
        SEGMENT,
        status_code=204,
        summary="See that a segment is there",
        responses=refusals(404, 409, 412, 507),
        operation_class=described(body=STRINGS),
    )
    async def create_segment(self, ports: Ports, request: AnyRequest, name: SegmentInPath) -> None:
        """The body names subscriptions that must have a cursor on it. Those of the topic have; others are created, with
        all messages that are still there and a type that their first consumer decides.

        A segment that the layout does not know cannot be created: it would own hashes that others own.
        """
        wanted = [checked_subscription(text) for text in await json_list(request, _names_body)]
        state = await topic_state(ports, name.parent)
        try:
            _segment(state.topic, name)
        except SegmentNotFound:
            raise UnknownSegment(
                f"The layout of {name.parent} has no segment {name.descriptor}, and segments are made only by creating,"
                " splitting and merging: do that instead."
            ) from None
        await _provide_cursors(ports, state, wanted)

    @post(
        f"{SEGMENT}/terminate",
        status_code=204,
        summary="See that a segment takes no more messages",
        responses=refusals(404, 409, 412),
    )
    async def terminate_segment(self, ports: Ports, name: SegmentInPath) -> None:
        """An active segment cannot be terminated by itself: nobody would own its hashes."""
        if _segment(await stored_topic(ports, name.parent), name).is_active:
            raise SegmentInLayout(f"{name} is active, and its hashes would be nobody's: split or merge it instead.")

    @delete(
        SEGMENT,
        status_code=204,
        summary="See that a segment is gone",
        responses=refusals(409, 412),
        operation_class=described(parameters=[query("force", SWITCH, "Known to Pulsar; it makes no difference here.")]),
    )
    async def delete_segment(self, ports: Ports, request: AnyRequest, name: SegmentInPath) -> None:
        """What a layout has forgotten is deleted from the store soon; what it still has stays."""
        switch(request, "force")
        stored = await ports.store.get(name.parent)
        if stored is not None:
            try:
                segment = _segment(stored, name)
            except SegmentNotFound:
                pass
            else:
                advice = "split or merge it" if segment.is_active else "it goes when its retention is over"
                raise SegmentInLayout(f"{name} is {segment.state.lower()} and part of its topic's layout: {advice}.")
        ports.garbage.collect_soon()

    @put(
        SUBSCRIPTION,
        status_code=204,
        summary="See that a subscription has a cursor on a segment",
        responses=refusals(404, 409, 412, 507),
    )
    async def create_cursor(self, ports: Ports, name: SegmentInPath, subscription_name: SubscriptionInPath) -> None:
        """It has, if the topic has the subscription; otherwise the topic gets it, of an open type."""
        state = await topic_state(ports, name.parent)
        _segment(state.topic, name)
        await _provide_cursors(ports, state, [subscription_name])

    @delete(
        SUBSCRIPTION,
        status_code=204,
        summary="Let go of a subscription's cursor on a segment",
        responses=refusals(404, 409, 412),
    )
    async def delete_cursor(self, ports: Ports, name: SegmentInPath, subscription_name: SubscriptionInPath) -> None:
        """Cursors go with the subscription of the topic, so that this changes nothing by itself."""
        await _check_cursor(ports, name, subscription_name)

    @get(
        f"{SUBSCRIPTION}/backlog",
        summary="Read how many entries of a segment a subscription has not consumed",
        responses=refusals(404, 409, 412),
    )
    async def read_backlog(self, ports: Ports, name: SegmentInPath, subscription_name: SubscriptionInPath) -> int:
        """A bare number."""
        segment, subscription = await _check_cursor(ports, name, subscription_name)
        return await ports.segments.backlog(name.parent, subscription_name, segment, subscription.registration)

    @post(
        f"{SUBSCRIPTION}/seek",
        status_code=204,
        summary="Move a subscription on one segment to a moment",
        responses=leader_refusals(404, 409, 412),
        operation_class=described(parameters=[TIMESTAMP]),
    )
    async def seek(
        self, ports: Ports, request: AnyRequest, name: SegmentInPath, subscription_name: SubscriptionInPath
    ) -> None:
        timestamp_ms = moment(request, "timestamp")

        async def seek(leader: TopicLeader) -> None:
            await seeking.seek_segment(ports.cursors, leader, subscription_name, name.descriptor, timestamp_ms)

        await ports.leaders.as_leader(name.parent, seek)

    @post(
        f"{SUBSCRIPTION}/skip-all",
        status_code=204,
        summary="Skip all messages of a subscription on one segment",
        responses=leader_refusals(404, 409, 412),
    )
    async def skip_all(self, ports: Ports, name: SegmentInPath, subscription_name: SubscriptionInPath) -> None:

        async def skip_all(leader: TopicLeader) -> None:
            await seeking.skip_segment(ports.cursors, leader, subscription_name, name.descriptor)

        await ports.leaders.as_leader(name.parent, skip_all)


def _segment(stored: StoredTopic, name: SegmentName) -> Segment:
    return seeking.segment_at(name.parent, records.decode_layout(stored.value), name.descriptor)


async def _provide_cursors(ports: AdminPorts, state: TopicState, wanted: Sequence[str]) -> None:
    """See that these subscriptions have cursors. What cannot be refuses them all before the first is created."""
    missing = []
    for subscription in dict.fromkeys(wanted):
        if subscription in state.damaged:
            raise RecordDamaged(
                f"The entry of subscription {subscription} of {state.topic.name} cannot be read: delete it."
            )
        if subscription in state.subscriptions:
            # It begins where its own consumers say, which a list of names does not change.
            seeking.with_cursors(state, subscription)
        else:
            missing.append(subscription)
    ports.registrations.check_room(state, len(missing))
    now_ms = wall_clock_ms()
    for subscription in missing:
        await ports.registrations.provide_subscription(state.topic.name, subscription, now_ms)


async def _check_cursor(ports: AdminPorts, name: SegmentName, subscription: str) -> tuple[Segment, Subscription]:
    state = await topic_state(ports, name.parent)
    return _segment(state.topic, name), seeking.with_cursors(state, subscription)
