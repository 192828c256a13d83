"""The subscriptions of a topic over HTTP: list, create, delete, and move their cursors."""

from __future__ import annotations

from typing import Final

from litestar import Controller, delete, get, post, put
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import FromPath

from controller import seeking
from controller.leader import TopicLeader
from controller.transitions import wall_clock_ms
from gateway.http.documentation import SWITCH, TIMESTAMP, described, leader_refusals, query, refusals
from gateway.http.parameters import AnyRequest, moment, subscription_name, subscription_type, switch
from gateway.http.ports import Ports
from gateway.http.schemas import SubscriptionInfo
from gateway.http.topics import TOPIC, topic_state
from protocol.names import TopicName

SUBSCRIPTIONS: Final = f"{TOPIC}/subscriptions"
SUBSCRIPTION: Final = f"{SUBSCRIPTIONS}/{{subscription:str}}"
TYPE: Final = Schema(type=OpenAPIType.STRING, enum=["STREAM", "QUEUE"], default="STREAM")


class SubscriptionRoutes(Controller):
    path = "/admin/v2/scalable"
    tags = ("subscriptions",)

    @get(SUBSCRIPTIONS, summary="List the subscriptions of a topic", responses=refusals(404, 412))
    async def list_subscriptions(
        self, ports: Ports, tenant: FromPath[str], namespace: FromPath[str], topic: FromPath[str]
    ) -> dict[str, SubscriptionInfo]:
        """By name. A CHECKPOINT group is there while it has readers."""
        state = await topic_state(ports, TopicName.scalable(tenant, namespace, topic))
        return {
            name: SubscriptionInfo(found.type.value, found.settings.created_at_ms, len(found.consumers))
            for name, found in sorted(state.subscriptions.items())
        }

    @put(
        SUBSCRIPTION,
        status_code=204,
        summary="Create a subscription",
        responses=refusals(404, 409, 412, 507),
        operation_class=described(parameters=[query("type", TYPE, "Ordered by segments, or not.")]),
    )
    async def create_subscription(
        self,
        ports: Ports,
        request: AnyRequest,
        tenant: FromPath[str],
        namespace: FromPath[str],
        topic: FromPath[str],
        subscription: FromPath[str],
    ) -> None:
        """Nothing happens where it exists with this type."""
        topic_name = TopicName.scalable(tenant, namespace, topic)
        name = subscription_name(subscription)
        kind = subscription_type(request, "type")
        await ports.registrations.create_subscription(topic_name, name, kind, wall_clock_ms())

    @delete(
        SUBSCRIPTION,
        status_code=204,
        summary="Delete a subscription",
        responses=refusals(404, 409, 412),
        operation_class=described(
            parameters=[query("force", SWITCH, "Although it has consumers, who lose their segments.")]
        ),
    )
    async def delete_subscription(
        self,
        ports: Ports,
        request: AnyRequest,
        tenant: FromPath[str],
        namespace: FromPath[str],
        topic: FromPath[str],
        subscription: FromPath[str],
    ) -> None:
        """A CHECKPOINT group is refused while it has readers, since they would come back; it ends with the last."""
        topic_name = TopicName.scalable(tenant, namespace, topic)
        name = subscription_name(subscription)
        await ports.registrations.delete_subscription(topic_name, name, force=switch(request, "force"))

    @post(
        f"{SUBSCRIPTION}/seek",
        status_code=204,
        summary="Move a subscription to a moment",
        responses=leader_refusals(404, 409, 412),
        operation_class=described(parameters=[TIMESTAMP]),
    )
    async def seek(
        self,
        ports: Ports,
        request: AnyRequest,
        tenant: FromPath[str],
        namespace: FromPath[str],
        topic: FromPath[str],
        subscription: FromPath[str],
    ) -> None:
        """Segments that were sealed by then are skipped, later ones consumed from their beginning."""
        topic_name = TopicName.scalable(tenant, namespace, topic)
        name = subscription_name(subscription)
        timestamp_ms = moment(request, "timestamp")

        async def seek(leader: TopicLeader) -> None:
            await seeking.seek(ports.cursors, leader, name, timestamp_ms)

        await ports.leaders.as_leader(topic_name, seek)

    @post(
        f"{SUBSCRIPTION}/skip-all",
        status_code=204,
        summary="Skip all messages of a subscription",
        responses=leader_refusals(404, 409, 412),
    )
    async def skip_all(
        self,
        ports: Ports,
        tenant: FromPath[str],
        namespace: FromPath[str],
        topic: FromPath[str],
        subscription: FromPath[str],
    ) -> None:
        topic_name = TopicName.scalable(tenant, namespace, topic)
        name = subscription_name(subscription)

        async def skip_all(leader: TopicLeader) -> None:
            await seeking.skip_all(ports.cursors, leader, name)

        await ports.leaders.as_leader(topic_name, skip_all)
