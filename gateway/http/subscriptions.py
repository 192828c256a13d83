"""The subscriptions of a topic over HTTP: list, create, delete, and move their cursors."""

from __future__ import annotations

from typing import Final

from litestar import Controller, delete, get, post, put
from litestar.openapi.spec import OpenAPIType, Schema

from controller import seeking
from controller.leader import TopicLeader
from controller.transitions import wall_clock_ms
from gateway.http.documentation import SWITCH, TIMESTAMP, described, leader_refusals, query, refusals
from gateway.http.parameters import AnyRequest, moment, subscription_type, switch
from gateway.http.path_names import OF_SUBSCRIPTION, OF_TOPIC, TOPIC, SubscriptionInPath, TopicInPath
from gateway.http.ports import Ports
from gateway.http.schemas import SubscriptionInfo
from gateway.http.topics import connected, holders, topic_state

SUBSCRIPTIONS: Final = f"{TOPIC}/subscriptions"
SUBSCRIPTION: Final = f"{SUBSCRIPTIONS}/{{subscription:str}}"
TYPE: Final = Schema(type=OpenAPIType.STRING, enum=["STREAM", "QUEUE"])


class SubscriptionRoutes(Controller):
    path = "/admin/v2/scalable"
    tags = ("subscriptions",)
    dependencies = OF_TOPIC | OF_SUBSCRIPTION

    @get(SUBSCRIPTIONS, summary="List the subscriptions of a topic", responses=refusals(404, 412))
    async def list_subscriptions(self, ports: Ports, name: TopicInPath) -> dict[str, SubscriptionInfo]:
        """By name. A CHECKPOINT group is there while it has readers."""
        state = await topic_state(ports, name)
        return {
            name: SubscriptionInfo(
                None if found.is_open else found.type.value, found.settings.created_at_ms, len(found.consumers)
            )
            for name, found in sorted(state.subscriptions.items())
        }

    @put(
        SUBSCRIPTION,
        status_code=204,
        summary="Create a subscription",
        responses=refusals(404, 409, 412, 507),
        operation_class=described(
            parameters=[query("type", TYPE, "Ordered by segments, or not; without it the first consumer decides.")]
        ),
    )
    async def create_subscription(
        self, ports: Ports, request: AnyRequest, name: TopicInPath, subscription_name: SubscriptionInPath
    ) -> None:
        """It has all messages that are still there. Nothing happens where it exists with this type, or with any if
        none is given."""
        kind, now_ms = subscription_type(request, "type"), wall_clock_ms()
        if kind is None:
            await ports.registrations.provide_subscription(name, subscription_name, now_ms)
        else:
            await ports.registrations.create_subscription(name, subscription_name, kind, now_ms, from_start=True)

    @delete(
        SUBSCRIPTION,
        status_code=204,
        summary="Delete a subscription",
        responses=refusals(404, 409, 412),
        operation_class=described(parameters=[query("force", SWITCH, "Accepted, and makes no difference.")]),
    )
    async def delete_subscription(
        self, ports: Ports, request: AnyRequest, name: TopicInPath, subscription_name: SubscriptionInPath
    ) -> None:
        """With its position and its consumers, who are told. It is gone for all when this is answered.

        A CHECKPOINT group is refused while readers are connected, who would only come back; it ends with the last.
        """
        switch(request, "force")
        state = await topic_state(ports, name)
        gone = holders(state) - await connected(ports, state)
        await ports.registrations.delete_subscription(name, subscription_name, gone=gone)

    @post(
        f"{SUBSCRIPTION}/seek",
        status_code=204,
        summary="Move a subscription to a moment",
        responses=leader_refusals(404, 409, 412),
        operation_class=described(parameters=[TIMESTAMP]),
    )
    async def seek(
        self, ports: Ports, request: AnyRequest, name: TopicInPath, subscription_name: SubscriptionInPath
    ) -> None:
        """Segments that were sealed by then are skipped, later ones consumed from their beginning."""
        timestamp_ms = moment(request, "timestamp")

        async def seek(leader: TopicLeader) -> None:
            await seeking.seek(ports.cursors, leader, subscription_name, timestamp_ms)

        await ports.leaders.as_leader(name, seek)

    @post(
        f"{SUBSCRIPTION}/skip-all",
        status_code=204,
        summary="Skip all messages of a subscription",
        responses=leader_refusals(404, 409, 412),
    )
    async def skip_all(self, ports: Ports, name: TopicInPath, subscription_name: SubscriptionInPath) -> None:

        async def skip_all(leader: TopicLeader) -> None:
            await seeking.skip_all(ports.cursors, leader, subscription_name)

        await ports.leaders.as_leader(name, skip_all)
